"""The use of CPU and memory of pods at sites: what a kubelet serves, and ``kubectl top`` with metrics-server."""

import contextlib
import json
import re
import subprocess
import time

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.systems import install, metrics_server
from tests.e2e.pools.cases import pod, sh
from tests.e2e.pools.conftest import SITES

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:Unverified HTTPS request")]

CPU, MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
HELD = 16 * 2**20
# a shell that holds memory, and computes for a part of the time
BUSY = (
    f"held=$(head -c {HELD} /dev/zero | tr '\\0' x); "
    "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.3; done"
)


@pytest.fixture(scope="module")
def busy(pools_world):
    """A pod at each site, by its pool; they compute, and have a second container that does not."""
    pods = {pool: pools_world.create_pod(pod(sh(BUSY), sh("sleep 600", name="idle")), pool) for pool in SITES}
    for one in pods.values():
        pools_world.running(one, 60)
    yield pods
    for one in pods.values():
        pools_world.delete(one, 1)


@pytest.fixture(scope="module")
def scraper(pools_world):
    """The token of an account that may read ``nodes/metrics`` and nothing else."""
    kubectl, account = pools_world.cluster.kubectl, f"{NAMESPACE}:scraper"
    kubectl("create", "serviceaccount", "scraper", "-n", NAMESPACE)
    kubectl("create", "clusterrole", "scraper", "--verb=get", "--resource=nodes/metrics")
    kubectl("create", "clusterrolebinding", "scraper", "--clusterrole=scraper", f"--serviceaccount={account}")
    return kubectl("create", "token", "scraper", "-n", NAMESPACE).strip()


def scraped(world, token, pool):
    """Return the samples of a virtual node by name and labels; the address is that in the node's status."""
    node = world.kube_node(pool)
    path = node["metadata"]["annotations"]["metrics.k8s.io/resource-metrics-path"]
    (address,) = (each["address"] for each in node["status"]["addresses"])
    host = f"{address}:{node['status']['daemonEndpoints']['kubeletEndpoint']['Port']}"
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(f"https://{host}{path}", headers=headers, verify=False, timeout=20)
    answer.raise_for_status()
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    return {(sample.name, *sorted(sample.labels.items())): (sample.value, sample.timestamp) for sample in samples}


def test_the_metrics_of_a_kubelet_have_real_numbers(pools_world, busy, scraper):
    def of(samples, pool, name, container):
        labels = ("container", container), ("namespace", NAMESPACE), ("pod", busy[pool]["metadata"]["name"])
        return samples[pool].get((name, *labels), (0, 0))

    def measured():
        samples = {pool: scraped(pools_world, scraper, pool) for pool in SITES}
        return samples if all(of(samples, pool, MEMORY, "main")[0] > HELD for pool in SITES) else None

    samples = eventually(measured, "the memory at each site", 60)
    for pool in SITES:
        assert of(samples, pool, MEMORY, "main")[0] < 8 * HELD
        assert 0 < of(samples, pool, MEMORY, "idle")[0] < HELD
        value, at = of(samples, pool, CPU, "main")
        assert 30 > value > of(samples, pool, CPU, "idle")[0] > 0
        assert abs(time.time() - at) < 30
        assert samples[pool]["node_memory_working_set_bytes",][0] > HELD
        assert samples[pool]["resource_scrape_error",][0] == 0


@contextlib.contextmanager
def autoscaled(world):
    """A Deployment of one busy pod at a site; its HorizontalPodAutoscaler allows two."""
    labels, container = {"app": "scaled"}, sh(BUSY, resources={"requests": {"cpu": "20m"}})
    metadata = {"labels": labels, "annotations": {"bridge.vk.io/pools": "local-site"}}
    template = {"metadata": metadata, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    named = {"metadata": {"name": "scaled", "namespace": NAMESPACE}}
    kind = {"apiVersion": "apps/v1", "kind": "Deployment"}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
    limits = {"minReplicas": 1, "maxReplicas": 2}
    items = [
        kind | named | {"spec": {"selector": {"matchLabels": labels}, "template": template}},
        named
        | {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
        | {"spec": {"scaleTargetRef": {**kind, "name": "scaled"}, "metrics": [cpu], **limits}},
    ]
    kubectl = world.cluster.kubectl
    kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    yield
    kubectl("delete", "hpa,deployment", "scaled", "-n", NAMESPACE)
    eventually(lambda: not kubectl("get", "pods", "-l", "app=scaled", "-n", NAMESPACE, "-o", "name"), "no pod is left")


@pytest.mark.long_only
def test_kubectl_top_and_an_autoscaler_with_metrics_server(pools_world, busy, tmp_path):
    install.ensure(modules=[install.METRICS_SERVER])
    cluster = pools_world.cluster

    def top(*words):
        lines = [line.split() for line in cluster.kubectl("top", *words, "--no-headers", check=False).splitlines()]
        return {" ".join(words[:-2]): words[-2:] for words in lines if len(words) > 2 and words[0] != "error:"}

    def known(found, wanted):
        return found if set(wanted) <= found.keys() else None

    def numbers(cpu, memory):
        return int(re.fullmatch(r"(\d+)m", cpu)[1]), int(re.fullmatch(r"(\d+)Mi", memory)[1])

    names = {one["metadata"]["name"] for one in busy.values()}
    server = metrics_server.running(cluster.kubectl, cluster.kubeconfig, tmp_path / "metrics-server")
    with autoscaled(pools_world), server:
        pods = eventually(lambda: known(top("pod", "-n", NAMESPACE), names), "kubectl top pod", 90)
        for name in names:
            cpu, memory = numbers(*pods[name])
            assert 20 < cpu < 1500, (name, cpu)
            assert 16 <= memory < 160, (name, memory)
        containers = top("pod", "-n", NAMESPACE, "--containers")
        assert {f"{name} {container}" for name in names for container in ("main", "idle")} <= containers.keys()
        nodes = eventually(
            lambda: (found := nodes_of(cluster)) and set(SITES) <= found.keys() and found, "top node", 60
        )
        for pool in SITES:
            cpu, memory = nodes[pool][0], nodes[pool][2]
            assert 20 < int(cpu.removesuffix("m")) < 1500
            assert 16 <= int(memory.removesuffix("Mi")) < 200
        measured = {each["pool"]: each["measured_memory"] for each in json.loads(podbridge_top(cluster))["pools"]}
        assert all(int(measured[pool].removesuffix("Mi")) >= 16 for pool in SITES)
        ready = ("get", "deployment", "scaled", "-n", NAMESPACE, "-o", "jsonpath={.status.readyReplicas}")
        eventually(lambda: cluster.kubectl(*ready) == "2", "two pods by their CPU", 120)


def podbridge_top(cluster):
    files = ["--config", str(cluster.state / "podbridge.yaml"), "--kubeconfig", str(cluster.kubeconfig)]
    env = {**cluster.env, "PATH": "/usr/bin:/bin"}
    command = [str(cluster.state / "bin" / "podbridge"), "top", "-o", "json", *files]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def nodes_of(cluster):
    """Return the line of each node of ``kubectl top node``: CPU, its share, memory, its share."""
    lines = [line.split() for line in cluster.kubectl("top", "node", "--no-headers", check=False).splitlines()]
    return {words[0]: words[1:] for words in lines if len(words) == 5 and words[1] != "<unknown>"}
