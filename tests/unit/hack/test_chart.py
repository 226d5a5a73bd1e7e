"""The chart: every value has a description, and its version is that of the package."""

import tomllib

import yaml

from generate import chart


def test_the_readme_has_every_value():
    assert {path.split(".")[0] for path, _, _ in chart.values()} == yaml.safe_load(
        (chart.CHART / "values.yaml").read_text()
    ).keys()


def test_the_chart_has_the_version_of_the_package():
    found = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    version = tomllib.loads((chart.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (found["version"], found["appVersion"]) == (version, version)
