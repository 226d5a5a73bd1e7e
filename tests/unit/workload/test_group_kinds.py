"""The place of a pod in its group, from the labels that real controllers set and the specification of the owner."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload import groups
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import job_kinds, pod_group_kinds
from bridge.workload.kinds.kind import Kind, Place
from bridge.workload.kinds.kind_table import GANG_VALUES, KINDS, check_gang, claimed

Json = dict[str, Any]


def pod(labels: Json | None = None, annotations: Json | None = None, owner: Json | None = None, **spec: Any) -> Json:
    references = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1", "controller": True, **(owner or {})}
    ]
    metadata = {"namespace": "ns", "labels": labels, "annotations": annotations, "ownerReferences": references}
    return {"metadata": metadata, "spec": spec}


def owner(spec: Json, **annotations: str) -> Json:
    return {"metadata": {"name": "o", "uid": "1", "annotations": annotations}, "spec": spec}


def place(kind: Kind, a_pod: Json, an_owner: Json, *, whole: bool = False, replicas: int = 0) -> Place | None:
    return kind.place(a_pod, an_owner, whole, replicas)


def replicated(name: str, replicas: int = 1, **spec: Any) -> Json:
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def member(name: str, job_index: int, completion: int | None = None, **labels: str) -> Json:
    names = {
        job_kinds.JOBSET_NAME: "o",
        job_kinds.JOBSET_UID: "1",
        job_kinds.REPLICATED_JOB: name,
        job_kinds.JOB_INDEX: str(job_index),
        **labels,
    }
    return pod(names, {} if completion is None else {job_kinds.COMPLETION_INDEX: str(completion)})


def test_the_table_has_every_kind_once() -> None:
    assert sorted(kind.name for kind in KINDS if kind is not pod_group_kinds.WORKLOAD_REF) == sorted(groups.KINDS)


@pytest.mark.parametrize(
    ("a_pod", "expected"),
    [
        (pod(), ("job", "j")),
        (pod(owner={"kind": "ReplicaSet", "apiVersion": "apps/v1"}), None),
        (pod(owner={"apiVersion": "batch.volcano.sh/v1alpha1"}), None),
        (pod(owner={"controller": False}), None),
        ({"metadata": {}, "spec": {}}, None),
        (pod({job_kinds.JOBSET_NAME: "s"}), ("jobset", "s")),
        (pod({job_kinds.JOBSET_NAME: ""}), ("job", "j")),
        (pod({job_kinds.JOBSET_NAME: "s", pod_group_kinds.POD_GROUP_NAME: "g"}), ("podgroup", "g")),
        (pod({pod_group_kinds.POD_GROUP_NAME: "g"}, schedulingGroup={"podGroupName": "w"}), ("workload", "w")),
        (pod({pod_group_kinds.POD_GROUP_NAME: "g"}, schedulingGroup={}), ("podgroup", "g")),
        (pod({job_kinds.LWS_NAME: "l", pod_group_kinds.KUEUE_NAME: "k"}), ("lws", "l")),
        (pod({pod_group_kinds.KUEUE_NAME: "k"}), ("kueue", "k")),
    ],
)
def test_a_pod_claims_the_first_group_of_the_table(a_pod: Json, expected: tuple[str, str] | None) -> None:
    found = claimed(a_pod)
    assert (found and (found[0].name, found[1])) == expected


@pytest.mark.parametrize(
    ("spec", "index", "expected"),
    [
        ({"parallelism": 4}, "2", Place("", 4, 4, None)),
        ({"parallelism": 4, "completions": 4, "completionMode": "Indexed"}, "2", Place("", 4, 4, 2)),
        ({"parallelism": 4, "completions": 4, "completionMode": "NonIndexed"}, "2", Place("", 4, 4, None)),
        ({"parallelism": 8, "completions": 3, "completionMode": "Indexed"}, "2", Place("", 3, 3, 2)),
        ({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}, "2", Place("", 2, 2, None)),
        ({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}, "-1", Place("", 2, 2, None)),
        ({"parallelism": 1, "completions": 1}, None, Place("", 1, 1, None)),
        ({"parallelism": 0}, None, Place("", 1, 1, None)),
    ],
)
def test_a_job_is_as_large_as_its_pods_at_one_time(spec: Json, index: str | None, expected: Place) -> None:
    annotations = {job_kinds.COMPLETION_INDEX: index} if index is not None else {}
    assert place(job_kinds.JOB, pod(annotations=annotations), owner(spec)) == expected


def test_a_job_whose_pods_follow_each_other_is_no_gang() -> None:
    with pytest.raises(
        InvalidGroupError, match=r"Job o: spec\.completions: 10 is not allowed.*spec\.parallelism \(4\)"
    ):
        place(job_kinds.JOB, pod(), owner({"parallelism": 4, "completions": 10}))
    with pytest.raises(InvalidGroupError, match=r"spec\.parallelism: 100001 is not allowed.*at most 100000 pods"):
        place(job_kinds.JOB, pod(), owner({"parallelism": 100_001}))


SET = owner(
    {
        "replicatedJobs": [
            replicated("driver", parallelism=1, completions=1),
            replicated("workers", 2, parallelism=3, completions=3),
            replicated("queue", 2, parallelism=2, completions=9),
        ]
    }
)


def test_each_replicated_job_is_a_group_by_default() -> None:
    assert place(job_kinds.JOBSET, member("driver", 0, 0), SET) == Place("driver", 1, 1, 0)
    slots = [place(job_kinds.JOBSET, member("workers", j, i), SET) for j in range(2) for i in range(3)]
    assert slots == [Place("workers", 6, 6, slot) for slot in range(6)]
    assert place(job_kinds.JOBSET, member("queue", 1, 8), SET) is None


def test_the_whole_set_is_one_group_by_annotation() -> None:
    together = owner({"replicatedJobs": SET["spec"]["replicatedJobs"][:2]})
    found = [place(job_kinds.JOBSET, member("driver", 0, 0), together, whole=True)]
    found += [
        place(job_kinds.JOBSET, member("workers", j, i), together, whole=True) for j in range(2) for i in range(3)
    ]
    assert found == [Place("", 7, 7, slot) for slot in range(7)]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_the_slots_of_a_set_are_each_used_once(sizes: list[tuple[int, int]], whole: bool, indexed: bool) -> None:
    mode = {} if indexed else {"completionMode": "NonIndexed"}
    entries = [replicated(f"r{n}", r, parallelism=p, completions=p, **mode) for n, (r, p) in enumerate(sizes)]
    found: dict[str, list[Place]] = {}
    for n, (replicas, each) in enumerate(sizes):
        for index, completion in ((j, c) for j in range(replicas) for c in range(each)):
            one = place(
                job_kinds.JOBSET, member(f"r{n}", index, completion), owner({"replicatedJobs": entries}), whole=whole
            )
            assert one is not None
            found.setdefault(one.index, []).append(one)
    for members in found.values():
        assert {entry.size for entry in members} == {entry.minimum for entry in members} == {len(members)}
        slots = [entry.slot for entry in members]
        assert sorted(slots) == list(range(len(members))) if indexed else set(slots) == {None}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, "startupPolicyOrder: 'InOrder' starts"),
        (
            {"replicatedJobs": [{**replicated("driver"), "dependsOn": [{"name": "x"}]}]},
            "spec.replicatedJobs[driver].depe",
        ),
        (
            {"replicatedJobs": [replicated("driver"), replicated("q", parallelism=1, completions=2)]},
            "exceeds parallelism",
        ),
    ],
)
def test_a_set_that_does_not_start_at_once_can_not_be_one_group(changed: Json, message: str) -> None:
    started = owner({"replicatedJobs": [replicated("driver")], "startupPolicy": {"startupPolicyOrder": "AnyOrder"}})
    assert place(job_kinds.JOBSET, member("driver", 0), started, whole=True) == Place("", 1, 1, None)
    with pytest.raises(
        InvalidGroupError, match=r"bridge\.vk\.io/gang: 'all' is not allowed.*allowed: 'true'"
    ) as refused:
        place(job_kinds.JOBSET, member("driver", 0), owner({**started["spec"], **changed}), whole=True)
    assert message in str(refused.value)


def test_labels_that_do_not_fit_the_set_are_refused() -> None:
    with pytest.raises(InvalidGroupError, match="'nobody' is not allowed; allowed: driver, workers, queue"):
        place(job_kinds.JOBSET, member("nobody", 0), SET)
    with pytest.raises(InvalidGroupError, match="was created again; allowed: '1'"):
        place(job_kinds.JOBSET, member("driver", 0, **{job_kinds.JOBSET_UID: "0"}), SET)
    with pytest.raises(InvalidGroupError, match=r"replicatedjob-name.*is missing"):
        place(job_kinds.JOBSET, pod({job_kinds.JOBSET_NAME: "o"}), SET)
    with pytest.raises(InvalidGroupError, match=r"job-index.*'x' is not allowed; allowed: a whole number"):
        place(job_kinds.JOBSET, member("workers", 0, 1, **{job_kinds.JOB_INDEX: "x"}), SET)
    assert place(job_kinds.JOBSET, member("workers", 9, 1), SET) == Place("workers", 6, 6, None)


def worker(index: int, size: str | None = None, group: str = "1") -> Json:
    labels = {job_kinds.LWS_NAME: "o", job_kinds.GROUP_INDEX: group, job_kinds.WORKER_INDEX: str(index)}
    return pod(labels, {job_kinds.LWS_SIZE: size} if size else {})


def test_each_replica_of_a_leader_worker_set_is_a_group() -> None:
    replicas = owner({"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderCreated"})
    assert place(job_kinds.LWS, worker(0), replicas) == Place("1", 4, 4, 0)
    assert place(job_kinds.LWS, worker(3), replicas) == Place("1", 4, 4, 3)
    assert place(job_kinds.LWS, worker(2, "3"), replicas) == Place(
        "1", 3, 3, 2
    )  # an update changes the size of the set
    assert place(job_kinds.LWS, worker(9), replicas) == Place("1", 4, 4, None)
    with pytest.raises(InvalidGroupError, match=r"group-index.*is missing"):
        place(job_kinds.LWS, worker(0, group=""), replicas)


@pytest.mark.parametrize(
    "first", [owner({"startupPolicy": "LeaderReady"}), owner({}, **{job_kinds.EXCLUSIVE_TOPOLOGY: "rack"})]
)
def test_a_leader_that_starts_first_is_not_in_the_group_of_its_workers(first: Json) -> None:
    assert place(job_kinds.LWS, worker(0, "3"), first) is None
    assert [place(job_kinds.LWS, worker(n, "3"), first) for n in (1, 2)] == [
        Place("1-workers", 2, 2, n) for n in (0, 1)
    ]
    assert place(job_kinds.LWS, worker(0, "1"), first) is None


def test_a_pod_group_has_a_minimum_and_its_controller_the_size() -> None:
    group = owner({"minMember": 3})
    assert place(pod_group_kinds.POD_GROUP, pod(), group) == Place("", 3, 3, None)
    assert place(pod_group_kinds.POD_GROUP, pod(), group, replicas=8) == Place("", 8, 3, None)
    assert place(pod_group_kinds.POD_GROUP, pod(), group, replicas=2) == Place("", 3, 3, None)
    assert place(pod_group_kinds.POD_GROUP, pod(), owner({})) == Place("", 1, 1, None)


def test_a_group_of_the_workload_api_has_a_gang_or_basic_policy() -> None:
    gang = owner({"schedulingPolicy": {"gang": {"minCount": 3}}})
    assert place(pod_group_kinds.WORKLOAD, pod(), gang, replicas=5) == Place("", 5, 3, None)
    assert place(pod_group_kinds.WORKLOAD, pod(), owner({"schedulingPolicy": {"basic": {}}}), replicas=5) is None
    claims = owner({**gang["spec"], "resourceClaims": [{"name": "gpu"}]})
    with pytest.raises(InvalidGroupError, match=r"spec\.resourceClaims\[0\]\.name: 'gpu' is not allowed.*of the pods"):
        place(pod_group_kinds.WORKLOAD, pod(), claims)


def test_a_group_of_kueue_needs_no_owner() -> None:
    index = {pod_group_kinds.KUEUE_INDEX_LABEL: "rank"}
    nothing = owner({})
    assert place(pod_group_kinds.KUEUE, pod({}, {pod_group_kinds.KUEUE_TOTAL: "3"}), nothing) == Place("", 3, 3, None)
    assert place(
        pod_group_kinds.KUEUE, pod({"rank": "2"}, {pod_group_kinds.KUEUE_TOTAL: "3", **index}), nothing
    ) == Place("", 3, 3, 2)
    assert place(
        pod_group_kinds.KUEUE, pod({"rank": "3"}, {pod_group_kinds.KUEUE_TOTAL: "3", **index}), nothing
    ) == Place("", 3, 3, None)
    assert (
        place(
            pod_group_kinds.KUEUE,
            pod({}, {pod_group_kinds.KUEUE_TOTAL: "3", pod_group_kinds.KUEUE_SERVING: "true"}),
            nothing,
        )
        is None
    )
    for total in ({}, {pod_group_kinds.KUEUE_TOTAL: "0"}, {pod_group_kinds.KUEUE_TOTAL: "many"}):
        with pytest.raises(InvalidGroupError, match=r"pod-group-total-count: .* is not allowed in a group"):
            place(pod_group_kinds.KUEUE, pod({}, total), nothing)


@given(st.text(max_size=20))
def test_the_annotation_for_gangs_has_three_values(text: str) -> None:
    for value in GANG_VALUES:
        check_gang(value, "the pod")
    if text not in GANG_VALUES:
        with pytest.raises(InvalidGroupError, match="allowed: true, all, false"):
            check_gang(text, "the pod")


WRITTEN = (
    *(
        job_kinds.JOBSET_UID,
        job_kinds.REPLICATED_JOB,
        job_kinds.JOB_INDEX,
        job_kinds.GROUP_INDEX,
        job_kinds.WORKER_INDEX,
        job_kinds.LWS_SIZE,
    ),
    *(job_kinds.COMPLETION_INDEX, pod_group_kinds.KUEUE_TOTAL, pod_group_kinds.KUEUE_INDEX_LABEL, "rank"),
)
WORDS = st.sampled_from(["", "0", "1", "2", "7", "-1", "²", "rank", "workers", "queue", "true"]) | st.text(max_size=5)


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(WRITTEN), WORDS),
    st.dictionaries(st.sampled_from(WRITTEN), WORDS),
    st.integers(0, 5),
    st.booleans(),
)
def test_whatever_a_user_writes_on_a_pod_its_place_is_consistent_or_refused(
    kind: Kind, labels: Json, annotations: Json, replicas: int, whole: bool
) -> None:
    spec = {
        **SET["spec"],
        "parallelism": 3,
        "completions": 3,
        "completionMode": "Indexed",
        "minMember": 2,
        "leaderWorkerTemplate": {"size": 3},
        "schedulingPolicy": {"gang": {"minCount": 2}},
    }
    try:
        found = place(kind, pod(labels, annotations), owner(spec), whole=whole, replicas=replicas)
    except InvalidGroupError:
        return
    if found is not None:
        assert 1 <= found.minimum <= found.size
        assert found.slot is None or 0 <= found.slot < found.size
