"""Whether a namespace allows its Secrets and tokens to be sent to a pool. Pure.

A pod's script contains the Secrets that the pod mounts, so the site of the pool and its administrators can read them.
The annotation ``bridge.vk.io/pool-secrets`` of a namespace names the pools that may get them; without it, none may.

Admission warns of a pod that no pool may take for this reason, the scheduler leaves such pools out, and the
controllers check again before they submit, since a namespace may change and the site decides about a pod's automatic
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bridge import names
from bridge.script import references
from bridge.workload import pool_selection

_MOST_NAMED = 3


def confidential(needed: references.PodReferences) -> str:
    """Return a text with the Secrets and tokens that a script with these references contains; empty: none."""
    secrets = sorted(needed.secrets)
    parts = [f"Secret {name}" for name in secrets[:_MOST_NAMED]]
    if len(secrets) > _MOST_NAMED:
        parts.append(f"{len(secrets) - _MOST_NAMED} more Secrets")
    return ", ".join(parts + ["service account tokens"] * bool(needed.tokens))


def confidential_everywhere(pod: Mapping[str, Any]) -> str:
    """Return the same for an unknown site, without the automatic token, which most sites do not get."""
    needed = references.needed(pod)
    tokens = tuple(request for request in needed.tokens if not request.automatic)
    return confidential(replace(needed, tokens=tokens))


def lets_secrets_go(annotations: Mapping[str, str], pool: str) -> bool:
    """Return whether a namespace with these annotations allows its Secrets and tokens in ``pool``."""
    return bool({pool, names.ANY_POOL} & _allowed(annotations))


def refused_by_all(annotations: Mapping[str, str], pools: Iterable[str]) -> bool:
    """Return whether such a namespace allows them in none of ``pools``; ``*`` means any pool."""
    selected, allowed = set(pools), _allowed(annotations)
    return not allowed if names.ANY_POOL in selected else not (selected | {names.ANY_POOL}) & allowed


def refusal(namespace: str, pool: str, what: str) -> str:
    """Return a message that ``what`` is not sent to the pool, and how an administrator can allow it."""
    return (
        f"namespace {namespace} does not let {what} go to pool {pool}: an administrator allows it with the annotation "
        f"{names.POOL_SECRETS} on the namespace, a comma list of pools or '*'"
    )


def exclusion(namespace: str, what: str) -> str:
    """Return a short message, for a list of pools, why the pool is excluded."""
    return f"annotation {names.POOL_SECRETS} of namespace {namespace} does not let {what} go there"


def warning(namespace: str, pools: Iterable[str], what: str) -> str:
    """Return a warning for the creator of a pod: none of its pools may get ``what``."""
    remote = [name for name in pools if name != names.LOCAL_POOL]
    target = "any pool" if names.ANY_POOL in remote else f"pool {', '.join(remote)}"
    return (
        f"this pod waits until an administrator changes annotation {names.POOL_SECRETS} of namespace {namespace}, "
        f"which does not let {what} go to {target}"
    )


def _allowed(annotations: Mapping[str, str]) -> set[str]:
    text = annotations.get(names.POOL_SECRETS)
    if text is None:
        return set()
    try:
        return set(pool_selection.parse(text))
    except ValueError:
        return set()  # a malformed value allows nothing
