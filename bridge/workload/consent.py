"""Whether a namespace lets its Secrets and tokens go to a pool. Pure.

A pod's script holds what the pod mounts, so the site of the pool, and its administrators, can read it. A namespace says
with the annotation ``bridge.vk.io/pool-secrets`` to which pools that may happen; without it, to none.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge import names
from bridge.workload import places


def lets_secrets_go(annotations: Mapping[str, str], pool: str) -> bool:
    """Whether a namespace with these annotations lets its Secrets and service account tokens go to ``pool``."""
    text = annotations.get(names.POOL_SECRETS)
    if text is None:
        return False
    try:
        return bool({pool, names.ANY_POOL} & set(places.parse(text)))
    except ValueError:
        return False  # what can't be read opens nothing


def refusal(namespace: str, pool: str, what: str) -> str:
    """Say that ``what`` does not go to the pool, and how an administrator changes that."""
    return (
        f"namespace {namespace} does not let {what} go to pool {pool}: an administrator allows it with the annotation "
        f"{names.POOL_SECRETS} on the namespace, a comma list of pools or '*'"
    )
