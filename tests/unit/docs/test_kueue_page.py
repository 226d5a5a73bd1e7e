"""docs/admins/kueue.md has every field of the MasterQueue, and its manifests are valid."""

import re
from pathlib import Path

import pytest
import yaml

from bridge.config.hub import parse
from bridge.errors import ConfigError
from controllers.queues import specification

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/admins/kueue.md").read_text()
SCHEMA = yaml.safe_load((ROOT / "config" / "crds.yaml").read_text())["spec"]["versions"][0]["schema"]
PROPERTIES = SCHEMA["openAPIV3Schema"]["properties"]


def fields(schema, path=""):
    """Yield the path of each field below a schema."""
    if schema["type"] == "array":
        path, schema = f"{path}[]", schema["items"]
    if path:
        yield path
    for name, inner in (schema.get("properties") or {}).items():
        yield from fields(inner, f"{path}.{name}".lstrip(".")) if "type" in inner else [f"{path}.{name}"]


def documented(heading):
    """Return the first column of the table with this heading."""
    table = PAGE.partition(f"| {heading} | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    return [re.match(r"\| `([^`]+)` \|", line)[1] for line in table.splitlines()]


def blocks():
    """Return the YAML documents of the page."""
    found = re.findall(r"^( *)```yaml\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    texts = ["\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in found]
    return [document for text in texts for document in yaml.safe_load_all(text)]


@pytest.mark.parametrize("part", ["spec", "status"])
def test_the_page_has_every_field(part):
    found = documented(f"field of `{part}`")
    assert sorted(found) == sorted(fields(PROPERTIES[part]))
    assert len(found) == len(set(found))


def unknown(value, schema, path):
    """Return the fields of a value that the schema does not have."""
    if isinstance(value, list):
        return [name for item in value for name in unknown(item, schema["items"], f"{path}[]")]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return []
    wrong = [f"{path}.{key}" for key in value if key not in properties]
    inner = [(key, item) for key, item in value.items() if key in properties]
    return wrong + [name for key, item in inner for name in unknown(item, properties[key], f"{path}.{key}")]


def test_the_manifests_of_master_queues_are_valid():
    queues = [document for document in blocks() if document.get("kind") == "MasterQueue"]
    assert queues
    for queue in queues:
        assert unknown(queue["spec"], PROPERTIES["spec"], "spec") == []
        assert specification.read(queue).flavors


def test_the_configurations_are_valid():
    configurations = [document for document in blocks() if "apiVersion" not in document]
    assert configurations
    for document in configurations:
        assert parse(yaml.safe_dump({"partition": "main", **document})).queues.enabled


def test_a_wrong_manifest_would_be_noticed():
    assert unknown({"flavors": [{"nams": "a"}]}, PROPERTIES["spec"], "spec") == ["spec.flavors[].nams"]
    with pytest.raises(ConfigError):
        parse("queue: {enabled: true}")
