"""The group that admission writes on a new pod: owners are read, users cannot choose it."""

import json
from collections.abc import Mapping
from typing import Any

import flask.testing
import pytest

from admission import group_reader, validate
from admission.admission_app import make_app
from admission.group_reader import BARE, FoundGroup, GroupReader
from admission.owner_annotations import OwnerAnnotations
from admission.permissions import Permissions
from admission.reviewer import Reviewer
from bridge import names
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeNotFoundError, KubeUnavailableError
from bridge.kube.namespaces import Namespace, Namespaces
from bridge.kube.resources import JOBS, Resource
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import job_kinds, pod_group_kinds
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers
from tests.unit.admission.test_app import patch_of, review

OURS = names.DEFAULT_SCHEDULER_NAME
Json = dict[str, Any]
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "J", "controller": True}
GANG_OF_FOUR = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}


def pod(labels: Json | None = None, annotations: Json | None = None, *, owner: Json | None = JOB, **spec: Any) -> Json:
    references = [] if owner is None else [owner]
    metadata = {"labels": labels or {}, "annotations": annotations or {}, "ownerReferences": references}
    return {"metadata": metadata, "spec": {"containers": [], "schedulerName": OURS, **spec}}


class Objects:
    """The API server's objects, by ``plural.group/name``."""

    def __init__(self, **objects: Json) -> None:
        self.found: dict[str, Json] = {}
        self.read: list[str] = []
        self.error: Exception | None = None

    def add(self, where: str, spec: Json, **annotations: str) -> None:
        uid = where.rpartition("/")[2].upper()
        self.found[where] = {"metadata": {"name": uid.lower(), "uid": uid, "annotations": annotations}, "spec": spec}

    def __call__(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        if self.error:
            raise self.error
        where = f"{resource.plural}.{resource.group}/{name}"
        self.read.append(f"{resource.version} {where}")
        return self.found.get(where)


@pytest.fixture
def objects() -> Objects:
    found = Objects()
    found.add("jobs.batch/j", GANG_OF_FOUR)
    return found


def find(objects: Objects, a_pod: Json, inherited: Json | None = None, namespace: Json | None = None) -> FoundGroup:
    return GroupReader(objects, FakeClock()).find(a_pod, "ns", inherited or {}, namespace or {})


def value(found: FoundGroup) -> Json:
    assert found.value is not None
    return dict(json.loads(found.value))


@pytest.mark.parametrize(
    ("own", "inherited", "namespace", "gang"),
    [
        ({}, {}, {}, False),
        ({names.GANG: "true"}, {}, {}, True),
        ({}, {names.GANG: "true"}, {}, True),
        ({}, {}, {names.GANG: "true"}, True),
        ({}, {names.GANG: "false"}, {names.GANG: "true"}, False),
        ({names.GANG: "false"}, {names.GANG: "true"}, {}, False),
        ({names.GANG: "all"}, {}, {}, True),
    ],
)
def test_a_job_is_a_group_if_the_nearest_annotation_says_so(
    objects: Objects, own: Json, inherited: Json, namespace: Json, gang: bool
) -> None:
    found = find(objects, pod({}, {job_kinds.COMPLETION_INDEX: "1", **own}), inherited, namespace)
    if gang:
        assert value(found) == {"kind": "job", "name": "j", "uid": "J", "size": 4, "minimum": 4, "slot": 1}
    else:
        assert found == BARE
        assert objects.read == []


def test_a_job_set_is_a_group_without_annotation_unless_it_says_no(objects: Objects) -> None:
    labels = {job_kinds.JOBSET_NAME: "s", job_kinds.REPLICATED_JOB: "w", job_kinds.JOB_INDEX: "0"}
    spec = {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3}}}]}
    objects.add("jobsets.jobset.x-k8s.io/s", spec)
    expected = {"kind": "jobset", "name": "s", "uid": "S", "index": "w", "size": 6, "minimum": 6}
    assert value(find(objects, pod(labels))) == expected
    whole = value(find(objects, pod(labels), {}, {names.GANG: "all"}))
    assert whole == {key: expected[key] for key in expected if key != "index"}
    objects.add("jobsets.jobset.x-k8s.io/s", spec, **{names.GANG: "false"})
    assert find(objects, pod(labels)).value is None


def test_a_group_of_one_is_a_bare_pod(objects: Objects) -> None:
    objects.add("jobs.batch/j", {"parallelism": 1})
    assert find(objects, pod(), {names.GANG: "true"}).value is None


def test_job_annotations_of_the_group_s_owner_are_inherited(objects: Objects) -> None:
    annotations = {names.ACCOUNT: "physics", names.MEMBERS_PER_NODE: "2", "other": "x"}
    objects.add("podgroups.scheduling.x-k8s.io/g", {"minMember": 2}, **annotations)
    found = find(objects, pod({pod_group_kinds.POD_GROUP_NAME: "g"}, owner=None))
    assert found.inherited == {names.ACCOUNT: "physics", names.MEMBERS_PER_NODE: "2"}
    objects.add("podgroups.scheduling.x-k8s.io/g", {"minMember": 2}, **{names.MEMBERS_PER_NODE: "many"})
    with pytest.raises(InvalidGroupError, match="members-per-node: 'many' is not allowed"):
        find(objects, pod({pod_group_kinds.POD_GROUP_NAME: "g"}, owner=None))


@pytest.mark.parametrize(
    ("owner", "where", "spec", "size"),
    [
        (None, "", {}, 2),
        (JOB, "jobs.batch/j", GANG_OF_FOUR, 4),
        (JOB, "jobs.batch/j", {"parallelism": 4, "completions": 9}, 2),
        ({**JOB, "apiVersion": "apps/v1", "kind": "StatefulSet"}, "statefulsets.apps/j", {"replicas": 5}, 5),
        ({**JOB, "apiVersion": "apps/v1", "kind": "ReplicaSet"}, "other", {"replicas": 5}, 2),
        ({**JOB, "apiVersion": "ray.io/v1", "kind": "RayCluster"}, "rayclusters.ray.io/j", {"replicas": 5}, 2),
    ],
)
def test_a_pod_group_is_as_large_as_its_controller_makes_it(
    objects: Objects, owner: Json | None, where: str, spec: Json, size: int
) -> None:
    objects.found.clear()
    objects.add(where or "none", spec)
    objects.add("podgroups.scheduling.x-k8s.io/g", {"minMember": 2})
    found = value(find(objects, pod({pod_group_kinds.POD_GROUP_NAME: "g"}, owner=owner)))
    assert (found["kind"], found["size"], found["minimum"]) == ("podgroup", size, 2)


def test_a_training_job_s_pod_group_is_as_large_as_its_job_set(objects: Objects) -> None:
    objects.add("podgroups.scheduling.x-k8s.io/g", {"minMember": 2})
    objects.add(
        "jobsets.jobset.x-k8s.io/s", {"replicatedJobs": [{"name": "n", "template": {"spec": {"parallelism": 6}}}]}
    )
    assert value(find(objects, pod({pod_group_kinds.POD_GROUP_NAME: "g", job_kinds.JOBSET_NAME: "s"})))["size"] == 6


@pytest.mark.parametrize(
    ("status", "completed"),
    [
        ({"succeeded": 2}, 2),
        ({"succeeded": 1, "uncountedTerminatedPods": {"succeeded": ["u1", "u2"]}}, 3),
        ({"succeeded": 9}, 4),
        ({"failed": 2}, None),
    ],
)
def test_a_pod_says_how_many_members_had_succeeded_when_it_was_created(
    objects: Objects, status: Json, completed: int | None
) -> None:
    objects.found["jobs.batch/j"]["status"] = status
    assert value(find(objects, pod(), {names.GANG: "true"})).get("completed") == completed
    objects.add("podgroups.scheduling.x-k8s.io/g", {"minMember": 2})
    assert value(find(objects, pod({pod_group_kinds.POD_GROUP_NAME: "g"}))).get("completed") == completed
    forged = {**JOB, "uid": "other"}
    assert "completed" not in value(find(objects, pod({pod_group_kinds.POD_GROUP_NAME: "g"}, owner=forged)))
    with pytest.raises(InvalidGroupError, match=r"Job 'j' with UID 'other' .batch. does not exist in namespace 'ns'"):
        find(objects, pod(owner=forged), {names.GANG: "true"})


@pytest.mark.parametrize(("gang", "completed"), [("true", 1 + 3), ("all", 1 + 3 + 5)])
def test_complete_jobs_of_a_job_set_count_with_all_their_pods(objects: Objects, gang: str, completed: int) -> None:
    parallel = [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3}}}]
    parallel += [{"name": "d", "template": {"spec": {"parallelism": 5, "completions": 5}}}]
    objects.add("jobsets.jobset.x-k8s.io/s", {"replicatedJobs": parallel})
    statuses = [{"name": "w", "succeeded": 1}, {"name": "d", "succeeded": 1}, {"name": "removed", "succeeded": 7}]
    objects.found["jobsets.jobset.x-k8s.io/s"]["status"] = {"replicatedJobsStatus": statuses}
    objects.found["jobs.batch/j"]["status"] = {"succeeded": 1}
    labels = {job_kinds.JOBSET_NAME: "s", job_kinds.REPLICATED_JOB: "w", job_kinds.JOB_INDEX: "0"}
    assert value(find(objects, pod(labels, {names.GANG: gang})))["completed"] == completed


def test_a_pod_group_is_read_in_the_version_that_is_served(objects: Objects) -> None:
    in_old_version = {"v1alpha2 podgroups.scheduling.k8s.io/w"}

    def read(resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        found = objects(resource, namespace, name)
        return found if objects.read[-1] in in_old_version else None

    objects.add("podgroups.scheduling.k8s.io/w", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    body = pod(owner=None, schedulingGroup={"podGroupName": "w"})
    found = GroupReader(read, FakeClock()).find(body, "ns", {}, {})
    assert value(found) == {"kind": "workload", "name": "w", "uid": "W", "size": 2, "minimum": 2}
    assert objects.read == ["v1beta1 podgroups.scheduling.k8s.io/w", "v1alpha2 podgroups.scheduling.k8s.io/w"]


def nested(objects: Objects, **composites: Json) -> FoundGroup:
    """Return the group of a pod in a PodGroup that is in the composite ``a``."""
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "parentCompositePodGroupName": "a"}
    objects.add("podgroups.scheduling.k8s.io/w", spec)
    for name, composite in composites.items():
        objects.add(f"compositepodgroups.scheduling.k8s.io/{name}", composite)
    return find(objects, pod(owner=None, schedulingGroup={"podGroupName": "w"}))


BASIC: Json = {"schedulingPolicy": {"basic": {}}}


def test_a_group_in_basic_composites_is_a_group_of_its_own(objects: Objects) -> None:
    found = nested(objects, a={**BASIC, "parentCompositePodGroupName": "b"}, b=BASIC)
    assert value(found)["size"] == 2
    assert objects.read[-1] == "v1alpha3 compositepodgroups.scheduling.k8s.io/b"


@pytest.mark.parametrize(
    ("composites", "message"),
    [
        (
            {"a": {"schedulingPolicy": {"gang": {"minGroupCount": 3}}}},
            r"CompositePodGroup a: spec\.schedulingPolicy\.gang\.minGroupCount: 3 is not allowed: .* allowed: .*basic",
        ),
        (
            {"a": {**BASIC, "schedulingConstraints": {"topology": [{"key": "rack"}]}}},
            r"group a: spec\.schedulingConstraints\.topology\[0\]\.key: 'rack' is not allowed",
        ),
        ({}, "PodGroup w: spec.parentCompositePodGroupName: 'a' is not allowed: there is no such object"),
        (
            {"a": {**BASIC, "parentCompositePodGroupName": "b"}},
            "PodGroup a: spec.parentCompositePodGroupName: 'b' is not allowed: there is no such object",
        ),
    ],
)
def test_a_group_in_a_composite_that_is_a_gang_is_refused(objects: Objects, composites: Json, message: str) -> None:
    with pytest.raises(InvalidGroupError, match=message):
        nested(objects, **composites)


def test_composites_that_contain_each_other_end_somewhere(objects: Objects) -> None:
    assert value(nested(objects, a={**BASIC, "parentCompositePodGroupName": "a"}))["size"] == 2


def test_a_workload_of_kubernetes_1_35_is_refused_unless_the_pods_start_alone(objects: Objects) -> None:
    body = pod(owner=None, workloadRef={"name": "w", "podGroup": "workers"})
    with pytest.raises(
        InvalidGroupError, match=r"spec\.workloadRef\.name: 'w' is not allowed.*schedulingGroup.*'false'"
    ):
        find(objects, body)
    assert find(objects, body, {names.GANG: "false"}) == BARE


def test_a_group_without_its_owner_is_refused_until_the_owner_exists(objects: Objects) -> None:
    reader = GroupReader(objects, FakeClock())
    body = pod({pod_group_kinds.POD_GROUP_NAME: "g"}, owner=None)
    with pytest.raises(
        InvalidGroupError, match=r"PodGroup 'g' \(scheduling\.x-k8s\.io\) does not exist.*before its pods"
    ):
        reader.find(body, "ns", {}, {})
    objects.add("podgroups.scheduling.x-k8s.io/g", {"minMember": 2})
    assert value(reader.find(body, "ns", {}, {}))["size"] == 2


def test_owners_are_cached_for_a_moment(objects: Objects) -> None:
    clock = FakeClock()
    reader = GroupReader(objects, clock)
    for _ in range(100):
        reader.find(pod(), "ns", {names.GANG: "true"}, {})
    assert len(objects.read) == 1
    reader.find(pod(), "other", {names.GANG: "true"}, {})
    assert len(objects.read) == 2
    objects.add("jobs.batch/j", {"parallelism": 7})
    clock.advance(group_reader.REMEMBER)
    assert value(reader.find(pod(), "ns", {names.GANG: "true"}, {}))["size"] == 7


@pytest.mark.parametrize(
    ("body", "inherited", "namespace", "message"),
    [
        (
            pod({}, {names.GANG: "yes"}),
            {},
            {},
            "of the pod or its owners: 'yes' is not allowed; allowed: true, all, fal",
        ),
        (pod(), {}, {names.GANG: "yes"}, "of namespace 'ns': 'yes' is not allowed"),
        (pod({}, {names.GANG: "true"}, owner=None), {}, {}, "'true' is not allowed: the pod belongs to no Job, JobSet"),
        (pod({}, {names.MEMBERS_PER_NODE: "0"}), {}, {}, "members-per-node: '0' is not allowed"),
        (pod({pod_group_kinds.KUEUE_NAME: "k"}), {}, {}, "pod-group-total-count: None is not allowed"),
        (pod({job_kinds.LWS_NAME: "l"}), {}, {}, "LeaderWorkerSet 'l' (leaderworkerset.x-k8s.io) does not exist"),
    ],
)
def test_a_bad_value_is_refused_in_words(
    objects: Objects, body: Json, inherited: Json, namespace: Json, message: str
) -> None:
    with pytest.raises(InvalidGroupError) as refused:
        find(objects, body, inherited, namespace)
    assert message in str(refused.value)


def test_a_namespace_s_default_does_not_refuse_pods_without_a_group(objects: Objects) -> None:
    assert find(objects, pod(owner=None), {}, {names.GANG: "true"}) == BARE


def test_a_forbidden_owner_names_the_permission() -> None:
    path = "/apis/batch/v1/namespaces/ns/jobs/j"
    missing = group_reader.read_from(KubeAnswers({path: KubeNotFoundError("x", status=404)}, default={}))
    assert missing(JOBS, "ns", "j") is None
    forbidden = group_reader.read_from(KubeAnswers({path: KubeForbiddenError("no", status=403)}))
    with pytest.raises(KubeForbiddenError, match=r"may not read jobs\.batch in namespace 'ns'.*permission 'get'"):
        forbidden(JOBS, "ns", "j")


@pytest.fixture
def app(objects: Objects) -> flask.testing.FlaskClient:
    reviewer = Reviewer(
        Config.model_validate({"slurmRestApi": "http://slurm"}),
        Permissions(lambda *_: False),
        OwnerAnnotations(lambda reference, namespace: {"uid": "J", "annotations": {names.GANG: "true"}}),
        Namespaces(lambda name: Namespace({}, {})),
        GroupReader(objects),
    )
    return make_app(reviewer).test_client()


def ask(app: flask.testing.FlaskClient, path: str, body: Json, **more: Any) -> Json:
    return dict(app.post(path, json=review(body, **more)).json["response"])


def changes(response: Json) -> dict[str, Json]:
    assert response["allowed"], response
    return {operation["path"]: operation for operation in patch_of(response)}


GROUP_PATH = "/metadata/annotations/bridge.vk.io~1group"


def test_admission_writes_the_group_and_replaces_what_a_user_wrote(app: flask.testing.FlaskClient) -> None:
    patch = changes(ask(app, "/mutate", pod({}, {"a": "b"})))
    assert json.loads(patch[GROUP_PATH]["value"])["size"] == 4
    written = {names.GROUP: patch[GROUP_PATH]["value"], names.GANG: "true"}
    assert GROUP_PATH not in changes(ask(app, "/mutate", pod({}, written)))
    assert ask(app, "/validate", pod({}, written))["allowed"]
    forged = json.dumps({"kind": "job", "name": "j", "uid": "another", "size": 2, "minimum": 2})
    assert changes(ask(app, "/mutate", pod({}, {names.GROUP: forged})))[GROUP_PATH]["value"] == written[names.GROUP]
    assert changes(ask(app, "/mutate", pod({}, {names.GROUP: forged}, owner=None)))[GROUP_PATH]["op"] == "remove"


def test_a_pod_of_another_scheduler_can_not_have_a_group(app: flask.testing.FlaskClient) -> None:
    body = pod({}, {names.GROUP: "{}"}, schedulerName="other")
    assert GROUP_PATH not in changes(ask(app, "/mutate", body))
    response = ask(app, "/validate", body)
    assert "only podbridge sets it" in response["status"]["message"]


def test_an_invalid_group_is_refused_with_422_and_an_unreadable_one_with_its_reason(
    app: flask.testing.FlaskClient, objects: Objects
) -> None:
    objects.add("jobs.batch/j", {"parallelism": 4, "completions": 9})
    response = ask(app, "/mutate", pod())
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    objects.error = KubeForbiddenError("admission may not read jobs.batch", status=403)
    response = ask(app, "/mutate", pod({pod_group_kinds.POD_GROUP_NAME: "g"}))
    assert response["status"]["code"] == 500
    assert "may not read jobs.batch" in response["status"]["message"]
    objects.error = KubeUnavailableError("no answer")
    assert ask(app, "/mutate", pod({pod_group_kinds.POD_GROUP_NAME: "g"}))["status"]["code"] == 503


@pytest.mark.parametrize(
    ("body", "user"),
    [
        (pod({pod_group_kinds.POD_GROUP_NAME: "none"}, schedulerName="other"), "alice"),
        (
            pod(
                {pod_group_kinds.POD_GROUP_NAME: "none"},
                owner={**JOB, "kind": "DaemonSet"},
                schedulerName="default-scheduler",
            ),
            "system:kube-controller-manager",
        ),
    ],
)
def test_pods_that_others_schedule_need_no_group(app: flask.testing.FlaskClient, body: Json, user: str) -> None:
    assert ask(app, "/mutate", body, userInfo={"username": user})["allowed"]


def test_a_pod_for_pools_has_a_group_too(app: flask.testing.FlaskClient, objects: Objects) -> None:
    objects.add("jobs.batch/j", {"parallelism": 4, "completions": 4})
    patch = changes(ask(app, "/mutate", pod({}, {names.POOLS: "far", names.GANG: "true"})))
    assert json.loads(patch[GROUP_PATH]["value"])["size"] == 4
    assert not ask(app, "/mutate", pod({pod_group_kinds.POD_GROUP_NAME: "none"}, {names.POOLS: "far"}))["allowed"]


RULES = Config(scheduler_name=OURS)


@pytest.mark.parametrize("key", [names.GROUP, names.GANG, names.MEMBERS_PER_NODE])
def test_the_group_of_a_pod_can_not_change(key: str) -> None:
    given = {names.GROUP: "{}", names.GANG: "true", names.MEMBERS_PER_NODE: "2"}
    before = pod({}, given)
    for after in ({**given, key: "3"}, {k: v for k, v in given.items() if k != key}):
        changed = validate.update(before, pod({}, after), "alice", RULES)
        (problem,) = changed.invalid + changed.forbidden
        assert key in problem and "cannot be" in problem


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({names.GROUP: "{}"}, "annotation bridge.vk.io/group: kind: 'None' is not allowed"),
        ({names.GANG: "no"}, "annotation bridge.vk.io/gang of the pod: 'no' is not allowed"),
        ({names.MEMBERS_PER_NODE: "no"}, "annotation bridge.vk.io/members-per-node: 'no' is not allowed"),
    ],
)
def test_invalid_annotations_about_groups_do_not_pass_validation(annotations: Json, message: str) -> None:
    (problem,) = validate.create(pod({}, annotations), "alice", RULES).invalid
    assert problem.startswith(message)
