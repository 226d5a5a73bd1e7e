"""What the plain 404 of an API server means. tests/e2e/test_admission.py asks a real one."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import KubeUnavailableError
from bridge.kube.discovery import get_if_served
from bridge.kube.resources import PODS, Resource
from tests.fakes.kube_answers import KubeAnswers, discovery

GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", True)


PLAIN = KubeUnavailableError("not served, or refused by a proxy", status=404)


@pytest.mark.parametrize(
    ("resource", "answers"),
    [
        (GROUPS, discovery({"scheduling.k8s.io/v1": ["podgroups"], "scheduling.k8s.io/v1alpha2": ["podgroups"]})),
        (GROUPS, discovery({"scheduling.k8s.io/v1beta1": ["workloads"]})),
        (PODS, {"/api/v1": {"resources": [{"name": "nodes"}]}}),
    ],
)
def test_an_object_of_a_resource_that_is_not_served_does_not_exist(resource: Resource, answers: Any) -> None:
    assert get_if_served(KubeAnswers(answers, default=PLAIN), resource, "ns", "x") is None  # type: ignore[arg-type]


def test_a_plain_404_for_a_served_resource_says_nothing() -> None:
    served = KubeAnswers(discovery({"scheduling.k8s.io/v1beta1": ["podgroups"]}), default=PLAIN)
    with pytest.raises(KubeUnavailableError):
        get_if_served(served, GROUPS, "ns", "x")  # type: ignore[arg-type]


def test_other_errors_are_not_explained_by_discovery() -> None:
    for status in (0, 503):
        kube = KubeAnswers(discovery({}), default=KubeUnavailableError("x", status=status))
        with pytest.raises(KubeUnavailableError):
            get_if_served(kube, GROUPS, "ns", "x")  # type: ignore[arg-type]
    assert get_if_served(KubeAnswers(), GROUPS, "ns", "x") is None  # type: ignore[arg-type]
