"""A pool's node: its creation and updates, NotReady if the site is silent, and no change of other nodes."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bridge import names
from bridge.clock import rfc3339
from bridge.protocol.model import architecture
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import Announce
from controllers.virtual import node_manifest, pool_state, virtual_node_decide
from controllers.virtual.node_manifest import NodeSettings, PoolStatus
from controllers.virtual.virtual_node_decide import Collide, Create, Describe, History, NodesView, ReportStatus, Vanish

NOW, TIME = 5000.0, 1_800_000_000.0
SETTINGS = NodeSettings(silent_after=30, remove_after=3600, address="10.0.0.1", port=10250, version="v1.34.0-podbridge")


def announce(**values):
    base = {
        "batch": "Slurm 26.05",
        "runtime": "apptainer 1.4",
        "version": "1",
        "capacity": {"cpu": "8", "memory": "16Gi"},
    }
    return Announce(pool="site", submitter="s", sequences={"c1": 1}, time=0, **{"period": 5, **base, **values})


def state(heard=NOW - 1, bound=0, **values):
    return PoolStatus("site", announce(**values), heard, rfc3339(TIME - 1), bound)


def view(*states, node=None, written=None, history=None, now=NOW, problem="", since=0.0):
    found = {} if node is None else {node["metadata"]["name"]: node}
    return NodesView(
        states, found, SETTINGS, written or {}, history or History(), problem, since, now, TIME + now - NOW
    )


def decide(the_view):
    actions, _ = virtual_node_decide.decide(the_view)
    return actions


def stored(action, **spec):
    """The node as the cache has it after its creation."""
    body = action.body
    metadata = {**body["metadata"], "uid": "n1", "resourceVersion": "5"}
    return {"metadata": metadata, "spec": {**body["spec"], **spec}, "status": body["status"]}


def made(**values):
    (action,) = decide(view(state(**values)))
    assert isinstance(action, Create)
    return stored(action)


def settled(**values):
    node = made(**values)
    (action,) = decide(view(state(**values), node=node))
    return {"site": (action.status, NOW)}, node


def after(action, node):
    """The node after a report was written."""
    conditions = {c["type"]: c for c in node["status"]["conditions"]}
    for entry in action.patch["status"]["conditions"]:
        conditions[entry["type"]] = {**conditions.get(entry["type"], {}), **entry}
    status = {**node["status"], "conditions": list(conditions.values())}
    for kind in ("capacity", "allocatable"):
        if kind in action.patch["status"]:
            status[kind] = {k: v for k, v in action.patch["status"][kind].items() if k != "$patch"}
    return {**node, "status": status}


def condition(status, kind):
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == kind)


def test_2_2_what_a_virtual_node_is():
    node = made(labels={"gpu": "a100", "kubernetes.io/arch": "arm64"}, taints=["gpu=a:NoSchedule"])
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == labels[names.POOL_LABEL] == "site"
    assert labels["kubernetes.io/os"] == "linux"
    assert labels[names.VIRTUAL_TYPE_LABEL] == "virtual-kubelet"
    assert labels["node.kubernetes.io/exclude-from-external-load-balancers"] == "true"
    assert labels["gpu"] == "a100"
    assert node["spec"]["taints"] == [
        {"key": names.VIRTUAL_TAINT, "value": "true", "effect": "NoSchedule"},
        {"key": names.POOL_TAINT, "value": "site", "effect": "NoSchedule"},
        {"key": "gpu", "value": "a", "effect": "NoSchedule"},
    ]
    status = node["status"]
    assert status["capacity"] == status["allocatable"]
    assert status["capacity"] == {"pods": "10000", "ephemeral-storage": "1Pi", "cpu": "8", "memory": "16Gi"}
    assert condition(status, "Ready") == ("True", "SiteReady")
    assert status["addresses"] == [{"type": "InternalIP", "address": "10.0.0.1"}]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert status["nodeInfo"]["architecture"] == "arm64"
    assert status["nodeInfo"]["kubeletVersion"] == "v1.34.0-podbridge"


def test_a_site_must_not_take_podbridges_own_labels():
    node = made(labels={names.POOL_LABEL: "other", "node.kubernetes.io/exclude-from-external-load-balancers": "no"})
    assert node["metadata"]["labels"][names.POOL_LABEL] == "site"
    assert node["metadata"]["labels"]["node.kubernetes.io/exclude-from-external-load-balancers"] == "true"
    assert condition(node["status"], node_manifest.ACCEPTED) == ("False", "ValuesLeftOut")


def test_a_site_takes_no_label_and_no_taint_that_others_have_set():
    written, node = settled(labels={"own": "1"}, taints=["own:NoSchedule"])
    node["metadata"]["labels"] |= {"trust": "low"}
    node["spec"]["taints"].append({"key": "quarantine", "value": "admin", "effect": "NoExecute"})
    taken = {"labels": {"own": "2", "trust": "high"}, "taints": ["own:NoSchedule", "quarantine=none:NoExecute"]}
    (action,) = decide(view(state(heard=NOW + 9, **taken), node=node, written=written, now=NOW + 10))
    assert action.patch["metadata"]["labels"] == {"own": "2"}
    assert "spec" not in action.patch
    node["metadata"]["labels"] |= action.patch["metadata"]["labels"]
    (action,) = decide(view(state(heard=NOW + 9, **taken), node=node, written=written, now=NOW + 10))
    assert condition(action.status, node_manifest.ACCEPTED) == ("False", "ValuesLeftOut")
    assert "'quarantine:NoExecute': others have set it" in str(action.status)


@pytest.mark.parametrize("record", [None, "", "[", '{"labels": 1}'])
def test_without_a_readable_record_the_values_of_the_site_are_its_own(record):
    written, node = settled(labels={"own": "1"}, taints=["own:NoSchedule"])
    node["metadata"]["annotations"][names.SITE_ANNOUNCED] = record
    node["metadata"]["labels"] |= {"trust": "low"}
    node["spec"]["taints"].append({"key": "quarantine", "value": "admin", "effect": "NoExecute"})
    taken = {"labels": {"own": "1", "trust": "high"}, "taints": ["own:NoSchedule", "quarantine=none:NoExecute"]}
    (action,) = decide(view(state(heard=NOW + 9, **taken), node=node, written=written, now=NOW + 10))
    recorded = action.patch["metadata"]["annotations"][names.SITE_ANNOUNCED]
    assert recorded == '{"labels":["own"],"taints":["own:NoSchedule"]}'
    assert "spec" not in action.patch and "labels" not in action.patch["metadata"]


def test_nothing_is_written_when_nothing_differs():
    written, node = settled()
    assert decide(view(state(heard=NOW + 9), node=node, written=written, now=NOW + 10)) == []
    (beat,) = decide(view(state(heard=NOW + 400), node=node, written=written, now=NOW + 401))
    assert isinstance(beat, ReportStatus)
    assert not any("lastTransitionTime" in c for c in beat.patch["status"]["conditions"])
    assert beat.news is None


def test_the_expected_wait_is_written_to_the_node_when_it_changes():
    written, node = settled()
    assert node["metadata"]["annotations"][names.EXPECTED_WAIT] == "0"
    (described,) = decide(view(replace(state(), expected_wait=300.0), node=node, written=written))
    assert isinstance(described, Describe)
    assert described.patch["metadata"]["annotations"] == {names.EXPECTED_WAIT: "300"}
    node["metadata"]["annotations"][names.EXPECTED_WAIT] = "300"
    assert decide(view(replace(state(), expected_wait=300.0), node=node, written=written)) == []


def test_the_node_says_whether_the_site_runs_the_pods_of_a_group_as_one_job():
    written, node = settled()
    assert node["metadata"]["annotations"][names.GANGS_ALLOWED] == "false"
    (described,) = decide(view(replace(state(), gangs=True), node=node, written=written))
    assert described.patch["metadata"]["annotations"] == {names.GANGS_ALLOWED: "true"}
    (described,) = decide(view(replace(state(), heterogeneous_gangs=True), node=node, written=written))
    assert described.patch["metadata"]["annotations"] == {names.HETEROGENEOUS_GANGS_ALLOWED: "true"}


def test_the_node_has_the_limits_of_flavors_as_long_as_the_site_has_them():
    written, node = settled()
    assert names.FLAVOR_LIMITS not in node["metadata"]["annotations"]
    assert decide(view(replace(state(), flavor_limits=""), node=node, written=written)) == []
    (described,) = decide(view(replace(state(), flavor_limits="{}"), node=node, written=written))
    assert described.patch["metadata"]["annotations"] == {names.FLAVOR_LIMITS: "{}"}
    node["metadata"]["annotations"][names.FLAVOR_LIMITS] = "{}"
    assert decide(view(state(), node=node, written=written)) == [], "its BuildConfig has not arrived again"
    (described,) = decide(view(replace(state(), flavor_limits=""), node=node, written=written))
    assert described.patch["metadata"]["annotations"] == {names.FLAVOR_LIMITS: None}


def test_the_expected_wait_is_that_of_the_jobs_at_the_pool():
    def status(**times):
        return JobStatus(job="u1", namespace="ns", name="p", **{"phase": "queued", **times})

    def wait(*jobs):
        pool = SimpleNamespace(jobs=lambda: dict(enumerate(jobs)))
        return pool_state.expected_wait(pool, TIME)

    assert wait() == 0
    assert wait(status(submitted_at=TIME - 500, started_at=TIME - 100, phase="running")) == 400
    assert wait(status(submitted_at=TIME - 500)) == 500
    assert wait(status(submitted_at=TIME - 500, reason="Dependency")) == 0, "it does not wait for its turn"
    assert wait(status(phase="ended", submitted_at=TIME - 500)) == 0, "it was cancelled before its start"
    assert wait(status()) == 0


def test_the_architecture_has_a_default_that_an_administrator_can_change():
    """projectcalico/calico#2532: pods select the architecture. Sites of interLink and NuNet announce none."""
    node = made()
    assert node["metadata"]["labels"][architecture.LABEL] == architecture.HERE
    assert node["status"]["nodeInfo"]["architecture"] == architecture.HERE
    del node["metadata"]["labels"][architecture.LABEL]
    (described,) = [action for action in decide(view(state(), node=node)) if not isinstance(action, ReportStatus)]
    assert described.patch["metadata"]["labels"] == {architecture.LABEL: architecture.HERE}
    node["metadata"]["labels"][architecture.LABEL] = "riscv64"
    assert [action for action in decide(view(state(), node=node)) if not isinstance(action, ReportStatus)] == []


def test_quantities_are_compared_by_value():
    written, node = settled(capacity={"cpu": "8000m", "memory": "1024Mi"})
    node["status"]["capacity"] = node["status"]["allocatable"] = {
        "cpu": "8",
        "memory": "1Gi",
        "pods": "10k",
        "ephemeral-storage": "1024Ti",
    }
    same = state(heard=NOW + 9, capacity={"cpu": "8000m", "memory": "1024Mi"})
    assert decide(view(same, node=node, written=written, now=NOW + 10)) == []


def test_what_somebody_else_changed_in_the_status_is_mended():
    written, node = settled()
    for entry in node["status"]["conditions"]:
        if entry["type"] == "Ready":
            entry |= {"status": "Unknown", "reason": "NodeStatusUnknown"}
    assert decide(view(state(heard=NOW), node=node, written=written, now=NOW + 1)) == []
    (action,) = decide(view(state(heard=NOW + 9), node=node, written=written, now=NOW + 10))
    assert condition(action.patch["status"], "Ready") == ("True", "SiteReady")


@pytest.mark.parametrize("kind", ["capacity", "allocatable"])
def test_what_somebody_else_changed_in_the_resources_is_mended(kind):
    written, node = settled()
    node["status"][kind] = {**node["status"][kind], "cpu": "1"}
    (action,) = decide(view(state(heard=NOW + 9), node=node, written=written, now=NOW + 10))
    assert action.patch["status"][kind]["cpu"] == "8"


def test_a_silent_site_makes_its_node_not_ready_with_the_last_words():
    written, node = settled()
    assert decide(view(state(), node=node, written=written, now=NOW + 29)) == []
    (action,) = decide(view(state(problem="slurmctld is ill"), node=node, written=written, now=NOW + 40))
    ready = action.patch["status"]["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "SiteSilent")
    assert f"last heard {rfc3339(TIME - 1)}" in ready["message"]
    assert "slurmctld is ill" in ready["message"]
    assert ready["lastTransitionTime"] == rfc3339(TIME + 40)
    assert condition(action.patch["status"], names.POOL_CONNECTED) == ("False", "SiteSilent")
    assert action.news[0] == "SiteSilent"
    assert action.news[2] is True
    written["site"] = (action.status, NOW + 40)
    quiet = after(action, node)
    again = decide(view(state(problem="slurmctld is ill", bound=1), node=quiet, written=written, now=NOW + 90))
    assert again == [], "the text of a silent site does not change"


def test_a_site_that_announces_itself_seldom_is_not_silent():
    written, node = settled(period=60)
    assert decide(view(state(period=60), node=node, written=written, now=NOW + 100)) == []


@pytest.mark.parametrize(
    ("said", "more", "kind", "expected"),
    [
        ({}, {"now": NOW + 40, "problem": "refused"}, names.POOL_CONNECTED, ("False", "NatsDisconnected")),
        ({"problem": "no slurmctld"}, {}, "Ready", ("False", "SiteProblem")),
        ({"problem": "no slurmctld"}, {}, names.POOL_CONNECTED, ("True", "SiteHeard")),
        ({"leaving": True}, {}, "Ready", ("False", "SiteLeft")),
    ],
    ids=["link down", "problem: not ready", "problem: connected", "site leaves"],
)
def test_why_a_node_is_not_ready_is_told_apart(said, more, kind, expected):
    written, node = settled()
    (action,) = decide(view(state(**said), node=node, written=written, **more))
    assert condition(action.patch["status"], kind) == expected


def test_a_hub_that_has_just_started_changes_nothing_before_it_has_listened():
    _, node = settled()
    unheard = PoolStatus("site", bound=3)
    assert decide(view(unheard, node=node, since=NOW - 10)) == []
    (action,) = decide(view(unheard, node=node, since=NOW - 31))
    assert condition(action.patch["status"], "Ready") == ("False", "SiteSilent")
    assert "capacity" not in action.patch["status"]
    assert decide(view(unheard, since=NOW - 31)) == []


def test_what_others_put_on_the_node_stays():
    _, node = settled(labels={"gpu": "a"}, taints=["gpu=a:NoSchedule"])
    node["metadata"]["labels"]["admin"] = "x"
    node["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "t"})
    (action,) = decide(view(state(labels={"disk": "ssd"}), node=node))
    assert isinstance(action, Describe)
    assert action.patch["metadata"]["labels"] == {"disk": "ssd", "gpu": None}
    assert action.patch["metadata"]["resourceVersion"] == "5"
    kept = [taint["key"] for taint in action.patch["spec"]["taints"]]
    assert kept == [names.VIRTUAL_TAINT, names.POOL_TAINT, "node.kubernetes.io/not-ready"]
    record = json.loads(action.patch["metadata"]["annotations"][names.SITE_ANNOUNCED])
    assert record == {"labels": ["disk"], "taints": []}


@pytest.mark.parametrize("labels", [{}, {names.POOL_LABEL: "other"}])
def test_a_node_that_is_not_ours_is_never_taken_over(labels):
    real = {"metadata": {"name": "site", "uid": "r", "labels": labels}, "spec": {}, "status": {}}
    first, history = virtual_node_decide.decide(view(state(), node=real))
    assert first == [Collide(real)]
    again, history = virtual_node_decide.decide(view(state(), node=real, history=history))
    assert again == [], "said once"
    _, history = virtual_node_decide.decide(view(state(), history=history))
    anew, _ = virtual_node_decide.decide(view(state(), node=real, history=history))
    assert anew == [Collide(real)], "the node was gone in between"


def test_the_node_of_a_gone_pool_goes_only_without_pods():
    written, node = settled()
    (report,) = decide(view(state(), node=node, written=written, now=NOW + 40))
    written["site"] = (report.status, NOW + 40)
    gone = after(report, node)
    for bound in (1, None):
        assert decide(view(state(bound=bound), node=gone, written=written, now=NOW + 60)) == []
    before = view(state(), node=gone, written=written, now=NOW + 60)
    checked, history = virtual_node_decide.decide(before)
    assert checked == [Vanish(gone)]
    assert before.history == History(), "a decision changes nothing that it is given"
    pause = view(state(), node=gone, written=written, history=history, now=NOW + 70)
    assert virtual_node_decide.decide(pause) == ([], history), "not looked at all the time"
    later = view(state(), node=gone, written=written, history=history, now=NOW + 120)
    assert decide(later) == [Vanish(gone)]
    assert virtual_node_decide.decide(view(history=history))[1] == History(), "the pool is gone"
    assert not virtual_node_decide.may_vanish(gone, 3600, TIME + 40 + 3599)
    assert virtual_node_decide.may_vanish(gone, 3600, TIME + 40 + 3600)
    assert not virtual_node_decide.may_vanish(node, 3600, TIME + 10**6), "a site that is heard"


def test_words_that_change_all_the_time_are_not_written_all_the_time():
    written, node = settled()
    (action,) = decide(view(state(), node=node, written=written, now=NOW + 40, problem="refused"))
    written["site"] = (action.status, NOW + 40)
    down = after(action, node)
    for seconds, count in ((41, 0), (50, 0), (56, 1)):
        decided = decide(view(state(bound=1), node=down, written=written, now=NOW + seconds, problem=f"at {seconds}"))
        assert len(decided) == count
