"""Which pools a pod asks for: whether it may, and whether its namespace lets its Secrets go there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from admission import pods
from bridge import names
from bridge.script import consent
from bridge.workload import pool_selection


def forbidden(pod: pods.Pod, namespace_pools: str | None) -> list[str]:
    """List what the pod asks for beyond what its namespace opens to it; a namespace that says nothing opens all."""
    if namespace_pools is None:
        return []
    try:
        opened = pool_selection.parse(namespace_pools)
    except ValueError:
        return []  # told as invalid
    if names.ANY_POOL in opened:
        return []
    allowed = ", ".join(opened)
    problems = []
    text = pods.annotations_of(pod).get(names.POOLS)
    if text is not None:
        try:
            beyond = [name for name in pool_selection.parse(text) if name not in (*opened, names.LOCAL_POOL)]
        except ValueError:
            beyond = []
        if beyond:
            problems.append(
                f"annotation {names.POOLS}: {', '.join(beyond)!r} is not allowed in this namespace; allowed: {allowed}"
            )
    for index, toleration in enumerate(pod["spec"].get("tolerations") or ()):
        problems += [
            f"spec.tolerations[{index}]: pool {value!r} is not allowed in this namespace; allowed: {allowed}"
            for value in pool_selection.tolerated_by_name([toleration])
            if value not in opened
        ]
    return problems


def invalid(pod: pods.Pod, namespace_pools: str | None) -> list[str]:
    """List annotations that can't be read."""
    problems = []
    own = pods.annotations_of(pod).get(names.POOLS)
    for where, text in (("annotation", own), ("the namespace's annotation", namespace_pools)):
        if text is None or (text == own and where != "annotation"):
            continue
        try:
            pool_selection.parse(text)
        except ValueError as error:
            problems.append(f"{where} {names.POOLS}: {error}")
    return problems


def secrets_refused(
    pod: pods.Pod, asked: Sequence[str], namespace: str, namespace_annotations: Mapping[str, str]
) -> list[str]:
    """Warn of a pod whose Secrets or tokens may go to none of the pools ``asked`` for.

    A warning, not a refusal: as for a Secret that does not exist yet, the pod waits, and goes on by itself.
    """
    if not consent.refused_by_all(namespace_annotations, asked):
        return []
    what = consent.confidential_everywhere(pod)
    return [consent.warning(namespace, asked, what)] if what else []
