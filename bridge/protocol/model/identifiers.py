"""Names and identifiers, with the patterns that every transport checks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from bridge import names

UID_PATTERN = r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$"
POOL_PATTERN = f"^{names.DNS_LABEL}$"
NAMESPACE_PATTERN = POOL_PATTERN
NAME_PATTERN = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"

Uid = Annotated[str, StringConstraints(pattern=UID_PATTERN)]
"""UID of a pod. It identifies the pod's job in all requests and answers."""
Owner = Uid
"""The cluster that a job belongs to: UID of its namespace ``kube-system``."""
Namespace = Annotated[str, StringConstraints(pattern=NAMESPACE_PATTERN)]
PodName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
PoolName = Annotated[str, StringConstraints(pattern=POOL_PATTERN)]

TICKET_PATTERN = r"^[0-9A-Za-z-]{1,64}$"
Ticket = Annotated[str, StringConstraints(pattern=TICKET_PATTERN)]
"""Names one run of one script of a pod that races. The script makes it when it starts."""


class Value(BaseModel):
    """Base of the immutable types. Unknown keys are ignored, so that a newer peer can send more."""

    model_config = ConfigDict(extra="ignore", frozen=True)
