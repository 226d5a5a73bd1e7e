import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.apps.conversion.master_queues import convert
from bridge.errors import ConfigError

FILE = Path(__file__).parent / "inputs" / "kueue-nats.yaml"


def queue(spec):
    return yaml.safe_dump({"apiVersion": "vk.io/v1", "kind": "MasterQueue", "metadata": {"name": "q"}, "spec": spec})


def test_the_manifests_of_a_cluster():
    found = convert(FILE.read_text(), "queues.yaml")
    master, local = found.documents
    assert local["kind"] == "LocalQueue" and local["spec"] == {"clusterQueue": "research"}
    assert master["metadata"] == {"name": "research", "labels": {"team": "physics"}, "annotations": {"owner": "alice"}}
    assert master.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert master["spec"] == {
        "template": {
            "cohort": "sites",
            "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"},
            "preemption": {
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
                "withinClusterQueue": "LowerPriority",
            },
            "stopPolicy": "HoldAndDrain",
            "queueingStrategy": "StrictFIFO",
        },
        "flavors": [
            {
                "name": "local",
                "nominalQuota": {"cpu": 20, "memory": "100Gi", "pods": 100000, "nvidia.com/gpu": 10000},
                "localFlavor": {},
            },
            {
                "name": "sites",
                "nominalQuota": {"cpu": 100},
                "canLendTo": [{"queue": "guests", "lendingLimit": {"cpu": 10}}],
                "poolFlavor": {"poolRegExp": "site-.*", "poolTimeout": 60},
            },
            {"name": "slow", "poolFlavor": {"pools": ["tape"], "poolTimeout": 300}},
        ],
    }
    lines = {str(note).partition(" podbridge")[0] for note in found.notes}
    assert any(line.startswith("dropped: MasterQueue/research: spec.cohort:") for line in lines)
    assert any(line.startswith("dropped: Deployment/kueue-nats-controller:") for line in lines)
    assert any(line.startswith("to do: MasterQueue/research: spec.template.preemption:") for line in lines)
    assert "first-password" not in str(found)


def test_a_converted_manifest_stays_as_it_is():
    first = convert(FILE.read_text(), "queues.yaml").documents
    again = convert(yaml.safe_dump_all(first), "queues.yaml")
    assert again.documents == first
    assert {note.kind for note in again.notes} == {"to do"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "q.yaml: not YAML"),
        ("just text", "q.yaml: 'just text' is no object"),
        ("kind: Pod", "q.yaml: has no MasterQueue; allowed"),
        ("{kind: Pod, metadata: 5}", "q.yaml: {.*} is no object"),
        (queue({"template": 5, "flavors": []}), "q.yaml: MasterQueue/q: spec.template: 5 is not allowed; allowed"),
        (queue({"template": {"preemption": 5}, "flavors": []}), "spec.template.preemption: 5 is not allowed"),
        (queue({"flavors": [{"name": "a", "nominalQuota": 5}]}), r"spec.flavors\[0\].nominalQuota: 5 is not allowed"),
        (queue({"flavors": [{"name": "a", "natsFlavor": 5}]}), r"spec.flavors\[0\].natsFlavor: 5 is not allowed"),
        (queue({}), "q.yaml: MasterQueue/q: spec.flavors is missing"),
        (queue({"flavors": ["a"]}), r"q.yaml: MasterQueue/q: spec.flavors\[0\]: 'a' is not allowed"),
        (queue({"flavors": [{"name": "A_"}]}), r"spec.flavors\[0\].name: 'A_' is not allowed; allowed: a name"),
        (queue({"template": {"stopPolicy": "Never"}, "flavors": []}), "stopPolicy: 'Never' is not allowed"),
        (queue({"flavors": [], "localQueues": 5}), "spec.localQueues: 5 is not allowed; allowed: a list of mappings"),
        (queue({"flavors": [], "localQueues": ["a"]}), r"spec.localQueues: \['a'\] is not allowed"),
        (queue({"flavors": [{"name": "a", "localFlavor": {}, "canLendTo": 5}]}), r"\[0\].canLendTo: 5 is not allowed"),
        (queue({"flavors": [{"name": "a", "natsFlavor": {}}]}), "needs pools or poolRegExp, and not both"),
        (queue({"flavors": [{"name": "a", "localFlavor": {}}]}), "needs nominalQuota"),
        (queue({"flavors": [{"name": "a", "localFlavor": {}, "nominalQuota": {"cpu": "x"}}]}), "cpu: 'x' is no"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(text, message):
    with pytest.raises(ConfigError, match=message):
        convert(text, "q.yaml")


def test_the_command_prints_objects_and_notes_apart():
    result = CliRunner().invoke(cli, ["convert", "kueue-nats", "-o", "json", "-"], input=FILE.read_text())
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert [each["kind"] for each in listed["items"]] == ["MasterQueue", "LocalQueue"]
    assert "changed: MasterQueue/research: spec.template.stopPolicy: StopAndHold is HoldAndDrain" in result.stderr
