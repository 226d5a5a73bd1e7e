from dataclasses import dataclass, field
from fractions import Fraction

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.clock import rfc3339
from bridge.workload.quantity import parse
from controllers.queues import manifests, specification
from controllers.queues.queue_decide import QueuesView, decide
from controllers.queues.queue_status import Apply, Delete, Evict, SetStatus
from tests import builders

NOW = 1_800_000_000.0


def node(pool, *, cpu="8", ready="True", reason="SiteReady", since=3600.0, taints=(), **amounts):
    own = [{"key": "pool.vk.io", "value": pool, "effect": "NoSchedule"}]
    virtual = [{"key": "virtual-node.interlink/no-schedule", "value": "true", "effect": "NoSchedule"}]
    condition = {"type": "Ready", "status": ready, "reason": reason, "lastTransitionTime": rfc3339(NOW - since)}
    return {
        "metadata": {"name": pool, "labels": {"bridge.vk.io/pool": pool, "kubernetes.io/hostname": pool}},
        "spec": {"taints": [*own, *virtual, *taints]},
        "status": {"allocatable": {"cpu": cpu, "memory": "16Gi", **amounts}, "conditions": [condition]},
    }


def master(name="batch", flavors=None, **spec):
    flavors = [{"name": "nats", "poolFlavor": {"poolRegExp": "."}}] if flavors is None else flavors
    return {
        "apiVersion": "vk.io/v1",
        "kind": "MasterQueue",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": {"flavors": flavors, **spec},
    }


def check_as_kueue(queue):
    """Refuse what Kueue's webhook and the schema of a ClusterQueue refuse, and quantities that Kueue cannot count."""
    for group in queue["spec"]["resourceGroups"]:
        flavors, covered = group["flavors"], group["coveredResources"]
        assert 0 < len(flavors) == len({flavor["name"] for flavor in flavors}), "a flavor occurs once"
        assert all([entry["name"] for entry in flavor["resources"]] == covered for flavor in flavors)
        for entry in (entry for flavor in flavors for entry in flavor["resources"]):
            unit = Fraction(1, 1000) if entry["name"] == "cpu" else 1
            amounts = [parse(entry[key]) for key in ("nominalQuota", "borrowingLimit") if key in entry]
            assert all(0 <= Fraction(amount) / unit < 2**63 for amount in amounts), entry


@dataclass
class Kube:
    """An API server that stores what is applied, and Kueue, which confirms each change of a ClusterQueue."""

    queues: list
    nodes: list
    flavors: dict = field(default_factory=dict)
    cluster_queues: dict = field(default_factory=dict)
    version: str = "v1beta2"
    now: float = NOW
    failures: dict = field(default_factory=dict)
    local_queues: dict = field(default_factory=dict)
    weights: dict = field(default_factory=dict)
    kueue_is_up: bool = True
    tainted: bool = True
    refused: tuple = ()
    """Names of objects that Kueue refuses."""

    def decide(self):
        objects = (self.queues, self.nodes, self.flavors, self.cluster_queues, self.local_queues)
        times = (self.now, 10, 30)
        return decide(QueuesView(*objects, self.version, *times, self.failures, "ours", self.weights, self.tainted))

    def step(self):
        """Carry out one decision; return its actions."""
        actions = self.decide()
        for action in actions:
            match action:
                case Apply(owner, body, _) if body["metadata"]["name"] in self.refused:
                    self.failures[owner["metadata"]["uid"]] = f"{body['kind']} {body['metadata']['name']}: 422"
                case Apply(_, body, _):
                    if body["kind"] == "ClusterQueue":
                        check_as_kueue(body)
                    name, namespace = body["metadata"]["name"], body["metadata"].get("namespace")
                    stored = {**body, "metadata": {**body["metadata"], "uid": f"uid-of-{name}"}}
                    place = self._place(body["kind"])
                    known = place.get(name, {"metadata": {}})
                    if "status" in known:
                        stored["status"] = known["status"]
                    changed = stored["spec"] != known.get("spec")
                    stored["metadata"]["generation"] = known["metadata"].get("generation", 0) + changed
                    place[(namespace, name) if namespace else name] = stored
                case Delete(_, kind, namespace, name, _):
                    del self._place(kind)[(namespace, name) if namespace else name]
                case SetStatus(queue, body):
                    queue["status"] = body
        if self.kueue_is_up:
            self.confirm()
        return actions

    def confirm(self):
        """Set the condition that Kueue writes together with the reservations."""
        for queue in self.cluster_queues.values():
            observed = {"type": "Active", "status": "True", "observedGeneration": queue["metadata"].get("generation")}
            queue["status"] = {**queue.get("status", {}), "conditions": [observed]}

    def settle(self):
        """Carry out decisions until there is nothing to do."""
        for _ in range(5):
            if not self.step():
                return self
        raise AssertionError("never at rest")

    def _place(self, kind):
        places = {"ResourceFlavor": self.flavors, "LocalQueue": self.local_queues}
        return places.get(kind, self.cluster_queues)

    def quota(self, flavor, queue="batch", resource="cpu"):
        (group,) = self.cluster_queues[queue]["spec"]["resourceGroups"]
        (found,) = [item for item in group["flavors"] if item["name"] == flavor]
        return next(item for item in found["resources"] if item["name"] == resource)

    def cpus(self, flavor, queue="batch"):
        return self.quota(flavor, queue)["nominalQuota"]

    def order(self, queue="batch"):
        return manifests.flavor_names(self.cluster_queues[queue])

    def condition(self, kind, number=0):
        found = [c for c in self.queues[number]["status"]["conditions"] if c["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else None

    def states(self):
        return {item["flavor"]: item["state"] for item in self.queues[0]["status"]["flavors"] if "flavor" in item}

    def used(self, flavor, queue="batch"):
        usage = [{"name": flavor, "resources": [{"name": "cpu", "total": "1"}]}]
        status = self.cluster_queues[queue]["status"]
        self.cluster_queues[queue]["status"] = {**status, "flavorsReservation": usage if flavor else []}


def test_each_pool_has_a_flavor_and_a_quota_of_what_it_offers():
    taint = {"key": "physics", "value": "yes", "effect": "NoSchedule"}
    transient = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
    kube = Kube([master()], [node("a", taints=[taint, transient]), node("b", cpu="1500m", **{"nvidia.com/gpu": "2"})])
    kube.settle()
    spec = kube.flavors["batch-nats-a"]["spec"]
    assert spec["nodeLabels"] == {"kubernetes.io/hostname": "a"}
    assert [taint["key"] for taint in spec["nodeTaints"]] == ["physics", "virtual-node.interlink/no-schedule"]
    assert [(t["key"], t["value"]) for t in spec["tolerations"]] == [("pool.vk.io", "a")]
    group = kube.cluster_queues["batch"]["spec"]["resourceGroups"][0]
    assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu"]
    assert [[item["nominalQuota"] for item in f["resources"]] for f in group["flavors"]] == [
        ["8", str(16 * 2**30), "0"],
        ["1500m", str(16 * 2**30), "2"],
    ]
    assert kube.condition("Ready") == ("True", "InStep")
    assert kube.queues[0]["status"]["offered"] == "2 of 2"


def test_nothing_is_written_at_rest_not_even_after_a_restart():
    kube = Kube([master()], [node("a"), node("b", ready="False", reason="SiteSilent")]).settle()
    assert kube.decide() == []
    kube.nodes[0]["status"]["conditions"][0] |= {"status": "Unknown", "reason": "NodeStatusUnknown"}
    kube.nodes[1]["status"]["conditions"][0] |= {"status": "Unknown", "reason": "NodeStatusUnknown"}
    assert [action for action in kube.decide() if isinstance(action, Apply)] == []


def test_defaults_of_the_api_server_and_other_spellings_of_quantities_are_no_change():
    kube = Kube([master()], [node("a")]).settle()
    spec = kube.cluster_queues["batch"]["spec"]
    spec |= {"flavorFungibility": {"whenCanBorrow": "MayStopSearch"}, "preemption": {"withinClusterQueue": "Never"}}
    spec["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] = "16Gi"
    assert kube.decide() == []
    spec["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "9"
    (action,) = kube.decide()
    assert isinstance(action, Apply), "somebody has changed the quota"
    assert action.observed_uid == "uid-of-batch"


def test_share_and_nominal_quota_limit_the_quota():
    flavors = [{"name": "nats", "share": 50, "nominalQuota": {"memory": "1Gi"}, "poolFlavor": {"pools": ["a"]}}]
    kube = Kube([master(flavors=flavors)], [node("a", cpu="3")]).settle()
    assert kube.cpus("batch-nats-a") == "1500m"
    assert kube.quota("batch-nats-a", resource="memory")["nominalQuota"] == str(2**30)


def test_flavors_have_the_order_of_the_manifest():
    flavors = [
        {"name": "first", "natsFlavor": {"pools": ["c", "a"]}},
        {"name": "rest", "poolFlavor": {"poolRegExp": "^b"}},
    ]
    kube = Kube([master(flavors=flavors)], [node("a"), node("b1"), node("b2"), node("c")]).settle()
    assert kube.order() == ["batch-first-c", "batch-first-a", "batch-rest-b1", "batch-rest-b2"]


def test_pools_of_an_expression_have_the_order_of_their_weights_and_listed_pools_that_of_the_list():
    flavors = [
        {"name": "listed", "poolFlavor": {"pools": ["a", "b"]}},
        {"name": "rest", "poolFlavor": {"poolRegExp": "^[cde]"}},
    ]
    nodes = [node(pool) for pool in "abcde"]
    kube = Kube([master(flavors=flavors)], nodes, weights={"b": 9, "e": 3, "d": 3}).settle()
    assert kube.order() == ["batch-listed-a", "batch-listed-b", *(f"batch-rest-{pool}" for pool in "dec")]
    kube.weights = {"c": 2}
    kube.settle()
    assert kube.order()[2:] == [f"batch-rest-{pool}" for pool in "cde"]


def test_a_queue_has_at_most_as_many_flavors_as_kueue_allows():
    lending = [{"queue": "guests"}]
    flavors = [{"name": "n", "canLendTo": lending, "poolFlavor": {"poolRegExp": "."}}]
    nodes = [node(f"p{number:03}") for number in range(70)]
    kube = Kube([master(flavors=flavors, template={"cohort": "c"})], nodes).settle()
    assert kube.order() == kube.order("guests") == [f"batch-n-p{number:03}" for number in range(64)]
    assert set(kube.flavors) == set(kube.order())
    assert kube.states()["batch-n-p063"] == "Offered"
    assert kube.states()["batch-n-p064"] == "Excess"
    kube.used("batch-n-p063")
    kube.weights = {f"p{number:03}": 2 for number in range(64, 70)}
    kube.settle()
    assert kube.order()[0] == "batch-n-p064"
    assert kube.order()[-1] == "batch-n-p063", "workloads use it"
    assert len(kube.order()) == 64
    assert kube.states()["batch-n-p062"] == "Excess"


def test_a_silent_pool_has_no_quota_until_it_has_been_ready_for_a_while():
    kube = Kube([master()], [node("a"), node("b")]).settle()
    kube.nodes[1] = node("b", ready="False", reason="SiteSilent", since=0)
    kube.settle()
    assert (kube.cpus("batch-nats-a"), kube.cpus("batch-nats-b")) == ("8", "0")
    assert kube.states() == {"batch-nats-a": "Offered", "batch-nats-b": "Held"}
    assert kube.cluster_queues["batch"]["spec"]["stopPolicy"] == "None"
    kube.nodes[1] = node("b", since=9)
    kube.settle()
    assert kube.cpus("batch-nats-b") == "0", "back for 9 s"
    kube.now += 1
    kube.settle()
    assert kube.cpus("batch-nats-b") == "8", "back for 10 s"


def test_a_new_pool_is_offered_at_once():
    kube = Kube([master()], [node("a")]).settle()
    kube.nodes.append(node("b", since=0))
    kube.settle()
    assert kube.cpus("batch-nats-b") == "8"


@pytest.mark.parametrize(
    ("timeout", "reason", "age", "cpus"),
    [(60, "SiteSilent", 29, "8"), (60, "SiteSilent", 30, "0"), (60, "SiteLeft", 0, "0"), (10, "SiteSilent", 0, "0")],
)
def test_the_pool_timeout_counts_from_the_last_message(timeout, reason, age, cpus):
    flavors = [{"name": "nats", "natsFlavor": {"pools": ["a"], "poolTimeout": timeout}}]
    kube = Kube([master(flavors=flavors)], [node("a")]).settle()
    kube.nodes = [node("a", ready="False", reason=reason, since=age)]
    kube.settle()
    assert kube.cpus("batch-nats-a") == cpus


@pytest.mark.parametrize(
    ("fields", "reason", "since", "lost", "evicted"),
    [
        ({"evictAfter": 600}, "SiteSilent", 571, None, True),
        ({"evictAfter": 600}, "SiteSilent", 569, None, False),
        ({"evictAfter": 600}, "SiteProblem", 9999, None, False),
        ({"evictAfter": 600, "poolTimeout": 1200}, "SiteSilent", 600, None, False),
        ({}, "SiteSilent", 9999, None, False),
        # the time before the silence, in which the site had a problem, does not count
        ({"evictAfter": 600}, "SiteSilent", 3600, 5, False),
        ({"evictAfter": 600}, "SiteSilent", 3600, 569, False),
        ({"evictAfter": 600}, "SiteSilent", 3600, 571, True),
    ],
)
def test_workloads_of_a_pool_that_is_silent_for_long_are_evicted_if_the_manifest_says_so(
    fields, reason, since, lost, evicted
):
    kube = Kube([master(flavors=[{"name": "n", "poolFlavor": {"pools": ["a"], **fields}}])], [node("a")]).settle()
    kube.nodes[0] = node("a", ready="False", reason=reason, since=since)
    if lost is not None:
        connected = {"type": "PoolConnected", "status": "False", "lastTransitionTime": rfc3339(NOW - lost)}
        kube.nodes[0]["status"]["conditions"].append(connected)
    kube.settle()
    kube.used("batch-n-a")
    actions = [action for action in kube.decide() if isinstance(action, Evict)]
    assert [action.flavor for action in actions] == (["batch-n-a"] if evicted else [])
    assert not evicted or "pool a has been silent for 601 s" in actions[0].message
    kube.nodes[0] = node("a", ready="Unknown", reason="NotReported", since=9999)
    assert not [action for action in kube.decide() if isinstance(action, Evict)]


def test_a_silence_of_unknown_length_evicts_nothing():
    flavors = [{"name": "n", "poolFlavor": {"pools": ["a"], "evictAfter": 600}}]
    kube = Kube([master(flavors=flavors)], [node("a")]).settle()
    kube.nodes[0] = node("a", ready="False", reason="SiteSilent")
    kube.nodes[0]["status"]["conditions"][0]["lastTransitionTime"] = None
    kube.settle()
    kube.used("batch-n-a")
    assert kube.quota("batch-n-a")["nominalQuota"] == "0"
    assert not [action for action in kube.decide() if isinstance(action, Evict)]


def test_a_cordoned_pool_is_held():
    kube = Kube([master()], [node("a")])
    kube.nodes[0]["spec"]["unschedulable"] = True
    kube.settle()
    assert kube.cpus("batch-nats-a") == "0"
    assert kube.queues[0]["status"]["flavors"][0]["reason"] == "Cordoned"


@pytest.mark.parametrize(
    ("own", "silent", "expected"),
    [
        ("None", "Hold", "Hold"),
        ("None", "HoldAndDrain", "HoldAndDrain"),
        ("Stop", "None", "Hold"),
        ("StopAndHold", "Hold", "HoldAndDrain"),
        ("None", "None", "None"),
    ],
)
def test_a_queue_without_an_offer_is_stopped(own, silent, expected):
    kube = Kube([master(template={"stopPolicy": own}, whenSilent=silent)], []).settle()
    assert kube.cluster_queues["batch"]["spec"]["stopPolicy"] == expected
    assert kube.condition("Offering") == ("False", "NoOffer")
    kube.nodes = [node("a")]
    kube.settle()
    assert kube.cluster_queues["batch"]["spec"]["stopPolicy"] == specification.STOP_POLICIES[own]


def test_the_flavor_of_a_pool_that_is_gone_stays_while_workloads_use_it():
    kube = Kube([master()], [node("a"), node("b")]).settle()
    kube.used("batch-nats-b")
    kube.nodes = [node("a")]
    kube.settle()
    assert kube.cpus("batch-nats-b") == "0"
    assert kube.states()["batch-nats-b"] == "Leaving"
    kube.used("")
    assert [type(action) for action in kube.step()] == [Apply], "first the queue names it no longer"
    assert "batch-nats-b" in kube.flavors
    kube.settle()
    assert list(kube.flavors) == ["batch-nats-a"]


def test_a_flavor_stays_until_kueue_has_reported_that_nothing_uses_it_without_quota():
    """Kueue reports reservations later than it admits: before the quota is 0, a report may be older than a workload."""
    kube = Kube([master()], [node("a"), node("b")]).settle()
    kube.kueue_is_up = False
    kube.nodes = [node("a")]
    kube.settle()
    assert kube.cpus("batch-nats-b") == "0"
    assert kube.states()["batch-nats-b"] == "Leaving"
    kube.used("batch-nats-b")
    kube.confirm()
    assert kube.settle().cpus("batch-nats-b") == "0", "admitted before the quota was 0"
    kube.used("")
    kube.settle()
    assert list(kube.flavors) == ["batch-nats-a"]


def test_a_flavor_that_another_queue_names_is_not_deleted():
    kube = Kube([master()], [node("a")]).settle()
    other = {"metadata": {"name": "other"}, "spec": {"resourceGroups": [{"flavors": [{"name": "batch-nats-a"}]}]}}
    kube.cluster_queues["other"] = other
    kube.nodes = []
    kube.settle()
    assert "batch-nats-a" in kube.flavors
    assert kube.cluster_queues["other"] == other


@pytest.mark.parametrize("kind", ["flavor", "queue"])
def test_what_belongs_to_somebody_else_is_not_changed(kind):
    kube = Kube([master()], [node("a"), node("b")])
    foreign = {"metadata": {"name": "x", "uid": "u"}, "spec": {"nodeLabels": {"theirs": "yes"}}}
    if kind == "flavor":
        kube.flavors["batch-nats-a"] = foreign
    else:
        kube.cluster_queues["batch"] = foreign
    kube.settle()
    if kind == "flavor":
        assert kube.flavors["batch-nats-a"] is foreign
        assert kube.order() == ["batch-nats-b"]
        assert kube.states()["batch-nats-a"] == "Conflict"
    else:
        assert kube.cluster_queues["batch"] is foreign
        assert kube.condition("Ready") == ("False", "Conflict")


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
def test_a_queue_that_is_being_deleted_is_reported_until_it_is_created_again(kind):
    kube = Kube([master(localQueues=[{"namespace": "team", "name": "q"}])], [node("a")]).settle()
    store = {"ClusterQueue": kube.cluster_queues, "LocalQueue": kube.local_queues}[kind]
    (key,) = store
    store[key]["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    kube.settle()
    assert kube.condition("Ready") == ("False", "BeingDeleted")
    (ready,) = [c for c in kube.queues[0]["status"]["conditions"] if c["type"] == "Ready"]
    name = "/".join(key) if isinstance(key, tuple) else key
    assert f"{kind} {name} is being deleted" in ready["message"]
    del store[key]
    kube.settle()
    assert kube.condition("Ready") == ("True", "InStep")
    assert key in store


def test_a_deleted_flavor_that_its_queue_names_is_in_step():
    kube = Kube([master()], [node("a")]).settle()
    (flavor,) = kube.flavors.values()
    flavor["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert kube.settle().condition("Ready") == ("True", "InStep")
    assert kube.decide() == []


def test_two_masters_keep_to_their_own():
    kube = Kube([master("a"), master("b")], [node("x")]).settle()
    assert set(kube.flavors) == {"a-nats-x", "b-nats-x"}
    kube.queues[0]["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert kube.decide() == [], "Kubernetes deletes what a deleted MasterQueue owns"


def test_queues_of_can_lend_to_borrow_within_the_limit_for_each_pool():
    lending = [{"queue": "group", "lendingLimit": {"cpu": 2}}]
    flavors = [{"name": "nats", "poolFlavor": {"poolRegExp": "."}, "canLendTo": lending}]
    kube = Kube([master(flavors=flavors, template={"cohort": "all"})], [node("a"), node("b")]).settle()
    assert kube.order("group") == ["batch-nats-a", "batch-nats-b"]
    assert kube.quota("batch-nats-a", "group") == {"name": "cpu", "nominalQuota": "0", "borrowingLimit": "2"}
    assert "borrowingLimit" not in kube.quota("batch-nats-a", "group", "memory")
    assert kube.cluster_queues["group"]["spec"]["cohortName"] == "all"
    del kube.queues[0]["spec"]["flavors"][0]["canLendTo"]
    kube.settle()
    assert list(kube.cluster_queues) == ["batch"]


def lending_master(*names, **limit):
    flavors = [
        {"name": name, "poolFlavor": {"pools": [name]}, "canLendTo": [{"queue": "group", "lendingLimit": limit}]}
        for name in names
    ]
    return master(flavors=flavors, template={"cohort": "all"})


@pytest.mark.parametrize("how", ["no pool", "no flavor", "not lent"])
def test_a_flavor_stays_in_a_queue_that_borrows_it_while_its_workloads_use_it(how):
    kube = Kube([lending_master("a", "b", cpu=2)], [node("a"), node("b")]).settle()
    kube.used("batch-a-a", "group")
    if how == "no pool":
        kube.nodes = [node("b")]
    elif how == "no flavor":
        del kube.queues[0]["spec"]["flavors"][0]
    else:
        del kube.queues[0]["spec"]["flavors"][0]["canLendTo"]
    kube.settle()
    assert kube.order("group") == ["batch-b-b", "batch-a-a"]
    for resource in ("cpu", "memory"):
        found = kube.quota("batch-a-a", "group", resource)
        assert found == {"name": resource, "nominalQuota": "0", "borrowingLimit": "0"}, "nothing more is admitted"
    assert "batch-a-a" in kube.flavors, "a workload that has not started needs it"
    assert kube.states()["batch-a-a"] == ("Offered" if how == "not lent" else "Leaving")
    kube.used("", "group")
    kube.settle()
    assert kube.order("group") == ["batch-b-b"]
    assert ("batch-a-a" in kube.flavors) == (how == "not lent")


def test_a_borrowed_flavor_stays_until_kueue_has_reported_that_nothing_uses_it_without_a_limit():
    kube = Kube([lending_master("a", "b")], [node("a"), node("b")]).settle()
    kube.kueue_is_up = False
    kube.nodes = [node("b")]
    kube.settle()
    assert kube.quota("batch-a-a", "group")["borrowingLimit"] == "0"
    kube.used("batch-a-a", "group")
    kube.confirm()
    kube.settle()
    assert "batch-a-a" in kube.order("group"), "admitted before the limit was 0"
    assert "batch-a-a" in kube.flavors
    kube.used("", "group")
    kube.kueue_is_up = True
    kube.confirm()
    kube.settle()
    assert list(kube.flavors) == ["batch-b-b"]


def test_a_queue_that_borrows_has_at_most_as_many_flavors_as_kueue_allows():
    before, after = ([f"{letter}{number:03}" for number in range(64)] for letter in "pq")
    kube = Kube([lending_master(*before)], [node(pool) for pool in before]).settle()
    kube.used("batch-p000-p000", "group")
    kube.queues[0]["spec"] = lending_master(*after[:63])["spec"]
    kube.nodes = [node(pool) for pool in after]
    kube.settle()
    assert kube.order("group") == [*(f"batch-{pool}-{pool}" for pool in after[:63]), "batch-p000-p000"]
    kube.queues[0]["spec"] = lending_master(*after)["spec"]
    kube.settle()
    assert kube.order("group") == [f"batch-{pool}-{pool}" for pool in after]


def test_a_borrowed_flavor_stays_when_the_last_pool_leaves():
    kube = Kube([lending_master("a")], [node("a")]).settle()
    kube.used("batch-a-a", "group")
    kube.nodes = []
    kube.settle()
    assert kube.order("group") == ["batch-a-a"]
    assert kube.order() == []
    assert kube.decide() == [], "at rest"
    kube.used("", "group")
    kube.settle()
    assert kube.order("group") == []
    assert not kube.flavors


def test_a_local_flavor_is_one_of_the_administrator():
    flavors = [{"name": "local", "localFlavor": {}, "nominalQuota": {"cpu": 4}}]
    kube = Kube([master(flavors=flavors)], []).settle()
    assert kube.states() == {"local": "Missing"}
    kube.flavors["local"] = {"metadata": {"name": "local", "uid": "u"}, "spec": {}}
    kube.settle()
    assert kube.cpus("local") == "4"
    assert "local" in kube.flavors


def plain(name, manager="", ready="True", **labels):
    taints = [{"key": "slinky.slurm.net/managed-node", "value": manager, "effect": "NoExecute"}] if manager else []
    return builders.node(name, labels=labels, taints=taints, allocatable={"cpu": "4"}, ready=ready)


def test_nodes_of_slurm_and_of_kube_scheduler_are_flavors_with_what_the_ready_ones_offer():
    flavors = [
        {"name": "slurm", "slurmFlavor": {}},
        {"name": "gpu", "slurmFlavor": {"nodeLabels": {"kind": "gpu"}}, "share": 50},
        {"name": "local", "localFlavor": {"nodeLabels": {}}, "nominalQuota": {"cpu": 3}},
    ]
    nodes = [plain("a", "ours"), plain("b", "ours", kind="gpu"), plain("c", "ours", "False"), plain("d", "theirs")]
    kube = Kube([master(flavors=flavors)], [*nodes, plain("e"), plain("f"), node("pool")]).settle()
    assert [kube.cpus(f"batch-{name}") for name in ("slurm", "gpu", "local")] == ["8", "2", "3"]
    assert kube.flavors["batch-gpu"]["spec"] == {"nodeLabels": {"kind": "gpu"}}
    assert kube.flavors["batch-slurm"]["spec"] == {}
    kube.nodes[1]["spec"]["unschedulable"] = True
    kube.settle()
    assert [kube.cpus(f"batch-{name}") for name in ("slurm", "gpu")] == ["4", "0"]
    assert kube.states() == {"batch-slurm": "Offered", "batch-gpu": "Held", "batch-local": "Offered"}


def test_a_flavor_of_a_partition_selects_its_label_and_has_the_quota_of_its_nodes():
    flavors = [
        {"name": "gpu", "slurmFlavor": {"partition": "gpu"}},
        {"name": "ssd", "slurmFlavor": {"partition": "gpu", "nodeLabels": {"disk": "ssd"}}},
    ]
    gpu = {"partition.bridge.vk.io/gpu": "true"}
    nodes = [plain("a", "ours", **gpu), plain("b", "ours", **gpu, disk="ssd"), plain("c", "ours")]
    kube = Kube([master(flavors=flavors)], nodes).settle()
    assert [kube.cpus(f"batch-{name}") for name in ("gpu", "ssd")] == ["8", "4"]
    assert kube.flavors["batch-gpu"]["spec"] == {"nodeLabels": gpu}
    assert kube.flavors["batch-ssd"]["spec"] == {"nodeLabels": {**gpu, "disk": "ssd"}}


@pytest.mark.parametrize(
    ("flavor", "reason"),
    [
        ({"slurmFlavor": {"partition": "gpu"}}, "no node has the label of the partition: set nodes.partitionLabels"),
        ({"slurmFlavor": {"nodeLabels": {"disk": "ssd"}}}, "no node has the labels"),
        ({"localFlavor": {"nodeLabels": {}}}, "there is no such node"),
        ({"slurmFlavor": {}}, "no node is ready"),
    ],
)
def test_a_flavor_of_nodes_without_an_offer_says_why(flavor, reason):
    kube = Kube([master(flavors=[{"name": "n", **flavor}])], [plain("a", "ours", ready="False")]).settle()
    (state,) = kube.queues[0]["status"]["flavors"]
    assert state["state"] == "Held"
    assert state["reason"].startswith(reason)


def test_a_flavor_of_slurm_needs_the_taint():
    kube = Kube([master(flavors=[{"name": "n", "slurmFlavor": {}}])], [plain("a")], tainted=False).settle()
    (state,) = kube.queues[0]["status"]["flavors"]
    assert (state["state"], kube.cpus("batch-n")) == ("Held", "0")
    assert "nodes.taint: true" in state["reason"]


def test_nodes_that_slurm_has_stopped_have_a_quota_unless_they_are_cordoned():
    nodes = [plain(name, "ours", ready="Unknown") for name in ("asleep", "down", "cordoned")]
    for item in (nodes[0], nodes[2]):
        item["metadata"]["annotations"] = {"bridge.vk.io/slurm-asleep": "true"}
        item["spec"]["taints"].append({"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"})
    nodes[2]["spec"]["unschedulable"] = True
    kube = Kube([master(flavors=[{"name": "n", "slurmFlavor": {}}])], nodes).settle()
    assert kube.cpus("batch-n") == "4"
    assert kube.states() == {"batch-n": "Offered"}


def test_nodes_with_taints_are_not_counted_for_a_local_flavor():
    nodes = [plain("worker"), plain("control-plane"), plain("preferred")]
    nodes[1]["spec"]["taints"] = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    nodes[2]["spec"]["taints"] = [{"key": "busy", "effect": "PreferNoSchedule"}]
    kube = Kube([master(flavors=[{"name": "n", "localFlavor": {"nodeLabels": {}}}])], nodes).settle()
    assert kube.cpus("batch-n") == "8"
    kube.nodes = nodes[1:2]
    kube.settle()
    (state,) = kube.queues[0]["status"]["flavors"]
    assert (state["state"], state["reason"]) == ("Held", "no node is ready and without taints")


def test_a_flavor_without_any_resource_still_covers_one_as_kueue_demands():
    kube = Kube([master(flavors=[{"name": "slurm", "slurmFlavor": {}}])], []).settle()
    assert kube.quota("batch-slurm") == {"name": "cpu", "nominalQuota": "0"}


def test_local_queues_are_created_and_removed_and_those_of_others_stay():
    kube = Kube([master(localQueues=[{"namespace": "team"}, {"namespace": "team", "name": "own"}])], [node("a")])
    theirs = {"metadata": {"namespace": "team", "name": "own", "uid": "x"}, "spec": {"clusterQueue": "theirs"}}
    kube.local_queues["team", "own"] = theirs
    kube.settle()
    assert kube.local_queues["team", "batch"]["spec"] == {"clusterQueue": "batch"}
    assert kube.local_queues["team", "own"] is theirs
    assert "LocalQueue team/own" in kube.queues[0]["status"]["conditions"][0]["message"]
    kube.queues[0]["spec"]["localQueues"] = []
    kube.settle()
    assert list(kube.local_queues) == [("team", "own")]
    assert kube.condition("Ready") == ("True", "InStep")


def test_a_local_queue_twice_is_refused():
    with pytest.raises(specification.SpecificationError, match="LocalQueue a/batch occurs more than once"):
        specification.read(master(localQueues=[{"namespace": "a"}, {"namespace": "a", "name": "batch"}]))


def test_the_template_has_the_names_of_the_served_version():
    template = {"cohort": "all", "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"}}
    new = Kube([master(template=template)], [node("a")]).settle().cluster_queues["batch"]
    assert new["spec"]["cohortName"] == "all"
    assert new["spec"]["flavorFungibility"] == {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}
    old = Kube([master(template=template)], [node("a")], version="v1beta1").settle().cluster_queues["batch"]
    assert old["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert old["spec"]["cohort"] == "all"
    assert old["spec"]["flavorFungibility"] == {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"}
    old_kube = Kube([master(template=template)], [node("a")], version="v1beta1").settle()
    assert old_kube.decide() == []


def test_policies_of_a_later_version_have_their_names_in_v1beta1():
    both = {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch", "preference": "MayStopSearch"}
    template = {"flavorFungibility": both}
    for version, expected in (
        ("v1beta1", {**both, "whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}),
        ("v1beta2", both),
    ):
        kube = Kube([master(template=template)], [node("a")], version=version).settle()
        assert kube.cluster_queues["batch"]["spec"]["flavorFungibility"] == expected


def test_a_removed_field_is_a_change():
    kube = Kube([master(template={"cohort": "all"})], [node("a")]).settle()
    kube.queues[0]["spec"]["template"] = {}
    kube.settle()
    assert "cohortName" not in kube.cluster_queues["batch"]["spec"]


def test_an_invalid_master_queue_says_why_and_keeps_its_objects():
    kube = Kube([master(), master("other")], [node("a")]).settle()
    kube.queues[0]["spec"]["flavors"][0]["poolFlavor"] = {"poolRegExp": "("}
    kube.settle()
    assert kube.condition("Ready") == ("False", "Invalid")
    (condition,) = kube.queues[0]["status"]["conditions"]
    assert "spec.flavors[0].poolFlavor.poolRegExp: '(' is no regular" in condition["message"]
    assert kube.order() == ["batch-nats-a"]
    assert kube.condition("Ready", 1) == ("True", "InStep")


def test_a_bad_pool_spoils_only_itself():
    bad = node("b", cpu="many")
    bad["status"]["conditions"] = []
    kube = Kube([master()], [node("a"), bad]).settle()
    assert kube.cpus("batch-nats-a") == "8"
    assert kube.cpus("batch-nats-b") == "0"


def test_a_queue_whose_objects_are_not_written_is_not_reported_as_in_step():
    kube = Kube([master()], [node("a")])
    assert [type(action) for action in kube.decide()] == [Apply]
    kube.settle()
    kube.nodes = [node("a", cpu="9")]
    assert [type(action) for action in kube.decide()] == [Apply]
    kube.failures = {"uid-batch": "ClusterQueue batch: 500"}
    kube.step()
    assert kube.condition("Ready") == ("False", "WriteFailed")
    kube.failures = {}
    kube.settle()
    assert kube.condition("Ready") == ("True", "InStep")


def test_a_resource_flavor_that_is_refused_leaves_the_others_in_the_queue():
    flavors = [{"name": pool, "poolFlavor": {"pools": [pool]}} for pool in ("a", "b")]
    kube = Kube([master(flavors=flavors)], [node("a"), node("b")], refused=("batch-b-b",))
    for _ in range(4):
        kube.step()
    assert kube.order() == ["batch-a-a"]
    assert kube.states() == {"batch-a-a": "Offered", "batch-b-b": "Missing"}
    assert kube.condition("Ready") == ("False", "WriteFailed")
    kube.nodes = [node("a", cpu="9"), node("b")]
    kube.step()
    assert kube.cpus("batch-a-a") == "9", "the quota of the others follows"
    kube.refused, kube.failures = (), {}
    kube.settle()
    assert kube.order() == ["batch-a-a", "batch-b-b"]


def test_a_queue_is_not_created_before_a_flavor_of_it():
    kube = Kube([master()], [node("a")], refused=("batch-nats-a",))
    for _ in range(4):
        kube.step()
    assert kube.cluster_queues == {}


def test_a_pool_whose_resource_flavor_would_have_too_long_a_name_is_left_out():
    name = "x" * 240
    kube = Kube([master(name)], [node("a"), node("a-pool-with-a-name")]).settle()
    assert kube.order(name) == [f"{name}-nats-a"]
    assert [item["state"] for item in kube.queues[0]["status"]["flavors"]] == ["Offered", "Missing"]


def test_objects_of_an_older_operator_are_taken_over():
    owner = [{"kind": "MasterQueue", "name": "batch", "uid": "uid-batch"}]
    kube = Kube([master()], [node("a")])
    old = {"name": "batch", "uid": "old", "ownerReferences": owner}
    proxy = "non-existing-flavor-proxy-for-inactive-pools"
    kube.cluster_queues["batch"] = {"metadata": old, "spec": {"resourceGroups": [{"flavors": [{"name": proxy}]}]}}
    kube.flavors[proxy] = {"metadata": {**old, "name": proxy}, "spec": {}}
    first = {action.body["metadata"]["name"]: action for action in kube.decide() if isinstance(action, Apply)}
    assert first["batch"].observed_uid == "old"
    kube.settle()
    assert kube.order() == ["batch-nats-a"]
    assert list(kube.flavors) == ["batch-nats-a"]
    assert kube.condition("Ready") == ("True", "InStep")


def test_fields_of_older_manifests_are_accepted_and_explained():
    manifest = yaml.safe_load("""
    apiVersion: vk.io/v1
    kind: MasterQueue
    metadata: {name: batch, uid: uid-batch, generation: 1}
    spec:
      template:
        cohort: all
        flavorFungibility: {whenCanBorrow: Borrow, whenCanPreempt: TryNextFlavor}
        preemption: {borrowWithinCohort: {policy: LowerPriority}, reclaimWithinCohort: Any}
        stopPolicy: None
        queueingStrategy: BestEffortFIFO
        namespaceSelector: {}
      flavors:
      - name: infn
        nominalQuota: {cpu: 2, memory: 4Gi, pods: 10, nvidia.com/gpu: 0}
        canLendTo: [{queue: group-a, lendingLimit: {cpu: 1, memory: 2Gi, pods: 5}}]
        natsFlavor:
          natsConnector: nats://user:password@nats:4222
          natsSubject: interlink
          virtualNode: vk
          poolRegExp: "[a-z]+"
          poolTimeout: 60
      - {name: local, localFlavor: {}, nominalQuota: {cpu: 1}}
    """)
    kube = Kube([manifest], [node("site")]).settle()
    assert kube.cpus("batch-infn-site") == "2"
    assert kube.condition("FieldsIgnored") == ("True", "NoMeaning")
    assert kube.condition("Ready") == ("True", "InStep")


@pytest.mark.parametrize(
    ("flavor", "message"),
    [
        ({"name": "X", "poolFlavor": {"pools": ["a"]}}, "name: 'X' is not allowed"),
        ({"name": "x"}, "has no kind; allowed: one of poolFlavor"),
        ({"name": "x", "poolFlavor": {"pools": ["a"]}, "localFlavor": {}}, "has poolFlavor and localFlavor"),
        ({"name": "x", "poolFlavor": {}}, "needs pools or poolRegExp"),
        ({"name": "x", "poolFlavor": {"pools": ["a", "a"]}}, "allowed: each pool once"),
        ({"name": "x", "poolFlavor": {"pools": ["a"], "poolTimeout": -1}}, "poolTimeout: -1 is not allowed"),
        ({"name": "x", "poolFlavor": {"pools": ["a"]}, "share": 101}, "share: 101 is not allowed"),
        ({"name": "x", "poolFlavor": {"pools": ["a"]}, "nominalQuota": {"cpu": "x"}}, "cpu: 'x' is no quantity"),
        ({"name": "x", "poolFlavor": {"pools": ["a"]}, "nominalQuota": {"cpu": -1}}, "cpu: -1 is not allowed"),
        ({"name": "x", "poolFlavor": {"pools": ["a"]}, "canLendTo": [{"queue": "q"}]}, "cohort: is missing"),
        (
            {"name": "x", "poolFlavor": {"pools": ["a"]}, "canLendTo": [{"queue": "q"}, {"queue": "q"}]},
            r"spec.flavors\[0\].canLendTo: queue 'q' occurs more than once",
        ),
        ({"name": "x", "localFlavor": {}}, r"needs nominalQuota or localFlavor\.nodeLabels"),
        ({"name": "x", "slurmFlavor": {"nodeLabels": {"a": 1}}}, "allowed: values by label"),
        ({"name": "x", "slurmFlavor": {"nodeLabels": dict.fromkeys("abcdefghi", "")}}, "allowed: at most 8"),
        ({"name": "x", "localFlavor": {"nodeLabels": {"rack": "my rack"}}}, r"nodeLabels\.rack: 'my rack' is not"),
        ({"name": "x", "localFlavor": {"nodeLabels": {"rack": "x" * 64}}}, "allowed: at most 63"),
        ({"name": "x", "localFlavor": {"nodeLabels": {"": "x"}}}, "nodeLabels: '' is not allowed"),
        ({"name": "x", "localFlavor": {"nodeLabels": {"Upper.example/rack": "x"}}}, "allowed: names of labels"),
        ({"name": "x", "localFlavor": {"nodeLabels": {"a/b/c": "x"}}}, "allowed: names of labels"),
        ({"name": "x", "localFlavor": {"nodeLabels": {"example.com/" + "x" * 64: "x"}}}, "allowed: names of labels"),
        ({"name": "x" * 250, "localFlavor": {"nodeLabels": {"a.example/A_b": "1.x"}}}, "at most 253 characters"),
        ({"name": "x", "poolFlavor": {"pools": ["a" * 250]}}, "at most 253 characters"),
        ({"name": "a..b", "poolFlavor": {"pools": ["a"]}}, "a name of an object"),
    ],
)
def test_each_wrong_field_is_named(flavor, message):
    with pytest.raises(specification.SpecificationError, match=message):
        specification.read(master(flavors=[flavor]))


_WORDS = ("a", "A", "(", ".", "1", "1Gi", "-1", "None", "Stop")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_BODY = st.fixed_dictionaries({}, optional={"pools": _JSON, "poolRegExp": _JSON, "poolTimeout": _JSON})
_QUOTAS = st.dictionaries(st.sampled_from(("cpu", "memory")), st.integers(-1, 5) | st.sampled_from(_WORDS), max_size=2)
_FLAVOR = st.fixed_dictionaries(
    {"name": st.sampled_from(_WORDS)},
    optional={
        "poolFlavor": _BODY,
        "localFlavor": st.just({}),
        "slurmFlavor": st.fixed_dictionaries({}, optional={"partition": _JSON}),
        "share": _JSON,
        "nominalQuota": _QUOTAS,
    },
)


@given(st.lists(_FLAVOR, max_size=3))
@example([{"name": "a", "poolFlavor": {"pools": True}}])
def test_whatever_a_manifest_has_is_read_or_refused_in_words(flavors):
    kube = Kube([master(flavors=flavors)], [node("a"), node("b", ready="False")])
    kube.settle()
    try:
        specification.read(kube.queues[0])
        assert kube.condition("Ready")[0] == "True"
    except specification.SpecificationError as error:
        assert str(error).startswith("spec.")
        assert kube.condition("Ready") == ("False", "Invalid")


def test_two_flavors_do_not_share_a_resource_flavor():
    flavors = [{"name": name, "poolFlavor": {"pools": [pool]}} for name, pool in (("eu", "west-a"), ("eu-west", "a"))]
    kube = Kube([master(flavors=flavors)], [node("west-a"), node("a")]).settle()
    assert kube.order() == ["batch-eu-west-a"]
    found = [(item["name"], item["state"]) for item in kube.queues[0]["status"]["flavors"]]
    assert found == [("eu", "Offered"), ("eu-west", "Conflict")]
    assert kube.decide() == []


def test_a_flavor_of_the_administrator_and_one_of_a_pool_do_not_share_a_resource_flavor():
    """Kueue refuses a queue that names a flavor twice, so the quotas of all its pools would stay as they are."""
    flavors = [
        {"name": "nats", "poolFlavor": {"pools": ["a"]}},
        {"name": "batch-nats-a", "localFlavor": {}, "nominalQuota": {"cpu": 4}},
    ]
    kube = Kube([master(flavors=flavors)], [node("a")]).settle()
    assert kube.order() == ["batch-nats-a"]
    found = [(item["name"], item["state"]) for item in kube.queues[0]["status"]["flavors"]]
    assert found == [("nats", "Offered"), ("batch-nats-a", "Conflict")]


@pytest.mark.parametrize(
    ("resource", "amount", "quota"), [("memory", "1e20", 2**63 - 1), ("cpu", "1e19", 2**63 // 1000)]
)
def test_a_quota_is_a_number_that_kueue_can_count(resource, amount, quota):
    kube = Kube([master()], [node("a", **{resource: amount})]).settle()
    assert int(parse(kube.quota("batch-nats-a", resource=resource)["nominalQuota"])) == quota


@pytest.mark.parametrize("expression", ["a{4294967296}", "(" * 200, "a" * 257])
def test_an_expression_that_cannot_be_compiled_is_an_error_of_its_master_queue(expression):
    kube = Kube([master(flavors=[{"name": "x", "poolFlavor": {"poolRegExp": expression}}])], [node("a")]).settle()
    assert kube.condition("Ready") == ("False", "Invalid")


def test_a_queue_has_as_many_resources_as_kueue_allows():
    flood = {f"a.example/{number}": Fraction(1) for number in range(90)}
    first = {"cpu": Fraction(8), "memory": Fraction(1)}
    quotas = [("flood", {**first, **flood}, None), ("good", {**first, "nvidia.com/gpu": Fraction(4)}, None)]
    covered = manifests.resources(quotas)
    assert len(covered) == 64
    assert {"cpu", "memory", "nvidia.com/gpu"} <= set(covered)
    assert len(manifests.omitted(quotas)) == 93 - 64
    assert manifests.omitted(quotas[1:]) == []


@pytest.mark.parametrize(("flavors", "most"), [(8, 64), (9, 56), (40, 12), (64, 8)])
def test_a_queue_has_as_many_quotas_as_kueue_allows(flavors, most):
    more = {f"a.example/{number}": Fraction(1) for number in range(90)}
    quotas = [(str(number), {"cpu": Fraction(8), **more}, None) for number in range(flavors)]
    assert len(manifests.resources(quotas)) == most
    assert manifests.resources(quotas)[0] == "cpu"
    assert len(manifests.omitted(quotas)) == 91 - most


def test_the_status_names_the_resources_that_are_left_out():
    flood = {f"a.example/{number}": "1" for number in range(90)}
    kube = Kube([master()], [node("flood", **flood)]).settle()
    assert "without a.example/" in str(kube.queues[0]["status"]["conditions"])
