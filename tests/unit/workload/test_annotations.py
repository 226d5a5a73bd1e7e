import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.workload import annotations

P = names.JOB_ANNOTATION_PREFIX


@pytest.mark.parametrize("key", annotations.KEYS.values(), ids=lambda key: key.name)
def test_every_example_is_allowed(key):
    assert annotations.check({key.name: key.example}) == []


@pytest.mark.parametrize("key", annotations.KEYS.values(), ids=lambda key: key.name)
@pytest.mark.parametrize("value", ["", "a\nb", "\x00", "x" * 3000])
def test_nothing_strange_is_allowed_and_the_message_names_all(key, value):
    (problem,) = annotations.check({key.name: value})
    assert key.name in problem
    assert repr(value[:120])[:-1] in problem
    assert key.allowed in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpu-per-task", "0"),
        ("cpu-per-task", "many"),
        ("cpu-per-task", "65534"),
        ("cpu-per-task", "65535"),
        ("mem-per-node", "-1Gi"),
        ("timelimit", "0"),
        ("timelimit", "1x"),
        ("min-nodes", "1.5"),
        ("priority", "-1"),
        ("priority", "4294967294"),
        ("exclusive", "maybe"),
        ("gres", "gpu:2;rm -rf"),
        ("partition", "a b"),
        ("user-id", "root; id"),
        ("licenses", "mat lab"),
        ("constraints", "$(id)"),
        ("qos", "'high'"),
        ("qos", "very high"),
        ("timelimit", "tomorrow"),
        ("timelimit", "-5"),
        ("timelimit", "1.5"),
        ("mem-per-node", "4GB"),
        ("min-nodes", "0"),
        ("max-nodes", "1.5"),
        ("gres", "gpu 2"),
        ("gres", "gpu:a100:two"),
        ("wckey", 'a"b'),
        ("constraints", "a;b"),
        ("job-name", "x" * 201),
        ("priority", "4294967295"),
        ("user-id", "-1"),
        ("group-id", "a b"),
        ("reservation", "a b"),
        # digits that int() reads, but not Slurm
        ("timelimit", "٣٠"),
        ("timelimit", "٣-٣"),
        ("timelimit", "٣:٣٠"),
        ("timelimit", "٣h"),
        ("min-nodes", "٣"),
        ("licenses", "matlab:٣"),
        ("constraints", "٣"),
    ],
)
def test_bad_values(key, value):
    assert len(annotations.check({P + key: value})) == 1


def test_did_you_mean():
    (problem,) = annotations.check({P + "timelimt": "5"})
    assert f"did you mean {P}timelimit?" in problem
    (problem,) = annotations.check({P + "zzz": "5"})
    assert "known under" in problem


def test_fewest_above_most_nodes():
    (problem,) = annotations.check({names.MIN_NODES: "4", names.MAX_NODES: "2"})
    assert names.MAX_NODES in problem
    assert "4" in problem


def test_other_annotations_are_nobodys_business():
    assert annotations.check({"example.com/x": "\n"}) == []


@pytest.mark.parametrize(
    ("text", "total"),
    [
        *(("5", 5), ("1:30", 2), ("2:00:00", 120), ("1-0", 1440), ("1-12:30", 2190), ("0-0:0:1", 1), ("90:00", 90)),
        *(("1h", 60), ("90m", 90), ("1h30m", 90), ("2d", 2880), ("1d12h", 2160), ("90s", 2)),
    ],
)
def test_time_limits_as_slurm_writes_them_and_with_units(text, total):
    assert annotations.minutes(text) == total


def test_values_are_read():
    read = annotations.read({names.MEM_PER_NODE: "1G", names.GRES: "gres/gpu=2,shard:1", names.CPU_PER_TASK: "1500m"})
    assert read == {names.MEM_PER_NODE: 954, names.GRES: ("gpu:2", "shard:1"), names.CPU_PER_TASK: 2}
    with pytest.raises(annotations.InvalidAnnotationsError, match="timelimit"):
        annotations.read({names.TIME_LIMIT: "soon"})


def test_the_pod_wins_over_its_owners():
    pod, job, jobset = {names.QOS: "a"}, {names.QOS: "b", names.ACCOUNT: "b", "x": "y"}, {names.ACCOUNT: "c"}
    assert annotations.merge([pod, job, jobset]) == {names.QOS: "a", names.ACCOUNT: "b"}


def test_permissions():
    assert annotations.needed_permissions({names.PRIORITY: "1", names.QOS: "x"}) == ["priority"]


@given(st.dictionaries(st.sampled_from(sorted(annotations.KEYS)), st.text(max_size=30), max_size=4))
def test_check_and_read_agree(given_annotations):
    if annotations.check(given_annotations):
        with pytest.raises(annotations.InvalidAnnotationsError):
            annotations.read(given_annotations)
    else:
        assert annotations.read(given_annotations).keys() == given_annotations.keys()


def test_long_values_and_many_unknown_names_cost_little_and_make_short_messages():
    many = {f"{names.JOB_ANNOTATION_PREFIX}prioritx{number:05d}": "" for number in range(6000)}
    begun = time.process_time()
    problems = annotations.check({**many, **dict.fromkeys(annotations.KEYS, "9" * 200000)})
    assert time.process_time() - begun < 0.3
    assert sum(map(len, problems)) < 20_000
    assert any("5990 more annotations" in problem for problem in problems)
    assert len([problem for problem in problems if "99999" in problem or "characters" in problem]) >= len(
        annotations.KEYS
    )


def test_a_valid_value_that_is_too_long_is_refused():
    (problem,) = annotations.check({names.CPU_PER_TASK: "0" * 2000 + "1"})
    assert "cpu-per-task" in problem
    assert annotations.LONGEST == 1024
