"""What a site with podbridge's submitter has announced about its pool."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pydantic import ValidationError

from bridge.errors import SiteDownError
from bridge.logs import kv
from bridge.protocol.model.announcement import READY, Readiness
from bridge.protocol.nats.envelope import explain
from bridge.protocol.nats.messages import Announce, BuildConfigMessage
from bridge.script import flavor_limits
from bridge.script.buildconfig import BuildConfig

log = logging.getLogger(__name__)

_MOST_FOLDERS = 16


class ReceivedBuildConfigs:
    """The last two BuildConfigs of one pool, by digest. The caller holds the lock of the pool."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._configs: dict[str, BuildConfig | None] = {}
        self._problems: dict[str, str] = {}
        self._limits: dict[str, str] = {}
        self._invalid = 0

    def __contains__(self, digest: str) -> bool:
        """Return whether the BuildConfig has been received, valid or not."""
        return digest in self._configs

    def get(self, digest: str) -> BuildConfig | None:
        """Return a BuildConfig; ``None`` if it has not been received or is invalid."""
        return self._configs.get(digest)

    def flavor_limits(self, digest: str) -> str | None:
        """Return what a group may request; ``None`` as for :meth:`get`."""
        return self._limits.get(digest)

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
            self._invalid += 1
            # the 1st, 2nd, 4th, 8th ... one: a site must not fill the log
            if self._invalid & (self._invalid - 1) == 0:
                log.warning("a BuildConfig is invalid", extra=kv(pool=self._pool, count=self._invalid, error=problem))
        # the previous one stays: the announcement that names the new one may not have arrived
        previous = [item for item in self._configs.items() if item[0] != message.digest][-1:]
        self._configs = dict([*previous, (message.digest, config)])
        self._problems = {digest: text for digest, text in self._problems.items() if digest in self._configs}
        self._problems[message.digest] = problem
        # once: each look at the virtual node reads it
        self._limits = {digest: text for digest, text in self._limits.items() if digest in self._problems}
        self._limits.pop(message.digest, None)
        if config is not None:
            self._limits[message.digest] = flavor_limits.dump(config)


class AnnouncedPool:
    """The part of a pool that follows from its announcements and BuildConfigs alone.

    A caller that changes them holds the lock of the pool; others read the announcements without it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder: str | None = None
        """Id of the folder that holds the pool's jobs: of the first announcement, until another one is set."""
        self._by_folder: Mapping[str, tuple[Announce, float]] = {}
        self._configs = ReceivedBuildConfigs(name)

    def _add_announcement(self, announce: Announce, received_at: float) -> None:
        """Replace the announcement of its folder."""
        if self._folder is None:
            self._folder = announce.folder
        others = {folder: value for folder, value in self._by_folder.items() if folder != announce.folder}
        if len(others) >= _MOST_FOLDERS:
            del others[next(folder for folder in others if folder != self._folder)]
        # a new dict: other threads read it without the lock
        self._by_folder = {**others, announce.folder: (announce, received_at)}

    @property
    def folder(self) -> str:
        """Id of the site's folder that holds the pool's jobs; empty before the first announcement."""
        return self._folder or ""

    def announcements(self) -> Mapping[str, tuple[Announce, float]]:
        """Return the last announcement for each folder id, and the monotonic time at which it arrived."""
        return self._by_folder

    def announced(self) -> tuple[Announce, float] | None:
        """Return the last announcement and the monotonic time at which it arrived; ``None`` before the first."""
        return self._by_folder.get(self.folder)

    @property
    def announcement(self) -> Announce | None:
        """The last announcement."""
        announced = self.announced()
        return announced[0] if announced is not None else None

    @property
    def gangs(self) -> bool:
        """Whether the site has announced that it runs the pods of a group as one job."""
        return bool((announce := self.announcement) and announce.gangs)

    @property
    def heterogeneous_gangs(self) -> bool:
        """Whether the site has announced that these pods may request different resources."""
        return bool((announce := self.announcement) and announce.heterogeneous_gangs)

    @property
    def flavor_limits(self) -> str | None:
        """What a group may request by the announced BuildConfig; ``None`` without a valid one."""
        announce = self.announcement
        return self._configs.flavor_limits(announce.digest) if announce else None

    def ready(self) -> Readiness:
        """Return whether a valid BuildConfig has been received."""
        announce = self.announcement
        if announce is None:
            return Readiness("NotAnnounced", "the site has not announced itself", transient=True)
        if problem := self._configs.problem(announce.digest):
            return Readiness("BuildConfigUnusable", f"the site's BuildConfig is invalid: {problem}")
        if self._configs.get(announce.digest) is None:
            return Readiness("NoBuildConfig", "the site's BuildConfig has not been received", transient=True)
        return READY

    def buildconfig(self) -> BuildConfig | None:
        """Return the announced BuildConfig; ``None`` if it has not been received or is invalid."""
        announce = self.announcement
        return self._configs.get(announce.digest) if announce else None

    def allows_race(self) -> bool | None:
        """Return whether the site accepts jobs that wait for a grant; ``None`` without a BuildConfig."""
        config = self.buildconfig()
        return None if config is None else config.limits.allow_race

    def usable_config(self) -> BuildConfig:
        """Return the announced BuildConfig; raises SiteDownError without a valid one."""
        config = self.buildconfig()
        if config is None:
            raise SiteDownError(self.ready().message)
        return config
