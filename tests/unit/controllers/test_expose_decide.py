"""Which EndpointSlices exist for exposed pods."""

import copy
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.expose import expose_decide
from controllers.expose.expose_decide import Create, Delete, Exposed, Replace, ReportProblem
from controllers.expose.expose_loop import Exposure
from tests import builders

HUB = "10.1.2.3"


def pod(
    name="p",
    uid="u1",
    *,
    labels=None,
    ready=True,
    deleted=False,
    namespace="ns",
    ports=(),
    phase="Running",
    permitted=False,
):
    annotations = {"bridge.vk.io/expose": "8888", **({"bridge.vk.io/expose-permitted": "true"} if permitted else {})}
    metadata = {"namespace": namespace, "name": name, "labels": {"app": "web"} if labels is None else labels}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    containers = [{"name": "c", "ports": list(ports)}]
    state = {"deleted": deleted, "node": "site-a", "phase": phase, "conditions": conditions}
    return builders.pod(uid, annotations=annotations, metadata=metadata, containers=containers, **state)


def service(name="s", *, ports=({"port": 80, "targetPort": 8888},), selector=None, uid="su", namespace="ns", **spec):
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "spec": {"selector": {"app": "web"} if selector is None else selector, "ports": list(ports), **spec},
    }


def decide(pods_and_ports, services, slices=(), listeners=None, address=HUB):
    exposed = [Exposed(one, ports) for one, ports in pods_and_ports]
    if listeners is None:
        keys = [key for key, _ in expose_decide.wanted_listeners(exposed)]
        listeners = {key: 20000 + number for number, key in enumerate(keys)}
    return expose_decide.decide(exposed, services, list(slices), listeners, address, "podbridge")


def stored(body, version="7"):
    """Return a slice as the API server has it."""
    found = copy.deepcopy(body)
    found["metadata"] |= {"uid": "e1", "resourceVersion": version}
    return expose_decide.prune_slice(found)


def made(*args, **options):
    """Return the only slice that is created."""
    (action,) = decide(*args, **options)
    assert isinstance(action, Create)
    return action.body


def test_a_service_in_the_cache_decides_as_the_whole_one():
    whole = service(clusterIP="10.0.0.1", ipFamilies=["IPv4"], sessionAffinity="None")
    pruned = expose_decide.prune_service({**whole, "status": {"loadBalancer": {}}})
    assert not {"status", "sessionAffinity"} & (pruned.keys() | pruned["spec"].keys())
    assert made([(pod(), (8888,))], [pruned]) == made([(pod(), (8888,))], [whole])


@pytest.mark.parametrize("key", ["ports", "selector"])
def test_little_is_kept_of_a_service_that_a_user_made_large(key):
    whole = service()
    if key == "ports":
        whole["spec"]["ports"] = whole["spec"]["ports"] * 20_000
    else:
        whole["spec"]["selector"] = {f"l{number}": "" for number in range(20_000)}
    pruned = expose_decide.prune_service(whole)
    assert not {"ports", "selector"} & pruned["spec"].keys()
    assert decide([(pod(), (8888,))], [pruned]) == decide([(pod(), (8888,))], [])


def test_a_slice_has_the_address_and_port_of_the_hub():
    assert made([(pod(), (8888,))], [service()]) == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "ns",
            "name": "s-u1",
            "labels": {"endpointslice.kubernetes.io/managed-by": "podbridge", "kubernetes.io/service-name": "s"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "s", "uid": "su", "controller": True}],
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [HUB],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": "site-a",
                "targetRef": {"kind": "Pod", "namespace": "ns", "name": "p", "uid": "u1"},
            }
        ],
        "ports": [{"name": "", "protocol": "TCP", "port": 20000}],
    }


@pytest.mark.parametrize(
    ("ready", "deleted", "publishes", "conditions"),
    [
        (True, False, False, (True, True, False)),
        (False, False, False, (False, False, False)),
        (True, True, False, (False, True, True)),
        (False, True, False, (False, False, True)),
        (False, False, True, (True, False, False)),
        (True, True, True, (True, True, True)),
    ],
)
def test_the_conditions_are_those_of_kubernetes(ready, deleted, publishes, conditions):
    one = service(publishNotReadyAddresses=publishes)
    body = made([(pod(ready=ready, deleted=deleted), (8888,))], [one])
    assert tuple(body["endpoints"][0]["conditions"].values()) == conditions


def test_a_slice_of_a_long_service_has_a_name_that_the_api_server_takes():
    uid = "a" * 36
    name = made([(pod(uid=uid), (8888,))], [service("s" * 253)])["metadata"]["name"]
    assert name == f"{'s' * 216}-{uid}"


def test_ports_by_number_and_name():
    named = {"name": "http", "containerPort": 9000}
    ports = [
        {"name": "a", "port": 80, "targetPort": 8888},
        {"name": "b", "port": 8888},
        {"name": "c", "port": 81, "targetPort": "http", "appProtocol": "kubernetes.io/ws"},
        {"name": "d", "port": 82, "targetPort": "unknown"},
        {"name": "e", "port": 83, "targetPort": 8888, "protocol": "UDP"},
        {"name": "f", "port": 84, "targetPort": 1},
    ]
    body = made([(pod(ports=[named]), (8888, 9000))], [service(ports=ports)])
    assert body["ports"] == [
        {"name": "a", "protocol": "TCP", "port": 20000},
        {"name": "b", "protocol": "TCP", "port": 20000},
        {"name": "c", "protocol": "TCP", "port": 20001, "appProtocol": "kubernetes.io/ws"},
    ]


@pytest.mark.parametrize(
    "one",
    [
        service(selector={}),
        service(selector={"app": "other"}),
        service(selector={"app": "web", "more": "x"}),
        service(namespace="other"),
        service(type="ExternalName"),
        service(ports=[{"port": 80}]),
    ],
    ids=["no selector", "another pod", "one label of two", "another namespace", "ExternalName", "another port"],
)
def test_services_without_a_slice(one):
    assert decide([(pod(), (8888,))], [one]) == []


def test_a_headless_service_is_reported_and_gets_no_slice():
    (action,) = decide([(pod(), (8888,))], [service(clusterIP="None")])
    assert isinstance(action, ReportProblem) and "Service s is headless" in action.text


@pytest.mark.parametrize(
    ("families", "address", "served"),
    [
        (["IPv4"], HUB, True),
        (["IPv6", "IPv4"], HUB, True),
        (["IPv6"], HUB, False),
        (["IPv6"], "2001:db8::1", True),
        (["IPv4"], "2001:db8::1", False),
    ],
)
def test_a_service_without_an_address_of_the_hubs_family_is_reported(families, address, served):
    (action,) = decide([(pod(), (8888,))], [service(ipFamilies=families)], address=address)
    if served:
        assert isinstance(action, Create)
    else:
        assert isinstance(action, ReportProblem) and "see spec.ipFamilies" in action.text


def test_a_port_without_listener_or_a_hub_without_address_gets_no_slice():
    assert decide([(pod(), (8888,))], [service()], listeners={}) == []
    assert decide([(pod(), (8888,))], [service()], address=None) == []


def test_what_is_as_wanted_stays_and_the_rest_changes():
    found = stored(made([(pod(), (8888,))], [service()]))
    assert decide([(pod(), (8888,))], [service()], [found]) == []
    (changed,) = decide([(pod(ready=False), (8888,))], [service()], [found])
    assert isinstance(changed, Replace)
    assert changed.body["metadata"]["resourceVersion"] == "7" and changed.body["metadata"]["uid"] == "e1"
    (moved,) = decide([(pod(), (8888,))], [service()], [found], address="10.9.9.9")
    assert isinstance(moved, Replace) and moved.body["endpoints"][0]["addresses"] == ["10.9.9.9"]
    (again,) = decide([(pod(), (8888,))], [service(uid="other")], [found])
    assert isinstance(again, Replace)
    assert decide([], [service()], [found]) == [Delete(found)]
    assert decide([(pod(), (8888,))], [], [found]) == [Delete(found)]
    assert decide([(pod(uid="u2"), (8888,))], [service()], [found])[0] == Delete(found)
    assert decide([(pod(), (8888,))], [service()], [found], address="2001:db8::1") == [Delete(found)]
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert decide([], [], [found]) == []


def test_a_new_leader_keeps_the_slices_of_pods_that_it_does_not_know_yet():
    found = stored(made([(pod(), (8888,))], [service()]))
    assert expose_decide.decide([], [service()], [found], {}, HUB, "podbridge", frozenset()) == []
    assert expose_decide.decide([], [service()], [found], {}, HUB, "podbridge", {"u1"}) == [Delete(found)]


def test_the_families_of_all_services_of_a_pod():
    pods = [pod(), pod("q", "u2", labels={"app": "other"}), pod("r", "u3", namespace="other")]
    services = [service(ipFamilies=["IPv4"]), service("t", ipFamilies=["IPv6", "IPv4"])]
    assert expose_decide.families(pods, services) == {"u1": {"IPv4", "IPv6"}}


def test_a_ports_number_is_free_when_no_slice_has_it():
    found = stored(made([(pod(), (8888,))], [service()]))
    assert expose_decide.used_ports([found, {"metadata": {}}]) == {20000}
    assert expose_decide.used_ports([found, {"metadata": {}}], HUB) == {20000}
    assert not expose_decide.used_ports([found], "10.9.9.9")


@pytest.mark.parametrize(
    ("one", "address", "forwards", "allowed", "expected"),
    [
        (pod(), HUB, True, True, (8888,)),
        (pod(), None, True, True, "pools.expose.address"),
        (pod(), HUB, False, True, "pool site-a forwards no ports: its site must set limits.allow_ports"),
        (pod(), HUB, True, False, "the policy of namespace ns has expose: false"),
        (pod(permitted=True), HUB, True, False, (8888,)),
        (pod(phase="Pending"), HUB, True, True, None),
        (pod(phase="Failed"), HUB, True, False, None),
    ],
)
def test_who_gets_listeners(one, address, forwards, allowed, expected):
    found = expose_decide.examine(one, address, "site-a", forwards, allowed)
    if expected is None:
        assert found is None
    elif isinstance(expected, str):
        assert not found.ports and expected in found.problem
    else:
        assert found.ports == expected and not found.problem


def test_an_invalid_annotation_of_a_pod_without_admission_is_reported():
    one = pod()
    one["metadata"]["annotations"] = {"bridge.vk.io/expose": "http"}
    assert "is not allowed" in expose_decide.examine(one, HUB, "site-a", True, True).problem


@pytest.mark.parametrize(
    ("text", "address"),
    [
        *((text, None) for text in (None, "", "host", "127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "224.0.0.1")),  # noqa: S104
        ("10.1.2.3", "10.1.2.3"),
        ("2001:DB8::1", "2001:db8::1"),
    ],
)
def test_an_endpoint_has_no_special_address(text, address):
    assert expose_decide.usable_address(text) == address


LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
PORTS = st.lists(st.sampled_from([80, 8888, "http"]), min_size=1, max_size=2, unique=True)


@given(
    pods=st.lists(st.tuples(LABELS, st.sets(st.sampled_from([80, 8888])), st.booleans()), max_size=4),
    services=st.lists(st.tuples(LABELS, PORTS), max_size=3),
    before=st.lists(st.tuples(LABELS, st.sets(st.sampled_from([80, 8888])), st.booleans()), max_size=4),
)
def test_the_actions_lead_to_a_state_without_further_actions(pods, services, before):
    def exposed(entries):
        return [
            (
                pod(f"p{n}", f"u{n}", labels=labels, ready=ready, ports=[{"name": "http", "containerPort": 80}]),
                tuple(ports),
            )
            for n, (labels, ports, ready) in enumerate(entries)
        ]

    offered = [
        service(
            f"s{n}",
            uid=f"su{n}",
            selector=selector,
            ports=[{"name": str(t), "port": 1, "targetPort": t} for t in targets],
        )
        for n, (selector, targets) in enumerate(services)
    ]
    state = {}
    for entries in (before, pods):
        for _ in range(2):
            actions = decide(exposed(entries), offered, state.values())
            for action in actions:
                body = action.found if isinstance(action, Delete) else action.body
                if isinstance(action, Delete):
                    del state[body["metadata"]["name"]]
                else:
                    assert (body["metadata"]["name"] in state) == isinstance(action, Replace)
                    state[body["metadata"]["name"]] = stored(body)
        assert actions == []
    for found in state.values():
        target = found["endpoints"][0]["targetRef"]["uid"]
        number = int(target[1:])
        selector = services[int(found["metadata"]["labels"]["kubernetes.io/service-name"][1:])][0]
        assert selector.items() <= pods[number][0].items() and selector
        assert len(found["ports"]) <= 2 and found["ports"]


def test_a_defect_about_one_pod_changes_nothing_for_the_others(monkeypatch, isolates):
    target_port = expose_decide.services.target_port

    def failing(port, body):
        return target_port(port, body) if body["metadata"]["uid"] != "u1" else 1 / 0

    monkeypatch.setattr(expose_decide.services, "target_port", failing)
    body = made([(pod(), (8888,)), (pod("q", "u2"), (8888,))], [service()])
    assert body["metadata"]["name"] == "s-u2"
    assert isolates == [("expose", "ns/p")]


def test_a_pod_that_cannot_be_examined_keeps_no_other_from_its_listeners(monkeypatch, isolates):
    monkeypatch.setattr(expose_decide.services, "exposed_ports", lambda body: [1 / (body["metadata"]["uid"] != "u1")])
    loop = SimpleNamespace(_address=HUB, _allows=lambda _: True)
    pool = SimpleNamespace(name="site", connections=object())
    found = Exposure._examine(loop, [(pod(), pool), (pod("q", "u2"), pool), (pod("r", "u3", phase="Pending"), pool)])
    assert [each.pod["metadata"]["uid"] for each in found] == ["u2"]
    assert isolates == [("expose", "ns/p")]


def test_a_pod_has_slices_for_a_limited_number_of_services():
    most = expose_decide.MOST_SERVICES
    many = [service(f"s{number:02}", uid=f"s{number}") for number in reversed(range(most + 2))]
    many += [service("a0", clusterIP="None"), service("a1", ports=[{"port": 80, "targetPort": 9}])]
    actions = decide([(pod(), (8888,)), (pod("q", "u2"), (8888,))], many)
    created = [action.body["metadata"]["name"] for action in actions if isinstance(action, Create)]
    assert sorted(created) == sorted(f"s{number:02}-{uid}" for number in range(most) for uid in ("u1", "u2"))
    problems = {action.text for action in actions if isinstance(action, ReportProblem)}
    assert len(problems) == 2
    assert any(f"more than {most} Services select the pod" in text for text in problems)
