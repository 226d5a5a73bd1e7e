"""What the plugin reports about its pools: the answers to a ping and to ``/system-info``, and its readiness."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bridge.apps.plugin.directory import Directory
from bridge.clock import Clock, rfc3339
from bridge.errors import SiteDownError
from bridge.interlink.messages import PingResponse, SystemInfo
from bridge.interlink.ping import ping_response, total
from bridge.pools.nunet.peers import flat
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.announcement import Announcement

START_PATIENCE = 15.0
"""Seconds after the start of the process in which a ping waits for the first announcement."""
PAUSE = 0.2
SILENT_AFTER = 30.0
"""Seconds without an announcement after which a site counts as silent, unless its own period is longer."""


class Reports:
    """Reports about the pools of a directory. ``wait`` waits for some seconds and returns whether the process stops."""

    def __init__(self, directory: Directory, clock: Clock, wait: Callable[[float], bool]) -> None:
        self._directory, self._clock, self._wait = directory, clock, wait
        self._started = clock.monotonic()

    def ping(self) -> PingResponse:
        """Return the resources of all pools that accept jobs, and the taints if there is only one pool.

        Raises :class:`SiteDownError` if none of them does; the virtual node is then NotReady. Right after the start of
        the process it waits for the first announcement, so that a restart does not change the node.
        """
        while True:
            try:
                return self._resources()
            except SiteDownError:
                if self._clock.monotonic() - self._started >= START_PATIENCE or self._wait(PAUSE):
                    raise

    def _resources(self) -> PingResponse:
        pools = self._directory.pools()
        problems = {name: self._problem(pool) for name, pool in pools.items()}
        usable = [announced for name, pool in pools.items() if not problems[name] and (announced := pool.announced())]
        if not usable:
            raise SiteDownError(_joined(problems) or "no pool has announced itself yet")
        if len(pools) == 1:
            announcement = usable[0][0]
            return ping_response(announcement.capacity, announcement.taints)
        return ping_response(total(announcement.capacity for announcement, _ in usable), None)

    def nunet_resources(self) -> dict[str, int]:
        """Return the free resources of all pools that accept jobs, with the names that NuNet published.

        Raises :class:`SiteDownError` if none of them does.
        """
        usable = (pool for pool in self._directory.pools().values() if not self._problem(pool))
        announced = [pair[0] for pool in usable if (pair := pool.announced())]
        if not announced:
            raise SiteDownError("no pool accepts jobs")
        return flat(total(announcement.free or announcement.capacity for announcement in announced))

    def system_info(self) -> SystemInfo:
        """Return one line for each pool: its state, batch system, container runtime and resources."""
        pools = self._directory.pools()
        problems = {name: self._problem(pool) for name, pool in pools.items()}
        lines = [_line(name, pool, problems[name]) for name, pool in sorted(pools.items())]
        good = bool(pools) and not any(problems.values())
        return SystemInfo(
            status="ok" if good else "warning",
            timestamp=rfc3339(self._clock.time()),
            slurm_connected=any(not problem for problem in problems.values()),
            sinfo_output="".join(f"{line}\n" for line in lines),
            error=_joined(problems) or ("" if pools else "no pool has announced itself yet"),
        )

    def ready(self) -> str | None:
        """Return why no pool accepts jobs; ``None`` if one does. For the readiness check of the process."""
        try:
            self._resources()
        except SiteDownError as error:
            return str(error)
        return None

    def _problem(self, pool: Pool) -> str:
        announced = pool.announced()
        if announced is None:
            return "it has not announced itself yet"
        announcement, at = announced
        age = self._clock.monotonic() - at
        if age > max(SILENT_AFTER, 3 * announcement.period):
            return f"no announcement for {age:.0f} s"
        readiness = pool.ready()
        if not readiness.ok:
            return f"{readiness.reason}: {readiness.message}"
        return announcement.problem


def _joined(problems: Mapping[str, str]) -> str:
    return "; ".join(f"pool {name}: {problem}" for name, problem in sorted(problems.items()) if problem)


def _line(name: str, pool: Pool, problem: str) -> str:
    announced = pool.announced()
    if announced is None:
        return f"{name}: {problem}"
    announcement: Announcement = announced[0]
    resources = " ".join(f"{key}={value}" for key, value in sorted(announcement.capacity.items()))
    return f"{name}: {problem or 'ok'}; {announcement.batch}; {announcement.runtime}; {resources}"
