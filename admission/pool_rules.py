"""The annotations for pools: which pools a namespace opens, and which get its Secrets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from admission import raw_pods
from bridge import names
from bridge.script import consent
from bridge.workload import pool_selection, remote_gangs


def forbidden(pod: raw_pods.Pod, namespace_pools: str | None) -> list[str]:
    """List the requested pools that the namespace does not open; without its annotation, all pools are open."""
    if namespace_pools is None:
        return []
    try:
        open_pools = pool_selection.parse(namespace_pools)
    except ValueError:
        return []  # invalid() reports it
    if names.ANY_POOL in open_pools:
        return []
    allowed = ", ".join(open_pools)
    problems = []
    text = raw_pods.annotations_of(pod).get(names.POOLS)
    if text is not None:
        try:
            closed = [name for name in pool_selection.parse(text) if name not in (*open_pools, names.LOCAL_POOL)]
        except ValueError:
            closed = []
        if closed:
            problems.append(
                f"annotation {names.POOLS}: {', '.join(closed)!r} is not allowed in this namespace; allowed: {allowed}"
            )
    for index, toleration in enumerate(pod["spec"].get("tolerations") or ()):
        problems += [
            f"spec.tolerations[{index}]: pool {value!r} is not allowed in this namespace; allowed: {allowed}"
            for value in pool_selection.tolerated_by_name([toleration])
            if value not in open_pools
        ]
    return problems


def invalid(pod: raw_pods.Pod, namespace_pools: str | None) -> list[str]:
    """List the problems of the annotations of the pod and the namespace."""
    problems = []
    pod_pools = raw_pods.annotations_of(pod).get(names.POOLS)
    for source, text in (("annotation", pod_pools), ("the namespace's annotation", namespace_pools)):
        if text is None or (text == pod_pools and source != "annotation"):
            continue
        try:
            pool_selection.parse(text)
        except ValueError as error:
            problems.append(f"{source} {names.POOLS}: {error}")
    placement = raw_pods.annotations_of(pod).get(names.PLACEMENT)
    if placement is not None and placement.strip() != names.RACE:
        problems.append(f"annotation {names.PLACEMENT}: {placement[:100]!r} is not allowed; allowed: {names.RACE!r}")
    mpi = raw_pods.annotations_of(pod).get(names.MPI)
    if mpi is not None and mpi not in names.MPI_WAYS:
        allowed = ", ".join(names.MPI_WAYS)
        problems.append(f"annotation {names.MPI}: {mpi[:100]!r} is not allowed; allowed: {allowed}")
    try:
        remote_gangs.rendezvous(pod)
    except ValueError as error:
        problems.append(str(error))
    array = raw_pods.annotations_of(pod).get(names.ARRAY)
    if array not in ("true", "false", None):
        problems.append(f"annotation {names.ARRAY}: {array[:100]!r} is not allowed; allowed: 'true', 'false'")
    return problems


def inherited(namespace_annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of a namespace that its pods inherit after those of their owners."""
    return {name: text for name, text in namespace_annotations.items() if name == names.ARRAY}


def secrets_refused(
    pod: raw_pods.Pod, pools: Sequence[str], namespace: str, namespace_annotations: Mapping[str, str]
) -> list[str]:
    """Return a warning if the Secrets or tokens of the pod may go to none of ``pools``.

    The pod is not refused. It stays pending, as for a Secret that does not exist yet, until the annotation changes.
    """
    if not consent.refused_by_all(namespace_annotations, pools):
        return []
    confidential = consent.confidential_everywhere(pod)
    return [consent.warning(namespace, pools, confidential)] if confidential else []
