import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.slurm.models import GroupRef
from bridge.workload import groups, links
from bridge.workload.groups import InvalidGroupError, Membership

TEXT = st.text(min_size=1, max_size=40)
VALUE = {"kind": "jobset", "name": "train", "uid": "1", "index": "workers", "size": 8, "minimum": 4, "slot": 3}


def pod(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": "p", "uid": "u", "annotations": annotations}, "spec": {}}


def member(**changed: Any) -> dict[str, Any]:
    return pod(**{names.GROUP: json.dumps({**VALUE, **changed})})


def membership(pod: dict[str, Any]) -> Membership:
    annotations = pod["metadata"]["annotations"]
    return groups.decode(annotations[names.GROUP], "ns", groups.together(annotations))


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    size = draw(st.integers(1, groups.MAX_SIZE))
    key = GroupRef(draw(st.sampled_from(groups.KINDS)), "ns", draw(TEXT), draw(TEXT), draw(st.text(max_size=40)))
    slot = draw(st.none() | st.integers(0, size - 1))
    together, completed = draw(st.integers(1, groups.MAX_TOGETHER)), draw(st.integers(0, size))
    return Membership(key, size, draw(st.integers(1, size)), slot, together, completed)


def test_a_pod_without_a_valid_annotation_is_a_bare_pod() -> None:
    bare = {"metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": {}}
    assert [links.group_of(each) for each in (pod(), bare, member(size=0))] == [None] * 3
    assert links.group_of(member()) == membership(member())


def test_a_member_has_its_place_in_the_annotation() -> None:
    assert membership(member()) == Membership(GroupRef("jobset", "ns", "train", "1", "workers"), 8, 4, 3)
    assert membership(member(slot=None)).slot is None


@given(memberships())
def test_what_admission_writes_is_what_the_scheduler_reads(expected: Membership) -> None:
    text = groups.encode(expected)
    assert membership(pod(**{names.GROUP: text, names.MEMBERS_PER_NODE: str(expected.together)})) == expected
    assert text == json.dumps(json.loads(text), separators=(",", ":")), "compact JSON"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "pod"}, "kind: 'pod' is not allowed; allowed: jobset, lws, podgroup, workload, kueue, job"),
        ({"kind": ["job"]}, "kind: \"['job']\" is not allowed"),
        ({"name": ""}, "name: '' is not allowed; allowed: a name"),
        ({"uid": 7}, "uid: '7' is not allowed; allowed: a string"),
        ({"index": None}, "index: 'None' is not allowed; allowed: a string"),
        ({"size": 0}, "size: '0' is not allowed; allowed: a whole number from 1 to 100000"),
        ({"size": True}, "size: 'True' is not allowed"),
        ({"size": "8"}, "size: '8' is not allowed"),
        ({"size": 10**9}, "size: '1000000000' is not allowed"),
        ({"minimum": 9}, "minimum: '9' is not allowed; allowed: a whole number from 1 to 8"),
        ({"minimum": 0}, "minimum: '0' is not allowed"),
        ({"completed": 9}, "completed: '9' is not allowed; allowed: a whole number from 0 to 8"),
        ({"slot": 8}, "slot: '8' is not allowed; allowed: a whole number from 0 to 7"),
        ({"slot": -1}, "slot: '-1' is not allowed"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_allowed(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGroupError, match=r"^annotation bridge\.vk\.io/group: ") as refused:
        membership(member(**changed))
    assert message in str(refused.value)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "four", "1001", "٣", "1" * 5000])
def test_members_per_node_is_a_small_whole_number(text: str) -> None:
    with pytest.raises(InvalidGroupError, match=r"^annotation bridge\.vk\.io/members-per-node: .*from 1 to 1000"):
        groups.together({names.MEMBERS_PER_NODE: text})


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | TEXT, lambda v: st.lists(v) | st.dictionaries(TEXT, v)).map(json.dumps)
)
def test_any_other_text_is_refused_with_the_project_s_error(text: str) -> None:
    with pytest.raises(InvalidGroupError):
        membership(pod(**{names.GROUP: text}))


@given(st.fixed_dictionaries({key: st.none() | st.booleans() | st.integers(-2, 9) | TEXT for key in VALUE}))
def test_a_membership_that_is_read_is_consistent(changed: dict[str, Any]) -> None:
    try:
        found = membership(member(**changed))
    except InvalidGroupError:
        return
    assert 1 <= found.minimum <= found.size
    assert found.slot is None or 0 <= found.slot < found.size
