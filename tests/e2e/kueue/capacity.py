"""Counts admissions each second against the capacity that sites announce."""

import threading
import time
from collections import deque

from bridge.workload.quantity import parse
from cluster import pools

REACTION = 2.0
"""Seconds after which a quota follows the capacity of a site."""


class CapacityWatch(threading.Thread):
    """Compares each second what workloads have reserved of each flavor with what its site announces.

    What is admitted already may exceed a capacity that falls. So the sum of the reservations must not exceed the
    capacity when a workload is admitted. podbridge and Kueue have ``REACTION`` seconds for a change: the largest
    capacity of that time before the admission counts. ``flavors`` are the nodes by flavor. ``limits`` are CPUs by
    flavor: the MasterQueue offers no more.
    """

    def __init__(self, world, queue, flavors, limits=None, namespace=pools.NAMESPACE):
        super().__init__(daemon=True)
        self.namespace = namespace
        self.world, self.queue, self.flavors, self.limits = world, queue, flavors, limits or {}
        self.looks, self.admissions, self.problems = 0, 0, []
        self.peak = dict.fromkeys(flavors, 0)
        self._capacities = deque(maxlen=60)
        """Time (seconds since 1970) and result of each look."""
        self._done = threading.Event()

    def capacity(self):
        """Return the CPUs that the node of each flavor offers; 0 if it is not ready."""
        found = {}
        for flavor, node in self.flavors.items():
            ready = self.world.readiness(node).get("status") == "True"
            offered = int(parse(self.world.kube_node(node)["status"]["allocatable"]["cpu"])) if ready else 0
            found[flavor] = min(offered, self.limits.get(flavor, offered))
        return found

    def most(self, flavor, admitted):
        """Return the largest capacity of a flavor in the ``REACTION`` seconds before a time, and since then."""
        looks = list(self._capacities)
        earlier = [capacity for at, capacity in looks if at <= admitted - REACTION][-1:]
        later = [capacity for at, capacity in looks if at > admitted - REACTION]
        return max(capacity[flavor] for capacity in (*earlier, *later))

    def run(self):
        try:
            self._watch()
        except Exception as error:  # a watch that has ended proves nothing
            self.problems.append(repr(error))

    def _watch(self):
        self._capacities.append((time.time(), self.capacity()))
        known = set()
        while not self._done.wait(1):
            reserved = self.world.reservations(self.queue, self.namespace)
            self._capacities.append((time.time(), self.capacity()))
            for flavor in self.flavors:
                mine = {uid: cpus for uid, (own, cpus, _) in reserved.items() if own == flavor}
                total = sum(mine.values())
                for uid in set(mine) - known:
                    admitted = reserved[uid][2]
                    self.admissions += 1
                    if total > (most := self.most(flavor, admitted)):
                        self.problems.append(f"{flavor}: {total} of {most} CPUs, one admitted at {admitted:.0f}")
                self.peak[flavor] = max(self.peak[flavor], total)
            known = set(reserved)
            self.looks += 1

    def __enter__(self):
        self.start()
        return self

    def __str__(self):
        return f"{self.admissions} admissions seen in {self.looks} looks, most at once {sorted(self.peak.values())}"

    def __exit__(self, *_):
        self._done.set()
        self.join(10)
