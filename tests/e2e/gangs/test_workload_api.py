"""Kubernetes' own Workload API, as Kubernetes 1.36 (v1alpha2) and 1.37 (v1beta1, v1alpha3) serve it."""

from collections import Counter

import pytest

from cluster.polling import eventually
from cluster.systems.gangs import WORKLOAD_API
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real
CORES = f"/api/v1/namespaces/{NAMESPACE}"
RACK = {"topology": [{"key": "rack"}]}
CONDITIONS = {"v1alpha2": "PodGroupScheduled", "v1beta1": "PodGroupInitiallyScheduled"}


@pytest.fixture
def version(world):
    """The version of the API whose PodGroups podbridge reads."""
    return WORKLOAD_API[world.cluster.options.kubernetes][0]


def create(world, version, plural, kind, name, policy, **spec):
    path = f"/apis/{version}/namespaces/{NAMESPACE}/{plural}"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
    world.api("POST", path, {**body, "spec": {"schedulingPolicy": policy, **spec}})
    return f"{path}/{name}"


def group(world, version, name, policy, **spec):
    return create(world, version, "podgroups", "PodGroup", name, policy, **spec)


def member(world, name, group, **spec):
    body = world.manifest(name, schedulingGroup={"podGroupName": group}, **spec)
    return world.api.request("POST", f"{CORES}/pods", body)


def scheduled(world, path, version):
    conditions = world.api("GET", path).get("status", {}).get("conditions") or ()
    kind = CONDITIONS[version.partition("/")[2]]
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), None)


def test_a_gang_starts_in_one_slurm_job_and_its_pod_group_says_so(world, version):
    path = group(world, version, "native", {"gang": {"minCount": 3}})
    pods = [member(world, f"native-{number}", "native")[1] for number in range(2)]
    eventually(lambda: scheduled(world, path, version) == ("False", "Unschedulable"), "not scheduled")
    eventually(lambda: world.condition(pods[0], "PodScheduled").get("reason") == "GangIncomplete", "told")
    pods.append(member(world, "native-2", "native")[1])
    assert len({world.job_of(world.running(pod)) for pod in pods}) == 1
    eventually(lambda: scheduled(world, path, version) == ("True", "Scheduled"), "scheduled")
    world.delete(pods[0], grace=1)
    world.gone(pods[0])
    world.polled()
    assert scheduled(world, path, version) == ("True", "Scheduled")
    world.api("DELETE", path)
    assert world.api("GET", path)["metadata"]["deletionTimestamp"], "members still run"
    for pod in pods[1:]:
        world.delete(pod, grace=1)
    eventually(lambda: world.api.request("GET", path)[0] == 404, "the PodGroup is gone")


def test_a_gang_that_starts_with_fewer_pods_than_it_has_is_scheduled_as_soon_as_its_minimum_is(world, version):
    for _ in range(2):
        world.running(world.create(cpu="120"))
    path = group(world, version, "least", {"gang": {"minCount": 2}})
    job = world.create_gang("least", 3, cpu="64", run="600", schedulingGroup={"podGroupName": "least"})
    eventually(lambda: len(world.members(job)) == 3, "all members exist")
    eventually(lambda: scheduled(world, path, version) == ("True", "Scheduled"), "scheduled")
    members = [world.running(pod) for pod in world.members(job)]
    assert sorted(Counter(map(world.job_of, members)).values()) == [1, 2], "the last one has a job of its own"


def test_pods_of_a_group_with_the_basic_policy_start_alone(world, version):
    group(world, version, "plain", {"basic": {}})
    pods = [member(world, f"plain-{number}", "plain")[1] for number in range(2)]
    assert len({world.job_of(world.running(pod)) for pod in pods}) == 2


def test_what_a_slurm_job_cannot_do_is_refused(world, version):
    claims = [{"name": "gpu", "resourceClaimName": "shared"}]
    for name, spec, message in (
        ("rack", {"schedulingConstraints": RACK}, "spec.schedulingConstraints.topology[0].key: 'rack' is not allowed"),
        ("claim", {"resourceClaims": claims}, "spec.resourceClaims[0].name: 'gpu' is not allowed"),
    ):
        group(world, version, name, {"gang": {"minCount": 2}}, **spec)
        status, answer = member(world, f"{name}-0", name)
        assert status == 422
        assert message in answer["message"]


def test_the_api_server_removes_the_workload_reference_of_kubernetes_1_35(world):
    body = world.manifest("old", workloadRef={"name": "w", "podGroup": "workers"})
    pod = world.api("POST", f"{CORES}/pods", body)
    assert "workloadRef" not in pod["spec"]


def test_nested_groups_start_alone_unless_a_group_of_groups_is_a_gang(world, version):
    if version != "scheduling.k8s.io/v1beta1":
        status, answer = world.api.request("GET", f"/apis/scheduling.k8s.io/v1alpha3/namespaces/{NAMESPACE}/podgroups")
        assert status == 404, answer
        return
    alpha = "scheduling.k8s.io/v1alpha3"
    reference = {"workloadRef": {"workloadName": "w", "templateName": "t"}}

    def composite(name, policy, **spec):
        return create(world, alpha, "compositepodgroups", "CompositePodGroup", name, policy, **reference, **spec)

    made = [
        composite("root", {"basic": {}}),
        composite("inner", {"basic": {}}, parentCompositePodGroupName="root"),
        composite("all", {"gang": {"minGroupCount": 2}}),
        composite("below", {"basic": {}}, parentCompositePodGroupName="all"),
    ]
    for name in ("inner", "below", "missing"):
        group(world, version, f"of-{name}", {"gang": {"minCount": 2}}, parentCompositePodGroupName=name, **reference)
    pods = [member(world, f"nested-{number}", "of-inner")[1] for number in range(2)]
    assert len({world.job_of(world.running(pod)) for pod in pods}) == 1
    status, answer = member(world, "refused", "of-below")
    assert status == 422
    assert "CompositePodGroup all: spec.schedulingPolicy.gang.minGroupCount: 2 is not allowed" in answer["message"]
    status, answer = member(world, "early", "of-missing")
    assert status == 422
    assert "spec.parentCompositePodGroupName: 'missing' is not allowed" in answer["message"]
    for path in made:
        world.api("DELETE", path)
