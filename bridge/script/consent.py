"""Whether a namespace lets its Secrets and tokens go to a pool. Pure.

A pod's script holds what the pod mounts, so the site of the pool, and its administrators, can read it. A namespace says
with the annotation ``bridge.vk.io/pool-secrets`` to which pools that may happen; without it, to none.

Admission warns of a pod that no pool may take for this reason, the pool scheduler leaves such pools out, and the
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


def confidential(needed: references.Needed) -> str:
    """Name the Secrets, and mention the tokens, that a script with these references holds; empty if there are none."""
    secrets = sorted(needed.secrets)
    parts = [f"Secret {name}" for name in secrets[:_MOST_NAMED]]
    if len(secrets) > _MOST_NAMED:
        parts.append(f"{len(secrets) - _MOST_NAMED} more Secrets")
    return ", ".join(parts + ["service account tokens"] * bool(needed.tokens))


def confidential_everywhere(pod: Mapping[str, Any]) -> str:
    """Do the same for a pod whose site is not known: the automatic token, which most sites do not get, is left out."""
    needed = references.needed(pod)
    tokens = tuple(request for request in needed.tokens if not request.automatic)
    return confidential(replace(needed, tokens=tokens))


def lets_secrets_go(annotations: Mapping[str, str], pool: str) -> bool:
    """Whether a namespace with these annotations lets its Secrets and service account tokens go to ``pool``."""
    return bool({pool, names.ANY_POOL} & _allowed(annotations))


def refused_by_all(annotations: Mapping[str, str], pools: Iterable[str]) -> bool:
    """Whether such a namespace refuses them to all of ``pools``; ``*`` there stands for any pool."""
    asked, allowed = set(pools), _allowed(annotations)
    return not allowed if names.ANY_POOL in asked else not (asked | {names.ANY_POOL}) & allowed


def refusal(namespace: str, pool: str, what: str) -> str:
    """Say that ``what`` does not go to the pool, and how an administrator changes that."""
    return (
        f"namespace {namespace} does not let {what} go to pool {pool}: an administrator allows it with the annotation "
        f"{names.POOL_SECRETS} on the namespace, a comma list of pools or '*'"
    )


def exclusion(namespace: str, what: str) -> str:
    """Say in short, beside the name of a pool, why the pool is left out."""
    return f"annotation {names.POOL_SECRETS} of namespace {namespace} does not let {what} go there"


def warning(namespace: str, pools: Iterable[str], what: str) -> str:
    """Say to who creates a pod that none of the pools that it asks for may have ``what``."""
    asked = [name for name in pools if name != names.LOCAL_POOL]
    where = "any pool" if names.ANY_POOL in asked else f"pool {', '.join(asked)}"
    return (
        f"this pod waits until an administrator changes annotation {names.POOL_SECRETS} of namespace {namespace}, "
        f"which does not let {what} go to {where}"
    )


def _allowed(annotations: Mapping[str, str]) -> set[str]:
    text = annotations.get(names.POOL_SECRETS)
    if text is None:
        return set()
    try:
        return set(pool_selection.parse(text))
    except ValueError:
        return set()  # what can't be read opens nothing
