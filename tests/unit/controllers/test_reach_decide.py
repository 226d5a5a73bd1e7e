"""Where connections of pods to Services may lead."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import ServiceRefusedError
from bridge.workload.services import Target
from controllers.reach import reach_decide
from controllers.reach.reach_decide import Endpoint

TARGET = Target("team", "web", 80, 80)
OWN = {"10.0.0.9"}


def service(**spec: Any) -> list[dict[str, Any]]:
    return [{"spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "name": "http"}], **spec}}]


def pod(**more: Any) -> dict[str, Any]:
    status = {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "hostIP": "10.0.0.1"}
    return {"metadata": {"uid": "u"}, "spec": more.pop("spec", {}), "status": {**status, **more}}


@pytest.mark.parametrize(
    ("target", "services", "text"),
    [
        (Target("default", "kubernetes", 443, 443), service(), "leads to the API server"),
        (TARGET, [], "does not exist"),
        (TARGET, service(type="ExternalName", externalName="metadata.google.internal"), "ExternalName is not allowed"),
        (TARGET, service(selector=None), "has no selector"),
        (TARGET, service(ports=[{"port": 80, "protocol": "UDP"}]), "port 80 is not allowed; allowed: none"),
        (TARGET, service(ports=[{"port": 81}]), "port 80 is not allowed; allowed: 81"),
    ],
)
def test_services_that_no_pod_reaches(target: Target, services: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(ServiceRefusedError, match=text):
        reach_decide.port_of(target, services)


def test_endpoints_are_ready_pods_of_the_namespace_at_the_port_of_this_name() -> None:
    def end(address: str, ready: bool | None = True, **reference: Any) -> dict[str, Any]:
        named = {"kind": "Pod", "namespace": "team", "name": "p", "uid": "u", **reference}
        return {"addresses": [address], "conditions": {"ready": ready}, "targetRef": named}

    ends = [end("10.1.0.1"), end("10.1.0.2", False), end("10.1.0.3", None), end("10.1.0.4", namespace="other")]
    ends += [end("10.1.0.5", kind="Node"), {"addresses": ["169.254.169.254"], "conditions": {}}]
    ports = [{"name": "metrics", "port": 9}, {"name": "http", "port": 8080, "protocol": "TCP"}]
    slices = [{"ports": ports, "endpoints": ends}, {"ports": [{"name": "x", "port": 1}], "endpoints": ends}]
    port = reach_decide.port_of(TARGET, service())
    assert list(reach_decide.endpoints(port, slices, "team")) == [
        Endpoint("p", "u", "10.1.0.1", 8080),
        Endpoint("p", "u", "10.1.0.3", 8080),
    ]


@pytest.mark.parametrize(
    ("found", "address", "text"),
    [
        (pod(), "10.1.0.1", ""),
        (pod(phase="Succeeded"), "10.1.0.1", "does not run"),
        ({**pod(), "metadata": {"uid": "other"}}, "10.1.0.1", "does not run"),
        (pod(spec={"hostNetwork": True}), "10.1.0.1", "hostNetwork"),
        (pod(), "169.254.169.254", "does not have the address"),
        (pod(podIP="10.0.0.1"), "10.0.0.1", "does not have the address"),  # that of its node
        *(
            (pod(podIP=bad, podIPs=[]), bad, "which is not allowed")
            for bad in ("127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1", "::", "224.0.0.1")
        ),
        (pod(podIP="10.0.0.9"), "10.0.0.9", "is podbridge or the API server"),
        (pod(podIP="::ffff:10.0.0.9"), "::ffff:10.0.0.9", "is podbridge or the API server"),
    ],
)
def test_only_addresses_of_pods(found: dict[str, Any], address: str, text: str) -> None:
    problem = reach_decide.problem_of(Endpoint("p", "u", address, 80), found, OWN)
    assert text in problem if text else problem == ""
