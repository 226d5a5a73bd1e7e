"""Whatever a pod and its annotations say, Slurm is asked for no less than the kubelet will give."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from admission import validate
from bridge import names
from bridge.config.hub import Config
from bridge.slurm.versions import ApiVersion
from bridge.workload import translate
from bridge.workload.annotations import InvalidAnnotationsError, below_requests
from tests import builders

VERSION = ApiVersion("v0.0.45", external_jobs=True)
TABLE = {"nvidia.com/gpu": "gpu", "nvidia.com/a100": "gpu:a100", "example.com/fpga": "fpga"}
GPUS = sorted(TABLE)
Json = dict[str, Any]

cpus = st.sampled_from(["100m", "1", "1500m", "2", "7"])
memories = st.sampled_from(["1", "1Mi", "100M", "1Gi", "3000Mi"])
amounts = st.fixed_dictionaries(
    {}, optional={"cpu": cpus, "memory": memories, **{name: st.sampled_from(["1", "2"]) for name in GPUS}}
)
containers = st.builds(
    lambda limits, fraction, sidecar: {
        "name": "c",
        "resources": {"limits": limits, "requests": {k: v for k, v in limits.items() if fraction and "/" in k}},
        **({"restartPolicy": "Always"} if sidecar else {}),
    },
    amounts,
    st.booleans(),
    st.booleans(),
)
texts = st.sampled_from(["", "gpu", "gpu:2", "gpu:a100:1", "gpu:a100:2,gpu:h100:2", "gpu:8", "fpga:1", "gpu:9,fpga:9"])
pods = st.builds(
    lambda main, init, overhead, annotations: {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u", "annotations": annotations},
        "spec": {
            "schedulerName": "slurm-bridge-scheduler",
            "containers": [{k: v for k, v in c.items() if k != "restartPolicy"} for c in main],
            "initContainers": init,
            "overhead": overhead,
        },
    },
    st.lists(containers, min_size=1, max_size=3),
    st.lists(containers, max_size=3),
    st.fixed_dictionaries({}, optional={"cpu": cpus, "memory": memories}),
    st.fixed_dictionaries(
        {},
        optional={
            names.CPU_PER_TASK: st.sampled_from(["1", "2500m", "4", "12", "40"]),
            names.MEM_PER_NODE: st.sampled_from(["1Mi", "1Gi", "8Gi", "20Gi"]),
            names.GRES: texts.filter(bool),
            names.EXCLUSIVE: st.sampled_from(["true", "false"]),
            names.MIN_NODES: st.sampled_from(["1", "3"]),
        },
    ),
)
UNITS = {"Mi": 2**20, "Gi": 2**30, "M": 10**6, "m": Decimal("0.001")}


def number(text: str) -> Decimal:
    unit = next((unit for unit in ("Mi", "Gi", "M", "m") if text.endswith(unit)), "")
    return Decimal(text.removesuffix(unit)) * UNITS.get(unit, 1)


def taken(spec: Json, name: str) -> Decimal:
    """Most of a resource that the pod's containers hold at any moment: each start played through in turn."""

    def own(container: Json) -> Decimal:
        holder = container["resources"]
        return number({**holder["limits"], **holder["requests"]}.get(name, "0"))

    sidecars, most = Decimal(0), Decimal(0)
    for container in spec["initContainers"]:
        most = max(most, sidecars + own(container))
        if container.get("restartPolicy") == "Always":
            sidecars += own(container)
    most = max(most, sidecars + sum(map(own, spec["containers"]), Decimal(0)))
    return most + number(spec["overhead"].get(name, "0"))


@given(pods)
def test_slurm_is_asked_for_at_least_what_the_pod_takes(pod: Json) -> None:
    config = Config(gres=TABLE)
    verdict = validate.create(pod, "alice", config)
    try:
        request = translate.request(pod, config, VERSION, "c")
    except InvalidAnnotationsError as error:
        event("refused")
        assert all(problem in str(error) for problem in verdict.invalid)
        assert verdict.invalid
        return
    event("taken")
    assert verdict.invalid == []
    assert request.cpus >= taken(pod["spec"], "cpu")
    assert request.memory_mib * 2**20 >= taken(pod["spec"], "memory")
    assert request.min_nodes >= 1
    assert request.tasks == request.min_nodes
    given_: dict[str, int] = {}
    for gres in request.gres:
        *kind, count = gres.split(":")
        given_[":".join(kind)] = given_.get(":".join(kind), 0) + int(count)
    a100, gpu = taken(pod["spec"], "nvidia.com/a100"), taken(pod["spec"], "nvidia.com/gpu")
    assert given_.get("gpu:a100", 0) >= a100
    assert sum(count for name, count in given_.items() if name.startswith("gpu")) >= a100 + gpu
    assert given_.get("fpga", 0) >= taken(pod["spec"], "example.com/fpga")


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        (names.CPU_PER_TASK, "3", "at least 4"),
        (names.MEM_PER_NODE, "1023Mi", "at least 1024Mi"),
        (names.GRES, "gpu:a100:1", "at least gpu:2"),
        (names.GRES, "gpu:0", "at least gpu:2"),
    ],
)
def test_what_is_below_is_named_with_the_least_that_is_allowed(name: str, value: str, least: str) -> None:
    pod = builders.pod(
        "u", annotations={name: value}, requests={"cpu": "3500m", "memory": "1Gi", "nvidia.com/gpu": "2"}
    )
    with pytest.raises(InvalidAnnotationsError) as told:
        translate.request(pod, Config(), VERSION, "c")
    assert f"annotation {name}: " in str(told.value)
    assert least in str(told.value)
    pod["metadata"]["annotations"] = {name: {"3": "4", "1023Mi": "1Gi"}.get(value, "gpu:a100:1,gpu:h100:1")}
    translate.request(pod, Config(), VERSION, "c")


def test_more_than_the_pod_takes_is_fine() -> None:
    most = {names.CPU_PER_TASK: "64", names.MEM_PER_NODE: "1Ti", names.GRES: "gpu:8"}
    pod = builders.pod("u", annotations=most, requests={"cpu": "1", "memory": "1Gi"})
    request = translate.request(pod, Config(), VERSION, "c")
    assert (request.cpus, request.memory_mib, request.gres) == (64, 2**20, ("gpu:8",))


def test_a_long_annotation_is_read_in_full() -> None:
    """podbridge adds a count to each resource, so the list may be longer than an annotation may be."""
    given = ("gpu:1", *(f"name{number:03d}:1" for number in range(200)))
    assert below_requests({names.GRES: given}, {}, TABLE) == []
    assert len(below_requests({names.GRES: given}, {"nvidia.com/gpu": Decimal(2)}, TABLE)) == 1
