from __future__ import annotations

import json

from bridge.kube.prune import LAST_APPLIED, prune_node, prune_pod

POD = {
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "1",
        "generateName": "a-",
        "labels": {"l": "1"},
        "annotations": {"a": "1", LAST_APPLIED: "SECRET"},
        "finalizers": ["f"],
        "ownerReferences": [{"kind": "Job"}],
        "deletionTimestamp": "t",
        "deletionGracePeriodSeconds": 30,
    },
    "spec": {
        "schedulerName": "s",
        "nodeName": "n",
        "priority": 0,
        "affinity": {"nodeAffinity": {"x": 1}, "podAffinity": {"y": 1}},
        "schedulingGates": [{"name": "g"}],
        "volumes": [{"secret": "SECRET"}],
        "containers": [
            {"name": "c", "image": "SECRET", "env": [{"value": "SECRET"}], "resources": {"requests": {"cpu": "1"}}}
        ],
        "initContainers": [{"name": "i", "restartPolicy": "Always", "command": ["SECRET"]}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready"}], "containerStatuses": [{"image": "SECRET"}]},
}


def test_pod_keeps_what_is_read_and_nothing_else() -> None:
    kept = prune_pod(POD)
    assert "SECRET" not in json.dumps(kept)
    assert kept["spec"] == {
        "schedulerName": "s",
        "nodeName": "n",
        "priority": 0,
        "affinity": {"nodeAffinity": {"x": 1}},
        "schedulingGates": [{"name": "g"}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
    }
    assert kept["status"] == {"phase": "Running", "conditions": [{"type": "Ready"}]}
    assert kept["metadata"]["annotations"] == {"a": "1"}
    assert set(kept["metadata"]) == set(POD["metadata"]) - {"generateName"}
    assert (kept["apiVersion"], kept["kind"]) == ("v1", "Pod")


def test_of_a_pod_without_a_node_it_keeps_the_names_of_secrets_and_the_requests_for_tokens() -> None:
    projected = [{"configMap": {"name": "m"}}, {"serviceAccountToken": {"path": "t", "audience": "vault"}}]
    secret_env = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}
    spec = {
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [
            {"name": "a", "secret": {"secretName": "s2"}},
            {"name": "b", "configMap": {"name": "m"}},
            {"name": "c", "projected": {"sources": projected}},
            {"name": "kube-api-access-x7k2p", "projected": {"sources": projected}},
            {"name": "d", "projected": {"sources": projected[:1]}},
            {"name": "e", "projected": {"sources": [{"secret": {"name": "s3"}}]}},
        ],
        "containers": [
            {"name": "c", "env": [{"name": "B", "value": "plain"}, secret_env], "envFrom": [{"configMapRef": {}}]}
        ],
        "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s4"}}, {"configMapRef": {"name": "m"}}]}],
    }
    kept = prune_pod({"metadata": {"name": "a"}, "spec": spec})["spec"]
    assert kept == {
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [spec["volumes"][0], spec["volumes"][2], spec["volumes"][5]],
        "containers": [{"name": "c", "env": [secret_env]}],
        "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s4"}}]}],
    }
    bound = prune_pod({"metadata": {"name": "a"}, "spec": {**spec, "nodeName": "n"}})["spec"]
    assert bound == {"nodeName": "n", "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}


def test_pod_with_nothing_in_it() -> None:
    assert prune_pod({"metadata": {"name": "a"}, "spec": None})["metadata"] == {"name": "a"}


def test_pruning_twice_changes_nothing_and_the_original_stays() -> None:
    before = json.dumps(POD)
    once = prune_pod(POD)
    assert prune_pod(once) == once
    assert json.dumps(POD) == before


def test_node() -> None:
    node = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k"}], "podCIDR": "10.0.0.0/24"},
        "status": {
            "allocatable": {"cpu": "4"},
            "capacity": {"cpu": "5"},
            "images": [{"names": ["big"]}],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastHeartbeatTime": "t"}
            ],
        },
    }
    kept = prune_node(node)
    assert kept["spec"] == {"unschedulable": True, "taints": [{"key": "k"}]}
    assert kept["status"] == {
        "allocatable": {"cpu": "4"},
        "capacity": {"cpu": "5"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
    }


def test_pod_without_a_node_keeps_its_claims() -> None:
    claims = {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": "t"}]}
    status = {
        "resourceClaimStatuses": [{"name": "d", "resourceClaimName": "x"}],
        "extendedResourceClaimStatus": {"a": 1},
    }
    waiting = prune_pod({"metadata": {}, "spec": claims, "status": status})
    assert waiting["spec"] == claims
    assert waiting["status"] == status
    bound = prune_pod({"metadata": {}, "spec": {**claims, "nodeName": "n"}, "status": status})
    assert bound["spec"] == {"nodeName": "n"}
    assert bound["status"] == {}
