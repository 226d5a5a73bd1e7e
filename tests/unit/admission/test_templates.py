"""The webhook that warns at the creation of a Job and its kin of what will be refused in their pods."""

from typing import Any

import pytest

from admission import reviewer
from admission.review import TEMPLATES
from bridge import names
from bridge.errors import KubeUnavailableError
from bridge.kube.namespaces import Namespace
from tests.unit.admission.test_app import OURS, World, ask, client, review

MEMORY = {"resources": {"requests": {"memory": "1Gi"}}}
LIMIT = "annotation slurmjob.slinky.slurm.net/timelimit: 'soon' is not allowed"


def template(annotations: dict[str, str] | None = None, container: Any = MEMORY, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", **container}], **spec},
    }


def job(pod: Any, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Job",
        "metadata": {"name": "train", "annotations": annotations or {}},
        "spec": {"template": pod, **spec},
    }


def warn(document: Any, resource: str = "jobs.batch", world: World | None = None, **settings: Any) -> list[str]:
    plural, _, group = resource.partition(".")
    body = review(document, resource={"group": group, "version": "v1", "resource": plural})
    answer = ask(client(world or World(), **settings), "/validate/templates", body)
    assert answer["allowed"] and "patch" not in answer
    return list(answer.get("warnings") or ())


def test_a_job_whose_pods_are_accepted_has_no_warning() -> None:
    assert warn(job(template())) == []


@pytest.mark.parametrize("place", ["template", "job"])
def test_an_invalid_annotation_is_warned_about_wherever_it_is(place: str) -> None:
    bad = {names.TIME_LIMIT: "soon"}
    document = job(template(bad)) if place == "template" else job(template(), bad)
    (warning,) = warn(document)
    assert warning.startswith(f"pods of Job train will be refused: {LIMIT}")


_JOB = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template()}
_OF_GROUPS = {
    "jobs.batch": ("Job", _JOB),
    "cronjobs.batch": ("CronJob", {"jobTemplate": {"spec": _JOB}}),
    "jobsets.jobset.x-k8s.io": (
        "JobSet",
        {"replicatedJobs": [{"name": "a", "replicas": 2, "template": {"spec": _JOB}}]},
    ),
    "leaderworkersets.leaderworkerset.x-k8s.io": (
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
    ),
}


@pytest.mark.parametrize("resource", _OF_GROUPS)
def test_an_object_whose_pods_are_a_group_has_no_warning(resource: str) -> None:
    """The API server has given the object its UID before it asks."""
    kind, spec = _OF_GROUPS[resource]
    metadata = {"name": "train", "uid": "0c6ee6e9-0000-4000-8000-000000000001", "annotations": {names.GANG: "true"}}
    assert warn({"kind": kind, "metadata": metadata, "spec": spec}, resource) == []


def test_what_only_warns_for_a_pod_only_warns_for_its_job() -> None:
    (warning,) = warn(job(template(container={})))
    assert warning.startswith("pods of Job train: spec.containers: no container requests memory")


def test_each_template_counts_and_the_same_warning_stands_once() -> None:
    bad = {"spec": {"template": template({names.TIME_LIMIT: "soon"})}}
    jobset = {
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [{"name": "a", "template": bad}, {"name": "b", "template": bad}]},
    }
    assert len(warn(jobset, "jobsets.jobset.x-k8s.io")) == 1
    workers = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": bad["spec"]["template"]}}
    lws = {"kind": "LeaderWorkerSet", "metadata": {"name": "train"}, "spec": workers}
    assert len(warn(lws, "leaderworkersets.leaderworkerset.x-k8s.io")) == 1
    cron = {"kind": "CronJob", "metadata": {"name": "nightly"}, "spec": {"jobTemplate": bad}}
    assert warn(cron, "cronjobs.batch")[0].startswith("pods of CronJob nightly will be refused")


def test_a_value_beyond_the_policy_of_the_namespace_is_warned_about() -> None:
    policies = [{"namespaces": ["*"], "allowed": {"qos": ["short"]}}]
    (warning,) = warn(job(template({names.QOS: "long"})), namespacePolicies=policies)
    assert "'long' is not allowed" in warning and "allowed: short" in warning


def test_an_invalid_group_is_warned_about() -> None:
    gang = {names.GANG: "perhaps"}
    (warning,) = warn(job(template(), gang, completionMode="Indexed", completions=2, parallelism=2))
    assert names.GANG in warning


def test_pods_of_another_scheduler_and_of_other_namespaces_are_not_previewed() -> None:
    bad = {names.TIME_LIMIT: "soon"}
    assert warn(job(template(bad, schedulerName="volcano"))) == []
    assert warn(job(template(bad)), managedNamespaces=["elsewhere"]) == []
    named = warn(job(template(bad, schedulerName=OURS)), managedNamespaces=["elsewhere"])
    assert [text.partition(":")[2][:12] for text in named] == [" annotation ", " spec.schedu"]


def test_nothing_that_fails_denies_a_job() -> None:
    class Down(World):
        def namespace(self, name: str) -> Namespace:
            raise KubeUnavailableError("no answer")

    assert warn(job(template({names.TIME_LIMIT: "soon"})), world=Down()) == []
    assert warn(job({"spec": {"containers": "none"}})) == []


@pytest.mark.parametrize("resource", ["pods", "secrets", "jobs.example.com"])
def test_other_resources_are_no_templates(resource: str) -> None:
    assert resource not in TEMPLATES
    plural, _, group = resource.partition(".")
    body = review(job(template()), resource={"group": group, "version": "v1", "resource": plural})
    assert client(World()).post("/validate/templates", json=body).status_code == 400


def test_an_object_with_many_templates_or_deep_fields_costs_little() -> None:
    entry = {"template": {"spec": {"template": template({names.TIME_LIMIT: "soon"})}}}
    entries = [{"name": f"r{number}", **entry} for number in range(reviewer.MOST_TEMPLATES + 1)]
    entries[-1] = {"name": "last", "template": {"spec": {"template": template({names.QOS: "a b"})}}}
    jobset = {"kind": "JobSet", "metadata": {"name": "train"}, "spec": {"replicatedJobs": entries}}
    assert len(warn(jobset, "jobsets.jobset.x-k8s.io")) == 1
    deep: dict[str, Any] = {}
    for _ in range(700):
        deep = {"spec": deep}
    assert warn(job(template()) | {"status": deep}) == []
