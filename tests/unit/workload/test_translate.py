from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.config.hub import Config, parse
from bridge.errors import UntranslatableError
from bridge.slurm.models import GroupRef, JobLink, PodRef
from bridge.slurm.versions import ApiVersion
from bridge.workload import links, translate
from bridge.workload.annotations import InvalidAnnotationsError
from tests import builders

NEW = ApiVersion("v0.0.45", external_jobs=True)
OLD = ApiVersion("v0.0.38", exclude_nodes=False, other_users=False)


def pod(annotations=None, requests=None, limits=None, **spec):
    container = {"name": "main", "resources": {"requests": requests or {}, "limits": limits or {}}}
    return builders.pod("u-1", annotations=annotations, metadata={"name": "p"}, containers=[container], **spec)


def ask(the_pod, config=None, version=NEW, excluded=()):
    return translate.request(the_pod, config or Config(), version, "c-1", excluded)


def test_a_plain_pod():
    request = ask(pod(requests={"cpu": "1500m", "memory": "1000Mi"}), excluded=("n1", "n2"))
    assert request.link == JobLink("c-1", (PodRef("ns", "p", "u-1"),))
    assert request.link.shape
    assert (request.name, request.cpus, request.memory_mib, request.external) == ("p", 2, 1000, True)
    assert (request.min_nodes, request.max_nodes, request.exclusive) == (1, 1, False)
    assert request.excluded_nodes == ("n1", "n2")


def test_a_pod_without_requests_leaves_cpus_and_memory_to_slurm():
    request = ask(pod())
    assert (request.cpus, request.memory_mib, request.gres) == (0, 0, ())


def test_annotations_win():
    request = ask(
        pod(
            {
                names.CPU_PER_TASK: "8",
                names.MEM_PER_NODE: "2Gi",
                names.PARTITION: "gpu",
                names.TIME_LIMIT: "1:00:00",
                names.JOB_NAME: "a b",
                names.USER_ID: "2001",
                names.PRIORITY: "7",
                names.EXCLUSIVE: "true",
                names.MIN_NODES: "2",
            },
            requests={"cpu": "1", "memory": "1Gi"},
        ),
        parse("partition: main"),
    )
    assert (request.cpus, request.memory_mib, request.partition, request.time_limit) == (8, 2048, "gpu", 60)
    assert (request.name, request.user_id, request.priority, request.exclusive) == ("a b", "2001", 7, True)
    assert (request.min_nodes, request.max_nodes, request.tasks) == (2, 2, 2)


def test_the_deadline_of_the_job_becomes_a_time_limit():
    assert ask(pod({names.JOB_DEADLINE: "3500"})).time_limit == 59, "with the default grace period"
    assert ask(pod({names.JOB_DEADLINE: "3500"}, activeDeadlineSeconds=60)).time_limit == 2
    assert ask(pod({names.JOB_DEADLINE: "60"}, activeDeadlineSeconds=3500)).time_limit == 2
    assert ask(pod({names.JOB_DEADLINE: "60", names.TIME_LIMIT: "9"})).time_limit == 9


def test_the_grace_period_alone_does_not_exceed_the_limit_of_the_partition():
    def limit(seconds, grace, longest):
        the_pod = pod(activeDeadlineSeconds=seconds, terminationGracePeriodSeconds=grace)
        return translate.request(the_pod, Config(), NEW, "c-1", longest=longest).time_limit

    assert limit(3600, 30, 60) == 60
    assert limit(3600, 30, 61) == 61
    assert limit(3600, 30, 0) == 61
    assert limit(3000, 1800, 60) == 60
    assert limit(7200, 30, 60) == 120, "Slurm refuses it: the deadline itself is too late"


@pytest.mark.parametrize("grace", [-1, -60, -120, -(2**63), 2**63 - 1])
def test_no_grace_period_makes_a_time_limit_that_slurm_reads_as_none(grace):
    """-1, or 2**32 - 1, is no limit for Slurm; Kubernetes treats a negative grace period as one of a second."""
    limit = ask(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=grace)).time_limit
    assert limit == 2 if grace < 0 else 2 <= limit < 2**31


@given(st.integers(1, 10**6), st.integers(0, 10**4), st.integers(0, 10**4))
def test_a_time_limit_has_the_deadline_and_as_much_of_the_grace_period_as_fits(seconds, grace, longest):
    the_pod = pod(activeDeadlineSeconds=seconds, terminationGracePeriodSeconds=grace)
    limit = translate.request(the_pod, Config(), NEW, "c-1", longest=longest).time_limit
    assert limit * 60 >= seconds
    assert limit * 60 < seconds + grace + 60
    assert limit * 60 >= seconds + grace or limit >= longest > 0


def test_deadline_becomes_a_time_limit():
    assert ask(pod(activeDeadlineSeconds=61)).time_limit == 2
    assert ask(pod(activeDeadlineSeconds=100)).time_limit == 3, "the default grace period counts"
    assert ask(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=0)).time_limit == 1
    assert ask(pod(activeDeadlineSeconds=60, terminationGracePeriodSeconds=600)).time_limit == 11
    assert ask(pod(terminationGracePeriodSeconds=600)).time_limit == 0, "the limit of the partition"
    assert ask(pod({names.TIME_LIMIT: "9"}, activeDeadlineSeconds=61)).time_limit == 9


def test_gres_from_resources_and_annotation():
    config = parse("gres: {nvidia.com/gpu: 'gpu:a100', example.com/fpga: fpga}")
    asked = pod(limits={"nvidia.com/gpu": "2", "example.com/fpga": "1"})
    assert ask(asked, config).gres == ("fpga:1", "gpu:a100:2")
    asked["metadata"]["annotations"] = {names.GRES: "gpu:a100:4,gpu:h100:1"}
    assert ask(asked, config).gres == ("gpu:a100:4", "gpu:h100:1", "fpga:1")
    for fewer in ("gpu:h100:2", "gpu:2", "gpu:a100:1,gpu:h100:1"):
        asked["metadata"]["annotations"] = {names.GRES: fewer}
        with pytest.raises(InvalidAnnotationsError, match="at least gpu:a100:2"):
            ask(asked, config)


def test_an_unmapped_resource_needs_whole_nodes():
    asked = pod(limits={"example.com/fpga": "1"})
    with pytest.raises(UntranslatableError, match=r"example\.com/fpga"):
        ask(asked)
    asked["metadata"]["annotations"] = {names.EXCLUSIVE: "true"}
    assert ask(asked).gres == ()


def test_what_an_old_slurm_can_not():
    assert ask(pod(), version=OLD).external is False
    with pytest.raises(UntranslatableError, match="external"):
        ask(pod(), parse("placeholder: external"), OLD)
    with pytest.raises(UntranslatableError, match="user-id"):
        ask(pod({names.USER_ID: "1"}), version=OLD)


def test_bad_annotations_are_named():
    with pytest.raises(InvalidAnnotationsError, match="timelimit"):
        ask(pod({names.TIME_LIMIT: "x"}))


GROUP = GroupRef("jobset", "ns", "train", "o1", "workers")


def ask_gang(members, size, minimum, together=1, **more):
    shape = translate.GangShape(GROUP, size, minimum, together)
    return translate.gang_request(members, shape, Config(), NEW, "c-1", **more)


def test_a_gang_asks_for_one_node_a_member():
    request = ask_gang([pod(requests={"cpu": "2", "memory": "100Mi"})] * 3, 3, 3, excluded=("n2",))
    assert (request.name, request.link) == ("train", JobLink("c-1", (), GROUP, 3))
    assert (request.min_nodes, request.max_nodes, request.tasks, request.tasks_per_node) == (3, 3, 3, 1)
    assert (request.cpus, request.memory_mib, request.excluded_nodes) == (2, 100, ("n2",))


@pytest.mark.parametrize(
    ("size", "together", "nodes", "gpu"),
    [(5, 2, 3, "gpu:a100"), (2, 8, 1, "gpu")],
    ids=["some", "a node has no more members than the gang"],
)
def test_members_that_share_a_node_ask_for_the_sum(size, together, nodes, gpu):
    members = [pod({names.GRES: f"{gpu}:1"}, requests={"cpu": "2", "memory": "100Mi"})] * size
    request = ask_gang(members, size, size, together=together)
    assert (request.min_nodes, request.max_nodes, request.tasks, request.tasks_per_node) == (nodes, nodes, size, 2)
    assert (request.cpus, request.memory_mib, request.gres) == (2, 200, (f"{gpu}:2",))


def test_a_gang_with_a_minimum_asks_for_a_range_of_nodes():
    request = ask_gang([pod(requests={"cpu": "1"})] * 2, 4, 2)
    assert (request.min_nodes, request.max_nodes, request.tasks, request.tasks_per_node) == (2, 4, 0, 1)


def test_members_of_different_shapes_are_refused():
    members = [pod(requests={"cpu": "1"}), pod(requests={"cpu": "2"})]
    with pytest.raises(UntranslatableError, match="differ in cpus"):
        ask_gang(members, 2, 2)  # the scheduler makes a heterogeneous job of them
    with pytest.raises(UntranslatableError, match="min-nodes"):
        ask_gang([pod({names.MIN_NODES: "2"})], 1, 1)
    with pytest.raises(UntranslatableError, match="max-nodes"):
        ask_gang([pod({names.MAX_NODES: "2"})], 1, 1)


def test_members_that_differ_are_named():
    members = [pod(), pod(), pod(requests={"cpu": "2"})]
    for member, name in zip(members, ("a", "b", "c"), strict=True):
        member["metadata"]["name"] = name
    with pytest.raises(UntranslatableError, match="pods a and c of one group differ in cpus; allowed: the same value"):
        ask_gang(members, 3, 3)


def test_the_job_has_the_name_of_its_first_member():
    members = [pod({names.JOB_NAME: "a"}), pod({names.JOB_NAME: "b"})]
    assert links.shape(members[0]) == links.shape(members[1])
    assert ask_gang(members, 2, 2).name == "a"


def test_the_deadlines_of_the_members_may_differ():
    members = [pod({names.JOB_DEADLINE: text}) for text in ("60", "3600")]
    assert links.shape(members[0]) == links.shape(members[1])
    assert ask_gang(members, 2, 2).time_limit == 61
    assert ask_gang([*members, pod()], 3, 3).time_limit == 0


def test_the_link_of_a_gang_has_its_members_on_a_node():
    assert ask_gang([pod()] * 2, 2, 2, together=8).link.together == 2


HET = replace(NEW, heterogeneous=True, external_components=True)


def ask_parts(*groups, config=None, version=HET):
    """Return the request for a group with these members of each shape."""
    requests = [ask_gang(members, len(members), len(members)) for members in groups]
    return translate.heterogeneous(requests, config or Config(), version)


def test_members_of_different_shapes_get_a_component_each():
    driver, worker = pod(requests={"cpu": "1"}), pod({names.PARTITION: "gpu"}, requests={"cpu": "4", "memory": "1Gi"})
    first = ask_parts([driver], [worker, worker])
    (second,) = first.components
    assert (first.cpus, first.min_nodes, first.tasks, first.partition) == (1, 1, 1, "")
    assert (second.cpus, second.min_nodes, second.tasks, second.partition) == (4, 2, 2, "gpu")
    links_of = [(part.link.part, part.link.parts, part.link.size, part.link.shape) for part in (first, second)]
    assert links_of == [(0, 2, 3, links.shape(driver)), (1, 2, 3, links.shape(worker))]
    assert (first.link.members, second.link.members) == (1, 2)
    assert first.external
    assert second.external
    assert (second.components, len(first.components)) == ((), 1)


def test_the_longest_time_limit_is_that_of_all_components_with_one():
    def limited(minutes):
        return pod({names.TIME_LIMIT: minutes} if minutes else {}, requests={"cpu": minutes or "1"})

    first = ask_parts([limited("10")], [limited("20")], [limited("")])
    assert [part.time_limit for part in (first, *first.components)] == [20, 20, 0]


def test_a_version_without_heterogeneous_jobs_is_named():
    with pytest.raises(UntranslatableError, match=r"differ in cpus: .*API v0.0.38 can't make"):
        ask_parts([pod(requests={"cpu": "1"})], [pod(requests={"cpu": "2"})], version=OLD)


def test_components_are_batch_jobs_where_external_ones_cannot_be():
    older = replace(HET, external_components=False)
    groups = [pod(requests={"cpu": "1"})], [pod(requests={"cpu": "2"})]
    first = ask_parts(*groups, version=older)
    assert not any(part.external for part in (first, *first.components))
    with pytest.raises(UntranslatableError, match=r"need Slurm 26\.05\.3"):
        ask_parts(*groups, version=older, config=Config(placeholder="external"))


def test_components_belong_to_one_user():
    groups = [pod({names.USER_ID: "1000"})], [pod({names.USER_ID: "1001"})]
    with pytest.raises(UntranslatableError, match="differ between the pods of one group"):
        ask_parts(*groups)


def test_more_components_than_slurm_allows_are_refused():
    groups = [[pod(requests={"cpu": str(number)})] for number in range(1, 130)]
    with pytest.raises(UntranslatableError, match="129 different requests or settings; allowed: 128"):
        ask_parts(*groups)


def test_a_node_selector_selects_the_partition_and_the_shape_of_the_job():
    selector = {names.PARTITION_LABEL_PREFIX + "gpu": "true"}
    config = parse("partition: main\npartitions: [main, gpu]")
    plain, selecting = pod({names.PARTITION: "main"}), pod({names.PARTITION: "main"}, nodeSelector=selector)
    assert ask(plain, config).partition == "main"
    assert ask(selecting, config).partition == "gpu"
    assert links.shape(plain) != links.shape(selecting)
    with pytest.raises(UntranslatableError, match=r"spec\.nodeSelector: gpu is not a partition"):
        ask(selecting, parse("partition: main\npartitions: [main]"))


@pytest.mark.parametrize(
    ("requests", "annotations", "expected"),
    [
        ({"cpu": "3"}, {}, 3 * 4096),
        ({}, {}, 4096),
        ({"cpu": "3", "memory": "1Gi"}, {}, 1024),
        ({"cpu": "3"}, {names.MEM_PER_NODE: "2Gi"}, 2048),
        ({"cpu": "3"}, {names.CPU_PER_TASK: "5"}, 5 * 4096),
        ({"cpu": "3"}, {names.EXCLUSIVE: "true"}, 0),
    ],
)
def test_a_pod_that_requests_no_memory_gets_the_default_for_each_cpu(requests, annotations, expected):
    config = parse("defaults: {memoryPerCpu: 4Gi}")
    assert ask(pod(annotations, requests=requests), config).memory_mib == expected
    assert ask(pod(requests={"cpu": "3"})).memory_mib == 0
