import base64
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.review import TEMPLATES
from admission.webhook_registration import (
    MUTATE,
    NAMESPACE_LABEL,
    VALIDATE,
    complements,
    is_managed,
    managed_requirements,
    webhooks,
)
from bridge.config.hub import Config
from bridge.errors import ConfigError

URL = {"url": "https://127.0.0.1:9443"}


def config(**more: Any) -> Config:
    return Config.model_validate({"admission": URL, **more})


def matches(labels: dict[str, str], requirements: list[dict[str, Any]]) -> bool:
    """Evaluate a selector as Kubernetes does."""
    rules = {
        "In": lambda r: labels.get(r["key"]) in r["values"],
        "NotIn": lambda r: r["key"] not in labels or labels[r["key"]] not in r["values"],
        "Exists": lambda r: r["key"] in labels,
        "DoesNotExist": lambda r: r["key"] not in labels,
    }
    return all(rules[r["operator"]](r) for r in requirements)


values = st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2, unique=True)
requirement = st.builds(
    lambda key, operator, chosen: {
        "key": key,
        "operator": operator,
        **({"values": chosen} if operator in ("In", "NotIn") else {}),
    },
    st.sampled_from(["a", "b"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    values,
)


@given(st.lists(requirement, max_size=4))
def test_every_namespace_is_selected_exactly_once(requirements: list[dict[str, Any]]) -> None:
    selectors = [requirements, *complements(requirements)]
    for a, b in itertools.product([None, "x", "y", "z"], repeat=2):
        labels = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
        assert sum(matches(labels, selector) for selector in selectors) == 1


def test_a_list_of_namespaces_makes_two_webhooks() -> None:
    managed, named = webhooks(config(managedNamespaces=["b", "a"]), MUTATE, b"ca", [])
    assert managed["namespaceSelector"]["matchExpressions"] == [
        {"key": NAMESPACE_LABEL, "operator": "In", "values": ["a", "b"]}
    ]
    assert named["namespaceSelector"]["matchExpressions"] == [
        {"key": NAMESPACE_LABEL, "operator": "NotIn", "values": ["a", "b"]}
    ]
    assert [condition["name"] for condition in managed["matchConditions"]] == ["is-new-or-is-given-tolerations"]
    assert "object.spec.schedulerName" in named["matchConditions"][1]["expression"]
    assert managed["clientConfig"]["url"] == "https://127.0.0.1:9443/mutate"
    assert named["clientConfig"]["url"] == "https://127.0.0.1:9443/mutate/named"
    assert base64.b64decode(managed["clientConfig"]["caBundle"]) == b"ca"
    for webhook in (managed, named):
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Fail", 5, "None")


def test_no_namespace_at_all_leaves_pods_that_name_us() -> None:
    named, others = webhooks(config(managedNamespaces=[]), VALIDATE, b"", [])
    assert others["namespaceSelector"] == {}
    assert others["clientConfig"]["url"].endswith("/validate/namespaces")
    assert named["namespaceSelector"] == {}
    assert named["clientConfig"]["url"].endswith("/validate/named")


def test_a_selector_spares_the_system() -> None:
    chosen = config(managedNamespaceSelector={"matchLabels": {"slurm": "yes"}, "matchExpressions": []})
    managed, named, spared = webhooks(chosen, MUTATE, b"", [])
    selector = managed["namespaceSelector"]["matchExpressions"]
    assert matches({"slurm": "yes", NAMESPACE_LABEL: "x"}, selector)
    for system in ("kube-system", "podbridge"):
        assert not matches({"slurm": "yes", NAMESPACE_LABEL: system}, selector)
        assert matches({"slurm": "yes", NAMESPACE_LABEL: system}, spared["namespaceSelector"]["matchExpressions"])
    assert matches({NAMESPACE_LABEL: "x"}, named["namespaceSelector"]["matchExpressions"])


@pytest.mark.parametrize("name", ["x", "slurm-bridge", "kube-system", "podbridge"])
@pytest.mark.parametrize("label", [None, "yes", "no"])
@pytest.mark.parametrize("more", [{}, {"managedNamespaceSelector": {"matchLabels": {"slurm": "yes"}}}])
def test_managed_is_what_the_api_server_selects(name: str, label: str | None, more: dict[str, Any]) -> None:
    labels = {NAMESPACE_LABEL: name, **({"slurm": label} if label else {})}
    found = config(**more)
    assert is_managed(found, name, labels) is matches(labels, managed_requirements(found))


def test_podbridges_own_namespace_can_not_be_in_the_list() -> None:
    inside = Config.model_validate({"managedNamespaces": ["podbridge"]})
    with pytest.raises(ConfigError, match="'podbridge' is not allowed"):
        managed_requirements(inside)


def test_by_service() -> None:
    (managed, *_) = webhooks(Config(), VALIDATE, b"", ["system:serviceaccount:podbridge:podbridge", 'odd"name'])
    assert managed["clientConfig"] == {
        "service": {"name": "podbridge-admission", "namespace": "podbridge", "path": "/validate", "port": 443}
    }
    assert [rule["resources"] for rule in managed["rules"]] == [["pods"], ["pods/resize"], ["pods/ephemeralcontainers"]]
    expression = managed["matchConditions"][0]["expression"]
    assert '["odd\\"name", "system:serviceaccount:podbridge:podbridge"]' in expression or (
        '["system:serviceaccount:podbridge:podbridge", "odd\\"name"]' in expression
    )


def test_updates_come_to_be_changed_only_where_tolerations_are_added_to_a_pod_that_waits() -> None:
    for webhook in webhooks(Config(), MUTATE, b"", ["podbridge"]):
        assert [rule["operations"] for rule in webhook["rules"]] == [["CREATE", "UPDATE"]]
        assert [rule["resources"] for rule in webhook["rules"]] == [["pods"]]
        expression = webhook["matchConditions"][0]["expression"]
        assert "oldObject == null ||" in expression
        assert "!has(object.spec.nodeName) && object.spec.?tolerations" in expression


def test_namespaces_that_are_not_managed_are_looked_at_when_they_are_given_pools() -> None:
    chosen = config(managedNamespaceSelector={"matchLabels": {"slurm": "yes"}})
    _, *named, first, second, templates = webhooks(chosen, VALIDATE, b"", ["podbridge"])
    assert [w["name"] for w in (first, second)] == [
        "namespaces.validate.bridge.vk.io",
        "namespaces-2.validate.bridge.vk.io",
    ]
    assert [w["namespaceSelector"] for w in (first, second)] == [w["namespaceSelector"] for w in named]
    for webhook in (first, second):
        (rule,) = webhook["rules"]
        assert (rule["resources"], rule["scope"]) == (["namespaces"], "Cluster")
        (condition,) = webhook["matchConditions"]
        assert '"bridge.vk.io/pools" in object.metadata.annotations' in condition["expression"]
    assert all("namespaces" not in w["name"] for w in webhooks(chosen, MUTATE, b"", []))
    assert (templates["failurePolicy"], templates["timeoutSeconds"]) == ("Ignore", 2)
    assert [rule["operations"] for rule in templates["rules"]] == [["CREATE"]] * 4
    assert {f"{rule['resources'][0]}.{rule['apiGroups'][0]}" for rule in templates["rules"]} == TEMPLATES
