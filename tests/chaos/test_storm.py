"""Workloads of every kind run all the time while the scheduler and the controllers are killed, and start again.

The processes are killed (SIGKILL) after a random call or at a random time. Meanwhile pods and whole workloads are
deleted, members fail, and an administrator cancels and requeues jobs. ``--kills N`` sets the number of kills. Without
it, a long run has 100; a short run has six, and one workload of each kind. 1,000 kills take about half an hour.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE
from tests.chaos.ledger import CLAIMS, Ledger
from tests.chaos.storage import Storage
from tests.chaos.units import Unit, Workloads
from tests.chaos.victims import PARTS, Victims
from tests.fakes import device_drivers

KILLS, LONG_KILLS = 6, 100
AT_ONCE = 14
"""Workloads at a time; a short run has fewer."""
LONGEST_LIFE = 5.0
"""Seconds from the first call of a process to its kill."""
CALLS = 40
"""Average number of calls after which a process is killed."""
QUIET = 240.0
"""Seconds in which everything that is left must reach its end after the last kill."""
LOST = 400.0
"""Seconds after which a workload is reported as lost although processes are still killed."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(7200)]


class Killer:
    """Keeps the scheduler and the controllers running, each until a random call or time."""

    def __init__(self, victims, chance):
        self._victims, self._chance = victims, chance
        self._running = {}
        self.kills = Counter()
        for part in PARTS:
            self._start(part)

    def _start(self, part):
        limit = 1 + int(self._chance.expovariate(1 / CALLS)) if self._chance.random() < 0.6 else 0
        self._victims.settled()
        self._running[part] = self._victims.start(limit, (part,), self._chance.uniform(0.1, LONGEST_LIFE))

    def step(self):
        """Start the processes that have killed themselves; then kill the other one, too, with a chance of a fifth."""
        over = [part for part, process in self._running.items() if process.poll() is not None]
        if over and self._chance.random() < 0.2:
            over = list(PARTS)
        for part in over:
            status = self._victims.kill(self._running[part])
            assert status == -signal.SIGKILL, f"the {part} ended by itself with status {status}"
            self.kills[part] += 1
        for part in over:
            self._start(part)

    def stop(self):
        """Start processes that nobody kills."""
        for part in PARTS:
            self._victims.kill(self._running[part])
            self._running[part] = self._victims.start(0, (part,))

    @property
    def count(self):
        return sum(self.kills.values())


class Storm:
    """Creates workloads and disturbs them."""

    def __init__(self, world, ledger, workloads, storage, chance):
        self.world, self.ledger, self.workloads, self.storage = world, ledger, workloads, storage
        self.chance = chance
        self.most = float("inf")
        self.units: dict[Unit, float] = {}
        self.ended: list[Unit] = []
        self.created, self.done = Counter(), Counter()
        self._kinds = itertools.cycle(chance.sample(workloads.kinds, len(workloads.kinds)))

    def create(self):
        """Create the next workload unless enough are open, or ``most`` were created."""
        if len(self.units) < AT_ONCE and sum(self.created.values()) < self.most:
            kind = next(self._kinds)
            unit = self.workloads.create(kind, f"s{sum(self.created.values())}-{kind.replace(' ', '-')}")
            self.units[unit] = time.monotonic()
            self.created[kind] += 1

    def tend(self):
        """Do what owners, controllers of storage and users do; delete what is over."""
        self.storage.provision()
        for unit, since in list(self.units.items()):
            lives = self.ledger.existing(unit.name)
            if unit.deleted:
                if not lives:
                    del self.units[unit]
                    self.ended.append(unit)
                continue
            succeeded = self.ledger.succeeded(unit.name)
            if self.workloads.over(unit, succeeded, sum(life.runs for life in lives)):
                self.ledger.check_unit(unit)
                self.workloads.delete(unit)
                continue
            kept = {life.name for life in lives}
            if unit.disturbed and not succeeded <= kept and any(not life.node for life in lives):
                self.workloads.delete(unit)  # docs/users/groups.md: members that have succeeded must stay
                continue
            self.workloads.recreate(unit, {life.name: life.pod for life in lives}, succeeded)
            assert time.monotonic() - since < LOST, f"lost: {self.ledger.story(unit)}"

    def disturb(self):
        """Do one thing that users, nodes and administrators do."""
        open_units = [unit for unit in self.units if not unit.deleted and len(unit.disturbed) < 2]
        lives = [(unit, life) for unit in open_units for life in self.ledger.existing(unit.name) if not life.ended]
        if not lives:
            return
        unit, life = self.chance.choice(lives)
        what = self.chance.choice(["delete", "delete now", "fail", "fail", "cancel", "requeue", "delete all"])
        unit.disturbed.append(f"{what} {life.name}")
        self.done[what] += 1
        if what.startswith("delete"):
            if what == "delete all":
                self.workloads.delete(unit)
            else:
                self.world.delete(life.pod, 0 if what == "delete now" else 2)
        elif what == "fail":
            failed = {"metadata": {"annotations": {"hack/exit-code": "1", "hack/run-seconds": "0"}}}
            path = self.world.path(life.name)
            self.world.api.request("PATCH", path, failed, "application/merge-patch+json")
        else:
            self.administer(what, life)

    def administer(self, what, life):
        """Cancel or requeue the job of a pod."""
        jobs = [job for job, (key, _) in self.ledger.jobs.items() if key == life.key]
        for job in [str(job) for job in jobs[-1:]]:
            if what == "cancel":
                self.world.cluster.run_slurm("scancel", job, check=False)
            else:  # an external job cannot be requeued (Slurm 26.05); placeholder jobs have requeue=0
                self.world.cluster.run_slurm("scontrol", "update", f"jobid={job}", "requeue=1", check=False)
                self.world.cluster.run_slurm("scontrol", "requeue", job, check=False)


@pytest.fixture
def storm(bare_world):
    """A storm on a cluster, and the killer of its processes."""
    world, seed = bare_world, random.randrange(1_000_000)
    chance = random.Random(seed)
    devices = world.cluster.options.slurm == "26.05"
    made = device_drivers.publish(world) if devices else []
    storage, ledger = Storage(world), Ledger(world)
    workloads = Workloads(world, storage, devices=devices, old=world.cluster.options.slurm == "22.05")
    victims = Victims(world.cluster)
    try:
        yield Storm(world, ledger, workloads, storage, chance), Killer(victims, chance), victims, devices, seed
    finally:
        victims.close()
        ledger.stop()
        workloads.close()
        for path in made:
            world.api("DELETE", path)


def test_workloads_of_every_kind_survive_kills(storm, long, kills, report, capsys):
    storm, killer, victims, devices, seed = storm
    world, ledger = storm.world, storm.ledger
    wanted = kills or (LONG_KILLS if long else KILLS)
    if not (kills or long):
        storm.most = len(storm.workloads.kinds)
    started = shown = time.monotonic()
    while killer.count < wanted or sum(storm.created.values()) < len(storm.workloads.kinds):
        next_turn = time.monotonic() + (0.5 if kills or long else 0.2)
        storm.create()
        ledger.look(devices=devices)
        storm.tend()
        if storm.chance.random() < 0.3:
            storm.disturb()
        while time.monotonic() < next_turn:
            killer.step()
            time.sleep(0.02)
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            with capsys.disabled():
                print(f"{killer.count} kills, {len(ledger.lives)} pods, {ledger.violations[:3]}", flush=True)
    took = time.monotonic() - started
    killer.stop()

    def over():
        ledger.look(devices=devices)
        storm.tend()
        return not storm.units

    try:
        eventually(over, "all workloads over", QUIET, 1.0)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(ledger.story(unit) for unit in storm.units)])) from None
    eventually(lambda: not world.queue(), "no job left")
    eventually(lambda: not world.pods(), "no pod left")
    storm.storage.check_removed()
    if devices:
        eventually(lambda: not world.api("GET", CLAIMS)["items"], "no claim for devices left")
    ledger.stop()
    binds = ledger.check_calls(victims.calls())
    assert binds >= sum(bool(life.job) for life in ledger.lives.values())
    counts = f"{killer.count} kills in {took:.0f} s ({killer.kills['scheduler']} of the scheduler), seed {seed}: "
    counts += f"{sum(storm.created.values())} workloads of {len(storm.created)} kinds, {len(ledger.lives)} pods, "
    counts += f"{len(ledger.jobs)} jobs, {sum(storm.done.values())} disturbances {dict(storm.done)}: "
    report(f"{counts}{len(ledger.violations)} violations, 0 lost, 0 left behind in {NAMESPACE}")
    assert not ledger.violations, "\n".join(ledger.violations)
