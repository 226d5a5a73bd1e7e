"""What each node answers to a waiting pod: it fits now, it has no room now, or it never fits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.view import node_room
from bridge.slurm import cluster_sums, node_holders
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job, JobLink, Node, ObservedJob, PodRef
from bridge.workload import eligibility, resources
from tests import builders
from tests.counted import Count, Items

NOW = 1_767_225_600.0
SLURM_NODE = Node("n1", frozenset({"MIXED"}), cpus=16, memory_mib=65536, gres="gpu:a100:4", partitions=("main",))


def kube_node(name="n1", **spec):
    offered = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    return builders.node(name, labels={"kubernetes.io/hostname": name}, allocatable=offered, **spec)


def held(cpus, mib, gres="", **fields):
    names = ("name", "states", "cpus", "memory_mib", "gres", "partitions")
    own = {name: getattr(SLURM_NODE, name) for name in names}
    return Node(**{**own, "held_cpus": cpus, "held_mib": mib, "held_gres": gres, **fields})


def job(pod, cpus, mib, hours=1.0):
    link = JobLink("c", (PodRef("hpc", pod, f"u-{pod}"),)) if pod else None
    running = frozenset({"RUNNING"})
    allotment = Allotment(cpus, mib) if pod else None
    return Job(7, running, link, ("n1",), allotment=allotment, end_time=NOW + 3600 * hours)


def slurm_side(slurm_node, jobs=(), asks=None, partitions=("main",)):
    holders = node_holders.by_node(jobs)
    return node_room.SlurmSide({slurm_node.name: slurm_node}, holders, asks, frozenset(partitions))


def answer(slurm_node, *, jobs=(), asks=None, spec=None, node=None, partitions=("main",), taken=None):
    spec = {"containers": [{"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}], **(spec or {})}
    view = eligibility.view(node or kube_node(), taken)
    side = slurm_side(slurm_node, jobs, asks, partitions) if slurm_node else None
    (room,) = node_room.rooms(spec, resources.node_requests(spec), [view], side, NOW)
    return room.answer, room.text


def test_an_empty_node_fits_and_shows_what_is_free():
    assert answer(held(8, 1024)) == (node_room.FITS, "free: 8 of 16 CPUs, 63 GiB of memory")


def test_a_node_without_room_names_what_is_short_who_holds_it_and_until_when():
    jobs = [job("fill-x", 12, 2048), job("", 0, 0, hours=0.5)]
    assert answer(held(15, 4096), jobs=jobs) == (
        node_room.BUSY,
        "1 of 16 CPUs free until 2026-01-01T00:30Z; "
        "held: 12 CPUs, 2 GiB by hpc/fill-x, 3 CPUs, 2 GiB by other jobs of Slurm",
    )


def test_what_a_node_shows_as_used_is_what_the_jobs_of_all_users_hold_of_what_slurm_may_give():
    assert node_room.held_of(replace(held(15, 4096), reserved_mib=1024)) == {
        "cpu": {"used": 15, "total": 16},
        "memory": {"used": 4096 * 2**20, "total": 63 * 2**30},
    }


def test_a_job_without_a_time_limit_frees_nothing_at_a_known_time():
    text = answer(held(16, 0), jobs=[job("long", 16, 0, hours=9000)])[1]
    assert text == "0 of 16 CPUs free; held: 16 CPUs by hpc/long"


def test_what_the_job_asks_for_counts_not_what_the_pod_requests():
    whole = Allotment(1, 65536)
    assert answer(held(1, 65536), asks=whole) == (node_room.BUSY, "0 MiB of 64 GiB of memory free; "
                                                  "held: 1 CPU, 64 GiB by other jobs of Slurm")  # fmt: skip
    assert answer(held(0, 0), asks=whole)[0] == node_room.FITS


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        (Allotment(32, 1024), "the job asks for 32 CPUs, the node has 16 CPUs"),
        (Allotment(1, 70000), "the job asks for 68.4 GiB, the node has 64 GiB of memory"),
        (Allotment(1, 1024, (("gpu", 8),)), "the job asks for gpu:8, the node has 4 gpu"),
        (Allotment(1, 1024, (("gpu:h100", 1),)), "the job asks for gpu:h100:1, the node has 0 gpu:h100"),
    ],
)
def test_a_node_that_is_too_small_never_fits(asks, text):
    assert answer(held(16, 65536), asks=asks) == (node_room.NEVER, text)


def test_devices_in_use_are_no_room_now():
    asks = Allotment(1, 1024, (("gpu", 2),))
    assert answer(held(1, 1024, "gpu:a100:3(IDX:0-2)"), asks=asks)[1].startswith("1 of 4 gpu free")


def test_a_node_of_another_partition_never_fits():
    assert answer(held(0, 0), partitions=("gpu",)) == (node_room.NEVER, "not in partition gpu")


def test_a_drained_node_has_no_room_now_and_shows_the_reason():
    drained = held(0, 0, states=frozenset({"IDLE", "DRAIN"}), reason="bad fan")
    assert answer(drained) == (node_room.BUSY, "DRAIN+IDLE in Slurm: bad fan")
    assert answer(drained, node=kube_node(unschedulable=True)) == (node_room.BUSY, "DRAIN+IDLE in Slurm: bad fan")


def test_a_selector_never_fits_and_a_cordon_is_no_room_now():
    other = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}
    assert answer(held(0, 0), spec=other)[0] == node_room.NEVER
    assert answer(held(0, 0), node=kube_node(unschedulable=True)) == (node_room.BUSY, "cordoned")


def test_pods_that_slurm_does_not_count_are_no_room_now_but_too_small_a_node_never_fits():
    taken = resources.pod_requests({"containers": [{"resources": {"requests": {"cpu": "15"}}}]})
    assert answer(held(0, 0), taken=taken) == (node_room.BUSY, "too little cpu beside the pods there")
    large = {"containers": [{"resources": {"requests": {"cpu": "17"}}}]}
    assert answer(held(0, 0), spec=large) == (node_room.NEVER, "too little cpu")


def test_without_slurm_only_kubernetes_answers_and_no_node_is_said_to_have_room():
    assert answer(None) == (node_room.POSSIBLE, node_room.UNKNOWN)
    assert answer(None, spec={"nodeSelector": {"kubernetes.io/hostname": "n2"}})[0] == node_room.NEVER


def test_nodes_with_the_same_answer_share_a_line_and_many_are_counted():
    same = [node_room.Room(f"n{number}", node_room.NEVER, "not in partition gpu") for number in range(9)]
    different = [node_room.Room(f"m{number}", node_room.BUSY, f"{number} of 16 CPUs free") for number in range(8)]
    free = node_room.Room("f", node_room.FITS, "free: 16 of 16 CPUs, 64 GiB")
    lines = node_room.lines([*same, *different, free])
    assert lines[0] == "f: fits now: free: 16 of 16 CPUs, 64 GiB"
    assert lines[1] == "m0: no room now: 0 of 16 CPUs free"
    assert lines[-2:] == [
        "2 more nodes: no room now",
        "n0, n1, n2, n3, n4, n5 and 3 more: never fits: not in partition gpu",
    ]


def test_a_node_lists_who_holds_it_and_until_when():
    jobs = [job("small", 1, 512, hours=9000), job("fill-x", 12, 2048), job("", 0, 0)]
    assert node_room.held(held(15, 4096), node_holders.by_node(jobs)["n1"], NOW) == [
        "free: 1 of 16 CPUs, 60 GiB of memory",
        "hpc/fill-x: 12 CPUs, 2 GiB until 2026-01-01T01:00Z",
        "hpc/small: 1 CPU, 512 MiB",
        "other jobs of Slurm: 2 CPUs, 1.5 GiB",
    ]
    assert node_room.held(held(0, 0), [], NOW) == ["free: 16 of 16 CPUs, 64 GiB of memory"]


AMOUNTS = {"cpus": st.integers(0, 16), "mib": st.integers(0, 65536)}


@given(
    own=st.lists(st.fixed_dictionaries(AMOUNTS), max_size=3),
    others=st.fixed_dictionaries(AMOUNTS),
    asks=st.fixed_dictionaries(AMOUNTS),
    state=st.sampled_from(["IDLE", "MIXED", "DRAIN"]),
    gpus=st.integers(0, 4),
)
def test_the_published_sums_give_the_same_answer_as_slurm(own, others, asks, state, gpus):
    jobs = [job(f"p{number}", each["cpus"], each["mib"]) for number, each in enumerate(own)]
    cpus, mib = (sum(each[key] for each in (*own, others)) for key in ("cpus", "mib"))
    node = held(cpus, mib, f"gpu:(null):{gpus}(IDX:0)" if gpus else "", states=frozenset({state}))
    snapshot = builders.snapshot(*map(ObservedJob, jobs), nodes={"n1": node})
    config_map = cluster_sums.to_config_map(cluster_sums.of(snapshot, {}, NOW, 15))
    sums = cluster_sums.from_config_map(config_map)
    published = node_room.SlurmSide(cluster_sums.as_nodes(sums), cluster_sums.as_holders(sums))
    live = slurm_side(node, jobs, partitions=())
    want = Allotment(asks["cpus"], asks["mib"], (("gpu", 1),))
    (one,), (other,) = (node_room.rooms_in_slurm({}, replace(side, asks=want), NOW) for side in (live, published))
    assert one.answer == other.answer
    assert one.text.partition("; held")[0].replace("MIXED", state) == other.text.partition("; held")[0]
    text = node_room.held(cluster_sums.as_nodes(sums)["n1"], cluster_sums.as_holders(sums).get("n1", []), NOW)
    assert not any("hpc/" in line for line in text)


def test_the_tolerations_of_a_pod_are_compared_once_with_equal_taints():
    count = Count()
    views = [eligibility.view(kube_node(f"n{i}", taints=[{"key": "t", "effect": "NoSchedule"}])) for i in range(100)]
    others = [{"key": f"o{index}", "operator": "Exists"} for index in range(100)]
    spec = {"containers": [], "tolerations": Items([*others, {"key": "t", "operator": "Exists"}], count)}
    answers = node_room.rooms(spec, resources.node_requests(spec), views, None, NOW)
    assert [room.answer for room in answers] == [node_room.POSSIBLE] * len(views)
    assert count.value <= 2 * len(others)
