"""The annotation with the Services that a pod reaches."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from bridge import names
from bridge.workload import services
from bridge.workload.services import Target


def pod(text: str | None, uid: str = "u", **spec: Any) -> dict[str, Any]:
    annotations = {} if text is None else {names.REACH: text}
    return {"metadata": {"namespace": "team", "uid": uid, "annotations": annotations}, "spec": spec}


def test_targets() -> None:
    assert services.reached(pod(None)) == ()
    assert services.reached(pod("a:1, db-x.other:5432,web:8080:80")) == (
        Target("team", "a", 1, 1),
        Target("other", "db-x", 5432, 5432),
        Target("team", "web", 80, 8080),
    )
    assert services.reached(pod("web:8080:80"))[0].text == "web.team:80"


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a:0", "a:65536", "a:99999:80", "A:80", "a.b.svc:80", "a:80:90:1", "a:80;b:80", "-a:80", "a:80,"),
        *("a:8 0", "a\n:80", "a.:80", ",".join(f"s{index}:80" for index in range(17)), "a:80,a:80", "a:80:1,a:80:2"),
    ],
)
def test_what_is_not_allowed_names_field_value_and_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=f"annotation {names.REACH}: .* is not allowed.*; allowed: 1 to 16 of NAME"):
        services.reached(pod(text))


def test_addresses_are_on_the_loopback_and_differ_between_pods_and_services() -> None:
    found = set()
    for uid in map(str, range(200)):
        one = pod("a:1,b:1", uid)
        found |= {services.reached_address(one, target) for target in services.reached(one)}
    assert len(found) == 400
    assert all(ipaddress.ip_address(each) in ipaddress.ip_network("127.0.0.0/8") for each in found)
    assert all(int(each.split(".")[1]) >= 16 and each.split(".")[3] not in ("0", "255") for each in found)


def test_names_and_variables_are_those_of_the_cluster() -> None:
    one = pod("my-db:5432,db.other:1")
    own, other = (services.reached_address(one, target) for target in services.reached(one))
    assert services.host_names(one) == {
        own: ["my-db", "my-db.team", "my-db.team.svc", "my-db.team.svc.cluster.local"],
        other: ["db.other", "db.other.svc", "db.other.svc.cluster.local"],
    }
    assert services.variables(one) == {"MY_DB_SERVICE_HOST": own, "MY_DB_SERVICE_PORT": "5432"}
    assert services.variables(pod("a:1", enableServiceLinks=False)) == {}
