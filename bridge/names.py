"""Every name that podbridge puts on a wire or on an object, one line each.

Names under ``slinky.slurm.net`` are slurm-bridge's, kept so that its users' manifests work unchanged.
podbridge's own stand under ``bridge.vk.io``.
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

# --- what podbridge alone writes on a pod -----------------------------------------------------------------------------
JOB_ID_LABEL = "scheduler.slinky.slurm.net/slurm-jobid"
"""Label: the Slurm job that holds the pod's room (decimal)."""
NODE_ANNOTATION = "slinky.slurm.net/slurm-node"
"""Annotation: the Kubernetes node that Slurm gave, written in the same call as the binding."""
SLURM_NODE_ANNOTATION = "bridge.vk.io/slurm-node"
"""Annotation: Slurm's own name of that node, written in the same call. It outlives the node's label and Node object."""
FINALIZER = "scheduler.slinky.slurm.net/finalizer"
"""Held from the first write of the job id until the job is released."""
SLURM_REASON = "bridge.vk.io/slurm-reason"
"""Annotation on nodes cordoned by podbridge: the Slurm state and reason it mirrors."""

SLURM_NAME_CONFLICT = "bridge.vk.io/slurm-name-conflict"
"""Annotation on nodes that claim to be the same Slurm node: which others do. None of them is used meanwhile."""
REMOTE_JOB = "bridge.vk.io/job"
"""Annotation: ``<pool>/<remote job id>``, once the site has taken the pod."""

# --- pools ------------------------------------------------------------------------------------------------------------
POOLS = "bridge.vk.io/pools"
"""Annotation on a pod or a namespace: a comma list of pools, ``*`` for any, ``local`` for the colocated Slurm."""
POOL_SECRETS = "bridge.vk.io/pool-secrets"
"""Annotation on a namespace: the pools (a comma list, ``*`` for any) to which its Secrets and tokens may go."""
LOCAL_POOL = "local"
"""The word in that list that means the colocated Slurm."""
ANY_POOL = "*"
POOL_TAINT = "pool.vk.io"
"""Taint of a pool's virtual node (value: the pool, effect NoSchedule); a toleration says that a pod may go there."""
VIRTUAL_TAINT = "virtual-node.interlink/no-schedule"
"""Taint of every virtual node: value ``true``, effect NoSchedule."""
VIRTUAL_TYPE_LABEL = "virtual-node.interlink/type"
VIRTUAL_TYPE = "virtual-kubelet"
POOL_LABEL = "bridge.vk.io/pool"
"""Label of a virtual node: the pool that it stands for."""
SITE_ANNOUNCED = "bridge.vk.io/announced"
"""Annotation of a virtual node: which of its labels and taints are the site's own."""
SITE_FOLDER = "bridge.vk.io/site-folder"
"""Annotation of a virtual node: id of the folder at the site that its jobs are in."""
SITE_PREFIX = "slurm-job.vk.io/"
"""Annotations of the interLink Slurm plugin, as its users know them."""
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
AUTOMATIC_VOLUME_PREFIX = "kube-api-access-"
"""Begin of the name of the volume that the API server adds to a pod for the token of its service account."""
SUBJECT_PREFIX = "bridge.v1"
"""Default prefix of every NATS subject."""
KUBELET_PORT = 10250

# --- nodes ------------------------------------------------------------------------------------------------------------
MANAGED_TAINT = "slinky.slurm.net/managed-node"
"""Taint of colocated nodes; its value is the scheduler's name, its effect NoExecute."""
SLURM_NODENAME_LABEL = "slinky.slurm.net/slurm-nodename"
"""Label on a Kubernetes node whose name in Slurm differs."""
DRAIN_REASON_PREFIX = "slurm-bridge:"
"""A Slurm drain whose reason begins so is podbridge's own, and only such a drain is undone by it."""

# --- conditions -------------------------------------------------------------------------------------------------------
POD_SCHEDULED = "PodScheduled"
DISRUPTION_TARGET = "DisruptionTarget"
JOB_MISSING = "bridge.vk.io/JobMissing"
"""Condition of a pod: its job is missing, as those of many others, and the brake on mass ending holds the pod."""

# --- permissions: the virtual resources of SubjectAccessReviews -------------------------------------------------------
PERMISSION_GROUP = "bridge.vk.io"
PERMISSION_RESOURCE = "slurmjobs"
PERMISSION_VERB = "use"
"""``use`` on ``slurmjobs.bridge.vk.io/<key>`` (a sub-resource: user-id, group-id, priority, reservation)."""

# --- processes --------------------------------------------------------------------------------------------------------
COMPONENT = "podbridge"
DEFAULT_SCHEDULER_NAME = "slurm-bridge-scheduler"
KUBE_DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server writes into a pod that names no scheduler."""
DEFAULT_NAMESPACE = "slurm-bridge"
"""slurm-bridge's default managed namespace."""
SYSTEM_NAMESPACE = "podbridge"
"""Where podbridge keeps its Secret and its Leases."""
BRAKE_CONFIG_MAP = "podbridge-brake"
"""ConfigMap in that namespace: engaged brakes on mass ending, and what administrators said about them."""
POOLS_ROLE = "podbridge-pools"
"""ClusterRole, and RoleBinding in each namespace that is open to pools: what their pods refer to may be read."""
GUARDED_NODES = "podbridge-guarded-nodes"
"""ConfigMap in podbridge's namespace: its keys are the nodes on which only podbridge's scheduler puts pods."""
WEBHOOK_PORT = 9443
HEALTH_PORT = 8081
METRICS_PORT = 8080


def part_account(part: str) -> str:
    """Return the service account of a part: ``admission``, ``scheduler``, ``controllers``, or ``run`` for all in one.

    They are those of helm/rbac.yaml and helm/rbac-run.yaml.
    """
    return COMPONENT if part == "run" else f"{COMPONENT}-{part}"


def part_user(part: str, namespace: str = SYSTEM_NAMESPACE) -> str:
    """Return the user name of a part's service account."""
    return f"system:serviceaccount:{namespace}:{part_account(part)}"
