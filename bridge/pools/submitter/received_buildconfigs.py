"""The BuildConfigs that a pool has received, by digest: the last one and the one before."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from bridge.logs import kv
from bridge.protocol.nats.envelope import explain
from bridge.protocol.nats.messages import BuildConfigMessage
from bridge.script.buildconfig import BuildConfig

log = logging.getLogger(__name__)


class ReceivedBuildConfigs:
    """The BuildConfigs of one pool. The caller holds the lock of the pool."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._configs: dict[str, BuildConfig | None] = {}
        self._problems: dict[str, str] = {}

    def __contains__(self, digest: str) -> bool:
        """Return whether the BuildConfig has been received, valid or not."""
        return digest in self._configs

    def get(self, digest: str) -> BuildConfig | None:
        """Return a BuildConfig; ``None`` if it has not been received or is invalid."""
        return self._configs.get(digest)

    def problem(self, digest: str) -> str:
        """Return why a BuildConfig is invalid; empty if it is valid or has not been received."""
        return self._problems.get(digest, "")

    def add(self, message: BuildConfigMessage) -> None:
        """Store a BuildConfig. An invalid one is recorded as such, so that it is not requested again."""
        config: BuildConfig | None = None
        problem = ""
        try:
            config = BuildConfig.model_validate(message.config)
        except ValidationError as error:
            problem = explain(error)
            log.warning("a BuildConfig is invalid", extra=kv(pool=self._pool, error=problem))
        # the previous one stays: the announcement that names the new one may not have arrived
        previous = [item for item in self._configs.items() if item[0] != message.digest][-1:]
        self._configs = dict([*previous, (message.digest, config)])
        self._problems = {digest: text for digest, text in self._problems.items() if digest in self._configs}
        self._problems[message.digest] = problem
