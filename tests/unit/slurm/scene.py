"""A fake Slurm and a poller, for the tests of snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bridge.config.hub import Config, SlurmSection
from bridge.slurm.link import encode
from bridge.slurm.models import Snapshot
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.snapshot import Poller
from tests.builders import link
from tests.fakes.clock import FakeClock
from tests.fakes.slurmrestd import TOKEN, FakeSlurm, paths


class Scene:
    """A fake Slurm, a poller and the hands to move both."""

    def __init__(self, slurm: FakeSlurm, budget: int = 2) -> None:
        self.slurm, self.clock = slurm, FakeClock()
        config = Config(slurm_rest_api=slurm.url, slurm=SlurmSection(detail_budget=budget, read_timeout=0.8))
        self.client = SlurmClient(config, TOKEN)
        self.poller = Poller(self.client, "here", config, clock=self.clock)

    def add(self, uid: str, cluster: str = "here") -> int:
        return self.slurm.add({"name": uid, "admin_comment": encode(link(uid, cluster=cluster))}).job_id

    def poll(self) -> Snapshot:
        self.clock.advance(1)
        return self.poller.refresh()

    def asked(self) -> list[str]:
        """What one more poll asks for, but for whether a node has changed."""
        return [call for call in self.asked_all() if not call.startswith("GET nodes?")]

    def asked_all(self) -> list[str]:
        """What one more poll asks for."""
        self.slurm.calls.clear()
        self.poll()
        return paths(self.slurm.calls)


class Running:
    """A poller in a thread of its own, with the machine's clock; a block begins after its first poll."""

    def __init__(self, slurm: FakeSlurm, **settings: float) -> None:
        config = Config(slurm_rest_api=slurm.url, slurm=SlurmSection(**settings))  # type: ignore[arg-type]
        self.poller = Poller(SlurmClient(config, TOKEN), "here", config)
        self.stop = threading.Event()
        self.new = threading.Condition()
        self.poller.subscribe(self._note)
        self.threads = [
            threading.Thread(target=run, args=(self.stop,), daemon=True)
            for run in (self.poller.run, self.poller.run_hints)
        ]

    def _note(self, _: Snapshot) -> None:
        with self.new:
            self.new.notify_all()

    def wait(self, wish: Callable[[Snapshot], bool], seconds: float = 5) -> bool:
        with self.new:
            return self.new.wait_for(lambda: wish(self.poller.snapshot), seconds)

    def __enter__(self) -> Running:
        for thread in self.threads:
            thread.start()
        assert self.wait(lambda now: now.sequence == 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.poller._waiting.set()  # it looks for a stop only now and then
        self.poller._hinted.set()
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


def job_requests(slurm: FakeSlurm) -> list[str]:
    return [call for call in paths(slurm.calls) if "job" in call or "resources" in call]
