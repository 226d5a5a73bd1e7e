"""kube-score finds nothing critical in what the chart renders, but for what values.yaml gives a reason for."""

import json
import subprocess

import pytest

from cluster import places
from cluster.systems import install
from generate.manifests import template

SETS = places.CHECKOUT / "tests" / "contract" / "controllers" / "chart"
NAMES = sorted(file.name.partition(".")[0] for file in SETS.glob("*.values.yaml"))
KUBERNETES = f"v{places.DEFAULT_KUBERNETES}"
CRITICAL = 1
"""The grade of a failed check in kube-score's JSON; 5 is a warning."""
EXPLAINED = {
    ("container-image-pull-policy", "ImagePullPolicy is not set to Always"),
    ("container-resources", "CPU limit is not set"),
    ("pod-networkpolicy", "The pod does not have a matching NetworkPolicy"),
    ("statefulset-has-servicename", "StatefulSet does not have a valid serviceName"),
}
"""Check and message of what the chart ignores by annotation, with a reason in values.yaml or beside the annotation."""
IGNORE_NOTHING = "--disable-ignore-checks-annotations"


@pytest.fixture(scope="module")
def programs() -> str:
    """The path of kube-score; Helm and kube-score are built on the first use."""
    install.ensure(modules=[install.HELM, install.KUBE_SCORE])
    return str(install.binaries(install.KUBE_SCORE.packages)["kube-score"])


def critical(program: str, text: str, *options: str) -> set[tuple[str, str, str]]:
    """Return object, check and message of each critical finding."""
    command = [program, "score", "-", f"--kubernetes-version={KUBERNETES}", "--output-format=json", *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    objects = json.loads(done.stdout)
    assert len(objects) >= 8, done.stderr
    return {
        (each["object_name"], check["check"]["id"], comment["summary"])
        for each in objects
        for check in each["checks"]
        if check["grade"] == CRITICAL and not check["skipped"]
        for comment in check["comments"] or [{"summary": check["check"]["name"]}]
    }


@pytest.mark.long_only
@pytest.mark.parametrize("name", NAMES)
def test_a_release_has_nothing_critical_without_a_reason(programs: str, name: str) -> None:
    text = template(f"--values={SETS / f'{name}.values.yaml'}")
    assert critical(programs, text) == set()
    assert {found[1:] for found in critical(programs, text, IGNORE_NOTHING)} <= EXPLAINED


@pytest.mark.long_only
def test_a_value_that_passes_a_check_removes_it_from_the_annotation(programs: str) -> None:
    switches = ("networkPolicy.enabled=true", "scheduler.resources.limits.cpu=2", "scheduler.image.pullPolicy=Always")
    text = template("--skip-tests", *(f"--set={switch}" for switch in switches))
    found = critical(programs, text, IGNORE_NOTHING)
    assert {name for name, *_ in found} == {
        f"Deployment/apps/v1/podbridge/podbridge-{p}" for p in ("admission", "controllers")
    }
    scheduler = template("--show-only=templates/scheduler.yaml", *(f"--set={switch}" for switch in switches))
    assert "kube-score/ignore" not in scheduler


@pytest.mark.long_only
def test_what_has_no_reason_is_found(programs: str) -> None:
    text = template("--set=admission.resources.limits.ephemeral-storage=null", "--set=admission.image.tag=latest")
    assert {check for _, check, _ in critical(programs, text, IGNORE_NOTHING)} - {check for check, _ in EXPLAINED} == {
        "container-ephemeral-storage-request-and-limit",
        "container-image-tag",
    }
