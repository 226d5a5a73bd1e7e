import json
import re
from pathlib import Path

from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.apps.plugin.openapi import document
from bridge.apps.plugin.plugin_app import ROUTES
from tests.fakes.interlink_bodies import body, status_answer


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_route_and_method_is_described():
    told = {(path, method.upper()) for path, methods in document()["paths"].items() for method in methods}
    assert told == {(route.path, method) for route in ROUTES for method in route.methods}


def test_every_reference_has_a_schema():
    made = document()
    names = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
    assert set(references(made)) <= names


def test_the_schema_has_the_keys_of_the_recorded_bodies():
    schemas = document()["components"]["schemas"]
    assert set(body("create_hop_b")) <= set(schemas["HopB"]["properties"])
    assert set(body("create_hop_a")) <= set(schemas["HopA"]["properties"])
    assert set(body("logs")) == set(schemas["LogStruct"]["properties"])
    assert set(body("logs")["Opts"]) == set(schemas["LogOpts"]["properties"])
    assert set(status_answer("running")[0]) == set(schemas["PodStatus"]["properties"])


def test_the_command_prints_the_document():
    result = CliRunner().invoke(cli, ["plugin", "openapi"])
    assert (result.exit_code, json.loads(result.output)) == (0, document())


def test_the_command_needs_one_source_of_pools():
    for arguments in ([], ["--site", "site.toml", "--nats", "nats://127.0.0.1:4222"]):
        result = CliRunner().invoke(cli, ["plugin", *arguments])
        assert (result.exit_code, "exactly one of" in result.output) == (2, True)
    result = CliRunner().invoke(cli, ["plugin", "--nats", "nats://127.0.0.1:4222", "--listen", "127.0.0.1:0"])
    assert (result.exit_code, "--owner" in result.output) == (2, True)


def rows(header):
    """Return the cells of the table in docs/sites/plugin.md whose first column has this header."""
    page = (Path(__file__).parents[4] / "docs/sites/plugin.md").read_text()
    table = page.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_page_has_every_route_and_method():
    told = {(row[0].strip("`"), method) for row in rows("route") for method in re.split(", ", row[1])}
    assert told == {(route.path, method) for route in ROUTES for method in route.methods}


def test_the_page_and_the_document_have_the_same_errors():
    operations = [each for methods in document()["paths"].values() for each in methods.values()]
    assert {row[0] for row in rows("status")} == {code for each in operations for code in each["responses"]} - {"200"}
