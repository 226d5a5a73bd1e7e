"""The names of podbridge's annotations, labels, taints, conditions, permissions and objects.

Names under ``slinky.slurm.net`` are slurm-bridge's, so that the manifests of its users work unchanged. podbridge's own
names are under ``bridge.vk.io``.
"""

# --- annotations a user may set on a pod or on its controlling owner (the pod's own value wins) -----------------------
JOB_ANNOTATION_PREFIX = "slurmjob.slinky.slurm.net/"
ACCOUNT = JOB_ANNOTATION_PREFIX + "account"
CONSTRAINTS = JOB_ANNOTATION_PREFIX + "constraints"
CPU_PER_TASK = JOB_ANNOTATION_PREFIX + "cpu-per-task"
EXCLUSIVE = JOB_ANNOTATION_PREFIX + "exclusive"
GRES = JOB_ANNOTATION_PREFIX + "gres"
GROUP_ID = JOB_ANNOTATION_PREFIX + "group-id"
JOB_NAME = JOB_ANNOTATION_PREFIX + "job-name"
LICENSES = JOB_ANNOTATION_PREFIX + "licenses"
MAX_NODES = JOB_ANNOTATION_PREFIX + "max-nodes"
MEM_PER_NODE = JOB_ANNOTATION_PREFIX + "mem-per-node"
MIN_NODES = JOB_ANNOTATION_PREFIX + "min-nodes"
PARTITION = JOB_ANNOTATION_PREFIX + "partition"
PRIORITY = JOB_ANNOTATION_PREFIX + "priority"
QOS = JOB_ANNOTATION_PREFIX + "qos"
RESERVATION = JOB_ANNOTATION_PREFIX + "reservation"
TIME_LIMIT = JOB_ANNOTATION_PREFIX + "timelimit"
USER_ID = JOB_ANNOTATION_PREFIX + "user-id"
WCKEY = JOB_ANNOTATION_PREFIX + "wckey"

GANG = "bridge.vk.io/gang"
"""Annotation on a pod, its owner or its namespace: ``true``, ``all`` or ``false``, whether its pods share one job."""
ARRAY = "bridge.vk.io/array"
"""Annotation on a pod, its owner or its namespace: ``true`` or ``false``, whether its owner's equal pods are one array
at a site (:mod:`bridge.script.build`)."""
JOB_DEADLINE = "bridge.vk.io/job-deadline"
"""Annotation on a pod: ``spec.activeDeadlineSeconds`` of its Job, which admission copies."""
MEMBERS_PER_NODE = "bridge.vk.io/members-per-node"
"""Annotation on a pod or its owner: how many pods of the group may share one node."""

# --- labels and annotations that only podbridge sets ------------------------------------------------------------------
JOB_ID_LABEL = "scheduler.slinky.slurm.net/slurm-jobid"
"""Label: the id of the pod's Slurm job (decimal)."""
NODE_ANNOTATION = "slinky.slurm.net/slurm-node"
"""Annotation: the Kubernetes node that Slurm allocated, written in the same call as the binding."""
SLURM_NODE_ANNOTATION = "bridge.vk.io/slurm-node"
"""Annotation: Slurm's name of that node, written in the same call. It outlives the node's label and Node object."""
JOB_ID_ANNOTATION = "bridge.vk.io/slurm-job"
"""Annotation: the id of the bound pod's Slurm job, written in the same call. Older API servers copy no labels."""
JOB_START_ANNOTATION = "bridge.vk.io/slurm-job-start"
"""Annotation: when Slurm allocated that job (RFC 3339, UTC, whole seconds), written in the same call."""
GROUP = "bridge.vk.io/group"
"""Annotation: the group of pods that share one job, as JSON (:mod:`bridge.workload.groups`)."""
JOB_LIMITS = "bridge.vk.io/limits"
"""Annotation: limits of the namespace's policy for the pod's job, as JSON (:mod:`bridge.workload.job_limits`)."""
FINALIZER = "scheduler.slinky.slurm.net/finalizer"
"""Finalizer from the creation of the pod until its job is released."""
NOT_REACHED = "BridgeNotReached"
"""Reason of the Events about Services that a pod does not reach."""
NOT_EXPOSED = "BridgeNotExposed"
"""Reason of the Events about exposed ports that Services do not reach."""
ENDING = "Ending"
"""Action of the Events about pods that podbridge ends."""
SLURM_REASON = "bridge.vk.io/slurm-reason"
"""Annotation on nodes that podbridge has cordoned: Slurm's state and reason."""
SLURM_ASLEEP = "bridge.vk.io/slurm-asleep"
"""Annotation on nodes that Slurm's power saving has stopped (value ``true``): queues count them as if Ready."""
SLURM_NAME_CONFLICT = "bridge.vk.io/slurm-name-conflict"
"""Annotation on nodes with the same Slurm node name: the other nodes. podbridge uses none of them."""
TRACEPARENT = "bridge.vk.io/traceparent"
"""Annotation: the W3C trace context of the pod. Admission sets it, unless the user has
(:mod:`bridge.telemetry.tracing`)."""
REMOTE_JOB = "bridge.vk.io/job"
"""Annotation: ``<pool>/<remote job id>``, after the site has accepted the pod."""
JOB_INTENT = "bridge.vk.io/job-intent"
"""Annotation: the pool to which podbridge may have submitted the pod, if that pool cannot list its jobs."""
POOL_FINALIZER = "bridge.vk.io/job"
"""Finalizer, set with this annotation, until the pool has confirmed that it has no job of the pod."""

INSTALLATION = "bridge.vk.io/installation"
"""Annotation of a mutating webhook configuration: a record of its installation (:mod:`bridge.config.installations`)."""

# --- pools ------------------------------------------------------------------------------------------------------------
POOLS = "bridge.vk.io/pools"
"""Annotation on a pod or a namespace: a comma list of pools, ``*`` for any, ``local`` for the colocated Slurm."""
PLACEMENT = "bridge.vk.io/placement"
"""Annotation on a pod: ``race``, to queue it at several of its pools at once."""
RACE = "race"
MPI = "bridge.vk.io/mpi"
"""Annotation on a pod of a group: how the processes of its members form one MPI job at a site (:data:`MPI_WAYS`)."""
MPI_WAYS = ("none", "pmi2", "pmix")
RENDEZVOUS = "bridge.vk.io/rendezvous"
"""Annotation on a pod of a group: a comma list of what its containers get at a site (:data:`RENDEZVOUS_WAYS`)."""
RENDEZVOUS_WAYS = ("torch", "hostfile")
REACH = "bridge.vk.io/reach"
"""Annotation on a pod: the Services that it reaches from a site (:mod:`bridge.workload.services`)."""
EXPOSE = "bridge.vk.io/expose"
"""Annotation on a pod: the ports by which Services reach it at a site (:mod:`bridge.workload.services`)."""
EXPOSE_PERMITTED = "bridge.vk.io/expose-permitted"
"""Annotation of an exposed pod whose namespace's policy does not allow it: ``true``, its user had the permission."""
PLACES = "bridge.vk.io/places"
"""Annotation of a pod that races: a comma list of the pools, and ``local``, at which it is queued."""
GRANT = "bridge.vk.io/grant"
"""Annotation: ``<pool>/<ticket>`` of the job that may run the pod, written in the same call as the binding."""
PLACE_IN_JOB = "bridge.vk.io/place-in-job"
"""Annotation of a pod of a group: ``<gang>/<rank>/<size>``, its place in the one job of the group at a pool
(:mod:`bridge.workload.remote_gangs`), written in the same call as the binding, or before it (empty: none)."""
REACH_ALLOWED = "bridge.vk.io/reach-allowed"
"""Annotation on a virtual node: ``true`` if its pods may reach Services, else ``false``."""
RACE_ALLOWED = "bridge.vk.io/race"
"""Annotation of a virtual node: ``true`` if its site lets pods race."""
"""Annotation of a virtual node: ``true`` if its site lets groups of pods race."""
SHAPES_IN_JOB = "bridge.vk.io/shapes-in-job"
"""Annotation of a pod of a group whose pods request different resources, beside its place: the shapes of the pods by
rank, ``1x<digest>,4x<digest>``."""
FLAVOR_LIMITS = "bridge.vk.io/flavor-limits"
"""Annotation of a virtual node: the limits of its site's flavors, as JSON (:mod:`bridge.script.flavor_limits`)."""
HETEROGENEOUS_GANGS_ALLOWED = "bridge.vk.io/heterogeneous-gangs"
"""Annotation of a virtual node: ``true`` if the pods of a group there may request different resources."""
GANGS_ALLOWED = "bridge.vk.io/gangs"
"""Annotation of a virtual node: ``true`` if its site runs the pods of a group as one job."""
EXPECTED_WAIT = "bridge.vk.io/expected-wait"
"""Annotation of a virtual node: seconds that a job probably waits at the site."""
DEFAULT_SCHEDULER_REASON = "bridge.vk.io/default-scheduler"
"""Annotation on a pod of a managed namespace that admission has left to the default scheduler: the reason."""
POOL_SECRETS = "bridge.vk.io/pool-secrets"
"""Annotation on a namespace: the pools (a comma list, ``*`` for any) that may get its Secrets and tokens."""
LOCAL_POOL = "local"
"""The entry of this list for the colocated Slurm."""
ANY_POOL = "*"
POOL_TAINT = "pool.vk.io"
"""Taint of a virtual node (value: the pool, effect NoSchedule). A pod that tolerates it may run on the pool."""
VIRTUAL_TAINT = "virtual-node.interlink/no-schedule"
"""Taint of all virtual nodes: value ``true``, effect NoSchedule."""
VIRTUAL_TYPE_LABEL = "virtual-node.interlink/type"
VIRTUAL_TYPE = "virtual-kubelet"
POOL_LABEL = "bridge.vk.io/pool"
"""Label of a virtual node: its pool."""
QUEUE_APPLIED = "bridge.vk.io/applied"
"""Digest of what podbridge has applied for a MasterQueue, to notice fields that are to be removed."""
SITE_ANNOUNCED = "bridge.vk.io/announced"
"""Annotation of a virtual node: the labels and taints that the site has announced."""
SITE_FOLDER = "bridge.vk.io/site-folder"
"""Annotation of a virtual node: id of the directory at the site that contains its jobs."""
SITE_PREFIX = "slurm-job.vk.io/"
"""Prefix of the annotations of the interLink Slurm plugin."""
FLAGS = SITE_PREFIX + "flags"
FLAVOR = SITE_PREFIX + "flavor"
MPI_FLAGS = SITE_PREFIX + "mpi-flags"
PRE_EXEC = SITE_PREFIX + "pre-exec"
SINGULARITY_MOUNTS = SITE_PREFIX + "singularity-mounts"
SINGULARITY_OPTIONS = SITE_PREFIX + "singularity-options"
ENROOT_MOUNTS = SITE_PREFIX + "enroot-mounts"
ENROOT_OPTIONS = SITE_PREFIX + "enroot-options"
IMAGE_ROOT = SITE_PREFIX + "image-root"
FUSE_PREFIX = "fuse.vk.io/"
CVMFS_PREFIX = "cvmfs.vk.io/"
JOB_WORKDIR = SITE_PREFIX + "job-workdir"
NO_CLEAN_WORKDIR = SITE_PREFIX + "no-clean-workdir"
SINGULARITY_COMMANDS = SITE_PREFIX + "singularity-commands"
KNOC_FLAGS = "slurm-job.knoc.io/flags"
"""The name that ``slurm-job.vk.io/flags`` had before; examples of the interLink Slurm plugin still use it."""
INTERLINK_POD_IP = "interlink.eu/pod-ip"
INTERLINK_WSTUNNEL = "interlink.eu/wstunnel-client-commands"
AUTOMATIC_VOLUME_PREFIX = "kube-api-access-"
"""Prefix of the name of the volume that the API server adds to a pod for its service account token."""
SUBJECT_PREFIX = "bridge.v1"
"""Default prefix of all NATS subjects."""
KUBELET_PORT = 10250
METRICS_PATH = "/metrics/resource"
"""Path of the kubelet API for resource metrics; that of one virtual node is below it."""
METRICS_PATH_ANNOTATION = "metrics.k8s.io/resource-metrics-path"
"""Annotation of a node with this path, for metrics-server: all virtual nodes have one address."""

# --- nodes ------------------------------------------------------------------------------------------------------------
MANAGED_TAINT = "slinky.slurm.net/managed-node"
"""Taint of colocated nodes (value: the scheduler's name, effect NoExecute)."""
PARTITION_LABEL_PREFIX = "partition.bridge.vk.io/"
"""Prefix of a label of nodes, with the name of a Slurm partition: the node is in this partition (value ``true``)."""
SLURM_NODENAME_LABEL = "slinky.slurm.net/slurm-nodename"
"""Label on a Kubernetes node: its name in Slurm, if it differs."""
EXTERNAL_NODE_LABEL = "scheduler.slinky.slurm.net/external-node"
"""Label on a Kubernetes node without slurmd, with any value: podbridge registers it as an external node in Slurm."""
EXTERNAL_NODE_PARTITIONS = "scheduler.slinky.slurm.net/external-node-partitions"
"""Annotation on such a node: a comma list of partitions. Each is a feature of the node in Slurm."""
TOPOLOGY_SPEC = "topology.slinky.slurm.net/spec"
"""Annotation on such a node: its place in Slurm's topology, in the format of ``Topology`` in slurm.conf."""
EXTERNAL_NODE_FEATURES = "bridge.vk.io/external-node-features"
"""Annotation on such a node: a comma list of further features in Slurm."""
EXTERNAL_NODE_PROBLEM = "bridge.vk.io/external-node-problem"
"""Annotation that podbridge sets on such a node: why it is not registered as described."""
DRAIN_REASON_PREFIX = "slurm-bridge:"
"""Prefix of the reason of podbridge's drains. podbridge resumes only nodes with this prefix."""

# --- conditions -------------------------------------------------------------------------------------------------------
POD_SCHEDULED = "PodScheduled"
DISRUPTION_TARGET = "DisruptionTarget"
POOL_CONNECTED = "PoolConnected"
"""Condition of a virtual node: podbridge hears its site."""
JOB_MISSING = "bridge.vk.io/JobMissing"
"""Condition of a pod: its job and many others are missing, and the mass-termination guard holds the pod."""
JOB_SUSPENDED = "bridge.vk.io/JobSuspended"
"""Condition of a pod: Slurm has suspended its job. The pod's containers continue."""

INTERNAL_ERROR = "bridge.vk.io/InternalError"
"""Condition of a pod: an unexpected error about it, so that podbridge does nothing for it."""

# --- permissions: the virtual resources of SubjectAccessReviews -------------------------------------------------------
PERMISSION_GROUP = "bridge.vk.io"
PERMISSION_RESOURCE = "slurmjobs"
PERMISSION_VERB = "use"
"""``use`` on ``slurmjobs.bridge.vk.io/<key>`` (a sub-resource: user-id, group-id, priority, reservation)."""

# --- processes --------------------------------------------------------------------------------------------------------
COMPONENT = "podbridge"
DEFAULT_SCHEDULER_NAME = "slurm-bridge-scheduler"
KUBE_DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler that the API server sets on a pod without one."""
DEFAULT_NAMESPACE = "slurm-bridge"
"""slurm-bridge's default managed namespace."""
KUBERNETES_NAMESPACES = frozenset({"kube-node-lease", "kube-public", "kube-system"})
"""The namespaces of Kubernetes itself."""
SYSTEM_NAMESPACE = COMPONENT
"""The namespace of podbridge's Secret and Leases."""
WEBHOOK_PORT = 9443
HEALTH_PORT = 8081
METRICS_PORT = 8080


# Every object of an installation has the name of the installation as prefix. config/*.yaml create the objects of the
# one named podbridge; docs/admins/several-schedulers.md describes how to create those of another.


def part_account(part: str, installation: str) -> str:
    """Return the service account of ``admission``, ``scheduler``, ``controllers`` or ``run`` (all in one process).

    config/rbac.yaml and config/rbac-run.yaml create them.
    """
    return installation if part == "run" else f"{installation}-{part}"


def part_user(part: str, namespace: str, installation: str) -> str:
    """Return the user name of a part's service account."""
    return f"system:serviceaccount:{namespace}:{part_account(part, installation)}"


def pools_role(installation: str) -> str:
    """Return the ClusterRole to read what pods on pools refer to, and the name of its RoleBinding in each namespace."""
    return f"{installation}-pools"


def lease(part: str, installation: str) -> str:
    """Return the Lease of ``scheduler`` or ``controllers``."""
    return f"{installation}-{part}"


def brake_config_map(installation: str) -> str:
    """Return the ConfigMap with the engaged brakes on mass ending, and the administrators' answers."""
    return f"{installation}-brake"


def guarded_nodes(installation: str) -> str:
    """Return the ConfigMap whose keys are the nodes to which only this installation's scheduler may bind pods."""
    return f"{installation}-guarded-nodes"


def slurm_sums(installation: str) -> str:
    """Return the ConfigMap with the sums of Slurm (:mod:`bridge.slurm.cluster_sums`)."""
    return f"{installation}-slurm"


# --- patterns ---------------------------------------------------------------------------------------------------------
DNS_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""Names of namespaces, volumes, containers and pools (RFC 1123)."""
