"""The script of a pod that reaches Services."""

from __future__ import annotations

from typing import Any

import pytest

from bridge import names
from bridge.errors import ScriptError
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.workload import services
from tests.unit.script.pods import OBJECTS, pod, shell


def made(text: str, **config: Any) -> str:
    settings = {"limits": {"allow_reach": True}, "runtime": {"kind": "podman"}, **config}
    one = pod({"containers": [shell("true")]}, annotations={names.REACH: text})
    return build(one, BuildConfig.model_validate(settings), OBJECTS, "virtual-a").script


def test_addresses_names_and_variables_are_in_the_script() -> None:
    script = made("web:8080:80,db.other:5432")
    one = pod({}, annotations={names.REACH: "web:8080:80,db.other:5432"})
    web, other = (services.reached_address(one, target) for target in services.reached(one))
    places = f"REACHES=({web} 8080 web.team:80 {other} 5432 db.other:5432)"
    assert places in script.replace("'", "")
    assert f"{other}\tdb.other db.other.svc db.other.svc.cluster.local" in script.replace("\\t", "\t")
    assert "WEB_SERVICE_HOST" in script and "DB_SERVICE_HOST" not in script


@pytest.mark.parametrize(
    ("text", "config", "problem"),
    [
        ("web:80", {"limits": {}}, r"is not allowed at this site \(limits.allow_reach is false\)"),
        ("web:80", {"runtime": {"kind": "podman", "network": "none"}}, "whose containers have no network"),
        ("web", {}, "'web' is not allowed; allowed: 1 to 16"),
    ],
)
def test_what_no_site_or_this_site_does_not_allow(text: str, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScriptError, match=f"annotation {names.REACH}.*{problem}"):
        made(text, **config)
