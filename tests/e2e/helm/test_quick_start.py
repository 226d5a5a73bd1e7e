"""Every command of docs/quick-start.md, read from the page, on a cluster without podbridge."""

import json
import os
import subprocess

import pytest

from cluster import helm, image, install, places, realnode
from cluster.polling import eventually
from cluster.world import NAMESPACE
from tests.docs_blocks import blocks

pytestmark = pytest.mark.real

PAGE = places.CHECKOUT / "docs" / "quick-start.md"


@pytest.fixture
def bare(installed):
    """The cluster as a reader of the page has it: without podbridge and its namespaces. Uninstall it afterwards."""
    world, release, *_ = installed
    if release.revision():
        world.clear()
        release.uninstall()
    for name in (helm.NAMESPACE, NAMESPACE):
        world.cluster.kubectl("delete", "namespace", name, "--ignore-not-found")
    yield world.cluster
    if release.revision():
        world.clear()
        release.uninstall()


@pytest.fixture
def shell(bare, tmp_path):
    """Return a function that runs the text of a block, with what a local cluster replaces."""
    values = helm.values(bare)
    local = {key: values[key] for key in ("extraEnv", "tolerations")} | {part: {"replicas": 1} for part in helm.PARTS}
    (tmp_path / "local.json").write_text(json.dumps(local))
    program = tmp_path / "helm"
    binary = install.binaries(install.HELM.packages)["helm"]
    program.write_text(
        f'#!/bin/sh\n[ "$1" = install ] && set -- "$@" --values {tmp_path}/local.json\nexec {binary} "$@"\n'
    )
    program.chmod(0o755)
    replaced = {
        "registry.example.org": image.REPOSITORY.rpartition("/")[0],
        "http://slurmrestd.example.org:6820": f"http://{realnode.address()}:{bare.rest_port}",
        "~/.cache/podbridge/state/default/env": str(bare.state / "env"),
    }
    homes = {f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    env = {**os.environ, **bare.env, **homes}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"

    def run(block):
        text = block.text
        for old, new in replaced.items():
            text = text.replace(old, new)
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=places.CHECKOUT, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, f"{block.where}: {text}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.mark.timeout(600)  # the build of the image can be a part of it
def test_the_commands_of_the_quick_start(bare, shell):
    found = list(blocks(PAGE))
    assert [block.text.split()[0] for block in found if block.reason] == ["docker", "./hack/up.sh", "./hack/down.sh"]
    printed = {}
    for block in found:
        if not block.reason:
            printed[block.text.split("\n")[0]] = shell(block)
            if "helm install" in block.text:
                eventually(lambda: "podbridge-validate" in bare.kubectl("get", "validatingwebhookconfigurations"), "it")
    job, pod = printed["kubectl create namespace slurm-bridge"], printed["source ~/.cache/podbridge/state/default/env"]
    assert "hello from hello-" in job
    assert pod.splitlines()[-1] == "hello"
    assert "Slurm" in printed["helm test podbridge --namespace podbridge"]
