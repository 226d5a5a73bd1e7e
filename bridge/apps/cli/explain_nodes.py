"""The answers of the colocated nodes to a pod that waits, from Kubernetes and Slurm."""

from __future__ import annotations

import time

from bridge import names
from bridge.apps.cli.session import CommandSession
from bridge.apps.view import node_room
from bridge.errors import KubeError
from bridge.slurm import job_words, states
from bridge.slurm.models import Job
from bridge.workload import eligibility, links, pods, pool_selection, resources
from scheduler.nodes import occupancy
from scheduler.volumes import pod_volumes
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import NodeFilter


def storage(session: CommandSession, pod: pods.Pod) -> Storage | None:
    """Return the storage objects of a pod with claims; ``None`` for any other, or if the user may not list them."""
    if not pod_volumes.claims(pod):
        return None
    try:
        return Storage(session.storage(pod["metadata"]["namespace"]))
    except KubeError:
        return None


def rooms(session: CommandSession, pod: pods.Pod, stored: Storage | None, job: Job | None) -> list[node_room.Room]:
    """Return the answer of each node, as far as it is known; ``stored`` are the objects of :func:`storage`.

    A job that has its nodes leaves no question: it holds on them what the pod would need.
    """
    if job is not None and states.is_allocated(job.states):
        return []
    requests, slurm = resources.kubelet_requests(pod["spec"]), _slurm_side(session, pod, job)
    nodes = session.attempt("nodes", session.nodes)
    if nodes is None:
        return node_room.rooms_in_slurm(requests, slurm, time.time()) if slurm is not None else []
    allows = NodeFilter(pod_volumes.needs(pod, stored), stored).refusal if stored is not None else lambda _: ""
    own, extended = [node for node in nodes if not pool_selection.is_virtual(node)], session.device_names()
    views = [eligibility.with_devices(view, extended) for view in eligibility.views(own, _taken(session))]
    return node_room.rooms(pod["spec"], requests, views, slurm, time.time(), allows)


def _slurm_side(session: CommandSession, pod: pods.Pod, job: Job | None) -> node_room.SlurmSide | None:
    """Return what is known of Slurm for the nodes' answers; ``None`` if nothing is, although there is a Slurm."""
    slurm_nodes = session.known_nodes
    if not slurm_nodes and not session.knows_slurm:
        return None
    # the job of a group has several nodes, and what it has on each is not known before its start
    is_alone = job.link is None or job.link.size == 1 if job is not None else links.membership(pod) is None
    message = str(pods.condition(pod, names.POD_SCHEDULED).get("message", ""))
    named = job.partition if job is not None else pods.partitions(pod, session.config.partition)
    asks = job.request if job is not None else job_words.read_asked(message)
    return node_room.SlurmSide(
        slurm_nodes, session.node_holders, asks if is_alone else None, frozenset(named.split(",")) - {""}
    )


def _taken(session: CommandSession) -> dict[str, resources.Resources]:
    """Return by node the requests of other schedulers' pods; empty if the user may not list these pods."""

    def count() -> dict[str, resources.Resources]:
        there = occupancy.Occupancy(session.config.scheduler_name, max_grace=session.config.max_grace_period)
        for pod in session.other_pods():
            there.changed("add", None, pod)
        return there.lasting(0)

    try:
        return session.shared("requests of other pods", count)
    except KubeError:
        return {}
