import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission import validate
from admission.mutate import mutate, update
from admission.raw_pods import MIRROR_ANNOTATION
from bridge import names
from bridge.config.hub import Config
from bridge.workload import eligibility

OURS = "ours"
DAEMON_USER = "system:serviceaccount:kube-system:daemon-set-controller"
DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}]
TOLERATION = {"operator": "Equal", "key": names.MANAGED_TAINT, "value": OURS, "effect": "NoExecute"}


def pod(metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata or {}, "spec": {"containers": [], **spec}}


def patched(body: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply a patch as the API server does (add and remove only)."""
    result = copy.deepcopy(body)
    for operation in patch:
        *way, last = [s.replace("~1", "/").replace("~0", "~") for s in operation["path"].split("/")[1:]]
        target: Any = result
        for step in way:
            target = target[step]
        if operation["op"] == "remove":
            del target[last]
        elif isinstance(target, list):
            assert last == "-"
            target.append(operation["value"])
        else:
            target[last] = operation["value"]
    return result


def run(body: dict[str, Any], **options: Any) -> dict[str, Any]:
    return patched(body, mutate(body, **{"scheduler": OURS, "managed": True, **options}))


@pytest.mark.parametrize("named", [{}, {"schedulerName": ""}, {"schedulerName": "default-scheduler"}])
def test_the_default_scheduler_gives_way(named: dict[str, str]) -> None:
    spec = run(pod(**named))["spec"]
    assert spec["schedulerName"] == OURS
    assert spec["tolerations"] == [TOLERATION]


@pytest.mark.parametrize("pools", [None, "local"])
def test_a_pod_for_slurm_gets_the_finalizer_once(pools: str | None) -> None:
    made = run(pod({"finalizers": ["example.com/own"]}), pools=pools)
    assert made["metadata"]["finalizers"] == ["example.com/own", names.FINALIZER]
    assert run(made, pools=pools) == made


@pytest.mark.parametrize("pools", ["site", "local,site", "*"])
def test_a_pod_that_may_run_on_a_pool_gets_no_finalizer(pools: str) -> None:
    assert "finalizers" not in run(pod(), pools=pools)["metadata"]


ON_N = {"key": "metadata.name", "operator": "In", "values": ["n"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def required(spec: dict[str, Any]) -> list[dict[str, Any]]:
    terms: list[dict[str, Any]] = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return terms


@pytest.mark.parametrize("scheduler", ["default-scheduler", OURS, "theirs"])
def test_a_node_name_becomes_a_required_affinity(scheduler: str) -> None:
    """``kubectl debug node/n`` sets it (kubernetes/enhancements#3521); the pod must not run elsewhere in silence."""
    spec = run(pod(schedulerName=scheduler, nodeName="n"))["spec"]
    assert "nodeName" not in spec
    assert required(spec) == [{"matchFields": [ON_N]}]
    view = eligibility.view({"metadata": {"name": "n"}, "status": {}})
    other = eligibility.view({"metadata": {"name": "other"}, "status": {}})
    assert eligibility.term_matches(required(spec)[0], view)
    assert not eligibility.term_matches(required(spec)[0], other)


def test_a_node_name_is_required_beside_each_other_affinity() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    field = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["m"]}]}
    preferred = [{"weight": 1, "preference": zones[0]}]
    of_nodes = {REQUIRED: {"nodeSelectorTerms": [*zones, field]}, "preferred": preferred}
    made = run(pod(nodeName="n", affinity={"nodeAffinity": of_nodes, "podAffinity": {}}))
    assert required(made["spec"]) == [
        {**zones[0], "matchFields": [ON_N]},
        {**zones[1], "matchFields": [ON_N]},
        {"matchFields": [*field["matchFields"], ON_N]},
    ]
    assert made["spec"]["affinity"]["nodeAffinity"]["preferred"] == preferred
    assert made["spec"]["affinity"]["podAffinity"] == {}
    assert run(made) == made


OF_SLURM = {
    names.NODE_ANNOTATION: "n",
    names.SLURM_NODE_ANNOTATION: "s-n",
    names.JOB_ID_ANNOTATION: "7",
    names.JOB_START_ANNOTATION: "2026-01-01T00:00:00Z",
}
OF_A_POOL = {
    names.POOLS: "n",
    names.REMOTE_JOB: "n/7",
    names.JOB_INTENT: "n",
    names.PLACES: "n",
    names.GRANT: "n/t",
    names.PLACE_IN_JOB: "g/0/2",
}


@pytest.mark.parametrize("own", [OF_SLURM, OF_A_POOL], ids=["of Slurm", "of a pool"])
def test_the_exported_yaml_of_a_pod_can_be_created_again(own: dict[str, str]) -> None:
    """``kubectl replace --force -f`` deletes the pod and creates it with all that podbridge had set."""
    metadata: dict[str, Any] = {
        "annotations": {"example.com/own": "x", **own},
        "labels": {"app": "x", names.JOB_ID_LABEL: "7"},
        "finalizers": ["example.com/own", names.FINALIZER, names.POOL_FINALIZER],
    }
    made = run(pod(metadata, schedulerName=OURS, nodeName="n"))
    kept = {"example.com/own": "x", **({names.POOLS: "n"} if names.POOLS in own else {})}
    assert made["metadata"]["annotations"] == kept
    assert made["metadata"]["labels"] == {"app": "x"}
    held = [] if names.POOLS in own else [names.FINALIZER]
    assert made["metadata"]["finalizers"] == ["example.com/own", *held]
    assert "nodeName" not in made["spec"]
    assert "affinity" not in made["spec"], "podbridge selected the node, not the user"
    assert validate.create(made, "alice", Config(scheduler_name=OURS)).forbidden == []
    assert run(made) == made


def test_elsewhere_only_pods_that_name_us_change() -> None:
    assert mutate(pod(nodeName="n"), scheduler=OURS, managed=False) == []
    assert run(pod(schedulerName=OURS), managed=False)["spec"]["tolerations"] == [TOLERATION]


@pytest.mark.parametrize(
    "toleration",
    [
        TOLERATION,
        {"operator": "Exists"},
        {"operator": "Exists", "key": names.MANAGED_TAINT},
        {"key": names.MANAGED_TAINT, "value": OURS},
    ],
)
def test_what_tolerates_already_is_left(toleration: dict[str, str]) -> None:
    assert run(pod(tolerations=[toleration]))["spec"]["tolerations"] == [toleration]


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists", "effect": "NoSchedule"},
        {"key": names.MANAGED_TAINT, "value": "theirs"},
        {"operator": "Exists", "tolerationSeconds": 60},
        {"operator": "Exists", "tolerationSeconds": 0},
    ],
)
def test_what_does_not_tolerate_for_good_is_not_enough(toleration: dict[str, Any]) -> None:
    assert run(pod(tolerations=[toleration]))["spec"]["tolerations"] == [TOLERATION, toleration]


def test_a_daemon_sets_pod_is_left_alone() -> None:
    body = pod({"ownerReferences": DAEMON}, nodeName="n", schedulerName="default-scheduler")
    assert mutate(body, scheduler=OURS, managed=True, user_name=DAEMON_USER) == []
    assert "nodeName" not in run(body, user_name="alice")["spec"]


def test_a_daemon_sets_pod_that_names_us_is_ours() -> None:
    spec = run(pod({"ownerReferences": DAEMON}, schedulerName=OURS), user_name=DAEMON_USER)["spec"]
    assert spec["tolerations"] == [TOLERATION]


def test_a_mirror_pod_is_left_alone() -> None:
    body = pod({"annotations": {MIRROR_ANNOTATION: "hash"}}, nodeName="n", schedulerName=OURS)
    assert mutate(body, scheduler=OURS, managed=True, user_name="system:node:n") == []


@pytest.mark.parametrize("user", ["alice", "system:node:other", "system:node:"])
def test_the_annotation_of_a_mirror_pod_alone_is_no_way_past_us(user: str) -> None:
    body = pod({"annotations": {MIRROR_ANNOTATION: "hash"}}, nodeName="n")
    spec = run(body, user_name=user)["spec"]
    assert "nodeName" not in spec
    assert spec["schedulerName"] == OURS


def test_the_defaults_of_the_policy_are_written_where_nobody_says_anything() -> None:
    defaults = {names.ACCOUNT: "physics", names.QOS: "normal"}
    assert run(pod(), defaults=defaults)["metadata"]["annotations"] == defaults
    inherited = run(pod(), defaults=defaults, inherited={names.QOS: "low"})["metadata"]["annotations"]
    assert inherited == {names.ACCOUNT: "physics", names.QOS: "low"}
    own = run(pod({"annotations": {names.ACCOUNT: "chemistry"}}), defaults=defaults)["metadata"]["annotations"]
    assert own == {names.ACCOUNT: "chemistry", names.QOS: "normal"}
    assert run(pod(), defaults=defaults, pools="a")["metadata"]["annotations"] == {names.POOLS: "a"}
    both = run(pod(), defaults=defaults, pools="a,local")["metadata"]["annotations"]
    assert both == {names.POOLS: "a,local", **defaults}


def test_owners_annotations_are_copied_where_the_pod_says_nothing() -> None:
    inherited = {names.ACCOUNT: "theirs", names.QOS: "low"}
    assert run(pod(), inherited=inherited)["metadata"]["annotations"] == inherited
    own = {names.ACCOUNT: "mine", "a~b/c": "x"}
    assert run(pod({"annotations": own}), inherited=inherited)["metadata"]["annotations"] == {**own, names.QOS: "low"}
    assert "annotations" not in run(pod(schedulerName="theirs"), inherited=inherited)["metadata"]


@pytest.mark.parametrize(
    ("metadata", "spec", "pools", "ours"),
    [
        ({}, {}, None, False),
        ({}, {}, "a", True),
        ({"annotations": {names.POOLS: "a"}}, {}, None, True),
        ({"annotations": {names.POOLS: "local"}}, {}, "a", False),
        ({"annotations": {names.POOLS: "not a pool!"}}, {}, None, True),
        ({}, {"tolerations": [{"key": names.POOL_TAINT, "value": "a"}]}, None, True),
        ({}, {"tolerations": [{"operator": "Exists"}]}, None, False),
        ({}, {"schedulerName": OURS}, None, True),
    ],
)
def test_without_slurm_a_pod_that_asks_for_no_pool_may_stay_with_the_default_scheduler(
    metadata: dict[str, Any], spec: dict[str, Any], pools: str | None, ours: bool
) -> None:
    body = pod(metadata, **spec)
    found = run(body, pools=pools, pools_only=True)
    assert (found["spec"].get("schedulerName") == OURS) is ours
    if not ours:
        annotations = found["metadata"].pop("annotations")
        assert "it requests no pool" in annotations.pop(names.DEFAULT_SCHEDULER_REASON)
        assert annotations == (metadata.get("annotations") or {})
        assert found["spec"] == body["spec"]
    assert run(body, pools=pools)["spec"]["schedulerName"] == OURS


tolerations = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from([names.MANAGED_TAINT, "other", ""]),
            "operator": st.sampled_from(["Exists", "Equal"]),
            "value": st.sampled_from([OURS, "theirs", ""]),
            "effect": st.sampled_from(["NoExecute", "NoSchedule", ""]),
            "tolerationSeconds": st.just(5),
        },
    ),
    max_size=3,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "schedulerName": st.sampled_from([OURS, "theirs", "default-scheduler", ""]),
            "nodeName": st.just("n"),
            "tolerations": tolerations,
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "annotations": st.dictionaries(st.sampled_from([names.ACCOUNT, names.QOS, MIRROR_ANNOTATION]), st.text()),
            "ownerReferences": st.just(DAEMON),
        },
    ),
    st.booleans(),
    st.sampled_from(["alice", DAEMON_USER]),
)
def test_applied_to_its_result_it_changes_nothing(
    spec: dict[str, Any], metadata: dict[str, Any], managed: bool, user: str
) -> None:
    options: dict[str, Any] = {"managed": managed, "user_name": user, "inherited": {names.ACCOUNT: "a"}}
    result = run(pod(metadata, **spec), **options)
    assert mutate(result, scheduler=OURS, **options) == []


def keys(spec: dict[str, Any]) -> list[tuple[str, str]]:
    return [(t["key"], t.get("value", "*")) for t in spec["tolerations"]]


def test_a_pod_that_asks_for_pools_tolerates_them_and_not_the_colocated_nodes() -> None:
    spec = run(pod({"annotations": {names.POOLS: "b,a"}}))["spec"]
    assert keys(spec)[:3] == [(names.VIRTUAL_TAINT, "true"), (names.POOL_TAINT, "b"), (names.POOL_TAINT, "a")]
    assert names.MANAGED_TAINT not in dict(keys(spec))


def test_both_sides_are_tolerated_where_both_are_named() -> None:
    spec = run(pod({"annotations": {names.POOLS: "local,*"}}))["spec"]
    assert (names.POOL_TAINT, "*") in keys(spec)
    assert (names.MANAGED_TAINT, OURS) in keys(spec)


def test_the_namespace_says_it_for_pods_that_say_nothing() -> None:
    assert run(pod(), pools="a")["metadata"]["annotations"] == {names.POOLS: "a"}
    own = run(pod({"annotations": {names.POOLS: "b"}}), pools="a")
    assert own["metadata"]["annotations"] == {names.POOLS: "b"}
    assert (names.POOL_TAINT, "a") not in keys(own["spec"])


PATIENCE = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for what in ("not-ready", "unreachable")
]


def test_five_minutes_of_patience_with_a_lost_node_become_endless_on_a_pool() -> None:
    spec = run(pod({"annotations": {names.POOLS: "a"}}, tolerations=PATIENCE))["spec"]
    assert all("tolerationSeconds" not in t for t in spec["tolerations"])
    assert {key for key, _ in keys(spec)} >= {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert [t for t in run(pod(tolerations=PATIENCE))["spec"]["tolerations"] if "tolerationSeconds" in t] == PATIENCE


def test_patience_that_the_user_limited_stays_limited() -> None:
    own = {**PATIENCE[0], "tolerationSeconds": 60}
    spec = run(pod({"annotations": {names.POOLS: "a"}}, tolerations=[own]))["spec"]
    assert own in spec["tolerations"]


KUEUE = {"key": names.POOL_TAINT, "operator": "Equal", "value": "a", "effect": "NoSchedule"}


def test_a_toleration_that_kueue_injected_is_enough() -> None:
    spec = run(pod(tolerations=[KUEUE]))["spec"]
    assert keys(spec)[:2] == [(names.POOL_TAINT, "a"), (names.VIRTUAL_TAINT, "true")]
    assert names.MANAGED_TAINT not in dict(keys(spec))


@pytest.mark.parametrize("pools", ["a", "*", "local,a", "a, b", "not a pool!"])
def test_pools_are_asked_for_once(pools: str) -> None:
    once = run(pod({"annotations": {names.POOLS: pools}}))
    assert run(once) == once


# --- updates ----------------------------------------------------------------------------------------------------------
def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return patched(new, update(old, new, scheduler=OURS))


def test_a_gated_pod_that_is_given_a_pool_tolerates_its_virtual_node() -> None:
    old = run(pod(schedulerName=OURS, tolerations=PATIENCE, schedulingGates=[{"name": "kueue"}]))
    before = old["spec"]["tolerations"]
    new = pod(**{**old["spec"], "tolerations": [*before, KUEUE], "schedulingGates": []})
    after = updated(old, new)["spec"]["tolerations"]
    assert [entry for entry in after if entry["key"] in (names.POOL_TAINT, names.VIRTUAL_TAINT)] == [
        KUEUE,
        {"key": names.VIRTUAL_TAINT, "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]
    assert {entry["key"] for entry in after if "tolerationSeconds" not in entry} >= {entry["key"] for entry in PATIENCE}
    assert not [entry for entry in after if "tolerationSeconds" in entry]
    assert_allowed(before, after)
    assert update(old, pod(**{**new["spec"], "tolerations": after}), scheduler=OURS) == []


@pytest.mark.parametrize(
    "new",
    [
        pod(schedulerName="theirs", tolerations=[KUEUE]),
        pod(schedulerName=OURS, tolerations=[KUEUE], nodeName="a"),
        pod(schedulerName=OURS, tolerations=[{"operator": "Exists"}]),
        pod({"labels": {"a": "b"}}, schedulerName=OURS),
    ],
    ids=["another scheduler", "bound", "everything", "something else"],
)
def test_no_other_update_changes_a_pod(new: dict[str, Any]) -> None:
    old = pod(**{key: value for key, value in new["spec"].items() if key != "tolerations"})
    assert update(old, new, scheduler=OURS) == []


def assert_allowed(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Check as Kubernetes (ValidateTolerations of an update): all old tolerations exist, except for their seconds."""
    without = [{key: value for key, value in entry.items() if key != "tolerationSeconds"} for entry in after]
    for entry in before:
        assert {key: value for key, value in entry.items() if key != "tolerationSeconds"} in without


@given(old=tolerations, added=tolerations, pools=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2))
def test_an_update_takes_no_toleration_away(old: Any, added: Any, pools: list[str]) -> None:
    before = list(old or ())
    named = [{**KUEUE, "value": pool} for pool in pools]
    new = pod(schedulerName=OURS, tolerations=[*before, *(added or ()), *named])
    result = updated(pod(schedulerName=OURS, tolerations=before), new)
    assert_allowed(before, result["spec"]["tolerations"])
    assert update(pod(schedulerName=OURS, tolerations=before), result, scheduler=OURS) == []
