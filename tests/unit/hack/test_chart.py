"""What hack/chart.py generates without Helm is up to date."""

import tomllib

import yaml

import chart


def test_the_schema_has_the_keys_of_the_configuration():
    assert chart.SCHEMA.read_text() == chart.schema(), "run: hack/chart.py"


def test_the_readme_has_every_value():
    assert chart.README.read_text() == chart.readme(chart.README.read_text()), "run: hack/chart.py"
    assert {path.split(".")[0] for path, _, _ in chart.values()} == yaml.safe_load(
        (chart.CHART / "values.yaml").read_text()
    ).keys()


def test_the_chart_has_the_version_of_the_package():
    found = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    version = tomllib.loads((chart.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (found["version"], found["appVersion"]) == (version, version)
