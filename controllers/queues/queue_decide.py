"""Decides how to change Kueue's objects of all MasterQueues. Pure: plain data in, actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from bridge.core import isolation
from controllers.queues import leaving, manifests, offers, queue_status, specification
from controllers.queues.leaving import Leaving
from controllers.queues.manifests import Quota
from controllers.queues.offers import QuotaOffer
from controllers.queues.queue_status import Action, Apply, Delete, Evict, FlavorState, Kind, Object, SetStatus
from controllers.queues.specification import Flavor, Specification, SpecificationError


@dataclass(frozen=True, slots=True)
class QueuesView:
    """What is observed: the MasterQueues, the nodes of Kubernetes, and the objects of Kueue."""

    queues: Sequence[Object]
    nodes: Sequence[Mapping[str, Any]]
    flavors: Mapping[str, Object]
    cluster_queues: Mapping[str, Object]
    """By name, also those of others."""
    local_queues: Mapping[tuple[str, str], Object]
    """By namespace and name, also those of others."""
    version: str
    """Version of Kueue's API."""
    now: float
    """Seconds since 1970."""
    release_after: float
    """Seconds for which the node of a held pool must have been ready."""
    silent_after: float
    """Seconds of silence after which the node of a pool is not ready."""
    failures: Mapping[str, str]
    """UID of a MasterQueue -> why writes for it have failed."""
    scheduler: str
    """Name of podbridge's scheduler, the value of the taint of Slurm's nodes."""
    weights: Mapping[str, int]
    """Weight of each pool (``pools.weights``); 1 for the others."""
    tainted: bool = True
    """Whether podbridge taints Slurm's nodes (``nodes.taint``)."""


_ANY_PODS = Fraction(100_000)
"""Quota of pods of a local flavor that has none: its other resources limit it."""
_WRITTEN = ("Offered", "Held")
"""States of flavors that have a ResourceFlavor."""
_STRICTNESS = ("None", "Hold", "HoldAndDrain")


def decide(view: QueuesView) -> list[Action]:
    """Return the actions that bring Kueue's objects in step with the pools; none if they are."""
    offers_by_pool = offers.read(view.nodes)
    actions: list[Action] = []
    for queue in sorted(view.queues, key=lambda item: str(item["metadata"]["name"])):
        if not queue["metadata"].get("deletionTimestamp"):
            actions += _decide_queue(view, queue, offers_by_pool)
    return actions


def _decide_queue(view: QueuesView, queue: Object, offers_by_pool: Mapping[str, QuotaOffer]) -> list[Action]:
    """Decide about one MasterQueue; an unexpected error becomes its status."""
    plan = _Plan(view, queue, offers_by_pool)
    try:
        return plan.actions()
    except Exception as error:
        return plan.failed(str(isolation.report("queues", plan.name, error)))


class _Plan:
    """The decision about one MasterQueue."""

    def __init__(self, view: QueuesView, queue: Object, offers_by_pool: Mapping[str, QuotaOffer]) -> None:
        self.view, self.queue, self.offers_by_pool = view, queue, offers_by_pool
        self.name, self.uid = queue["metadata"]["name"], queue["metadata"]["uid"]
        self.states: list[FlavorState] = []
        self.conflicts: list[str] = []
        self.deleted: list[str] = []
        self.names: set[str] = set()
        """The names of the ResourceFlavors so far."""
        self.result: list[Action] = []

    def actions(self) -> list[Action]:
        try:
            spec = specification.read(self.queue)
        except SpecificationError as error:
            self._report(queue_status.invalid(str(error)))
            return self.result
        quotas, lent = self._flavors(spec)
        self._leaving(quotas)
        excess = self._excess(quotas)
        quotas = [quota for quota in quotas if quota[0] not in excess]
        lent = {queue: [quota for quota in items if quota[0] not in excess] for queue, items in lent.items()}
        self._leaving_borrowed(lent, manifests.resources(quotas) if quotas else ())
        offering = any(state.state == "Offered" for state in self.states)
        policy = spec.stop_policy if offering else max(spec.stop_policy, spec.when_silent, key=_STRICTNESS.index)
        self._queue(self.name, spec, policy, quotas)
        for name, borrowed in lent.items():
            self._queue(name, spec, spec.stop_policy, borrowed)
        for namespace, name in spec.local_queues:
            self._local_queue(namespace, name)
        self._remove({self.name, *lent}, {name for name, _, _ in quotas}, set(spec.local_queues))
        self._unwritten()
        reason, problem = self._problem()
        if problem or not any(isinstance(action, Apply | Delete) for action in self.result):
            self._report(queue_status.usable(self.states, spec.ignored, manifests.omitted(quotas), reason, problem))
        return self.result  # without a status: the next decision reports what has become of the writes

    def failed(self, message: str) -> list[Action]:
        """Return the report of an unexpected error."""
        self.result = []
        self._report(queue_status.invalid(message))
        return self.result

    def _problem(self) -> tuple[str, str]:
        if self.conflicts:
            return "Conflict", queue_status.conflict(self.conflicts)
        if failure := self.view.failures.get(self.uid):
            return "WriteFailed", failure
        return ("BeingDeleted", queue_status.deleting(self.deleted)) if self.deleted else ("InStep", "")

    def _flavors(self, spec: Specification) -> tuple[list[Quota], dict[str, list[Quota]]]:
        """Return the quotas of the own queue, and those of the queues that borrow."""
        quotas: list[Quota] = []
        lent: dict[str, list[Quota]] = {}
        for flavor in spec.flavors:
            states = self._states(flavor, quotas)
            self.states += states
            flavors = [state.flavor for state in states if state.state in _WRITTEN]
            for lending in flavor.lending:
                lent.setdefault(lending.queue, []).extend((name, {}, lending.limit) for name in flavors)
        covered = manifests.resources(quotas)
        zero = dict.fromkeys(covered, Fraction(0))
        return quotas, {queue: [(name, zero, limit) for name, _, limit in items] for queue, items in lent.items()}

    def _states(self, flavor: Flavor, quotas: list[Quota]) -> list[FlavorState]:
        """Plan the ResourceFlavors of a flavor, and add their quotas."""
        if flavor.nodes:
            return [self._administrators(flavor, quotas) if flavor.labels is None else self._nodes(flavor, quotas)]
        if pools := flavor.pools or self._matching(flavor):
            return [self._pool(flavor, pool, quotas) for pool in pools]
        return [FlavorState(flavor.name, "", "", "Missing", "no pool matches poolRegExp")]

    def _nodes(self, flavor: Flavor, quotas: list[Quota]) -> FlavorState:
        view, name, labels = self.view, f"{self.name}-{flavor.name}", flavor.labels or {}
        if problem := self._flavor(name, manifests.node_flavor(view.version, name, self.queue, labels)):
            return FlavorState(flavor.name, name, "", "Conflict", problem)
        amounts = offers.of_nodes(view.nodes, labels, slurm=flavor.nodes == "slurm", scheduler=view.scheduler)
        quotas.append((name, _limited(flavor, amounts), None))
        if any(amounts.values()):
            return FlavorState(flavor.name, name, "", "Offered", "")
        reason = queue_status.no_offer(flavor) if amounts else queue_status.no_node(flavor, tainted=view.tainted)
        return FlavorState(flavor.name, name, "", "Held", reason)

    def _flavor(self, name: str, body: Object) -> str:
        """Plan the write of a ResourceFlavor if it differs; return why it cannot be used, else an empty text."""
        if problem := self._second(name):
            return problem
        return "" if self._apply(body, self.view.flavors.get(name)) else "not of this MasterQueue"

    def _second(self, name: str) -> str:
        """Return why a ResourceFlavor cannot be used again: Kueue refuses a queue that names it twice."""
        if name in self.names:
            return "another flavor of this MasterQueue has a ResourceFlavor of this name: rename one of them"
        self.names.add(name)
        return ""

    def _administrators(self, flavor: Flavor, quotas: list[Quota]) -> FlavorState:
        if flavor.name not in self.view.flavors:
            reason = f"ResourceFlavor {flavor.name} does not exist"
            return FlavorState(flavor.name, flavor.name, "", "Missing", reason)
        if problem := self._second(flavor.name):
            return FlavorState(flavor.name, flavor.name, "", "Conflict", problem)
        quotas.append((flavor.name, {"pods": _ANY_PODS, **flavor.cap}, None))
        return FlavorState(flavor.name, flavor.name, "", "Offered", "")

    def _pool(self, flavor: Flavor, pool: str, quotas: list[Quota]) -> FlavorState:
        name = f"{self.name}-{flavor.name}-{pool}"
        offer = self.offers_by_pool.get(pool)
        if offer is None:
            return FlavorState(flavor.name, name, pool, "Missing", "the pool has no virtual node")
        if len(name) > specification.LONGEST_NAME:
            reason = f"{name} is too long for a ResourceFlavor: at most {specification.LONGEST_NAME} characters"
            return FlavorState(flavor.name, "", pool, "Missing", reason)
        body = manifests.resource_flavor(self.view.version, name, self.queue, offer.hostname, offer.taints, pool)
        if problem := self._flavor(name, body):
            return FlavorState(flavor.name, name, pool, "Conflict", problem)
        hold_reason = self._hold_reason(flavor, offer, name)
        if not hold_reason:
            quotas.append((name, _limited(flavor, offer.amounts), None))
            return FlavorState(flavor.name, name, pool, "Offered", "")
        # Kueue cannot stop one flavor of a ClusterQueue, so a held pool has the quota 0
        quotas.append((name, dict.fromkeys(offer.amounts, Fraction(0)), None))
        self._evict(flavor, offer, name)
        return FlavorState(flavor.name, name, pool, "Held", hold_reason)

    def _evict(self, flavor: Flavor, offer: QuotaOffer, name: str) -> None:
        """Evict the workloads of a pool that has been silent for long, if the MasterQueue says so."""
        if flavor.evict_after is None or offer.state != "held" or offer.reason != offers.SILENT:
            return
        if not offer.since:  # an administrator may patch a condition without its time, which says nothing then
            return
        silence = self.view.now - offer.since + self.view.silent_after
        used = any(manifests.is_used(queue, name) for queue in self.view.cluster_queues.values())
        # off by default: nobody knows what runs at a silent site, so the first attempt may run beside the next one
        if used and silence >= flavor.evict_after:
            message = f"pool {offer.pool} has been silent for {silence:.0f} s (evictAfter: {flavor.evict_after:g})"
            self.result.append(Evict(self.queue, name, message))

    def _matching(self, flavor: Flavor) -> tuple[str, ...]:
        """Return the pools that ``poolRegExp`` selects: those with the largest weight first, then by name."""
        matching = [pool for pool in self.offers_by_pool if flavor.pattern and flavor.pattern.search(pool)]
        return tuple(sorted(matching, key=lambda pool: (-self.view.weights.get(pool, 1), pool)))

    def _hold_reason(self, flavor: Flavor, offer: QuotaOffer, name: str) -> str:
        """Return why Kueue must admit no workload to a pool; empty if it may."""
        queue = self.view.cluster_queues.get(self.name, {})
        is_named, had_quota = name in manifests.flavor_names(queue), manifests.has_quota(queue, name)
        age = self.view.now - offer.since
        if offer.state == "held":
            silent = max(0.0, flavor.patience - self.view.silent_after) if offer.reason == offers.SILENT else 0.0
            return "" if had_quota and age < silent else offer.reason
        # as after a restart of podbridge: what the ClusterQueue offers is left as it is, so the restart writes nothing
        if offer.state == "unknown":
            return "" if had_quota else offer.reason
        if is_named and not had_quota and age < self.view.release_after:
            return f"ready for less than {self.view.release_after:g} s"
        return ""

    def _leaving(self, quotas: list[Quota]) -> None:
        """Keep flavors without a pool, with no quota, until no workload of the queue uses them."""
        observed = self.view.cluster_queues.get(self.name, {})
        for flavor in leaving.own(observed, self.uid, quotas, self.view.flavors):
            quotas.append(flavor.quota)
            self._report_leaving(flavor)

    def _leaving_borrowed(self, lent: Mapping[str, list[Quota]], covered: Sequence[str]) -> None:
        """Keep flavors in the queues that borrow, with a limit of 0, until none of their workloads uses them."""
        for name, quotas in lent.items():
            observed = self.view.cluster_queues.get(name, {})
            for flavor in leaving.borrowed(observed, self.uid, quotas, self.view.flavors, covered):
                quotas.append(flavor.quota)
                if all(state.flavor != flavor.quota[0] or state.state == "Missing" for state in self.states):
                    self._report_leaving(flavor)

    def _report_leaving(self, flavor: Leaving) -> None:
        name = flavor.quota[0]
        self.states = [state for state in self.states if state.flavor != name]
        self.states.append(FlavorState("", name, "", "Leaving", flavor.reason))

    def _excess(self, quotas: Sequence[Quota]) -> set[str]:
        """Return the last flavors beyond Kueue's limit, without those that workloads use; they are not written."""
        queue = self.view.cluster_queues.get(self.name, {})
        unused = [name for name, _, _ in reversed(quotas) if not manifests.is_used(queue, name)]
        excess = set(unused[: max(0, len(quotas) - manifests.MOST_FLAVORS)])
        if excess:
            reason = f"a queue of Kueue has at most {manifests.MOST_FLAVORS} flavors: use another MasterQueue"
            self.states = [
                replace(state, state="Excess", reason=reason) if state.flavor in excess else state
                for state in self.states
            ]
            written = [(a, a.body["metadata"]["name"] if isinstance(a, Apply) else "") for a in self.result]
            self.result = [action for action, name in written if name not in excess]
        return excess

    def _unwritten(self) -> None:
        """Report the flavors whose ResourceFlavor has yet to be written; no ClusterQueue names them."""
        reason = "its ResourceFlavor has not been written"
        self.states = [
            replace(state, state="Missing", reason=reason)
            if state.state in _WRITTEN and state.flavor not in self.view.flavors
            else state
            for state in self.states
        ]

    def _queue(self, name: str, spec: Specification, policy: str, quotas: Sequence[Quota]) -> None:
        """Plan the write of a ClusterQueue. It has only flavors whose ResourceFlavor exists: others would stop it."""
        observed = self.view.cluster_queues.get(name)
        written = [quota for quota in quotas if quota[0] in self.view.flavors]
        if observed is None and quotas and not written:
            return  # without a flavor it would be of no use
        body = manifests.cluster_queue(self.view.version, name, self.queue, spec.template, policy, written)
        if not self._apply(body, observed):
            self.conflicts.append(f"ClusterQueue {name}")

    def _local_queue(self, namespace: str, name: str) -> None:
        body = manifests.local_queue(self.view.version, namespace, name, self.queue, self.name)
        if not self._apply(body, self.view.local_queues.get((namespace, name))):
            self.conflicts.append(f"LocalQueue {namespace}/{name}")

    def _apply(self, body: Object, observed: Object | None) -> bool:
        """Plan a write if the object differs; return whether it may be written."""
        if observed is None:
            self.result.append(Apply(self.queue, body, ""))
            return True
        if not manifests.is_owned(observed, self.uid):
            return False
        metadata = observed["metadata"]
        if metadata.get("deletionTimestamp"):
            if body["kind"] == "ResourceFlavor":
                return True  # Kueue keeps it while the ClusterQueue names it, and workloads are admitted to it
            path = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
            self.deleted.append(f"{body['kind']} {path}")
        elif not manifests.is_applied(body, observed):
            self.result.append(Apply(self.queue, body, observed["metadata"]["uid"]))
        return True

    def _remove(self, queues: set[str], flavors: set[str], local_queues: set[tuple[str, str]]) -> None:
        """Delete own objects that are no longer wanted, flavors only after no ClusterQueue names them."""
        # without its ResourceFlavor, Kueue cannot start a workload that has reserved its quota (leaving.py)
        referenced_flavors = {
            flavor for queue in self.view.cluster_queues.values() for flavor in manifests.flavor_names(queue)
        }
        unwanted: list[tuple[Kind, Object]] = [
            ("ClusterQueue", queue) for name, queue in self.view.cluster_queues.items() if name not in queues
        ]
        unwanted += [
            ("ResourceFlavor", flavor)
            for name, flavor in self.view.flavors.items()
            if name not in flavors and name not in referenced_flavors
        ]
        unwanted += [("LocalQueue", item) for key, item in self.view.local_queues.items() if key not in local_queues]
        for kind, item in unwanted:
            metadata = item["metadata"]
            if manifests.is_owned(item, self.uid) and not metadata.get("deletionTimestamp"):
                namespace = metadata.get("namespace", "")
                self.result.append(Delete(self.queue, kind, namespace, metadata["name"], metadata["uid"]))

    def _report(self, status: Object) -> None:
        body = queue_status.dated(status, self.queue, self.view.now)
        if body != (self.queue.get("status") or {}):
            self.result.append(SetStatus(self.queue, body))


def _limited(flavor: Flavor, amounts: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return the share of amounts that becomes quota, at most ``nominalQuota``."""
    return {name: min(amount * flavor.share, flavor.cap.get(name, amount)) for name, amount in amounts.items()}
