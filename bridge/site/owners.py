"""Whose a job is: the cluster that submitted it."""

from __future__ import annotations

import logging
from dataclasses import replace

from bridge.errors import SiteRefusedError
from bridge.logs import kv
from bridge.site.facts import Facts
from bridge.site.folder import JobFolder

log = logging.getLogger(__name__)


def adopted(where: JobFolder, facts: Facts, owner: str) -> Facts:
    """Return a job of this owner, under its lock; one without an owner becomes its. Raises where it is another's."""
    if facts.meta.owner == owner:
        return facts
    if facts.meta.owner:
        raise not_owned(facts, owner)
    meta = replace(facts.meta, owner=owner)
    where.write_meta(meta)
    log.info("a job without an owner belongs to who asks for it", extra=kv(job=where.uid, owner=owner))
    return replace(facts, meta=meta)


def not_owned(facts: Facts, owner: str) -> SiteRefusedError:
    """Return the refusal of a request about another cluster's job."""
    return SiteRefusedError(
        f"job {facts.uid} belongs to another cluster ({facts.meta.owner}), not to {owner}",
        reason="NotOwner",
        hint="Only the cluster that submitted a job may see or change it.",
    )
