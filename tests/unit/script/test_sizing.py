"""What the batch system is asked for."""

import pytest

from bridge import names
from bridge.errors import ScriptError
from bridge.script import flavor_limits, plan, sizing
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from tests.pod_specs import spec_of
from tests.unit.script.pods import pod

FLAVORS = {
    "flavors": [
        {"name": "small", "max_resources": {"cpu": "2", "memory": "4Gi"}, "max_time_seconds": 3600},
        {"name": "large", "max_resources": {"cpu": "64"}, "cpu": 8, "memory": "16Gi"},
        {"name": "gpu", "max_resources": {"nvidia.com/gpu": "4", "rdma/ib": "1"}},
    ],
    "default_flavor": "large",
}


def measure(spec, config=None, **metadata):
    return sizing.measure(pod(spec, **metadata), BuildConfig.model_validate(config or {}))


def asks(requests=None, limits=None, **more):
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def test_nothing_asked():
    size = measure({"containers": [{"name": "c"}]})
    assert (size.cpus, size.memory, size.gpus, size.time_limit, size.flavor) == (1, 2**30, 0, None, "")


def test_sum_of_containers_and_rounding_up():
    size = measure({"containers": [asks({"cpu": "700m"}), asks({"cpu": "700m"}, {"memory": "1Gi"})]})
    assert (size.cpus, size.memory) == (2, 2**30)


def test_memory_is_the_limit_where_there_is_one():
    size = measure({"containers": [asks({"memory": "1Gi"}, {"memory": "3Gi"}), asks({"memory": "1Gi"})]})
    assert size.memory == 4 * 2**30


@pytest.mark.parametrize(
    ("limit", "kibibytes"), [(None, None), ("0", None), ("0Gi", None), ("100m", 1), ("1Ki", 1), ("2Gi", 2 * 2**20)]
)
def test_a_limit_of_0_is_none(limit, kibibytes):
    container = asks(limits={"memory": limit, "cpu": "0"} if limit else {})
    assert sizing.memory_limit(container, "spec.containers[0]") == kibibytes
    if kibibytes is None:
        assert measure({"containers": [container]}).memory == 2**30 and measure({"containers": [container]}).cpus == 1


def test_init_containers_count_by_their_peak_and_sidecars_always():
    size = measure(
        spec_of(
            asks(limits={"memory": "2Gi", "cpu": "3"}),
            init=[
                asks(limits={"memory": "8Gi", "cpu": "1"}),
                asks(limits={"memory": "1Gi", "cpu": "1"}, restartPolicy="Always"),
            ],
        )
    )
    assert (size.cpus, size.memory) == (4, 8 * 2**30)


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"])
def test_gpus(name):
    size = measure({"containers": [asks(limits={name: "2"}), asks(limits={name: "1"})]})
    assert (size.gpus, size.gpu_resource) == (3, name)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"nvidia.com/gpu": "2", "amd.com/gpu": "1"}, "one kind of GPU"),
        ({"example.com/fpga": "1"}, r"'example\.com/fpga'"),
        ({"cpu": "lots"}, "resources"),
    ],
)
def test_what_cannot_be_measured_is_refused(limits, message):
    with pytest.raises(ScriptError, match=message):
        measure({"containers": [asks(limits=limits)]})


@pytest.mark.parametrize(
    ("limits", "deadline", "flavor"),
    [
        ({"cpu": "1"}, None, "small"),
        ({}, None, "small"),
        ({"cpu": "3"}, None, "large"),
        ({"memory": "5Gi"}, None, "large"),
        ({"cpu": "1"}, 4000, "large"),
        ({"nvidia.com/gpu": "1"}, None, "gpu"),
        ({"nvidia.com/gpu": "1", "rdma/ib": "1"}, None, "gpu"),
        ({"cpu": "65"}, None, "gpu"),
    ],
)
def test_first_flavor_that_covers(limits, deadline, flavor):
    spec = {"containers": [asks(limits=limits)], **({"activeDeadlineSeconds": deadline} if deadline else {})}
    assert measure(spec, FLAVORS).flavor == flavor


def test_default_flavor_where_none_covers():
    config = {**FLAVORS, "flavors": FLAVORS["flavors"][:2]}
    assert measure({"containers": [asks(limits={"cpu": "65"})]}, config).flavor == "large"
    with pytest.raises(ScriptError, match=r"small: it has no nvidia.com/gpu; large: it has no nvidia.com/gpu"):
        measure({"containers": [asks(limits={"nvidia.com/gpu": "1"})]}, config)


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ({"nvidia.com/gpu": "5"}, "gpu: at most nvidia.com/gpu 4$"),
        ({"nvidia.com/gpu": "2", "rdma/ib": "2"}, "gpu: at most rdma/ib 1$"),
        ({"rdma/ib": "2"}, "gpu: at most rdma/ib 1$"),
    ],
)
def test_the_default_flavor_has_no_more_of_an_extended_resource_than_it_names(requests, told):
    with pytest.raises(ScriptError, match=told):
        measure({"containers": [asks(limits={"cpu": "99", **requests})]}, {**FLAVORS, "default_flavor": "gpu"})


def test_the_default_flavor_gives_a_group_no_more_of_an_extended_resource_than_one_names():
    flavors = [{"name": "f", "max_resources": {"cpu": "1", "amd.com/gpu": "2"}}]
    config = BuildConfig.model_validate({"flavors": flavors, "default_flavor": "f"})
    asked = pod({"containers": [asks({"cpu": "2", "amd.com/gpu": "1"})]})
    assert sizing.measure(asked, config, 2).flavor == "f"
    with pytest.raises(ScriptError, match="f: at most cpu 1"):
        sizing.measure(asked, config, 3)


def test_annotation_chooses():
    chosen = {"annotations": {"slurm-job.vk.io/flavor": "large"}}
    size = measure({"containers": [{"name": "c"}]}, FLAVORS, **chosen)
    assert (size.flavor, size.cpus, size.memory) == ("large", 8, 16 * 2**30)
    with pytest.raises(ScriptError, match="'huge' is not allowed; allowed at this site: small, large, gpu"):
        measure({"containers": [{"name": "c"}]}, FLAVORS, annotations={"slurm-job.vk.io/flavor": "huge"})
    with pytest.raises(ScriptError, match="too small for this pod: at most cpu 2"):
        measure({"containers": [asks(limits={"cpu": "3"})]}, FLAVORS, annotations={"slurm-job.vk.io/flavor": "small"})


@pytest.mark.parametrize(
    ("deadline", "grace", "site", "expected"),
    [(None, 30, None, None), (100, 30, None, 190.0), (100, 0, 120, 120.0), (None, 30, 500, 500.0)],
)
def test_time_limit(deadline, grace, site, expected):
    spec = {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": grace}
    if deadline:
        spec["activeDeadlineSeconds"] = deadline
    assert measure(spec, {"limits": {"max_time_seconds": site}}).time_limit == expected


GROUP = {
    "flavors": [
        {"name": "small", "max_resources": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}, "cpu": 2},
        {"name": "large", "max_resources": {"cpu": "8", "rdma/ib": "1"}, "max_group_resources": {"cpu": "16"}},
    ],
    "default_flavor": "large",
    "limits": {"default_memory": "3Gi"},
}


def member(requests, size, shapes="", **annotations):
    recorded = {names.PLACE_IN_JOB: f"g/1/{size}", names.SHAPES_IN_JOB: shapes, **annotations}
    return pod({"containers": [asks(requests, image="i")]}, annotations=recorded)


@pytest.mark.parametrize(
    ("requests", "size", "flavor"),
    [
        ({"cpu": "2", "memory": "1Gi"}, 2, "small"),
        ({"cpu": "2", "memory": "1Gi"}, 3, "large"),
        ({"cpu": "1500m", "memory": "1Gi"}, 3, "large"),
        ({"memory": "1Gi"}, 3, "large"),
        ({"cpu": "1"}, 2, "small"),
        ({"cpu": "1"}, 3, "large"),
        ({"cpu": "4", "memory": "1Gi"}, 5, "large"),
        ({"nvidia.com/gpu": "1", "memory": "1Gi"}, 2, "small"),
    ],
)
def test_the_flavor_of_a_group_covers_its_pods_together(requests, size, flavor):
    config = BuildConfig.model_validate(GROUP)
    assert plan.make(member(requests, size), config, Objects(), "node").size.flavor == flavor


def test_the_pods_of_a_heterogeneous_group_that_request_the_same_count_together():
    config, shapes = BuildConfig.model_validate(GROUP), f"1x{'a' * 16},2x{'b' * 16}"
    found = plan.make(member({"cpu": "2", "memory": "1Gi"}, 3, shapes), config, Objects(), "node").size
    assert found.flavor == "small"


def test_a_group_that_no_flavor_covers_is_refused_in_words():
    config = BuildConfig.model_validate(GROUP)
    told = (
        "no flavor of this site covers what the pod asks for: small: at most nvidia.com/gpu 2 for the pods of a group "
        "together; large: it has no nvidia.com/gpu"
    )
    with pytest.raises(ScriptError, match=told):
        plan.make(member({"nvidia.com/gpu": "1", "memory": "1Gi"}, 3), config, Objects(), "node")


def test_what_sizes_a_group_is_read_as_it_was_written():
    config = BuildConfig.model_validate(GROUP)
    found = flavor_limits.parse(flavor_limits.dump(config))
    pods = [pod({"containers": [asks(requests)]}) for requests in ({}, {"cpu": "3"}, {"cpu": "20", "memory": "1Gi"})]
    for alike in (1, 2, 9):
        assert [sizing.measure(each, found, alike) for each in pods] == [
            sizing.measure(each, config, alike) for each in pods
        ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"flavors":[{"name":"f","newer":1}]}'])
def test_limits_that_another_version_wrote_are_not_known(text):
    assert flavor_limits.parse(text) is None


def test_without_limits_or_with_too_many_nothing_is_written():
    flavors = [{"name": f"f{n}", "max_resources": {"cpu": "1"}} for n in range(999)]
    for config in ({}, {"flavors": [{"name": "f", "cpu": 2}]}, {"flavors": flavors}):
        assert flavor_limits.dump(BuildConfig.model_validate(config)) == ""


def test_a_hub_from_before_the_limits_of_groups_accepts_a_site_without_them():
    flavor = {"name": "f", "max_resources": {"cpu": "1"}}
    assert "max_group_resources" not in BuildConfig.model_validate({"flavors": [flavor]}).dump()["flavors"][0]
    more = BuildConfig.model_validate({"flavors": [{**flavor, "max_group_resources": {"cpu": "2"}}]})
    assert BuildConfig.model_validate(more.dump()) == more
