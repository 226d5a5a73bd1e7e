import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.workload import node_ownership, pods
from tests import builders

PREFIX = names.PARTITION_LABEL_PREFIX


def pod(annotation=None, **selector):
    annotations = {names.PARTITION: annotation} if annotation else {}
    return builders.pod(annotations=annotations, nodeSelector={PREFIX + key: value for key, value in selector.items()})


def test_the_node_selector_counts_before_the_annotation_and_the_default():
    assert pods.partitions(pod(), "main") == "main"
    assert pods.partitions(pod("cpu"), "main") == "cpu"
    assert pods.partitions(pod("cpu", gpu="true"), "main") == "gpu"
    assert pods.partitions(pod(b="true", a="true"), "") == "a,b"
    assert pods.partitions({"metadata": {}, "spec": {"nodeSelector": {"disk": "ssd"}}}, "main") == "main"


def test_labels_follow_the_partitions_of_a_node():
    labels = {"disk": "ssd", PREFIX + "old": "true", PREFIX + "kept": "true"}
    changes = node_ownership.partition_label_changes(labels, ["kept", "new"])
    assert changes == {
        PREFIX + "new": "true",
        PREFIX + "old": None,
    }
    assert node_ownership.partition_label_changes({PREFIX + "kept": "no"}, ["kept"]) == {PREFIX + "kept": "true"}
    assert node_ownership.partition_label_changes({}, ["a@b"]) == {}


_PARTITION = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,70}", fullmatch=True)


@given(st.lists(_PARTITION), st.dictionaries(st.text() | _PARTITION.map(PREFIX.__add__), st.text()))
def test_after_the_changes_there_are_none(partitions, labels):
    changes = node_ownership.partition_label_changes(labels, partitions)
    after = {key: value for key, value in {**labels, **changes}.items() if value is not None}
    assert node_ownership.partition_label_changes(after, partitions) == {}
    assert {key: value for key, value in after.items() if not key.startswith(PREFIX)} == {
        key: value for key, value in labels.items() if not key.startswith(PREFIX)
    }


@pytest.mark.parametrize("name", ["", "a@b", "_a", "a-", "x" * 64])
def test_a_partition_whose_name_cannot_be_a_label_is_refused(name):
    with pytest.raises(ValueError, match="allowed: a partition whose name"):
        node_ownership.partition_label(name)
