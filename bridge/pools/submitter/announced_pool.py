"""What a site with podbridge's submitter has announced about its pool."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.errors import SiteDownError
from bridge.pools.submitter.received_announcements import ReceivedAnnouncements
from bridge.pools.submitter.received_buildconfigs import ReceivedBuildConfigs
from bridge.protocol.model.readiness import READY, Readiness
from bridge.protocol.nats.messages import Announce
from bridge.script.buildconfig import BuildConfig


class AnnouncedPool:
    """The part of a pool that follows from its announcements and BuildConfigs alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._announcements = ReceivedAnnouncements()
        self._configs = ReceivedBuildConfigs(name)

    @property
    def folder(self) -> str:
        """Id of the site's folder that holds the pool's jobs; empty before the first announcement."""
        return self._announcements.folder or ""

    def announcements(self) -> Mapping[str, tuple[Announce, float]]:
        """Return the last announcement for each folder id, and the monotonic time at which it arrived."""
        return self._announcements.by_folder

    def announced(self) -> tuple[Announce, float] | None:
        """Return the last announcement and the monotonic time at which it arrived; ``None`` before the first."""
        return self._announcements.last

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

    def allows_gang_race(self) -> bool | None:
        """Return whether the site accepts jobs of groups that wait for a grant; ``None`` without a BuildConfig."""
        announce = self.announcement
        return self.allows_race() and self.gangs and announce is not None and announce.gang_grants

    def usable_config(self) -> BuildConfig:
        """Return the announced BuildConfig; raises SiteDownError without a valid one."""
        config = self.buildconfig()
        if config is None:
            raise SiteDownError(self.ready().message)
        return config
