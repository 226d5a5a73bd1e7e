"""A pod is complete until its job is submitted; afterwards it has only the fields for its status."""

import json
import time

from bridge import names
from bridge.core.threads import at_once
from bridge.protocol.model import pod_status as statuses
from bridge.protocol.model.jobs import ContainerState, JobStatus
from bridge.script import references, volume_files
from controllers.virtual.prune_nodes import SharedSources, prune
from tests import builders


def pod(annotations=None, phase="Pending"):
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
    ca = {"configMap": {"name": "kube-root-ca.crt"}}
    whole = builders.pod(
        "u",
        node="site",
        annotations=annotations,
        metadata={"name": "p", "labels": {"a": "b"}},
        restartPolicy="OnFailure",
        serviceAccountName="sa",
        containers=[{"name": "main", "image": "i", "env": [{"name": "SECRET", "value": "x" * 9000}]}],
        volumes=[
            {"name": "t", "projected": {"defaultMode": 420, "sources": [token, ca]}},
            {"name": "e", "emptyDir": {}},
        ],
    )
    return {**whole, "status": {"phase": phase}}


def test_a_pod_that_is_to_be_submitted_is_whole():
    assert prune(pod({"other": "x"})) == pod({"other": "x"})


def test_a_pod_at_its_site_is_small_and_still_enough():
    small = prune(pod({names.REMOTE_JOB: "site/7", "other": "x"}))
    assert len(json.dumps(small)) < 700
    assert small["metadata"]["annotations"] == {names.REMOTE_JOB: "site/7"}
    job = JobStatus(job="u", namespace="ns", name="p", phase="running", containers=[ContainerState(name="main")])
    whole = pod({names.REMOTE_JOB: "site/7"})
    assert statuses.pod_status(small, job, "10.0.0.1", 1e9) == statuses.pod_status(whole, job, "10.0.0.1", 1e9)
    assert references.needed(small).tokens == references.needed(whole).tokens
    assert prune(small) == small


def test_an_exposed_pod_keeps_what_services_select():
    whole = pod({names.REMOTE_JOB: "site/7", names.EXPOSE: "true", "other": "x"}, phase="Running")
    whole["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 80}]
    small = prune(whole)
    assert small["metadata"]["labels"] == {"a": "b"}
    assert small["metadata"]["annotations"] == {names.REMOTE_JOB: "site/7", names.EXPOSE: "true"}
    assert small["spec"]["containers"][0]["ports"] == [{"name": "http", "containerPort": 80}]
    assert prune(small) == small
    whole["status"]["phase"] = "Failed"
    assert "labels" not in prune(whole)["metadata"]


def test_what_volumes_show_stays():
    """A pod at its site keeps the volumes whose files follow objects, with the labels and annotations in them."""
    items = [
        {"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations['ready']"}},
    ]
    whole = pod({names.REMOTE_JOB: "site/7", "ready": "x", "other": "y"})
    whole["spec"]["volumes"] += [
        {"name": "d", "downwardAPI": {"items": items}},
        {"name": "c", "configMap": {"name": "settings"}},
        {"name": "s", "secret": {"secretName": "login", "optional": True}},
    ]
    small = prune(whole)
    assert small["metadata"]["labels"] == {"a": "b"}
    assert small["metadata"]["annotations"] == {names.REMOTE_JOB: "site/7", "ready": "x"}
    assert references.of_volumes(small) == references.of_volumes(whole)
    assert volume_files.shown(small) == volume_files.shown(whole)
    assert [volume["name"] for volume in small["spec"]["volumes"]] == ["t", "d", "c", "s"]
    assert prune(small) == small
    del whole["metadata"]["labels"], whole["metadata"]["annotations"]["ready"]
    assert volume_files.shown(prune(whole)) == ({}, None)
    assert "volumes" not in prune(whole | {"status": {"phase": "Succeeded"}})["spec"]


def test_equal_volumes_of_pods_are_one_object():
    one, other = (prune(pod({names.REMOTE_JOB: "site/7"}))["spec"]["volumes"][0] for _ in range(2))
    assert one["projected"] is other["projected"]


def test_a_pod_that_ended_without_a_job_is_small():
    assert "labels" not in prune(pod(phase="Failed"))["metadata"]


def test_threads_share_one_source():
    sources, made = SharedSources(), []

    def make():
        time.sleep(0.01)
        made.append(([len(made)], []))
        return made[-1]

    found = at_once(4, lambda _: sources.get("secret a", make), range(4))
    assert len(made) == 1
    assert all(source is made[0] for source in found.values())
