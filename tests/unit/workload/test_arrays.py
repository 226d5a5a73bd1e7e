"""Which pods may be one array at a site."""

from __future__ import annotations

from typing import Any

import pytest

from bridge import names
from bridge.workload import arrays
from bridge.workload.annotations import is_inherited

JOB = "70b00000-0000-4000-8000-000000000000"


def pod(value: str | None, controller: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": JOB, "controller": controller}
    annotations = {} if value is None else {names.ARRAY: value}
    return {"metadata": {"namespace": "ns", "name": "p", "annotations": annotations, "ownerReferences": [owner]}}


@pytest.mark.parametrize(
    ("value", "array"), [("true", (JOB, True)), (None, (JOB, None)), ("false", ("", None)), ("bad", ("", None))]
)
def test_the_annotation_wins_over_the_sites_default(value: str | None, array: tuple[str, bool | None]) -> None:
    assert arrays.array_of(pod(value)) == array


def test_a_pod_without_a_controller_is_in_no_array() -> None:
    assert arrays.array_of(pod("true", controller=False)) == ("", None)


def test_pods_inherit_the_annotation_of_owners_and_namespace() -> None:
    assert is_inherited(names.ARRAY)
    assert arrays.default_of({names.ARRAY: "true", names.POOLS: "a"}) == {names.ARRAY: "true"}
