import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import hostlist
from cluster.systems.slurm import Size, SlurmSetup, node_names, node_range


def setup(version="26.05", nodes=4, size=None, lines=(), root="/"):
    return SlurmSetup(version, Path("/state/slurm"), Path(root), nodes, size or Size(), 20000, lines)


def settings(text):
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith(("NodeName", "PartitionName")))


def test_a_line_of_ours_is_replaced_and_others_are_added():
    conf = setup(lines=["MinJobAge=2", "PreemptType=preempt/partition_prio", "PartitionName=low Nodes=ALL"]).conf()
    assert settings(conf)["MinJobAge"] == "2"
    assert conf.count("MinJobAge") == 1
    assert settings(conf)["PreemptType"] == "preempt/partition_prio"
    assert "PartitionName=low Nodes=ALL" in conf.splitlines()


@given(st.integers(min_value=1, max_value=300))
def test_the_range_of_nodes_is_their_list(count):
    assert list(hostlist.expand(node_range(count))) == node_names(count)


@pytest.mark.parametrize("root", ["/", "/roots/with space/sid"])
def test_the_enter_script_is_a_shell_script(root):
    made = setup(root=root)
    text = made._enter()
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    # what is mounted lies below the root, quoted for both shells
    inner = subprocess.run(
        ["sh", "-c", text.replace("exec unshare --mount sh -ec", "printf %s")], capture_output=True, text=True
    ).stdout
    subprocess.run(["sh", "-n"], input=inner, text=True, check=True)
    assert ("pivot_root" in inner) == (root != "/")


def test_slurmrestd_listens_at_another_address_only_where_it_is_asked_for(tmp_path):
    plain = SlurmSetup("26.05", tmp_path, Path("/"), 1, Size(), 20000)
    assert plain.daemons()["slurmrestd"][-1] == "127.0.0.1:20001"
    reachable = SlurmSetup("26.05", tmp_path, Path("/"), 1, Size(), 20000, rest_address="192.0.2.7")
    assert reachable.daemons()["slurmrestd"][-2:] == ["127.0.0.1:20001", "192.0.2.7:20001"]
