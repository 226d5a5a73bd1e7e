"""Reasons of Events, conditions and refusals for docs/reference/keys.md, by where they appear, and their meaning."""

REASONS = {
    "Pod, `PodScheduled=False`": (
        (
            "SlurmJobsLost",
            "Slurm lost three jobs of the pod within ten minutes; podbridge retries after a back-off",
        ),
        ("SlurmPending", "the job is pending; the message has Slurm's reason and the estimated start time"),
        (
            "SlurmNodeStarting",
            "Slurm starts the allocated node, or its kubelet is not Ready; podbridge cancels the job after 15 minutes",
        ),
        ("SlurmRefused", "Slurm rejected the job; the message has Slurm's error; podbridge retries with back-off"),
        (
            "SlurmFederation",
            "the Slurm cluster is in a federation, so podbridge has cancelled the job",
        ),
        ("SlurmUnavailable", "Slurm does not respond; podbridge retries"),
        ("SlurmUnknownOutcome", "Slurm did not respond to a submission; podbridge looks for the job before it retries"),
        ("SlurmJobsMissing", "many jobs disappeared at once; podbridge submits none until the guard is released"),
        ("SlurmAuth", "Slurm rejected podbridge's token"),
        ("Unschedulable", "no node fits, or the pod cannot be converted to a job"),
        ("Racing", "the pod waits at several [places](../users/late-binding.md), which the message names"),
        (
            "UnsupportedResourceClaim",
            "Slurm cannot satisfy a resource claim or device class, see [devices](../users/devices.md)",
        ),
        (
            "NamespaceLimitExceeded",
            "the pod has more devices, or its group more pods, than the [policy](admission.md#policies) of its "
            "namespace allows",
        ),
        ("ResourceClaimMissing", "a resource claim does not exist yet; podbridge retries"),
        (
            "DevicesNotReady",
            "another claim has the devices, or a driver publishes its own; the job is cancelled after "
            "`busyNodeTimeout`",
        ),
        ("InvalidAnnotation", "an annotation that admission did not check is invalid"),
        (
            "NodeRefused",
            "the allocated node does not fit in Kubernetes; podbridge cancels the job and submits another one",
        ),
        (
            "AllocationTooSmall",
            "Slurm has allocated less than the pod takes, because the job was changed; podbridge cancels it",
        ),
        (
            "GangIncomplete",
            "the [group](../users/groups.md) has fewer pods than its minimum; the message has both numbers",
        ),
        ("GangEnding", "pods of the group's last job have not ended; then podbridge submits a new one"),
        ("GangDiffers", "the pod requests something else than the members for which the group's job is"),
        ("GangFull", "other pods have all places of the group's job"),
        (
            "NodeBusy",
            "the allocated node lacks resources until the listed pods have ended; the job is cancelled after "
            "`busyNodeTimeout`",
        ),
        (
            "VolumeNotReady",
            "a PersistentVolumeClaim does not exist, is deleted, is not bound or has lost its volume, see "
            "[volumes](../users/volumes.md)",
        ),
        ("VolumeInUse", "another pod uses a claim whose access mode is ReadWriteOncePod"),
        (
            "VolumeBinding",
            "the claims are being bound on the allocated node; the job is cancelled after `busyNodeTimeout`",
        ),
    ),
    "Pod, Event": (
        ("Scheduled", "the pod was bound to the allocated node"),
        ("OwnJob", "the group's job has no place for this pod, which gets a job of its own"),
        ("NodeReleased", "the group's job has released a drained node without pods of the group; this pod continues"),
        ("GroupReplaced", "the PodGroup was created again; the waiting pod belongs to the new one"),
        ("SlurmWarning", "Slurm accepted the job with a warning"),
        ("SchedulerNameChanged", "`schedulerName` was changed; podbridge still releases the pod's job with the pod"),
        ("BridgeSubmitted", "the site accepted the pod; the message has the job id"),
        ("BridgePlace", "a site has a job of a pod that races"),
        ("BridgePlaceRefused", "a site does not take a pod that races; podbridge asks again after five minutes"),
        ("BridgeGranted", "the pool started the first job of a pod that races, and runs it"),
        ("BridgeQueued", "the job is pending at the site"),
        ("BridgeStarted", "the first container runs; from a NuNet DMS with the time at which it ends the job"),
        ("BridgeWaiting", "a ConfigMap or Secret does not exist, or the site does not respond; podbridge retries"),
        ("BridgeRejected", "the site cannot run the pod, which has failed; its status has the cause"),
        ("BridgeCancelled", "podbridge cancels the job at the site"),
        ("BridgeFilesKept", "files of a volume cannot follow their object, and keep their content"),
        ("BridgeFailed", "the pod failed at the site"),
        ("BridgeJobLost", "the job no longer exists at the site; the pod has failed"),
    ),
    "Pod, `bridge.vk.io/JobMissing`, `bridge.vk.io/JobSuspended` or `bridge.vk.io/InternalError`": (
        ("JobsMissing", "the pod's job and many others disappeared at once; the guard keeps the pod"),
        ("JobFound", "the pod's job exists again"),
        ("JobSuspended", "Slurm suspended the pod's job; the containers continue"),
        ("JobResumed", "the pod's job is no longer suspended"),
        (
            "InternalError",
            "(also `PodScheduled=False`) podbridge has a defect for this pod alone; its log has the place in the code",
        ),
        ("Handled", "podbridge handles the pod again"),
    ),
    "Node, Event": (
        ("SlurmNodeDrained", "podbridge cordoned it, as it is drained or down in Slurm"),
        ("SlurmNameConflict", "several nodes have the same Slurm node name; podbridge uses none of them"),
        ("SlurmNameSettled", "the Slurm node name of the node is unique again"),
        ("NodeTakenByOther", "[another scheduler](../admins/several-schedulers.md) has taken the node"),
        ("SlurmNodeResumed", "podbridge uncordoned it, as Slurm allocates it again"),
        ("SlurmNodeDraining", "podbridge drained the node in Slurm"),
        ("SlurmNodeUndrained", "podbridge resumed it in Slurm; the cause is over"),
        ("ExternalNodeRegistered", "podbridge created it in Slurm as an external node"),
        ("ExternalNodeDeleted", "podbridge deleted it in Slurm; it had no job"),
        ("ExternalNodeRefused", "the node is not registered as described"),
        ("PoolNameTaken", "another node has the name of the pool, which gets no virtual node"),
    ),
    "Pod, status": (
        ("NotPossibleAtSite", "the site cannot run the pod; the message has the field and its value"),
        ("WaitingForReference", "a ConfigMap, a Secret or a key does not exist; podbridge retries"),
        ("JobLost", "the site reported twice that the job does not exist, or its batch system lost it"),
        ("MessageTooLarge", "script, ConfigMaps and Secrets together exceed the maximum payload of the NATS server"),
        ("PluginRefused", "the interLink plugin rejected the pod; the message has its error"),
    ),
    "Virtual node, `Ready` or `BuildConfigAccepted`": (
        ("SiteReady", "the site sends messages and accepts pods"),
        ("SiteProblem", "the site accepts no pods"),
        ("SiteSilent", "the site has sent no message for `pools.silentAfter`; the message has the last announcement"),
        ("SiteLeft", "the last submitter of the site has announced that it stops"),
        ("BuildConfigUnusable", "the hub cannot use the BuildConfig that the site announced"),
    ),
    "Pool or site, refusal": (
        ("LoginRequired", "a proxy of an interLink pool redirects to a login; the message has the settings to change"),
        ("CredentialsRefused", "an interLink pool rejected the token or the client certificate"),
        ("NoSuchRoute", "the URL of an interLink pool is neither a plugin's nor an API server's"),
        ("NotOwner", "the job belongs to another cluster"),
        ("WrongFolder", "the submitter uses another directory than the pool; it did not act"),
        ("SubmittedElsewhere", "the batch system has a job of the pod that is not in the submitter's directory"),
    ),
    "MasterQueue, Event": (
        ("QueueInStep", "the ClusterQueues and ResourceFlavors of the MasterQueue are in step"),
        ("QueueInvalid", "the MasterQueue cannot be used; the message has the field and its value"),
        ("QueueConflict", "an object with the name of a ClusterQueue has another owner"),
        ("QueueWriteFailed", "an object of Kueue could not be written; podbridge retries"),
        ("QueueBeingDeleted", "somebody has deleted a queue of the MasterQueue that is in use"),
        ("QueueEvicted", "workloads of a silent pool were evicted, see [Kueue](../admins/kueue.md#when-a-site-fails)"),
    ),
}
