"""What admission reads of the owners of a pod."""

import pytest

from admission.owner_annotations import OwnerAnnotations, read_from
from bridge import names
from bridge.workload import annotations

TIME_LIMIT = names.TIME_LIMIT


class Client:
    """The API server's answers by the path of the object."""

    def __init__(self, **objects):
        self.objects = {f"/apis/{path.replace('__', '/')}": obj for path, obj in objects.items()}
        self.metadata_only = {}

    def get(self, path, params=None, *, metadata_only=False):
        self.metadata_only[path] = metadata_only
        return self.objects[path]


def owned_by(api_version, kind, name):
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    return {"metadata": {"ownerReferences": [reference]}}


def obj(name, annotations=None, owner=None, **spec):
    metadata = {"name": name, "uid": f"uid-{name}", "annotations": annotations or {}}
    return {"metadata": metadata | (owner or {"metadata": {}})["metadata"], "spec": spec}


def inherited(client, owner):
    return OwnerAnnotations(read_from(client)).annotations(owner, "ns")


JOB = "batch__v1__namespaces__ns__jobs__j"
PATH = "/apis/batch/v1/namespaces/ns/jobs/j"


def test_a_pod_gets_the_deadline_of_its_job():
    client = Client(**{JOB: obj("j", {TIME_LIMIT: "5", "other": "x"}, activeDeadlineSeconds=90)})
    assert inherited(client, owned_by("batch/v1", "Job", "j")) == {TIME_LIMIT: "5", names.JOB_DEADLINE: "90"}
    assert client.metadata_only == {PATH: False}


def test_a_deadline_that_only_a_job_can_have_is_the_longest_of_a_pod():
    """The API server limits that of a pod to 32 bits, and that of a Job not: its pods would all be refused."""
    client = Client(**{JOB: obj("j", activeDeadlineSeconds=100 * 365 * 86400)})
    found = inherited(client, owned_by("batch/v1", "Job", "j"))
    assert annotations.read(found) == {names.JOB_DEADLINE: 2**31 - 1}


@pytest.mark.parametrize("spec", [{}, {"activeDeadlineSeconds": None}, {"activeDeadlineSeconds": 0}])
def test_a_job_without_a_deadline_limits_nothing(spec):
    assert inherited(Client(**{JOB: obj("j", **spec)}), owned_by("batch/v1", "Job", "j")) == {}


def test_of_other_owners_only_the_metadata_is_read():
    job = obj("j", owner=owned_by("jobset.x-k8s.io/v1alpha2", "JobSet", "s"), activeDeadlineSeconds=90)
    jobset = obj("s", {TIME_LIMIT: "7"}, activeDeadlineSeconds=5)
    client = Client(**{JOB: job, "jobset.x-k8s.io__v1alpha2__namespaces__ns__jobsets__s": jobset})
    assert inherited(client, owned_by("batch/v1", "Job", "j")) == {TIME_LIMIT: "7", names.JOB_DEADLINE: "90"}
    assert list(client.metadata_only.values()) == [False, True]


def test_the_deadline_of_another_job_of_the_name_does_not_count():
    found = obj("j", activeDeadlineSeconds=90)
    found["metadata"]["uid"] = "other"
    assert inherited(Client(**{JOB: found}), owned_by("batch/v1", "Job", "j")) == {}
