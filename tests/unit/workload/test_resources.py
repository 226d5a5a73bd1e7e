"""The counting of the Kubernetes scheduler, on the examples of its documentation."""

from decimal import Decimal

from bridge.workload import resources


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
