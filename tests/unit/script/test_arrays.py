"""Which pods may be one array at a site."""

from __future__ import annotations

from typing import Any

import pytest

from admission import pool_rules
from bridge import names
from bridge.protocol.model.requests import EqualPods
from bridge.script import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.workload.annotations import is_inherited
from tests.unit.script.pods import pod, shell

JOB = "70b00000-0000-4000-8000-000000000000"


def array_of(value: str | None, controller: bool = True) -> EqualPods | None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": JOB, "controller": controller}
    metadata: dict[str, Any] = {"ownerReferences": [owner]}
    metadata["annotations"] = {} if value is None else {names.ARRAY: value}
    one = pod({"containers": [shell("true")], "restartPolicy": "Never"}, **metadata)
    return build.build(one, BuildConfig(), Objects(), "site").array


@pytest.mark.parametrize(("value", "wanted"), [("true", True), (None, None)])
def test_the_annotation_wins_over_the_sites_default(value: str | None, wanted: bool | None) -> None:
    assert array_of(value) == EqualPods(owner=JOB, wanted=wanted)


@pytest.mark.parametrize(("value", "controller"), [("false", True), ("bad", True), ("true", False)])
def test_a_pod_without_a_controller_or_against_the_annotation_is_in_no_array(value: str, controller: bool) -> None:
    assert array_of(value, controller) is None


def test_pods_inherit_the_annotation_of_owners_and_namespace() -> None:
    assert is_inherited(names.ARRAY)
    assert pool_rules.inherited({names.ARRAY: "true", names.POOLS: "a"}) == {names.ARRAY: "true"}
