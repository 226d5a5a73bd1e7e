"""hack/test.sh: which tests run again, and what the whole run reports, with a pytest that only ends."""

import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cluster.polling import eventually
from tests import parts

HACK = Path(__file__).parents[3] / "hack"
PYTHON = """#!/bin/sh
case " $* " in
*" --collect-only "*) exit 0 ;;
*" pytest "*) ;;
*" tests.parts "*) exec cat "$CHECKOUT/turn" ;;
*) exit 0 ;;
esac
for suite; do :; done
again=first
case " $* " in *" --last-failed "*) again=again ;; esac
case " $* " in *" --long "*) again=long ;; esac
run="${suite#tests/} $again"
echo "$run" >>"$CHECKOUT/runs"
action=$(sed -n "s/^$run: //p" "$CHECKOUT/actions")
eval "${action:-exit 0}"
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with the script, empty suites, no linters and a Python that does what the file ``actions`` says."""
    (tmp_path / "hack").mkdir()
    for name in ("test.sh", "lib.sh"):
        shutil.copy(HACK / name, tmp_path / "hack")
    lock = tmp_path / "requirements-dev.lock"
    lock.touch()
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    python = tmp_path / "cache" / f"venv-{digest}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (python.parents[1] / ".complete").touch()
    for program, text in ((python, PYTHON), (tmp_path / "hack" / "lint.sh", "#!/bin/sh\n")):
        program.write_text(text)
        program.chmod(0o755)
    for suite in ("unit", "contract", "e2e", "chaos"):
        (tmp_path / "tests" / suite).mkdir(parents=True)
        (tmp_path / "tests" / suite / "test_nothing.py").touch()
    shutil.copy(parts.__file__, tmp_path / "tests")
    return tmp_path


def start(checkout, *options, **actions):
    lines = [f"{run.replace('_', ' ')}: {action}\n" for run, action in actions.items()]
    (checkout / "actions").write_text("".join(lines))
    env = {**os.environ, "PODBRIDGE_CACHE": str(checkout / "cache"), "CHECKOUT": str(checkout)}
    words = [checkout / "hack" / "test.sh", *options]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)


def run(checkout, *options, **actions):
    """Run it; return its exit status, the last line of its output and the runs of pytest."""
    process = start(checkout, *options, **actions)
    output = process.communicate(timeout=60)[1]
    runs = checkout / "runs"
    return process.returncode, output.splitlines()[-1], runs.read_text().splitlines() if runs.exists() else []


FIRST = ["unit first", "contract first", "e2e first", "chaos first"]
LONG = [run.replace("first", "long") for run in FIRST]
OTHERS = ("1.33", "1.35", "pythons")
"""Parts of a long run that consist of tests of the short one, on other versions."""


def test_a_run_without_failures(checkout):
    status, line, runs = run(checkout)
    assert (status, line.split(" in ")[0], runs) == (0, "all passed", FIRST)


def test_tests_that_fail_beside_others_run_again_alone(checkout):
    status, line, runs = run(checkout, contract_first="exit 1", e2e_first="exit 1", e2e_again="exit 1")
    assert (status, line) == (1, "FAILED: e2e tests")
    assert runs == ["unit first", "contract first", "contract again", "e2e first", "e2e again", "chaos first"]
    (checkout / "runs").unlink()
    status, line, _ = run(checkout, contract_first="exit 1")
    assert (status, line.split(": ")[-1]) == (0, "contract tests")


@pytest.mark.parametrize("suite", ["unit", "chaos"])
def test_unit_and_chaos_tests_run_once(checkout, suite):
    assert run(checkout, **{f"{suite}_first": "exit 1"}) == (1, f"FAILED: {suite} tests", FIRST)


@pytest.mark.parametrize("action", ["exit 2", "exit 3", "exit 4", "exit 5", "kill -KILL $$"])
def test_a_run_that_did_not_finish_has_failed(checkout, action):
    assert run(checkout, contract_first=action) == (1, "FAILED: contract tests", FIRST)


def test_a_part_of_a_long_run_consists_of_its_tests_alone(checkout):
    status, line, runs = run(checkout, "--long", "24.11", unit_long="exit 5")
    assert (status, line.split(" in ")[0], runs) == (0, "all passed", LONG)
    status, line, runs = run(checkout, "--long", "25.05")
    assert (status, runs) == (1, LONG)
    assert line == f"--long 25.05: must be one of {' '.join(parts.PARTS)}"


def test_a_long_run_consists_of_everything(checkout):
    runs = run(checkout, "--long")[2]
    assert runs[: len(FIRST)] == FIRST
    assert [run for run in runs if run.endswith(" long")] == (len(parts.PARTS) - len(OTHERS)) * LONG


@pytest.mark.parametrize(("minutes", "runs"), [(30, [*FIRST, *LONG]), (29, FIRST)])
def test_a_part_runs_after_a_short_run_if_it_fits(checkout, minutes, runs):
    (checkout / "turn").write_text("24.11 30\n")
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@n", *command], cwd=checkout, check=True)
    assert run(checkout, "--within", str(minutes))[2] == runs
    (checkout / "runs").unlink()
    assert run(checkout, "--within", str(minutes), unit_first="exit 1") == (1, "FAILED: unit tests", FIRST)


def test_each_part_is_in_the_help(checkout):
    text = subprocess.run([checkout / "hack" / "test.sh", "--help"], capture_output=True, text=True, check=True).stdout
    for name, part in parts.PARTS.items():
        assert f"\n  {name:<11} {part.about}\n" in text
        assert part.minutes <= 20


def test_each_part_has_its_turn():
    assert {parts.of_commit(f"{number:040x}") for number in range(len(parts.PARTS))} == {*parts.PARTS}


def test_each_test_with_a_longer_form_has_a_part():
    assert parts.of("tests/chaos/test_storm.py", ["26.05"], True) == "kills"
    assert parts.of("tests/chaos/test_storm.py", ["22.05"], True) == "22.05"
    assert parts.of("tests/chaos/test_storm.py", [(), ("22.05", 1)], True) == "22.05"
    assert parts.of("tests/chaos/test_pools.py", [], True) == "sites"
    assert parts.of("tests/chaos/test_site_outage.py", [], True) == "outages"
    assert parts.of("tests/contract/hack/test_arm64.py", [], True) == "release"
    assert parts.of("tests/e2e/gangs/test_x.py", ["1.37"], False) == "kubernetes"
    assert parts.of("tests/contract/kubelet/test_x.py", [("1.37", "1.36")], False) == "kubernetes"
    assert parts.of("tests/e2e/test_story.py", ["26.05"], False) == ""
    assert parts.of("tests/unit/slurm/test_answers.py", ["22.05"], False) == ""


def test_an_interrupted_run_ends(checkout):
    action = "trap 'kill $!; exit 2' INT; touch $CHECKOUT/begun; sleep 60 & wait; exit 9"
    process = start(checkout, contract_first=action)
    eventually(lambda: (checkout / "begun").exists())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):  # as a terminal does
        os.kill(pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert (checkout / "runs").read_text().splitlines() == FIRST[:2]
