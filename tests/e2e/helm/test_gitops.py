"""What podbridge writes to the objects of its chart, and what the chart's README tells Argo CD and Flux to ignore.

A GitOps tool compares what ``helm template`` renders with the live objects. Flux does so by a server-side dry run,
which this test repeats.
"""

import json
import re
import subprocess

import pytest
import yaml

from cluster.polling import eventually
from cluster.systems import helm, install
from cluster.tools import merged

pytestmark = pytest.mark.real

README = helm.CHART / "README.md"
PARTS_OF_PODBRIDGE = re.compile(r"^podbridge(-|$)")
"""Field managers: the API server takes them from the header User-Agent."""

RARE = {("ConfigMap", "podbridge-brake", "/data"), ("ConfigMap", "podbridge-slurm", "/binaryData")}
"""What is written only after many jobs have disappeared, and only for hundreds of nodes of Slurm."""


def documented(key):
    """Return the ignored fields of the README's block that has the key: (kind, name, JSON pointer)."""
    (block,) = [text for text in re.findall(r"(?ms)^```yaml\n(.*?)^```", README.read_text()) if key in text]
    spec = yaml.safe_load(block)["spec"]
    if key == "ignoreDifferences":
        assert "RespectIgnoreDifferences=true" in spec["syncPolicy"]["syncOptions"]
        return {(each["kind"], each["name"], path) for each in spec[key] for path in each["jsonPointers"]}
    ignored = spec[key]["ignore"]
    return {(each["target"]["kind"], each["target"]["name"], path) for each in ignored for path in each["paths"]}


@pytest.fixture
def rendered(clean):
    """What a GitOps tool renders for the release, without access to the cluster, and the cluster."""
    world, release, _ = clean
    values = merged(helm.values(world.cluster), release.settings)
    text = release.helm(
        "template", release.name, str(helm.CHART), "--skip-tests", "--values=-", text=json.dumps(values)
    )
    return world, text


def pointer(*keys):
    """Return a JSON pointer."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def value_at(document, path):
    """Return the value at a JSON pointer, or ``None``."""
    for key in path.split("/")[1:]:
        document = (document or {}).get(key.replace("~1", "/").replace("~0", "~"))
    return document


def written(world, text):
    """Return kind, name and JSON pointer of each field that a part of podbridge wrote."""
    words = ("get", "-f", "-", "--show-managed-fields", "-o", "json")
    found = set()
    for each in json.loads(world.cluster.kubectl(*words, input=text))["items"]:
        for owner in each["metadata"]["managedFields"]:
            if not PARTS_OF_PODBRIDGE.match(owner["manager"]):
                continue
            fields = owner["fieldsV1"]
            paths = [(key[2:],) for key in fields if key != "f:metadata"]
            for part, names in fields.get("f:metadata", {}).items():
                paths += [("metadata", part[2:], name[2:]) for name in names if name != "."]
            found |= {(each["kind"], each["metadata"]["name"], pointer(*path)) for path in paths}
    return found


def test_the_documented_fields_are_those_that_podbridge_writes(rendered):
    world, text = rendered
    wanted = documented("ignoreDifferences")
    assert documented("driftDetection") == wanted
    documents = [each for each in yaml.safe_load_all(text) if each]

    eventually(lambda: len(written(world, text)) >= len(wanted - RARE), "podbridge has written its fields", 60)
    assert written(world, text) | RARE == wanted
    for kind, name, path in wanted:
        (document,) = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
        assert value_at(document, path) is None, "the chart renders it, so an upgrade would undo what podbridge wrote"


def test_no_field_that_the_chart_renders_differs_on_the_running_cluster(rendered):
    world, text = rendered
    command = [str(install.binaries()["kubectl"]), f"--kubeconfig={world.cluster.kubeconfig}", "diff"]
    options = ("--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-")
    done = subprocess.run([*command, *options], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    changed = text.replace("replicas: 1", "replicas: 3")
    assert changed != text
    done = subprocess.run([*command, *options], input=changed, capture_output=True, text=True)
    assert done.returncode == 1 and "replicas: 3" in done.stdout, "the comparison must see a difference"
