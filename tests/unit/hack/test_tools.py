import os
import shlex
import socket
import subprocess
import sys

import pytest

from cluster import ports, tools
from cluster.__main__ import main
from cluster.core import Cluster
from cluster.errors import ClusterError


def test_the_file_to_source_puts_this_clusters_tools_first(tmp_path):
    state = tmp_path / "with space"
    state.mkdir()
    enter = state / "enter"
    enter.write_text('#!/bin/sh\necho "$@"\n')
    enter.chmod(0o755)
    tools.write(state, {"KUBECONFIG": f"{state}/it's", "SLURM_REST_URL": "http://x"}, [], enter)
    script = f". {shlex.quote(str(state / 'env'))}; echo \"$KUBECONFIG\"; squeue -u 'a b'"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{state}/it's", "squeue -u a b"]


@pytest.mark.parametrize(
    ("below", "above", "result"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
    ],
)
def test_settings_are_laid_over_each_other(below, above, result):
    assert tools.merged(below, above) == result


def test_a_block_of_ports_skips_one_that_is_taken(monkeypatch):
    port = ports.free_block(4) + 3
    monkeypatch.setattr(ports, "_claimed", set())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        tried = iter([port - 1, port - 3])
        monkeypatch.setattr(ports.random, "randrange", lambda *_: next(tried))
        assert ports.free_block(3) == port - 3
        assert ports.listening(port)
    assert not ports.listening(port)


CLAIM = """
import sys
from cluster import errors, ports
ports.random.randrange = lambda *_: int(sys.argv[1])
try:
    ports.free_block(2)
except errors.ClusterError:
    sys.exit(3)
"""


def test_a_block_of_ports_belongs_to_one_process_until_it_ends(monkeypatch):
    def other_process(first):
        words = [sys.executable, "-c", CLAIM, str(first)]
        return subprocess.run(words, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, check=False).returncode

    first = ports.free_block(4)
    assert [other_process(first + at) for at in (-1, 3, 4, 4)] == [3, 3, 0, 0]
    monkeypatch.setattr(ports.random, "randrange", lambda *_: first + 3)
    with pytest.raises(ClusterError, match="no 2 consecutive free ports"):
        ports.free_block(2)


def test_no_free_ports_is_an_error(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(ports.random, "randrange", lambda *_: taken.getsockname()[1])
        with pytest.raises(ClusterError, match="no 2 consecutive free ports"):
            ports.free_block(2)


def test_a_folder_with_other_things_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "thesis.txt").write_text("mine")
    monkeypatch.setattr("cluster.systems.install.ensure", lambda *_, **__: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(ClusterError, match=r"holds other things \(thesis\.txt\)"):
        Cluster(tmp_path, slurm=None).start()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_only_root_can_start(tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root"):
        Cluster(tmp_path).start()


def test_down_where_nothing_was_is_no_error(tmp_path, capsys):
    assert main(["down", "--state", str(tmp_path / "none")]) == 0
    assert "nothing to stop" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--nodes", "x"], ["--slurm", "21.08"], ["--nothing"]])
def test_bad_options_are_refused(words, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["up", "--state", str(tmp_path), *words])
    assert end.value.code == 2
    assert words[0] in capsys.readouterr().err
