"""Reasons of Events, conditions and refusals for docs/reference/keys.md, with where each appears and its meaning."""

UNSCHEDULED = "Pod, `PodScheduled=False`"
REASONS = (
    (
        UNSCHEDULED,
        "SlurmJobsLost",
        "Slurm lost three jobs of the pod, or their comments, within ten minutes; podbridge submits the next job after "
        "a back-off",
    ),
    (
        UNSCHEDULED,
        "SlurmPending",
        "the job is pending in Slurm; the message contains Slurm's reason and the estimated start time",
    ),
    (
        UNSCHEDULED,
        "SlurmNodeStarting",
        "Slurm starts the allocated node, or its kubelet is not Ready yet; podbridge binds the pod when the kubelet is "
        "Ready, and cancels the job after 15 minutes",
    ),
    (
        UNSCHEDULED,
        "SlurmRefused",
        "Slurm rejected the job; the message contains Slurm's error; podbridge retries with back-off",
    ),
    (
        UNSCHEDULED,
        "SlurmFederation",
        "the Slurm cluster is in a federation, which may run the job elsewhere; podbridge has cancelled it",
    ),
    (UNSCHEDULED, "SlurmUnavailable", "Slurm does not respond; podbridge retries"),
    (
        UNSCHEDULED,
        "SlurmUnknownOutcome",
        "Slurm did not respond to a submission; podbridge checks whether the job exists before it retries",
    ),
    (
        UNSCHEDULED,
        "SlurmJobsMissing",
        "many jobs disappeared from Slurm at once; podbridge submits no jobs until the brake is released",
    ),
    (UNSCHEDULED, "SlurmAuth", "Slurm rejected podbridge's token"),
    (
        UNSCHEDULED,
        "Unschedulable",
        "no node fits, or the pod cannot be converted to a job; the message contains the cause",
    ),
    (
        UNSCHEDULED,
        "Racing",
        "the pod waits in the queues of several pools; the message names them, see "
        "[late binding](../users/late-binding.md)",
    ),
    (
        UNSCHEDULED,
        "UnsupportedResourceClaim",
        "Slurm cannot satisfy a resource claim or device class of the pod; the message contains the cause, see dra.md",
    ),
    (
        UNSCHEDULED,
        "NamespaceLimitExceeded",
        "the resource claims of the pod have more devices than the policy of its namespace allows, or its group has "
        "more pods; podbridge retries, see [policies](admission.md#policies)",
    ),
    (UNSCHEDULED, "ResourceClaimMissing", "a resource claim of the pod does not exist yet; podbridge retries"),
    (
        UNSCHEDULED,
        "DevicesNotReady",
        "other resource claims still have the devices that Slurm allocated, or a driver is publishing its devices; the "
        "bind waits, and podbridge cancels the job after `busyNodeTimeout`",
    ),
    (UNSCHEDULED, "InvalidAnnotation", "an annotation that admission did not check is invalid"),
    (
        UNSCHEDULED,
        "NodeRefused",
        "the allocated node does not fit the pod in Kubernetes; podbridge cancels the job and submits another one",
    ),
    (
        UNSCHEDULED,
        "AllocationTooSmall",
        "Slurm has allocated less than the pod takes: the job was changed while it was pending; podbridge cancels it",
    ),
    (
        UNSCHEDULED,
        "GangIncomplete",
        "the [group](../users/groups.md) has fewer pods than its minimum; the message has both numbers",
    ),
    (
        UNSCHEDULED,
        "GangEnding",
        "pods of the group's last job have not ended yet; podbridge submits a new job when they have",
    ),
    (
        UNSCHEDULED,
        "GangDiffers",
        "the pod requests other resources or job annotations than any of the members for which the group's job was "
        "or will be submitted",
    ),
    (
        UNSCHEDULED,
        "GangFull",
        "each place of the group's job is taken by another pod of the group",
    ),
    (
        UNSCHEDULED,
        "NodeBusy",
        "the allocated node lacks resources until other pods have ended; the message lists them. podbridge binds the "
        "pod when the resources are free, and cancels the job after `busyNodeTimeout`",
    ),
    (
        UNSCHEDULED,
        "VolumeNotReady",
        "a PersistentVolumeClaim of the pod does not exist, is being deleted, is not bound or has lost its volume; "
        "podbridge continues when this changes, see volumes.md",
    ),
    (UNSCHEDULED, "VolumeInUse", "another pod uses a claim whose access mode is ReadWriteOncePod"),
    (
        UNSCHEDULED,
        "VolumeBinding",
        "Slurm has allocated a node, and the claims of the pod are being bound there; podbridge binds the pod "
        "afterwards, and cancels the job after `busyNodeTimeout`",
    ),
    ("Pod, Event", "Scheduled", "the pod was bound to the allocated node"),
    ("Pod, Event", "OwnJob", "the job of the pod's group has no place for this pod, which gets a job of its own"),
    (
        "Pod, Event",
        "NodeReleased",
        "the job of the pod's group has released a drained node on which no pod of the group was left; this pod "
        "continues",
    ),
    (
        "Pod, Event",
        "GroupReplaced",
        "the PodGroup of the waiting pod was deleted and created again; the pod belongs to the new one from now on",
    ),
    ("Pod, Event", "SlurmWarning", "Slurm accepted the job with a warning"),
    (
        "Pod, `bridge.vk.io/JobMissing` and Event",
        "JobsMissing",
        "the pod's job and many others disappeared at once; the brake keeps podbridge from terminating the pod",
    ),
    ("Pod, `bridge.vk.io/JobMissing=False`", "JobFound", "the pod's job exists again"),
    (
        "Pod, `bridge.vk.io/JobSuspended=True` and Event",
        "JobSuspended",
        "Slurm suspended the pod's job; the containers continue",
    ),
    ("Pod, `bridge.vk.io/JobSuspended=False` and Event", "JobResumed", "the pod's job is no longer suspended"),
    (
        "Pod, `PodScheduled=False` or `bridge.vk.io/InternalError=True`",
        "InternalError",
        "podbridge has a defect that concerns this pod alone; the log of the part that reports it has the place in the "
        "code. Other pods are not affected",
    ),
    ("Pod, `bridge.vk.io/InternalError=False`", "Handled", "podbridge handles the pod again"),
    (
        "Pod, Event",
        "SchedulerNameChanged",
        "`schedulerName` of the configuration was changed; podbridge still releases the pod's job with the pod",
    ),
    ("Node, Event", "SlurmNodeDrained", "podbridge cordoned the node, because it is drained or down in Slurm"),
    ("Node, Event", "SlurmNameConflict", "several nodes have the same Slurm node name; podbridge uses none of them"),
    ("Node, Event", "SlurmNameSettled", "the Slurm node name of the node is unique again"),
    ("Node, Event", "NodeTakenByOther", "another scheduler has taken the node; see several-schedulers.md"),
    ("Node, Event", "SlurmNodeResumed", "podbridge uncordoned the node, because Slurm allocates it again"),
    ("Node, Event", "SlurmNodeDraining", "podbridge drained the node in Slurm; the message contains the cause"),
    ("Node, Event", "SlurmNodeUndrained", "podbridge resumed the node in Slurm, because the cause is over"),
    ("Node, Event", "ExternalNodeRegistered", "podbridge created the node in Slurm as an external node"),
    ("Node, Event", "ExternalNodeDeleted", "podbridge deleted the external node in Slurm; it had no job"),
    ("Node, Event", "ExternalNodeRefused", "the node is not registered as described; the message contains the cause"),
    ("Pod, Event", "BridgeSubmitted", "the site accepted the pod; the message contains the job id"),
    ("Pod, Event", "BridgePlace", "a site has a job of a pod that races"),
    (
        "Pod, Event",
        "BridgePlaceRefused",
        "a site does not take a pod that races; podbridge offers it again after five minutes",
    ),
    ("Pod, Event", "BridgeGranted", "the pool was the first to start a job of a pod that races, and runs it"),
    ("Pod, Event", "BridgeQueued", "the job is pending at the site; the message contains the cause"),
    (
        "Pod, Event",
        "BridgeStarted",
        "the first container of the pod runs at the site; from a NuNet DMS with the time at which it ends the job",
    ),
    (
        "Pod, Event",
        "BridgeWaiting",
        "a ConfigMap or Secret does not exist, or the site does not respond; podbridge retries",
    ),
    ("Pod, Event", "BridgeRejected", "the site cannot run the pod; the pod has failed, its status contains the cause"),
    ("Pod, Event", "BridgeCancelled", "podbridge cancels the job at the site"),
    ("Pod, Event", "BridgeFilesKept", "files of a volume cannot follow their object, and keep their content"),
    ("Pod, Event", "BridgeFailed", "the pod failed at the site; the message contains the cause"),
    ("Pod, Event", "BridgeJobLost", "the job no longer exists at the site; the pod has failed"),
    ("Pod, status", "NotPossibleAtSite", "the site cannot run the pod; the message contains the field and its value"),
    ("Pod, status", "WaitingForReference", "a ConfigMap, a Secret or a key does not exist; podbridge retries"),
    (
        "Pod, status",
        "JobLost",
        "the site reported twice that the job does not exist, or its batch system lost the job",
    ),
    (
        "Pod, status",
        "MessageTooLarge",
        "the script, ConfigMaps and Secrets of the pod together exceed the maximum payload of the NATS server",
    ),
    ("Virtual node, `Ready`", "SiteReady", "the site sends messages and accepts pods"),
    ("Virtual node, `Ready=False`", "SiteProblem", "the site accepts no pods; the message contains the cause"),
    (
        "Virtual node, `Ready=False`",
        "SiteSilent",
        "the site has sent no message for `pools.silentAfter`; the message contains the last announcement",
    ),
    ("Virtual node, `Ready=False`", "SiteLeft", "the last submitter of the site has announced that it stops"),
    (
        "Virtual node, `BuildConfigAccepted=False`",
        "BuildConfigUnusable",
        "the hub cannot use the BuildConfig that the site announced",
    ),
    (
        "Pool, refusal",
        "LoginRequired",
        "a proxy in front of an interLink pool redirects to a login; the message contains the settings to change",
    ),
    ("Pool, refusal", "CredentialsRefused", "an interLink pool rejected the token or the client certificate"),
    ("Pool, refusal", "NoSuchRoute", "the URL of an interLink pool is neither a plugin's nor an API server's"),
    ("Pod, status", "PluginRefused", "the interLink plugin rejected the pod; the message contains its error"),
    ("Site, refusal", "NotOwner", "the job belongs to another cluster"),
    ("Site, refusal", "WrongFolder", "the submitter uses another directory than the pool; it did not act"),
    (
        "Site, refusal",
        "SubmittedElsewhere",
        "the batch system has a job of the pod that is not in the submitter's directory",
    ),
    ("MasterQueue, Event", "QueueInStep", "the ClusterQueues and ResourceFlavors of the MasterQueue are in step"),
    ("MasterQueue, Event", "QueueInvalid", "the MasterQueue cannot be used; the message has the field and its value"),
    ("MasterQueue, Event", "QueueConflict", "an object with the name of a ClusterQueue has another owner"),
    ("MasterQueue, Event", "QueueWriteFailed", "an object of Kueue could not be written; podbridge retries"),
    ("MasterQueue, Event", "QueueBeingDeleted", "somebody has deleted a queue of the MasterQueue that is in use"),
    (
        "MasterQueue, Event",
        "QueueEvicted",
        "workloads of a pool that was silent for `evictAfter` were evicted; see "
        "[Kueue](../admins/kueue.md#when-a-site-fails)",
    ),
    (
        "Node, Event",
        "PoolNameTaken",
        "a node that podbridge does not manage has the name of the pool; the pool gets no virtual node",
    ),
)
