"""The commands that show states: watching, reports, top, completion, the kubectl plugin and its krew manifest."""

import hashlib
import json
import socket
import subprocess
import sys
import tarfile
import time
from types import SimpleNamespace

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import krew
from bridge import __version__
from bridge.apps.cli import completing, get, kubectl, output, reports, top
from bridge.apps.cli.main import cli
from bridge.apps.view.records import KINDS, Listed
from bridge.errors import KubeNotFoundError, KubeUnavailableError
from generate import commands
from tests import builders

ALL = [pytest.param(command, id=name) for name, command in commands.commands(cli)]


@pytest.mark.parametrize("command", ALL)
def test_each_command_has_help_and_an_example_and_each_option_has_help(command):
    assert command.help
    assert "Example" in (command.epilog or "")
    assert [each.name for each in command.params if isinstance(each, click.Option) and not each.help] == []


# --- get --watch ------------------------------------------------------------------------------------------------------
_RECORD = st.fixed_dictionaries({"uid": st.sampled_from("abc"), "phase": st.sampled_from(("x", "y")), "age": st.text()})
_READ = st.lists(_RECORD, max_size=3, unique_by=lambda record: record["uid"])


@given(st.lists(_READ, min_size=1, max_size=6))
def test_the_changes_rebuild_what_was_read(reads):
    """A reader of the changes knows the records of each read, except for their age."""
    known, before = {}, {}
    for read in reads:
        now = {record["uid"]: record for record in read}
        for record in get.changes(before, now):
            if record.get("deleted"):
                del known[record["uid"]]
            else:
                known[record["uid"]] = record["phase"]
        assert known == {record["uid"]: record["phase"] for record in read}
        before = now


def test_what_stays_the_same_is_no_change():
    assert get.changes({"a": {"uid": "a", "pods": ["x"]}}, {"a": {"uid": "a", "pods": ["x"]}}) == []


class EndError(Exception):
    pass


def printer(form, no_headers=False):
    return output.Printer(Listed(dict, ["name", "phase"], [], "pod/", "name", ["uid"]), form, no_headers=no_headers)


def watch(capsys, form, *reads, no_headers=False, key=("uid",)):
    answers = iter(reads)

    def read():
        answer = next(answers, EndError())
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(EndError):
        session = SimpleNamespace(forget=lambda: None, not_read={}, gaps=[])
        get.watch(session, read, printer(form, no_headers), key, sleep=lambda seconds: None)
    return capsys.readouterr()


def test_a_watch_prints_the_table_and_then_the_changes(capsys):
    one, two = {"uid": "1", "name": "a", "phase": "Pending"}, {"uid": "1", "name": "a", "phase": "Running"}
    other = {"uid": "2", "name": "long-name", "phase": ""}
    out = watch(capsys, "table", [one], [one], [two, other], [two]).out
    assert out.splitlines() == [
        "NAME   PHASE",
        "a      Pending",
        "a           Running",
        "long-name   -",
        "long-name   -         deleted",
    ]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("name", "pod/a\npod/b\n"),
        ("json", '{"uid": "1", "name": "a"}\n{"uid": "2", "name": "b"}\n'),
        ("yaml", "---\nuid: '1'\nname: a\n---\nuid: '2'\nname: b\n"),
    ],
)
def test_a_watch_prints_one_document_for_each_record(capsys, form, expected):
    one, two = {"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}
    assert watch(capsys, form, [one], [one, two]).out == expected


def test_a_watch_survives_an_api_server_that_does_not_answer(capsys):
    one, two = {"uid": "1", "name": "a", "phase": "x"}, {"uid": "1", "name": "a", "phase": "y"}
    shown = watch(capsys, "table", [one], KubeUnavailableError("no answer"), [two], no_headers=True)
    assert shown.out.splitlines() == ["a   x", "a   y"]
    assert shown.err == "podbridge: no answer\n"


# --- reports and top --------------------------------------------------------------------------------------------------
def test_a_report_leaves_out_what_is_empty(capsys):
    report = {"summary": "fine", "use": {"cpu": "1", "gone": ""}, "none": [], "waiting_pods": ["a: fits"], "next": "x"}
    reports.show("Pool p", report, "text")
    assert capsys.readouterr().out == "Pool p: fine\n\nUse\n  cpu: 1\n\nWaiting pods\n  a: fits\n\nNext: x\n"
    reports.show("Pool p", report, "json")
    assert json.loads(capsys.readouterr().out) == report
    reports.show("Pool p", report, "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == report


def test_records_of_a_report_are_a_table_without_empty_columns(capsys):
    records = [
        {"place": "a", "room": True, "job": "", "reason": ""},
        {"place": "b", "room": None, "job": "", "reason": "x"},
    ]
    reports.show("Pod p", {"places": records}, "text")
    assert (
        capsys.readouterr().out == "Pod p\n\nPlaces\n  PLACE   ROOM   REASON\n  a       yes    -\n  b       -      x\n"
    )


def test_texts_of_sites_do_not_control_the_terminal(capsys):
    text = "site \x1b]0;owned\x07\x9b2J\nforged row\tend"
    reports.show(f"Node {text}", {"summary": text, "sections": [text], "next": text}, "text")
    printed = capsys.readouterr().out + output.table([{"a": text}], ["a"]).split("\n", 1)[1]
    assert all(character.isprintable() for line in printed.split("\n") for character in line)
    assert "site ?]0;owned??2J forged row end" in printed
    assert output.printable("Zürich ✓") == "Zürich ✓"


def test_the_last_events_are_in_the_order_of_time():
    events = [
        {"eventTime": f"2026-01-01T00:00:0{second}.000000Z", "reason": "R", "note": str(second)} for second in (2, 1, 3)
    ]
    assert reports.events(events, 2) == ["2026-01-01 00:00:02 R: 2", "2026-01-01 00:00:03 R: 3"]


def test_top_shows_counts_and_problems():
    state = {"version": "1", "kubernetes": "k", "slurm": None, "pods": {"Running": 2}, "waiting": {}, "jobs": {}}
    state |= {
        "problems": [{"job": 7, "problem": "p"}],
        "nodes": [],
        "pools": [],
        "oldest": [],
        "not_read": ["Slurm: no token"],
    }
    lines = top.text(state).splitlines()
    counts, gap = ["Pods     2 Running", "Jobs     none"], ["", "Not read", "  Slurm: no token"]
    assert lines[2:] == [*counts, *gap, "", "Problems (podbridge get jobs)", "job 7: p"]


def test_top_shows_what_metrics_server_has_measured():
    def answer(path):
        assert path == top.NODE_METRICS
        return {"items": [{"metadata": {"name": "site-a"}, "usage": {"cpu": "1250000001n", "memory": "2048Ki"}}]}

    def refuse(path):
        raise KubeNotFoundError("the server could not find the requested resource")

    measured = top._measured(SimpleNamespace(get=answer))
    assert measured == {"site-a": {"measured_cpu": "1.25", "measured_memory": "2Mi"}}
    assert top._measured(SimpleNamespace(get=refuse)) == {}
    state = {"version": "1", "kubernetes": "k", "slurm": None, "pods": {}, "waiting": {}, "jobs": {}}
    pool = {"pool": "site-a", "ready": True, "cpu": {"used": 2, "total": 8}}
    state |= {"problems": [], "nodes": [], "oldest": [], "not_read": []}
    for more, columns in ((measured["site-a"], ["MEASURED-CPU", "MEASURED-MEMORY"]), ({}, [])):
        lines = click.unstyle(top.text(state | {"pools": [pool | more]})).splitlines()
        header = next(line for line in lines if line.startswith("POOL"))
        assert header.split()[-2:] == (columns or ["CPU", "MEMORY"])


def test_top_continues_after_an_api_server_that_does_not_answer(capsys, monkeypatch):
    state = {"version": "1", "kubernetes": "k", "slurm": None, "pods": {"Running": 2}, "waiting": {}, "jobs": {}}
    state |= {"problems": [], "nodes": [], "pools": [], "oldest": [], "not_read": []}
    answers, calls = iter([KubeUnavailableError("no answer"), state]), []

    class Session:
        def __init__(self, connection):
            pass

        def forget(self):
            calls.append("forget")

    def read(session):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds):
        calls.append(seconds)
        if len(calls) > 1:
            raise EndError

    monkeypatch.setattr(top, "CommandSession", Session)
    monkeypatch.setattr(top, "read", read)
    monkeypatch.setattr(top.time, "sleep", sleep)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(EndError):
        top.run(None, "table", once=False, interval=3)
    nothing, first, second = capsys.readouterr().out.split(top.CLEAR)
    assert (nothing, first) == ("", "podbridge: no answer\n")
    assert "Pods     2 Running" in second.splitlines()
    assert calls == [3, "forget", 3]


# --- version, completion, kubectl -------------------------------------------------------------------------------------
def test_the_version_of_the_client_needs_no_cluster():
    done = CliRunner().invoke(cli, ["version", "--client", "-o", "json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["podbridge"] == __version__


def test_a_system_that_does_not_answer_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JWT", "x")
    config = tmp_path / "config.yaml"
    config.write_text("slurmRestApi: http://127.0.0.1:1\n")
    args = ["version", "-o", "json", "--config", str(config), "--kubeconfig", builders.kubeconfig(tmp_path)]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 1
    assert json.loads(done.output)["errors"].keys() == {"kubernetes", "slurm"}


@pytest.mark.parametrize(
    ("words", "some", "last"),
    [
        ([""], "explain\t", ":4"),
        (["get", "p"], "pools\t", ":4"),
        (["explain", ""], "pod", ":4"),
        (["get", "pods", "--no"], "--no-headers\t", ":4"),
        (["get", "pods", "-o", ""], "name", ":4"),
        (["check", "--config", ""], "", ":0"),
        ([], "explain\t", ":4"),
    ],
)
def test_kubectl_gets_completions_and_a_directive(words, some, last):
    lines = kubectl.completions(words)
    assert lines[-1] == last
    assert not some or any(line.startswith(some) for line in lines[:-1])


def test_names_are_completed_without_a_cluster_by_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert kubectl.completions(["explain", "pod", ""]) == [":4"]


@pytest.mark.parametrize("words", [["explain", "pod", ""], ["explain", "job", ""], ["get", "pods", "-n", ""]])
def test_a_completion_does_not_wait_for_servers_that_hang(monkeypatch, tmp_path, words):
    monkeypatch.setattr(completing, "PATIENCE", 0.2)
    monkeypatch.setenv("SLURM_JWT", "token")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config = tmp_path / "config.yaml"
        config.write_text(f"slurmRestApi: {url}\n")
        monkeypatch.setenv("PODBRIDGE_CONFIG", str(config))
        monkeypatch.setenv("KUBECONFIG", builders.kubeconfig(tmp_path, url))
        began = time.monotonic()
        assert kubectl.completions(words) == [":4"]
        assert time.monotonic() - began < 5


def test_the_names_of_a_kind_are_completed(monkeypatch):
    monkeypatch.setattr(completing, "_records", lambda kind, params: [("a-1", kind), ("b", kind)])
    assert kubectl.completions(["explain", "node", "a"]) == ["a-1\tnode", ":4"]
    assert kubectl.completions(["explain", "pool", ""]) == ["a-1\tpool", "b\tpool", ":4"]


def test_the_krew_manifest_describes_its_archive(tmp_path):
    archive, manifest = krew.write("https://example.org", "https://example.org/v1/", tmp_path)
    content = yaml.safe_load(manifest.read_text())
    (platform,) = content["spec"]["platforms"]
    assert content["spec"]["version"] == f"v{__version__}"
    assert len(content["spec"]["shortDescription"]) <= 50
    assert platform["uri"] == f"https://example.org/v1/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        members = {member.name: member.mode for member in tar}
        tar.extractall(tmp_path / "out", filter="data")
    assert members.keys() == {entry["from"] for entry in platform["files"]}
    program = tmp_path / "out" / platform["bin"]
    podbridge = tmp_path / "bin" / "podbridge"
    podbridge.parent.mkdir()
    podbridge.write_text('#!/bin/sh\necho "podbridge $*"\n')
    podbridge.chmod(0o755)
    path = {"PATH": f"{podbridge.parent}:/usr/bin:/bin"}
    done = subprocess.run([program, "get", "pods"], env=path, capture_output=True, text=True, check=True)
    assert done.stdout == "podbridge get pods\n"
    missing = subprocess.run([program], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "install the wheel of its release with the extra hub" in missing.stderr
    assert (
        krew.write("https://example.org", "https://example.org/v1/", tmp_path)[0].read_bytes() == archive.read_bytes()
    )


def test_a_pool_whose_use_changes_is_the_same_pool(capsys):
    reads = [[{"pool": "site-a", "pods": f"{count}/110"}] for count in (3, 4)]
    shown = watch(capsys, "json", *reads, key=KINDS["pools"].key).out
    assert [json.loads(line) for line in shown.splitlines()] == [reads[0][0], reads[1][0]]


def test_a_record_without_a_name_prints_no_line(capsys):
    jobs = output.Printer(KINDS["jobs"], "name")
    jobs.show([{"job": None}], nothing="none")
    jobs.add([{"job": None, "pods": "team/p"}, {"job": 7, "pods": "team/q"}])
    assert capsys.readouterr().out == "7\n"
