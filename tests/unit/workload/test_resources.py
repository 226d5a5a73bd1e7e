"""The counting of the Kubernetes scheduler, on the examples of its documentation."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from bridge.workload import resources
from tests.counted import Count, Items, Text


def container(cpu=None, memory=None, always=False, limits=None):
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}
    extra = {"restartPolicy": "Always"} if always else {}
    return {"resources": {"requests": requests, "limits": limits or {}}, **extra}


def cpu(spec):
    return resources.pod_requests(spec).get("cpu")


def test_containers_run_together():
    assert cpu({"containers": [container("1"), container("500m")]}) == Decimal("1.5")


def test_the_largest_init_container_counts_when_it_is_larger():
    assert cpu({"containers": [container("1")], "initContainers": [container("4"), container("2")]}) == 4


def test_sidecars_run_beside_containers_and_later_init_containers():
    spec = {"containers": [container("1")], "initContainers": [container("2", always=True), container("3")]}
    assert cpu(spec) == 5
    spec["initContainers"].reverse()
    assert cpu(spec) == 3


def test_overhead_comes_on_top_and_pod_level_requests_win():
    spec = {"containers": [container("1")], "overhead": {"cpu": "250m"}}
    assert cpu(spec) == Decimal("1.25")
    spec["resources"] = {"requests": {"cpu": "8"}}
    assert cpu(spec) == Decimal("8.25")


def test_a_limit_counts_where_no_request_is_given():
    spec = {"containers": [container("1", limits={"cpu": "4", "nvidia.com/gpu": "2"})]}
    assert resources.pod_requests(spec) == {"cpu": Decimal(1), "nvidia.com/gpu": Decimal(2)}
    assert resources.extended(resources.pod_requests(spec)) == ["nvidia.com/gpu"]


def test_nothing_asked_is_nothing():
    assert resources.pod_requests({"containers": [{}]}) == {}


def test_allocatable_with_an_unreadable_value():
    node = {"status": {"allocatable": {"cpu": "2", "memory": "oops"}}}
    assert resources.allocatable(node) == {"cpu": Decimal(2), "memory": Decimal(0)}


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "a.com/x", "a.com/y"]), st.integers(0, 9).map(str))
INIT = st.fixed_dictionaries(
    {"resources": st.fixed_dictionaries({"requests": AMOUNTS})}, optional={"restartPolicy": st.just("Always")}
)


@given(st.lists(INIT, max_size=4), st.lists(INIT, max_size=5))
def test_the_sum_is_that_of_the_definition(containers, init):
    """Of all containers and sidecars, or of an init container and the sidecars that were started before it."""

    def total(some):
        return resources.total([resources._requests(one) for one in some])

    sidecars = [one for one in init if "restartPolicy" in one]
    sums = [total([*containers, *sidecars])]
    sums += [total([*(c for c in init[:at] if c in sidecars), one]) for at, one in enumerate(init)]
    names = {name for each in sums for name in each}
    largest = {name: most for name in names if (most := max(each.get(name, 0) for each in sums))}
    assert resources.pod_requests({"containers": containers, "initContainers": init}) == largest


def test_the_work_grows_with_the_size_of_a_pod_and_not_with_its_square():
    """80 kB of a sidecar with 1,500 resources, and of 1,500 init containers, took 0.7 s for each sum."""
    count, number = Count(), 300
    names = [Text(f"a.com/x{index}", count) for index in range(number)]
    sidecar = {"restartPolicy": "Always", "resources": {"requests": dict.fromkeys(names, "1")}}
    count.value = 0
    spec = {"containers": [{}], "initContainers": [sidecar, *({} for _ in range(number))]}
    assert len(resources.pod_requests(spec)) == number
    assert count.value < 50 * number


def test_used_host_ports_are_looked_at_once():
    count, number = Count(), 300
    ports = [f"host port {index}/TCP" for index in range(number)]
    found = resources.port_conflicts(ports, Items([*ports[1:], "cpu", "host port 0/UDP"], count))
    assert found == {port: [port] for port in ports[1:]}
    assert count.value == number + 1
