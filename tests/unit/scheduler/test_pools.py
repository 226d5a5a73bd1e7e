"""Which pool a pod goes to, one situation at a time."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.core import isolation
from bridge.errors import KubeError, KubeForbiddenError, KubeUnavailableError
from bridge.kube.namespaces import Namespace, Namespaces
from bridge.workload import eligibility, links
from bridge.workload.eligibility import NodeView
from scheduler import pod_group
from scheduler.group_actions import BindToPool, SetCondition
from scheduler.group_states import NEW
from scheduler.places import place_decide, place_view
from scheduler.places.place_view import pool_view
from scheduler.places.pool_places import namespace_views
from scheduler.pod_group import Group
from tests import builders
from tests.counted import Count, Items
from tests.fakes.clock import FakeClock
from tests.unit.scheduler.decisions import occupied

TOLERATIONS = [{"key": key, "operator": "Exists"} for key in (names.VIRTUAL_TAINT, names.POOL_TAINT)]


def pod(uid: str = "u1", pools: str = "*", cpu: str = "1", **more: Any) -> dict[str, Any]:
    spec = {"requests": {"cpu": cpu}, "tolerations": TOLERATIONS, **more}
    return builders.pod(uid, annotations={names.POOLS: pools}, **spec)


def pool(name: str, cpu: str = "8", problem: str = "", pods: str = "100") -> place_view.PoolView:
    taints = [
        {"key": names.VIRTUAL_TAINT, "value": "true", "effect": "NoSchedule"},
        {"key": names.POOL_TAINT, "value": name, "effect": "NoSchedule"},
    ]
    return place_view.PoolView(node(name, cpu, pods, taints), problem)


def node(name: str, cpu: str = "8", pods: str = "100", taints: Any = ()) -> NodeView:
    return builders.node_view(name, allocatable={"cpu": cpu, "pods": pods}, taints=taints)


def groups_of(pods: list[Any]) -> list[Group]:
    """Return the groups of the pods, each with its members."""
    members: dict[str, list[Any]] = {}
    groups = []
    for each in pods:
        try:
            if links.membership(each) is None:
                groups += pod_group.of_each([each])
            else:
                members.setdefault(links.key(each), []).append(each)
        except Exception as error:  # as of the index of groups
            isolation.report("scheduler", each["metadata"]["uid"], error)
    for found in members.values():
        own = links.membership(found[0])
        assert own is not None
        groups.append(pod_group.make((each, links.membership(each) or own) for each in found))
    return groups


def look(pods: list[Any], *pools: place_view.PoolView, **more: Any) -> list[Any]:
    options: dict[str, Any] = {"policy": "order", "weights": {}, "now": 100.0, "nodes": ()}
    options |= {"occupancy": occupied(), "states": {}} | more
    decision = place_decide.decide(place_view.PlaceView(groups_of(pods), {p.node.name: p for p in pools}, **options))
    return [*decision.actions, *decision.local]


def chosen(*args: Any, **more: Any) -> str:
    (action,) = look(*args, **more)
    if isinstance(action, place_decide.Local):
        return names.LOCAL_POOL
    assert isinstance(action, BindToPool), action
    return action.pool


def test_the_first_of_the_list_that_has_room() -> None:
    assert chosen([pod(pools="b,a")], pool("a"), pool("b")) == "b"
    assert chosen([pod(pools="b,a", cpu="4")], pool("a"), pool("b", cpu="2")) == "a"
    (action,) = look([pod(pools="b,a", cpu="4")], pool("a"), pool("b", cpu="2"))
    assert action.why == "first with room; not b (too little cpu)"


def test_a_member_of_a_group_that_may_stay_is_left_to_slurm() -> None:
    group = '{"kind":"jobset","name":"train","uid":"o1","index":"workers","size":2,"minimum":2}'
    members = [pod(uid, pools="site,local") for uid in ("u1", "u2")]
    for member in members:
        member["metadata"]["annotations"][names.GROUP] = group
    found = look(members, pool("site", cpu="1"), nodes=(node("n1"),))
    assert [type(action) for action in found] == [place_decide.Local, place_decide.Local]
    assert look(members, pool("site"), nodes=(node("n1"),), at_slurm=frozenset({"u1", "u2"})) == []


def test_without_a_pool_that_runs_groups_each_member_goes_on_its_own() -> None:
    members = [pod(uid, pools="a,b") for uid in ("u1", "u2")]
    for member in members:
        member["metadata"]["annotations"][names.GROUP] = '{"kind":"job","name":"mpi","uid":"o1","size":3,"minimum":3}'
    found = look(members, pool("a", cpu="1"), pool("b", cpu="1"))
    assert [(bind.pool, bind.members) for bind in found] == [("a", ((members[0], None),)), ("b", ((members[1], None),))]


def test_a_pool_that_is_silent_or_full_waits_with_its_reason() -> None:
    occupancy = occupied(b={"cpu": Decimal(8)})
    (action,) = look([pod()], pool("a", problem="not ready: SiteSilent"), pool("b"), occupancy=occupancy)
    assert isinstance(action, SetCondition)
    assert action.reason == "NoRoomNow"
    assert action.message == "no pool takes the pod now: a (not ready: SiteSilent), b (no room for cpu now)"


def test_a_cordoned_pool_takes_the_pod_later() -> None:
    cordoned = replace(pool("a"), node=replace(pool("a").node, cordoned=True))
    (action,) = look([pod()], cordoned)
    assert isinstance(action, SetCondition)
    assert (action.reason, action.message) == ("NoRoomNow", "no pool takes the pod now: a (cordoned)")


def test_a_pool_that_is_too_small_never_takes_the_pod_whether_it_is_ready_or_not() -> None:
    small = pool("a", cpu="1", problem="not ready: SiteSilent")
    (action,) = look([pod(cpu="4")], small, pool("b", cpu="2"))
    assert isinstance(action, SetCondition)
    assert action.reason == "Unschedulable"


def test_no_pool_at_all() -> None:
    (action,) = look([pod(pools="x")], pool("a"))
    assert action.message == "none of the pools x has a node"
    (action,) = look([pod()])
    assert action.message == "there is no pool"


def test_pods_of_one_look_share_the_room() -> None:
    many = [pod(f"u{n}", cpu="4") for n in range(5)]
    actions = look(many, pool("a"), pool("b"))
    assert [a.pool for a in actions if isinstance(a, BindToPool)] == ["a", "a", "b", "b"]
    assert isinstance(actions[4], SetCondition)


def test_a_pool_is_checked_once_for_all_pods_that_request_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    original = eligibility.refusal

    def refusal(spec: Any, asked: Any, target: eligibility.NodeView, *more: Any) -> str:
        checked.append(target.name)
        return original(spec, asked, target, *more)

    monkeypatch.setattr(eligibility, "refusal", refusal)
    occupancy = occupied(n1={"cpu": Decimal(8)})
    many = [pod(f"u{n}", cpu="4", pools="*,local") for n in range(20)]
    actions = look(many, pool("a"), pool("b", cpu="2"), nodes=(node("n1"),), occupancy=occupancy)
    assert [type(action) for action in actions] == [BindToPool] * 2 + [place_decide.Local] * 18
    assert sorted(checked) == ["a", "b", "n1", "n1"], "n1 is checked for its room, and for its size"


def test_the_number_of_pods_counts() -> None:
    actions = look([pod("u1"), pod("u2")], pool("a", pods="1"))
    assert [type(a) for a in actions] == [BindToPool, SetCondition]


def test_the_least_loaded() -> None:
    occupancy = occupied(a={"cpu": Decimal(4)})
    assert chosen([pod()], pool("a"), pool("b"), policy="least-loaded", occupancy=occupancy) == "b"
    assert chosen([pod()], pool("a", cpu="64"), pool("b", cpu="2"), policy="least-loaded", occupancy=occupancy) == "a"


def test_by_weight() -> None:
    actions = look(
        [pod(f"u{n}") for n in range(8)], pool("a", "64"), pool("b", "64"), policy="weight", weights={"a": 3}
    )
    assert sorted(a.pool for a in actions if isinstance(a, BindToPool)) == ["a"] * 6 + ["b"] * 2


SECRET = [{"name": "v", "secret": {"secretName": "s"}}]


def lets(text: str | None) -> dict[str, Any]:
    view = place_view.NamespaceView({} if text is None else {names.POOL_SECRETS: text})
    return {"namespace": {"ns": view}.__getitem__}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b,a", "*", "*,local", "local,*"]),
            st.sampled_from(["1", "3", "9"]),
            st.sampled_from([{}, {"gpu": "a100"}]),
            st.sampled_from([[], SECRET]),
        ),
        max_size=12,
    ),
    st.sampled_from(["order", "least-loaded", "weight", "soonest"]),
    st.booleans(),
)
def test_pods_that_request_the_same_are_decided_like_others(
    requested: list[tuple[str, str, dict[str, str], Any]], policy: str, race: bool
) -> None:
    def decisions(distinct: bool) -> list[Any]:
        many = []
        for number, (pools, cpu, selector, volumes) in enumerate(requested):
            made = pod(f"u{number}", pools, cpu, nodeSelector=selector, volumes=volumes)
            if distinct:  # a toleration of a taint that no node has
                made["spec"]["tolerations"].append({"key": f"example.com/{number}", "operator": "Exists"})
            if race and number % 3:
                made["metadata"]["annotations"][names.PLACEMENT] = names.RACE
            many.append(made)
        occupancy = occupied(b={"cpu": Decimal(6)})
        labelled = dataclasses.replace(pool("c", cpu="16"), races=True)
        labelled = dataclasses.replace(labelled, node=dataclasses.replace(labelled.node, labels={"gpu": "a100"}))
        pools_ = (dataclasses.replace(pool("a"), races=True), pool("b"), labelled, pool("d", problem="not ready"))
        options: dict[str, Any] = {"policy": policy, "most_places": 2 if race else 0, "nodes": (node("n1", cpu="2"),)}
        actions = look(many, *pools_, occupancy=occupancy, **options, **lets("a"))
        return [(type(a), a.pod["metadata"]["uid"], getattr(a, "pool", ""), getattr(a, "places", ())) for a in actions]

    assert decisions(distinct=False) == decisions(distinct=True)


def test_a_pool_where_the_pods_secrets_may_not_go_is_left_out() -> None:
    secret = pod(pools="a,b", volumes=SECRET)
    assert chosen([secret], pool("a"), pool("b"), **lets("*")) == "a"
    assert chosen([secret], pool("a"), pool("b"), **lets("b")) == "b"
    (action,) = look([secret], pool("a"), pool("b"), **lets("b"))
    why = "annotation bridge.vk.io/pool-secrets of namespace ns does not let Secret s go there"
    assert action.why == f"first with room; not a ({why})"
    (action,) = look([secret], pool("a"), pool("b", cpu="0"), **lets(None))
    assert isinstance(action, SetCondition)
    assert action.message == f"no pool takes the pod: a ({why}), b (too little cpu)"
    assert chosen([pod(pools="a,b")], pool("a"), pool("b"), **lets(None)) == "a"


def test_a_pod_whose_secrets_may_go_nowhere_stays_with_the_colocated_slurm_if_that_may_have_it() -> None:
    either = pod(pools="*,local", volumes=SECRET)
    assert chosen([either], pool("a"), nodes=(node("n1"),), **lets(None)) == "local"


def test_a_namespace_that_cannot_be_read_keeps_its_pods_waiting_and_no_others() -> None:
    def namespace(name: str) -> place_view.NamespaceView:
        return place_view.NamespaceView(problem="the annotations of the pod's namespace can't be read: no answer")

    tell, bind = look([pod("u1", volumes=SECRET), pod("u2")], pool("a"), namespace=namespace)
    assert isinstance(tell, SetCondition)
    assert "can't be read: no answer" in tell.message
    assert isinstance(bind, BindToPool)


def test_one_look_reads_a_namespace_once_and_none_after_the_api_server_did_not_answer() -> None:
    asked: list[str] = []
    errors: dict[str, KubeError] = {
        "closed": KubeForbiddenError("forbidden", status=403),
        "slow": KubeUnavailableError("no answer"),
    }

    def read(name: str) -> Namespace:
        asked.append(name)
        if name in errors:
            raise errors[name]
        return Namespace(annotations={names.POOL_SECRETS: name})

    view = namespace_views(Namespaces(read, FakeClock()))
    assert "read: forbidden" in view("closed").problem
    assert view("fine") == place_view.NamespaceView({names.POOL_SECRETS: "fine"})
    assert "no answer" in view("slow").problem
    assert "no answer" in view("other").problem
    assert view("fine").problem == ""
    assert "read: forbidden" in view("closed").problem
    assert asked == ["closed", "fine", "slow"]


def test_a_pod_without_room_costs_no_question_about_its_namespace() -> None:
    def namespace(name: str) -> place_view.NamespaceView:
        raise AssertionError("asked")

    (action,) = look([pod(cpu="9", volumes=SECRET)], pool("a"), namespace=namespace)
    assert isinstance(action, SetCondition)


def test_the_colocated_slurm_is_one_of_them() -> None:
    local = {"nodes": (node("n1"),)}
    assert chosen([pod(pools="local,*")], pool("a"), **local) == "local"
    assert chosen([pod(pools="*,local")], pool("a"), **local) == "a"
    assert chosen([pod(pools="local,*", cpu="16")], pool("a", cpu="32"), **local) == "a"


def test_where_nothing_has_room_slurm_queues_if_it_ever_could() -> None:
    occupancy = occupied(n1={"cpu": Decimal(8)})
    assert chosen([pod(pools="*,local")], pool("a", problem="x"), nodes=(node("n1"),), occupancy=occupancy) == "local"
    (action,) = look([pod(pools="*,local", cpu="9")], pool("a", problem="x"), nodes=(node("n1"),))
    assert isinstance(action, SetCondition)


def test_a_pod_that_slurm_has_a_job_for_stays_there() -> None:
    assert look([pod(pools="*,local")], pool("a"), has_job=lambda uid: uid == "u1") == []
    labelled = pod(pools="*,local")
    labelled["metadata"]["labels"] = {names.JOB_ID_LABEL: "7"}
    assert look([labelled], pool("a")) == []


def test_pods_that_are_not_ours_are_left_alone() -> None:
    local = pod()
    local["spec"]["tolerations"] = []
    deleted = pod()
    deleted["metadata"]["deletionTimestamp"] = "x"
    assert look([local, deleted, pod(schedulingGates=[{}]), pod(nodeName="a")], pool("a")) == []


def test_a_pod_that_was_just_bound_is_not_bound_again() -> None:
    assert look([pod()], pool("a"), states={"u1": NEW.bound(99.0)}) == []


@given(st.lists(st.sampled_from(["bind", "bind-other", "finish", "delete", "assume"]), max_size=30))
def test_the_occupancy_is_what_the_bound_pods_ask_for(steps: list[str]) -> None:
    there = occupied()
    where: str | None = None
    for step in steps:
        body = pod(nodeName="a" if step == "bind" else "b")
        if step in ("bind", "bind-other"):
            there.changed("update", None, body)
            where = body["spec"]["nodeName"]
        elif step == "assume":
            there.assume(there.occupant(body, "a"))
            where = "a"
        else:
            body["status"]["phase"] = "Failed" if step == "finish" else "Running"
            there.changed("delete" if step == "delete" else "update", None, body)
            where = None
    for name in ("a", "b"):
        assert there.used(name).get("cpu", 0) == (1 if name == where else 0)


@pytest.mark.parametrize("kind", ["add", "update"])
def test_a_pod_bound_by_somebody_else_counts(kind: str) -> None:
    there = occupied()
    there.changed(kind, None, pod(nodeName="a", cpu="3"))
    assert there.used("a") == {"cpu": Decimal(3), "pods": Decimal(1)}


def test_without_slurm_a_pod_that_asks_for_no_pool_is_told_so_and_with_slurm_left_to_it() -> None:
    plain = pod()
    plain["metadata"]["annotations"], plain["spec"]["tolerations"] = {}, [{"operator": "Exists"}]
    assert look([plain], pool("a")) == []
    (action,) = look([plain], pool("a"), colocated=False)
    assert isinstance(action, SetCondition)
    assert "slurmRestApi is empty" in action.message
    assert names.POOLS in action.message


def test_a_pod_that_tolerates_everything_goes_to_a_pool_it_asks_for() -> None:
    everything = pod(pools="*", tolerations=[{"operator": "Exists"}])
    assert chosen([everything], pool("a"), pool("b")) == "a"
    named = pod(pools="b", tolerations=[{"operator": "Exists"}])
    assert chosen([named], pool("a"), pool("b")) == "b"


def test_the_soonest_is_the_place_with_the_shortest_expected_wait() -> None:
    slow, quick = replace(pool("a"), wait=600.0), replace(pool("b"), wait=30.0)
    (action,) = look([pod()], slow, quick, policy="soonest")
    assert (action.pool, action.why) == ("b", "shortest expected wait of a (600 s), b (30 s)")
    assert chosen([pod(pools="b,a")], replace(slow, wait=30.0), quick, policy="soonest") == "b", "by order if equal"
    both = {"policy": "soonest", "nodes": (node("n1"),)}
    assert chosen([pod(pools="*,local")], slow, quick, local_wait=lambda: 20.0, **both) == names.LOCAL_POOL
    assert chosen([pod(pools="*,local")], slow, quick, local_wait=lambda: 40.0, **both) == "b"


@pytest.mark.parametrize(
    ("text", "wait"), [("300", 300.0), ("0", 0.0), ("", 0.0), ("-1", 0.0), ("1e9", 0.0), ("x", 0.0)]
)
def test_the_wait_of_a_pool_is_on_its_virtual_node(text: str, wait: float) -> None:
    raw = builders.node("a", annotations={names.EXPECTED_WAIT: text}, ready="True")
    assert pool_view(raw, eligibility.view(raw)).wait == wait


def test_what_a_pool_can_do_is_on_its_virtual_node() -> None:
    raw = builders.node("a", annotations={names.RACE_ALLOWED: "true", names.GANGS_ALLOWED: "false"}, ready="True")
    found = pool_view(raw, eligibility.view(raw))
    assert (found.races, found.gangs) == (True, False)
    raw = builders.node("a", annotations={names.GANGS_ALLOWED: "true"}, ready="True")
    found = pool_view(raw, eligibility.view(raw))
    assert (found.races, found.gangs, found.heterogeneous) == (False, True, False)
    raw = builders.node("a", annotations={names.HETEROGENEOUS_GANGS_ALLOWED: "true"}, ready="True")
    assert pool_view(raw, eligibility.view(raw)).heterogeneous


def test_a_pod_that_reaches_services_goes_to_a_pool_that_lets_it() -> None:
    first, second = pool("a"), dataclasses.replace(pool("b"), reaches=True)
    one, plain = pod("u1"), pod("u2")
    one["metadata"]["annotations"][names.REACH] = "web:80"
    found = look([one, plain], first, second)
    bound = [action for action in found if isinstance(action, BindToPool)]
    places = {action.members[0][0]["metadata"]["uid"]: action.pool for action in bound}
    assert places == {"u1": "b", "u2": "a"}
    (waits,) = look([one], first)
    assert isinstance(waits, SetCondition) and "its pods reach no Services" in waits.message
    raw = builders.node("a", annotations={names.REACH_ALLOWED: "true"}, ready="True")
    assert pool_view(raw, eligibility.view(raw)).reaches


def test_the_tolerations_of_a_pod_are_compared_once_with_equal_taints() -> None:
    count = Count()
    others = [{"key": f"o{index}", "operator": "Exists"} for index in range(200)]
    body = pod(pools="local,*", tolerations=Items([*others, *TOLERATIONS], count))
    nodes = [node(f"n{index}", taints=[{"key": "t", "effect": "NoSchedule"}]) for index in range(200)]
    assert chosen([body], pool("a"), nodes=tuple(nodes)) == "a"
    assert count.value <= 20 * len(others)
