import pytest

from bridge import names
from bridge.workload import pods, tolerations

MANAGED = pods.managed_toleration("ours")
FOR_A_MINUTE = {"operator": "Exists", "tolerationSeconds": 60}


@pytest.mark.parametrize(
    ("operator", "value", "of_taint", "covered"),
    [
        ("Gt", "900", "950", True),
        ("Gt", "950", "950", False),
        ("Lt", "950", "900", True),
        ("Lt", "-5", "-6", True),
        ("Gt", "900", "0950", False),
        ("Gt", "+900", "950", False),
        ("Gt", "9_0", "950", False),
        ("Lt", "950", "", False),
        ("Lt", str(2**63), "1", False),
        ("Gt", "900", "900", False),
        ("Other", "900", "900", False),
    ],
)
def test_operators_of_tolerations_that_compare_numbers(operator, value, of_taint, covered):
    taint = {"key": "sla", "value": of_taint, "effect": "NoSchedule"}
    toleration = {"key": "sla", "operator": operator, "value": value}
    assert tolerations.tolerates([toleration], taint) is covered
    assert not tolerations.tolerates([{**toleration, "key": "other"}], taint)


@pytest.mark.parametrize(
    ("others", "is_enough"),
    [
        ([], False),
        ([MANAGED], True),
        ([{"operator": "Exists"}], True),
        ([{"key": names.MANAGED_TAINT, "operator": "Exists"}], True),
        ([{**MANAGED, "value": "theirs"}], False),
        ([{**MANAGED, "effect": "NoSchedule"}], False),
        ([{**MANAGED, "tolerationSeconds": 60}], False),
        ([FOR_A_MINUTE, MANAGED], False),
        ([MANAGED, FOR_A_MINUTE], True),
    ],
)
def test_a_held_pod_stays_on_the_nodes_of_its_scheduler(others, is_enough):
    """Kubernetes evicts a pod after the tolerationSeconds of the first toleration that covers the taint."""
    held = {"metadata": {"uid": "u"}, "spec": {"tolerations": others}}
    patched = pods.hold_patch(held, 7, "ours").get("spec")
    assert patched == (None if is_enough else {"tolerations": [MANAGED, *others]})
