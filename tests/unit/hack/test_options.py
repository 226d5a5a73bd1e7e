"""The record of a cluster: also of another version of hack/, or damaged, its processes can be stopped."""

import json
import os

import pytest

from cluster import Cluster
from cluster.__main__ import main
from cluster.options import FILE, Options, Record


def write(state, change):
    state.mkdir(exist_ok=True)
    Record(Options(nodes=7), 20000, complete=True).write(state)
    content = json.loads((state / FILE).read_text())
    change(content)
    (state / FILE).write_text(json.dumps(content))


def test_what_is_written_is_read(tmp_path):
    record = Record(Options(nodes=7, pools=["local-site"]), 20000, complete=True)
    record.write(tmp_path)
    assert Record.read(tmp_path) == record
    assert Record.read(tmp_path / "absent") is None


def test_options_of_another_version_are_left_out(tmp_path):
    write(tmp_path, lambda content: content["options"].update(of_another_version=True))
    assert Record.read(tmp_path) == Record(Options(nodes=7), 20000, complete=True)


DAMAGES = {
    "a removed version": lambda content: content["options"].update(kubernetes="1.2"),
    "no options": lambda content: content.pop("options"),
    "other options": lambda content: content.update(options=[]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_cannot_be_read_stops_its_processes(tmp_path, damage):
    state = tmp_path / "state"
    write(state, DAMAGES[damage])
    assert Record.read(state) == Record(Options())
    pid = Cluster(state).processes.start("kube-apiserver", ["sleep", "321"])
    assert main(["down", "--state", str(state)]) == 0
    assert Cluster(state).processes.names() == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_half_a_record_is_no_error(tmp_path):
    (tmp_path / FILE).write_text('{"options": ')
    assert Record.read(tmp_path) == Record(Options())
