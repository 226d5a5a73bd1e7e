"""The chart: every value has a description, and its version is that of the package."""

import json
import tomllib

import yaml

from bridge.config.base import known_keys, section_in
from bridge.config.hub import Config
from generate import chart


def test_the_readme_has_every_value():
    assert {path.split(".")[0] for path, _, _ in chart.values()} == yaml.safe_load(
        (chart.CHART / "values.yaml").read_text()
    ).keys()


def test_the_chart_has_the_version_of_the_package():
    found = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    version = tomllib.loads((chart.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (found["version"], found["appVersion"]) == (version, version)


def test_the_schema_of_the_values_has_every_key_of_the_configuration():
    schema = json.loads(chart.schema())
    waiting, seen = [Config], set()
    while waiting:
        model = waiting.pop()
        known = schema["properties"]["config"] if model is Config else schema["$defs"][f"config.{model.__name__}"]
        assert sorted(known["properties"]) == sorted(known_keys(model))
        seen.add(model)
        below = (section_in(field.annotation) for field in model.model_fields.values())
        waiting += [each for each in below if each is not None and each not in seen]
    assert "NamespacePolicy" in {model.__name__ for model in seen}
