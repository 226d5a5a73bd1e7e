"""Drivers of another package: a batch system and a runtime that no file of podbridge names run a pod.

The package lies in ``drivers/``, with the metadata that ``pip install`` would write. It is on ``PYTHONPATH`` of a real
submitter, and of a process that builds the script as a hub does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, Empty, SubmitMessage
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, SUBMIT
from tests.contract.site.conftest import CHECKOUT, RUN, Site
from tests.contract.site.jobs import submit, uid

pytestmark = pytest.mark.real

PACKAGE = Path(__file__).parent / "drivers"
TEXT = (
    '[batch]\nkind = "toybatch"\n[toybatch]\ncpus = 2\n[runtime]\nkind = "toyruntime"\n'
    '[toyruntime]\ngreeting = "it\'s me"\n'
)
BUILD = """
import json, sys
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
pod, config = json.load(sys.stdin)
made = build(pod, BuildConfig.model_validate(config), Objects({}, {}, {}), "node")
print(json.dumps({"script": made.script, "cpus": made.cpus, "memory": made.memory, "grace": made.grace}))
"""


def python(environment: dict[str, str], *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python where the package is installed."""
    return subprocess.run(
        [sys.executable, *words], input=text, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE)}


@pytest.fixture(scope="module")
def site(nats_url: str) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        made = Site(Path(folder), nats_url, "toybatch", TEXT)
        made.environment = ENVIRONMENT
        with made:
            yield made


def test_a_pod_runs_on_a_batch_system_and_a_runtime_of_another_package(site: Any) -> None:
    job = uid()
    command = 'echo "$GREETING $OWN $TOY_JOB"; exit 3'
    container = {"name": "main", "image": "none", "command": ["bash", "-c", command]}
    container["env"] = [{"name": "OWN", "value": "x y"}]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container]}
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": job}, "spec": spec}
    config = site.client.call(DESCRIBE, "", Empty()).buildconfig.config
    built = python(ENVIRONMENT, "-c", BUILD, text=json.dumps([pod, config]))
    assert built.returncode == 0, built.stderr
    site.client.call(SUBMIT, job, SubmitMessage(namespace="default", name="p", **json.loads(built.stdout)))
    done = site.wait(job, "ended")
    assert (done.outcome, done.containers[0].ended.exit_code, done.job_id) == ("Failed", 3, job)
    assert site.log(job) == f"it's me x y {job}\n".encode()
    said = site.client.call(DESCRIBE, "", Empty()).announce
    assert (said.batch, said.runtime, said.capacity["cpu"]) == ("toybatch 1.0", "toyruntime 2.0", "2")


def test_its_jobs_are_refused_and_cancelled_like_any_other(site: Any) -> None:
    with pytest.raises(SiteRefusedError, match="3 CPUs: this toy has 2"):
        site.client.call(SUBMIT, uid(), submit("true", cpus=3))
    job = site.submit("sleep 60")
    site.wait(job, "running")
    site.client.call(CANCEL, job, CancelMessage(grace=2))
    assert site.wait(job, "ended").reason == "Deleted"


def test_its_sections_are_documented_checked_and_read_at_start(place: Path) -> None:
    sample = python(ENVIRONMENT, "-c", RUN, "submitter", "config")
    assert "[toybatch]\n" in sample.stdout and '# records = "/tmp/toy"' in sample.stdout
    assert "[toyruntime]\n# Value of the variable GREETING" in sample.stdout
    bad = place / "bad.toml"
    bad.write_text(f'pool = "p"\n{TEXT}'.replace("greeting", "greting"))
    checked = python(ENVIRONMENT, "-c", RUN, "submitter", "config", "--check", str(bad))
    assert checked.returncode and "unknown key toyruntime.greting (did you mean greeting?)" in checked.stderr
    static = python(ENVIRONMENT, "-c", "from bridge.site.config.site_config import READ_AT_START as keys; print(*keys)")
    assert "toybatch" in static.stdout.split() and "toyruntime" not in static.stdout.split()
    # an entry point that can't be loaded is named, and stops nothing
    assert "entry point broken of group podbridge.runtimes is not used" in static.stderr


def test_without_the_package_the_kind_is_refused_by_name(place: Path) -> None:
    file = place / "site.toml"
    file.write_text('pool = "p"\n[batch]\nkind = "toybatch"\n')
    done = python({}, "-c", RUN, "submitter", "config", "--check", str(file))
    assert done.returncode
    assert "batch.kind: Input should be 'slurm', 'htcondor', 'pbs' or 'local' (value: 'toybatch')" in done.stderr
