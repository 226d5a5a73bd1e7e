"""Why pods wait: each reason of ``PodScheduled=False`` and of a pending job in Slurm, its meaning and the next step.

The reference of the reasons in the documentation is generated from :data:`WAITING`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NOT_PROCESSED = "NotProcessedYet"
"""The reason of a waiting pod for which no scheduler has written a condition."""
GATED = "SchedulingGated"
BINDING = "Binding"


@dataclass(frozen=True, slots=True)
class WaitReason:
    """``meaning`` is for the documentation. ``step`` is what the user does next; empty: nothing, podbridge goes on.

    ``step`` may contain ``{pod}``, ``{namespace}`` and ``{job}``.
    """

    meaning: str
    step: str = ""


DESCRIBE = "kubectl describe pod {pod} -n {namespace}"
CHANGE = "change the pod as the message says and create it again"
ADMINISTRATOR = "tell the administrator: podbridge check"

WAITING: dict[str, WaitReason] = {
    "SlurmJobsLost": WaitReason(
        "Slurm lost three jobs of the pod within ten minutes; podbridge retries", ADMINISTRATOR
    ),
    "SlurmPending": WaitReason(
        "the job is pending; the message has what it asks for, Slurm's reason and the start time",
        "squeue -j {job} --start",
    ),
    "SlurmNodeStarting": WaitReason(
        "Slurm starts the node, or its kubelet is not Ready; after 15 minutes the job is cancelled",
        "sinfo -R; kubectl get nodes",
    ),
    "SlurmRefused": WaitReason("Slurm rejected the job, with the error in the message; podbridge retries", CHANGE),
    "SlurmFederation": WaitReason("the cluster is in a federation, so podbridge has cancelled the job", ADMINISTRATOR),
    "SlurmUnavailable": WaitReason("Slurm does not respond; podbridge retries", ADMINISTRATOR),
    "SlurmUnknownOutcome": WaitReason("Slurm did not respond to a submission; podbridge looks for the job"),
    "SlurmJobsMissing": WaitReason(
        "many jobs disappeared at once; none is submitted until the guard is released", "podbridge brake"
    ),
    "SlurmAuth": WaitReason("Slurm rejected podbridge's token", ADMINISTRATOR),
    "Unschedulable": WaitReason(
        "no node fits, or the pod cannot be converted to a job", f"{CHANGE}, or select another pool or partition"
    ),
    "NoRoomNow": WaitReason(
        "each node or pool that fits is closed, not ready or full; podbridge retries",
        "the pod starts when one opens: kubectl get nodes; sinfo -R; podbridge get pools",
    ),
    BINDING: WaitReason("its Slurm job is allocated, and podbridge binds the pod"),
    "Racing": WaitReason("the pod waits at several [places](../users/late-binding.md)"),
    "UnsupportedResourceClaim": WaitReason(
        "Slurm cannot satisfy a claim or class of [devices](../users/devices.md)", CHANGE
    ),
    "NamespaceLimitExceeded": WaitReason(
        "more devices, or pods of a group, than the namespace's [policy](admission.md#policies) allows", CHANGE
    ),
    "ResourceClaimMissing": WaitReason(
        "a resource claim does not exist yet; podbridge retries", "kubectl get resourceclaims -n {namespace}"
    ),
    "DevicesNotReady": WaitReason(
        "another claim has the devices, or a driver publishes its own; the bind waits `busyNodeTimeout`",
        "kubectl get resourceslices",
    ),
    "InvalidAnnotation": WaitReason("an annotation that admission did not check is invalid", CHANGE),
    "NodeRefused": WaitReason(
        "Kubernetes would refuse the pod on the allocated node; podbridge submits another job",
        "podbridge explain pod {pod} -n {namespace} shows which nodes fit; podbridge submits another job",
    ),
    "AllocationTooSmall": WaitReason("the job was made smaller than the pod; podbridge cancels it"),
    "GangIncomplete": WaitReason(
        "the [group](../users/groups.md) has fewer pods than its minimum",
        "create the other pods of the group, or see why their owner does not: kubectl get events -n {namespace}",
    ),
    "GangEnding": WaitReason("pods of the group's last job have not ended"),
    "GangDiffers": WaitReason(
        "the pod requests something else than the group's job is for", "make the requests of the group's pods equal"
    ),
    "GangFull": WaitReason(
        "other pods have all places of the group's job",
        "wait until a pod of the group has ended, or make the group larger (minMember, parallelism)",
    ),
    "NodeBusy": WaitReason(
        "the node lacks resources until the listed pods have ended; the bind waits `busyNodeTimeout`",
        "wait until the pods in the message have ended",
    ),
    "VolumeNotReady": WaitReason(
        "a [volume](../users/volumes.md) claim does not exist, is deleted, unbound or has lost its volume",
        "kubectl describe pvc -n {namespace}",
    ),
    "VolumeInUse": WaitReason("another pod uses a ReadWriteOncePod claim", "kubectl describe pvc -n {namespace}"),
    "VolumeBinding": WaitReason(
        "the claims are being bound on the node; the bind waits `busyNodeTimeout`",
        "kubectl describe pvc -n {namespace}",
    ),
}
"""Reasons of the condition ``PodScheduled=False``."""

OTHER: dict[str, WaitReason] = {
    "InternalError": WaitReason("podbridge has a defect for this pod; see its log", ADMINISTRATOR),
    NOT_PROCESSED: WaitReason("podbridge's scheduler has not processed the pod yet", "podbridge check"),
    GATED: WaitReason(
        "a controller, for example Kueue, has not admitted the pod yet",
        "kubectl get workloads -n {namespace}; a gate is removed by the controller that set it",
    ),
}
"""Reasons that are not, or not only, written to that condition."""

_LIMIT = "a limit of the account or the QOS is reached: sacctmgr show assoc,qos; the job starts when others have ended"
_BUDGET = "the time of the account or the QOS is used up: ask the administrator (sacctmgr show assoc,qos)"
_NEVER = (
    "one job may not request this by a limit of the account or the QOS (sacctmgr show assoc,qos), so it never starts: "
    f"{CHANGE}"
)
_NO_RESERVATION = "the reservation of the job no longer exists: name another, and create the pod again"
_LIMITS = (
    # the names are those of Slurm's src/common/job_state_reason.c
    (re.compile(r"(Assoc|QOS)(Max\w+Per(Job|Node)|Max\w+PerJobLimit|Min\w+)|(Association|QOS)TimeLimit"), _NEVER),
    (re.compile(r"QOSUsageThreshold|(Assoc|QOS)Grp(Wall|(?!\w*Run)\w*Minutes)(Limit)?"), _BUDGET),
    (re.compile(r"Max\w+Per(Account|User)"), _LIMIT),
)
"""Slurm's reasons that are limits of one job, of used time, or of running jobs without the prefixes below."""
SLURM: tuple[tuple[str, str], ...] = (
    ("Priority", ""),
    ("Resources", ""),
    ("JobHeldUser", "scontrol release {job}"),
    ("JobHeldAdmin", "the administrator holds the job: ask for scontrol release {job}"),
    ("JobHold", "scontrol release {job}"),
    ("BeginTime", "scontrol show job {job} shows when it may start"),
    ("DependencyNeverSatisfied", "delete the pod: the job that it depends on has failed"),
    ("Dependency", "scontrol show job {job} shows the job that it waits for"),
    ("PartitionTimeLimit", "shorten the time limit of the pod, or select another partition: scontrol show partition"),
    ("PartitionNodeLimit", "request fewer nodes, or select another partition: scontrol show partition"),
    ("PartitionDown", "wait until the administrator opens the partition, or select another: sinfo"),
    ("PartitionInactive", "wait until the administrator opens the partition, or select another: sinfo"),
    ("PartitionConfig", "select another partition: scontrol show partition"),
    ("BadConstraints", "no node has these features: scontrol show node; correct the constraints of the pod"),
    ("ReqNodeNotAvail", "the nodes are drained, down or reserved: sinfo -R; scontrol show reservation"),
    ("NodeDown", "sinfo -R"),
    ("ReservationDeleted", _NO_RESERVATION),
    ("ReservationInvalid", _NO_RESERVATION),
    ("Reservation", "the reservation has not begun, or has no room: scontrol show reservation"),
    ("Licenses", "scontrol show licenses"),
    ("InvalidAccount", "name an account that you may use: sacctmgr show assoc"),
    ("InvalidQOS", "name a QOS that you may use: sacctmgr show qos"),
    ("AccountNotAllowed", "name an account that the partition allows: scontrol show partition"),
    ("QOSNotAllowed", "name a QOS that the partition allows: scontrol show partition"),
    ("Assoc", _LIMIT),
    ("QOS", _LIMIT),
    ("MaxMemPerLimit", "request less memory, or select another partition: scontrol show partition"),
    ("launch_failed", "sinfo -R; slurmctld's log names the node"),
)
"""Prefixes of Slurm's reasons of pending jobs, and the next step; the first that matches counts."""


def meaning(reason: str) -> str:
    """Return what a reason without a message means; empty if it is not known."""
    known = WAITING.get(reason) or OTHER.get(reason)
    return known.meaning if known is not None else ""


MESSAGES: tuple[tuple[str, str], ...] = (
    (
        "the group needs ",
        "make the group smaller, or let its pods share nodes: annotation bridge.vk.io/members-per-node of its owner",
    ),
)
"""Beginnings of messages whose next step is not that of their reason."""


def next_step(
    reason: str, slurm_reason: str = "", *, pod: str, namespace: str, job: object = "", message: str = ""
) -> str:
    """Return what the user does about a waiting pod; empty if it only waits its turn.

    ``slurm_reason`` is Slurm's reason of its pending job, ``message`` that of the condition.
    """
    known = WAITING.get(reason) or OTHER.get(reason)
    step = known.step if known is not None else DESCRIBE
    if reason in ("SlurmPending", "") and slurm_reason:
        step = _slurm_step(slurm_reason)
    step = next((of_message for beginning, of_message in MESSAGES if message.startswith(beginning)), step)
    return step.format(pod=pod, namespace=namespace, job=job or "ID")


def _slurm_step(reason: str) -> str:
    """Return the next step by Slurm's reason of a pending job; ``reason`` may have a text after it."""
    name = re.split(r"\W", reason, maxsplit=1)[0]
    limit = next((step for pattern, step in _LIMITS if pattern.fullmatch(name)), None)
    if limit is not None:
        return limit
    return next((step for prefix, step in SLURM if reason.startswith(prefix)), "squeue -j {job} --start")
