"""Each command of docs/quick-start.md, on a cluster without podbridge; then those of docs/admins/upgrade.md."""

import base64
import json
import os
import time

import pytest

import release
from bridge.slurm.auth import claims
from cluster import Cluster, places
from cluster.polling import eventually
from cluster.systems import debian, helm, image, install, oci, realnode
from cluster.systems.registry import Registry
from cluster.world import NAMESPACE
from tests.docs_blocks import DOCS, Shell, blocks, command

pytestmark = pytest.mark.real

PAGE = DOCS / "quick-start.md"
TOKEN = ("get", "secret", "slurm-bridge-token", "--namespace=podbridge", "--output=jsonpath={.data.auth-token}")


@pytest.fixture
def bare(installed):
    """The cluster as a reader of the page has it: without podbridge and its namespaces. Uninstall it afterwards."""
    world, installation, *_ = installed
    if installation.revision():
        world.clear()
        installation.uninstall()
    for name in (helm.NAMESPACE, NAMESPACE):
        world.cluster.kubectl("delete", "namespace", name, "--ignore-not-found")
    yield world.cluster
    if installation.revision():
        world.clear()
        installation.uninstall()


@pytest.fixture
def registry(tmp_path):
    """A registry with the chart and the image of this machine's architecture, as a release has them."""
    files = tmp_path / "release"
    files.mkdir()
    layout, version = oci.Layout(), image.version()
    index = oci.add_index(layout, [image.build().archive], {})
    layout.write(files / f"podbridge-image-{version}.oci.tar", index, version)
    oci.write_chart(release.chart(files, 0, "https://x.example", "https://x.example"), files)
    debian.ensure_machine("skopeo")
    with Registry(tmp_path / "registry") as started:
        env = {**os.environ, **started.env, "REGISTRY": f"{started.host}/podbridge"}
        Shell(env, files, {"VERSION": version}).run(command("admins/releases.md", "skopeo copy"))
        started.digest = index["digest"]
        yield started


@pytest.fixture
def shell(bare, registry, tmp_path):
    """Return a shell for the blocks, with what a local cluster replaces."""
    values = helm.values(bare)
    local = {key: values[key] for key in ("extraEnv", "tolerations")} | {part: {"replicas": 1} for part in helm.PARTS}
    (tmp_path / "local.json").write_text(json.dumps(local))
    program = tmp_path / "helm"
    binary = install.binaries(install.HELM.packages)["helm"]
    program.write_text(
        '#!/bin/sh\ncase "$1" in install | upgrade) '
        f'set -- "$@" --values {tmp_path}/local.json;; esac\n'
        f'SSL_CERT_FILE={registry.env["SSL_CERT_FILE"]} exec {binary} "$@"\n'
    )
    program.chmod(0o755)
    replaced = {
        "registry.example.org": registry.host,
        "http://slurmrestd.example.org:6820": f"http://{realnode.address()}:{bare.rest_port}",
        "~/.cache/podbridge/state/default/env": str(bare.state / "env"),
    }
    homes = {f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    env = {**os.environ, **bare.env, **homes}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    return Shell(env, places.CHECKOUT, replaced)


@pytest.mark.timeout(600)  # the build of the image can be a part of it
def test_the_commands_of_the_quick_start_and_of_an_upgrade(installed, bare, shell, registry, tmp_path):
    found = list(blocks(PAGE))
    assert [block.text.split()[0] for block in found if block.reason] == ["./hack/up.sh", "./hack/down.sh"]
    printed = {}
    for block in found:
        if not block.reason:
            printed[block.text.split("\n")[0]] = shell.run(block)
            if "helm install" in block.text:
                assert pulled(installed[1]) == {registry.digest}
                eventually(lambda: "podbridge-validate" in bare.kubectl("get", "validatingwebhookconfigurations"), "it")
    job, pod = printed["kubectl create namespace slurm-bridge"], printed["source ~/.cache/podbridge/state/default/env"]
    assert "hello from hello-" in job
    assert pod.splitlines()[-1] == "hello"
    assert "Slurm" in printed["helm test podbridge --namespace podbridge"]
    assert shell.run(command("admins/install.md", "kubectl replace")).strip() == "secret/slurm-bridge-token replaced"
    assert claims(base64.b64decode(bare.kubectl(*TOKEN)).decode())["sun"] == "slurm"
    upgrade(installed[1], shell, tmp_path / "values.yaml")


def pulled(installation):
    """Return the digests of the images that the containers of a release run, as the kubelet reports them."""
    pods = [pod for part in helm.PARTS for pod in installation.pods(part)]
    return {status["imageID"].partition("@")[2] for pod in pods for status in pod["status"]["containerStatuses"]}


@pytest.mark.long_only  # a cluster of its own
@pytest.mark.timeout(600)  # the build of the image can be a part of it
def test_the_commands_for_one_debian_machine(state_folder, report):
    """The last section of the page alone, from the start of its own cluster to its end."""
    state = state_folder / "quick"
    env = {**os.environ, "PODBRIDGE_STATE": str(state)}
    shell = Shell(env, places.CHECKOUT, {"~/.cache/podbridge/state/default": str(state)}, timeout=400)
    *_, start, pod, stop = blocks(PAGE)
    begun = time.monotonic()
    try:
        shell.run(start)
        assert shell.run(pod).splitlines()[-1] == "hello"
        report(f"{start.text}: {time.monotonic() - begun:.0f} s until the first pod on Slurm has ended")
        cluster = Cluster.load(state)
        assert any(map(cluster.pid, cluster.daemons))
    finally:
        shell.run(stop)
    assert not any(map(cluster.pid, cluster.daemons))


def upgrade(installation, shell, values):
    """Run the commands of docs/admins/upgrade.md; the last ones hand the CRD over to the release."""
    values.write_text(installation.helm("get", "values", installation.name, "--output=yaml"))
    upgraded, tested, transferred = shell.page("admins/upgrade.md", {"values.yaml": str(values)})
    assert "REVISION: 2" in upgraded
    assert "Succeeded" in tested
    assert "REVISION: 3" in transferred
