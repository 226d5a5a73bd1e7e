from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from controllers.guarded_nodes import difference, guarded

TAINT = {"key": names.MANAGED_TAINT, "value": "ours", "effect": "NoExecute"}


def node(name, taints=(), **labels):
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}}


def test_managed_and_virtual_nodes_are_guarded_and_no_others():
    nodes = [
        node("managed", [{"key": "other", "effect": "NoSchedule"}, TAINT]),
        node("free", [{"key": "other", "effect": "NoSchedule"}]),
        node("site", **{names.POOL_LABEL: "site"}),
        {"metadata": {"name": "bare"}},
        node("of-another", [{**TAINT, "value": "theirs"}]),
    ]
    assert guarded(nodes, "ours") == {"managed": "slurm", "site": "pool"}
    assert guarded(nodes, "ours", pools=False) == {"managed": "slurm"}


LISTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["slurm", "pool"]))


@given(LISTS, LISTS)
def test_the_difference_turns_one_list_into_the_other(live, wanted):
    patch = difference(live, wanted)
    merged = {**live, **patch}
    assert {key: value for key, value in merged.items() if value is not None} == wanted
    assert all(live.get(key) != value for key, value in patch.items())
