"""The workflow of a release: what it may do, and who sees its secrets. actionlint reads its syntax (hack/lint.sh)."""

import re

import yaml

from cluster import places

FOLDER = places.CHECKOUT / ".github/workflows"
(JOB,) = yaml.safe_load((FOLDER / "release.yaml").read_text())["jobs"].values()


def test_it_only_reads_the_repository_and_runs_no_action_of_others():
    assert yaml.safe_load((FOLDER / "release.yaml").read_text())["permissions"] == {}
    assert JOB["permissions"] == {"contents": "read"}
    assert all(set(step) <= {"name", "run", "env"} for step in JOB["steps"])


def test_the_secrets_reach_only_the_step_that_pushes_and_no_command_line():
    with_secrets = [step["name"] for step in JOB["steps"] if "secrets." in str(step)]
    assert with_secrets == ["Push image and chart"] == [JOB["steps"][-1]["name"]]
    assert not [step["name"] for step in JOB["steps"] if "${{" in step["run"]], "a text of others would become commands"


def test_it_tests_builds_and_pushes_with_the_scripts_of_the_project():
    commands = re.findall(r"\./hack/\S+ \S+", "\n".join(step["run"] for step in JOB["steps"]))
    assert commands == ["./hack/test.sh --fast", './hack/release.sh "${GITHUB_REF_NAME#v}"', "./hack/release.sh --push"]
    for command in commands:
        assert (places.CHECKOUT / command.split()[0]).exists()
