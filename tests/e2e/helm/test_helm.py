"""The life of a release of the chart: installed, changed, rolled back and uninstalled while pods run."""

import base64
import json
import re
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
import requests
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster import places
from cluster.polling import eventually
from cluster.systems import helm, image, install, kube
from cluster.world import LABEL, NAMESPACE
from tests.contract.nats.servers import certificate

pytestmark = pytest.mark.real

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.2; done"


def running_pods(world, count):
    """Create ``count`` pods that run until they are deleted; return their jobs by UID."""
    for _ in range(count):
        world.create(cpu="5m", memory="8Mi", script=FOREVER, terminationGracePeriodSeconds=1)
    eventually(
        lambda: [pod["status"]["phase"] for pod in world.pods()].count("Running") == count, f"{count} pods run", 180
    )
    return alive(world)


def alive(world):
    """Return the job and the number of restarts of each running pod, by UID."""
    return {
        pod["metadata"]["uid"]: (
            pod["metadata"]["labels"][LABEL],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in world.pods()
        if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
    }


def names(release):
    return {part: sorted(pod["metadata"]["name"] for pod in release.pods(part)) for part in helm.PARTS}


def test_pods_of_the_image_are_ready_and_a_job_runs_on_slurm(installed, clean, report, long):
    *_, seconds = installed
    world, release, built = clean
    report(f"helm install to ready pods: {seconds:.1f} s; image: {built.size / 1e6:.0f} MB")
    assert built.size < image.LIMIT_MB * 1e6
    for part in helm.PARTS:
        pods = release.pods(part)
        assert len(pods) == (2 if long else 1) and all(kube.is_ready(pod) for pod in pods)
        for pod in pods:
            (status,) = pod["status"]["containerStatuses"]
            assert status["image"] == built.name and status["restartCount"] == 0
            assert pod["spec"]["securityContext"]["runAsNonRoot"]
            assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    template = world.manifest(script="echo hello; sleep 1", cpu="5m", memory="8Mi", restartPolicy="Never")
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    body = {"metadata": {"name": "hello"}, "spec": {"completions": 3, "parallelism": 3, "template": template}}
    del template["metadata"]["name"]
    world.api("POST", jobs, body)
    eventually(lambda: world.api("GET", f"{jobs}/hello")["status"].get("succeeded") == 3, "the Job complete", 90)
    known = world.jobs_by_uid()
    for pod in world.pods(selector="job-name=hello"):
        assert world.cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"]) == "hello\n"
        assert [job for job, _ in known[pod["metadata"]["uid"]]] == [world.job_of(pod)]
    world.api("DELETE", f"{jobs}/hello?propagationPolicy=Background")


def locked(python):
    """Return the packages of requirements.lock that are for a version of Python: name and version."""
    lines = re.findall(r"(?m)^([\w.-]+==[^\\\n]*)", (places.CHECKOUT / "requirements.lock").read_text())
    found = [Requirement(line) for line in lines]
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    wanted = [each for each in found if not each.marker or each.marker.evaluate(environment)]
    return {f"{canonicalize_name(each.name)}{each.specifier}" for each in wanted}


def test_the_bill_of_materials_of_the_image_has_the_packages_of_the_lock_file(installed):
    *_, built, _ = installed
    bill = json.loads(built.read(image.SBOM))
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", image.version())
    packages = [each for each in bill["components"] if each["purl"].startswith("pkg:pypi/")]
    python = next(each["version"] for each in bill["components"] if each["name"] == "python3-minimal")
    found = {f"{canonicalize_name(each['name'])}=={each['version']}" for each in packages}
    assert found == locked(".".join(python.split(".")[:2]))


def test_the_tests_of_the_chart_pass(clean):
    _, release, _ = clean
    found = release.test()
    assert "Slurm" in found and "webhook" in found


def test_a_user_signs_in_to_the_web_page_of_the_release(clean):
    world, release, _ = clean
    cluster, where = world.cluster, ("-n", NAMESPACE)
    (pod,) = release.pods("dashboard")
    assert kube.is_ready(pod)
    cluster.kubectl("create", "serviceaccount", "reader", *where)
    cluster.kubectl(
        "create", "rolebinding", "reader", "--clusterrole=view", f"--serviceaccount={NAMESPACE}:reader", *where
    )
    token = cluster.kubectl("create", "token", "reader", *where).strip()
    seen = world.create("seen", cpu="5m", memory="8Mi", script="sleep 1")
    command = [str(install.binaries()["kubectl"]), f"--kubeconfig={cluster.kubeconfig}", "-n", helm.NAMESPACE]
    with subprocess.Popen(
        [*command, "port-forward", "deploy/podbridge-dashboard", ":8088"], stdout=subprocess.PIPE, text=True
    ) as forward:
        try:
            page = "http://" + forward.stdout.readline().split()[2]
            browser = requests.Session()
            assert 'type="password"' in browser.get(page, timeout=20).text
            browser.post(f"{page}/sign-in", {"token": token}, timeout=20).raise_for_status()
            eventually(lambda: ">seen</a>" in browser.get(f"{page}/pods", timeout=20).text, "the pod on the page")
            assert "You may not list nodes" in browser.get(page, timeout=20).text
        finally:
            forward.terminate()
    world.delete(seen, 0)


@contextmanager
def admitting(world):
    """Create pods without pause, as a dry run, and fail if the webhook did not admit one; yield nothing."""
    path, probe = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", world.manifest("probe")
    stop, admitted, refused = threading.Event(), [], []

    def ask():
        while not stop.wait(0.1):
            try:
                scheduler = world.api("POST", path, probe)["spec"]["schedulerName"]
            except requests.RequestException as error:
                refused.append(str(error))
            else:
                (refused if scheduler == "default-scheduler" else admitted).append(scheduler)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()
    assert admitted and not refused


@pytest.fixture
def own_certificate(installed, tmp_path):
    """Create the Secret ``own`` with a certificate for the webhook; yield the files of its CA and certificate."""
    world, release, *_ = installed
    path = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets"
    ca, cert, key = certificate(tmp_path, f"{release.name}-admission.{helm.NAMESPACE}.svc")
    files = {"ca.crt": ca, "tls.crt": cert, "tls.key": key}
    data = {name: base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}
    world.api("POST", path, {"metadata": {"name": "own"}, "type": "kubernetes.io/tls", "data": data})
    yield ca, cert
    world.api("DELETE", f"{path}/own")


def test_upgrade_rollback_and_uninstall_leave_running_pods_alone(clean, own_certificate, report, long):
    world, release, _ = clean
    authority, cert = own_certificate
    count = 100 if long else 10
    before = running_pods(world, count)
    first, old = release.revision(), names(release)

    with admitting(world):
        own = {"tls": {"existingSecret": "own"}}
        upgrade = release.install({"config": {"busyNodeTimeout": 77}, "admission": own})
    changed = names(release)
    for pod in release.pods("admission"):
        assert ssl.get_server_certificate((pod["status"]["podIP"], 9443)) == cert.read_text()
    (webhook, *_) = world.api("GET", f"{WEBHOOKS}/podbridge-mutate")["webhooks"]
    assert authority.read_text() in base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
    assert all(not set(old[part]) & set(changed[part]) for part in helm.PARTS), "a changed configuration rolls all pods"
    maps = world.api("GET", f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps")["items"]
    assert any("busyNodeTimeout: 77" in json.dumps(found.get("data")) for found in maps)
    assert alive(world) == before
    another = world.create(cpu="5m", memory="8Mi", script=FOREVER, terminationGracePeriodSeconds=1)
    world.running(another, 60)
    world.delete(another)
    world.gone(another)

    begun = time.monotonic()
    with admitting(world):
        release.rollback(first)
    rollback = time.monotonic() - begun
    assert release.revision() == first + 2
    assert alive(world) == before

    release.uninstall()
    assert not any(release.pods(part) for part in helm.PARTS)
    assert alive(world) == before
    queue = world.queue()
    assert sorted(queue) == sorted(int(job) for job, _ in before.values()), "each pod has its job, and no job is double"
    assert set(queue.values()) == {"RUNNING"}
    probe = world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", world.manifest("probe"))
    assert probe["spec"]["schedulerName"] == "default-scheduler", "no webhook is left"

    install_again = release.install()
    report(f"{count} pods run: upgrade {upgrade:.0f} s, rollback {rollback:.0f} s, installation {install_again:.0f} s")
    admitted = world.create(cpu="5m", memory="8Mi", script=FOREVER, terminationGracePeriodSeconds=1)
    world.running(admitted, 90)
    world.delete(admitted)
    world.gone(admitted)
    assert alive(world) == before
    assert sorted(world.queue()) == sorted(int(job) for job, _ in before.values())
    for uid, jobs in world.jobs_by_uid().items():
        if uid in before:
            assert [str(job) for job, _ in jobs] == [before[uid][0]], "each pod had one job"
