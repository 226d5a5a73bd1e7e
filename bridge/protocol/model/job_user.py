"""The user of a site's jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bridge.protocol.model.identifiers import Value

Id = Annotated[int, Field(ge=0, lt=2**32)]


class JobUser(Value):
    """The user that every job of a site runs as. A site whose jobs have different users announces none.

    ``most_uid`` and ``most_gid``: the largest ids of a container in podman's user namespace; ``None``: they are not
    known, because the jobs run on other machines.
    """

    uid: Id
    gid: Id | None = None
    most_uid: Id | None = None
    most_gid: Id | None = None
