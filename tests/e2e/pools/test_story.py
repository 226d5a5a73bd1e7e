"""The main use of pools on real systems."""

import json
import signal
import time

import pytest

from bridge.workload import quantity
from cluster.polling import eventually
from cluster.pools import NAMESPACE

pytestmark = pytest.mark.real
SITES = ("slurm-site", "local-site", "condor-site", "apptainer-site")
TAINTS = {"virtual-node.interlink/no-schedule": "true"}


class TestNodes:
    def test_each_pool_has_a_virtual_node_with_what_the_site_offers(self, pools_world, pool):
        pools_world.ready(pool)
        # the API server taints each new node as not ready; kube-controller-manager removes the taint
        wanted = {**TAINTS, "pool.vk.io": pool}
        eventually(
            lambda: {t["key"]: t.get("value") for t in pools_world.kube_node(pool)["spec"]["taints"]} == wanted,
            "tainted",
        )
        node = pools_world.kube_node(pool)
        assert node["metadata"]["labels"]["bridge.vk.io/pool"] == pool
        offered = node["status"]["allocatable"]
        assert all(quantity.parse(offered[name]) > 0 for name in ("cpu", "memory", "pods"))

    def test_a_silent_site_is_not_ready_and_says_its_last_words(self, pools_world):
        pool = "local-site"
        pools_world.cluster.kill("local-site-submitter", signal.SIGSTOP)
        try:
            eventually(lambda: pools_world.readiness(pool).get("status") == "False", "not ready", 60)
            assert "last heard" in pools_world.readiness(pool)["message"]
            waiting = pools_world.run("echo late", pool)
            eventually(
                lambda: "SiteSilent" in pools_world.condition(waiting, "PodScheduled").get("message", ""), "told"
            )
            report = pools_world.explained("pod", waiting["metadata"]["name"], waiting["metadata"]["namespace"])
            assert "SiteSilent" in report["summary"]
            (place,) = report["places"]
            assert (place["place"], place["eligible"]) == (pool, True)
            assert place["reason"].startswith("not ready: SiteSilent: last heard")
        finally:
            pools_world.cluster.kill("local-site-submitter", signal.SIGCONT)
        pools_world.ready(pool)
        assert pools_world.ended(waiting)["status"]["phase"] == "Succeeded"


class TestPods:
    def test_a_pod_runs_and_its_end_is_on_it(self, pools_world, pool):
        pod = pools_world.run("echo hello; exit 7", pool)
        found = pools_world.ended(pod)
        assert found["spec"]["nodeName"] == pool
        assert pools_world.remote_job(found).startswith(f"{pool}/")
        ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (7, "Error")
        assert "hello" in pools_world.logs(pod)

    def test_a_job_is_spread_over_the_pools_that_its_namespace_opens(self, pools_world):
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo done"]}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        spec = {"parallelism": 12, "completions": 12, "template": template}
        pools_world.api("POST", path, {"metadata": {"name": "spread"}, "spec": spec})
        eventually(lambda: pools_world.api("GET", f"{path}/spread")["status"].get("succeeded") == 12, "complete", 90)
        pods = pools_world.pods(NAMESPACE, "job-name=spread")
        assert all(pools_world.remote_job(pod) for pod in pods)

    def test_volumes_follow_their_objects(self, pools_world):
        """A Tekton step waits for an annotation in a file (virtual-kubelet/azure-aci#91); virtual-kubelet#158."""
        world, kubectl = pools_world, pools_world.cluster.kubectl
        data = {"mode": "one", "gone": "x"}
        world.api(
            "POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": {"name": "followed"}, "data": data}
        )
        items = [
            {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['tekton.dev/ready']"}},
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        ]
        script = (
            'until [ -s /down/ready ] && [ "$(cat /conf/mode)" = two ] && [ ! -e /conf/gone ]; do sleep 0.2; done; '
            "echo $(cat /conf/new /fixed /down/labels)"
        )
        mounts = [
            {"name": "conf", "mountPath": "/conf"},
            {"name": "conf", "mountPath": "/fixed", "subPath": "mode"},
            {"name": "down", "mountPath": "/down"},
        ]
        spec = {
            "volumes": [
                {"name": "conf", "configMap": {"name": "followed"}},
                {"name": "down", "downwardAPI": {"items": items}},
            ],
            "containers": [
                {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mounts}
            ],
            "restartPolicy": "Never",
        }
        pods = [world.create_pod(spec, site) for site in SITES]
        for pod in pods:
            world.running(pod)
        change = {"data": {"mode": "two", "gone": None, "new": "key"}}
        kubectl("patch", "configmap", "followed", "-n", NAMESPACE, "--type=merge", "-p", json.dumps(change))
        names = [pod["metadata"]["name"] for pod in pods]
        kubectl("label", "pod", "-n", NAMESPACE, *names, "team=b")
        kubectl("annotate", "pod", "-n", NAMESPACE, *names, "tekton.dev/ready=READY")
        for pod in pods:
            assert world.ended(pod, 30)["status"]["phase"] == "Succeeded"
            assert world.logs(pod) == 'keyoneteam="b"\n'

    def test_logs_with_every_option(self, pools_world):
        pod = pools_world.run("for i in 1 2 3 4 5; do echo line $i; sleep 1; done", "slurm-site")
        pools_world.running(pod)
        follow = pools_world.follow(pod)
        assert follow.communicate(timeout=30)[0] == "".join(f"line {n}\n" for n in range(1, 6))
        pools_world.ended(pod)
        assert pools_world.logs(pod, "--tail=2") == "line 4\nline 5\n"
        assert pools_world.logs(pod, "--tail=0") == ""
        assert pools_world.logs(pod, "--limit-bytes=6") == "line 1"
        stamped = pools_world.logs(pod, "--timestamps").splitlines()
        assert [line.split(" ", 1)[1] for line in stamped] == [f"line {n}" for n in range(1, 6)]
        assert stamped == sorted(stamped)
        assert pools_world.logs(pod, "--since=1h").count("\n") == 5
        time.sleep(3)
        assert pools_world.logs(pod, "--since=1s") == ""
        assert "previous terminated container" in pools_world.logs(pod, "--previous", check=False)

    def test_a_long_log_has_its_last_lines(self, pools_world):
        pod = pools_world.run("seq 10000000 16999999", "local-site")  # 60 MiB, of which the site stores 40 to 50
        pools_world.ended(pod)
        kept = pools_world.log_bytes(pod)
        assert 40 * 2**20 <= len(kept) <= 50 * 2**20
        numbers = kept.split()
        assert (int(numbers[0]), numbers[-1]) == (17_000_000 - len(kept) // 9, b"16999999")
        assert pools_world.logs(pod, "--tail=1") == "16999999\n"

    def test_a_pod_deleted_while_it_waits_leaves_nothing(self, pools_world, pool):
        pod = pools_world.run("sleep 60", pool, terminationGracePeriodSeconds=1)
        pools_world.taken(pod)
        pools_world.delete(pod)
        pools_world.gone(pod)
        eventually(lambda: pod["metadata"]["uid"] not in pools_world.jobs_at(pool), "nothing at the site")

    def test_both_sides_allowed(self, pools_world):
        pools_world.ready("local-site")  # its submitter has just started
        local = pools_world.run("sleep 1", "local,local-site", name="either-local")
        remote = pools_world.run("sleep 1", "local-site,local", name="either-remote")
        assert pools_world.bound(local)["spec"]["nodeName"].startswith("node-")
        assert pools_world.bound(remote)["spec"]["nodeName"] == "local-site"
        for pod in (local, remote):
            pools_world.delete(pod, 0)
