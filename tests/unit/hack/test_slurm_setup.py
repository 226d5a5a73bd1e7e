import base64
import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import hostlist
from cluster.slurm import Size, SlurmSetup, make_token, node_names, node_range


def setup(version="26.05", nodes=4, size=None, lines=(), root="/"):
    return SlurmSetup(version, Path("/state/slurm"), Path(root), nodes, size or Size(), 20000, lines)


def settings(text):
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith(("NodeName", "PartitionName")))


@pytest.mark.parametrize(
    ("version", "auth", "daemons"),
    [
        ("22.05", "auth/munge", ["munged", "slurmctld", "slurmd-node-0", "slurmd-node-1", "slurmrestd"]),
        ("24.11", "auth/slurm", ["slurmctld", "slurmd-node-0", "slurmd-node-1", "slurmrestd"]),
        ("26.05", "auth/slurm", ["slurmctld", "slurmd-node-0", "slurmd-node-1", "slurmrestd"]),
    ],
)
def test_only_the_oldest_needs_munge(version, auth, daemons):
    made = setup(version, nodes=2)
    assert settings(made.conf())["AuthType"] == auth
    assert list(made.daemons()) == daemons


def test_ports_follow_each_other():
    made = setup(nodes=3)
    assert settings(made.conf())["SlurmctldPort"] == "20000"
    assert made.daemons()["slurmrestd"][-1] == "127.0.0.1:20001"
    assert "Port=[20002-20004]" in made.conf()


def test_nodes_are_as_big_as_asked():
    conf = setup(nodes=1, size=Size(cpus=64, memory=1000, gpus=0)).conf()
    assert "CPUs=64 RealMemory=1000" in conf
    assert "NodeName=node-0 " in conf
    assert "Gres=" not in conf


def test_the_first_node_has_gpus_of_its_own():
    made = dataclasses.replace(setup(nodes=3), first=Size(2, 1000, 4))
    conf, gres = made.conf().splitlines(), made._gres_conf().splitlines()
    assert [line.endswith("Gres=gpu:4") for line in conf if line.startswith("NodeName=node-0 ")] == [True]
    assert [line.endswith("Gres=gpu:8") for line in conf if line.startswith("NodeName=node-[1-2] ")] == [True]
    assert sorted(gres) == [
        "NodeName=node-0 Name=gpu File=/srv/dev/gpu[0-3]",
        "NodeName=node-[1-2] Name=gpu File=/srv/dev/gpu[0-7]",
    ]
    without = dataclasses.replace(made, first=Size(2, 1000, 0))
    assert without._gres_conf().count("node-0") == 0


def test_a_line_of_ours_is_replaced_and_others_are_added():
    conf = setup(lines=["MinJobAge=2", "PreemptType=preempt/partition_prio", "PartitionName=low Nodes=ALL"]).conf()
    assert settings(conf)["MinJobAge"] == "2"
    assert conf.count("MinJobAge") == 1
    assert settings(conf)["PreemptType"] == "preempt/partition_prio"
    assert "PartitionName=low Nodes=ALL" in conf.splitlines()


@given(st.integers(min_value=1, max_value=300))
def test_the_range_of_nodes_is_their_list(count):
    assert list(hostlist.expand(node_range(count))) == node_names(count)


@pytest.mark.parametrize(("user", "lifetime"), [("slurm", 60), ("alice", -60)])
def test_a_token_holds_user_and_end(user, lifetime):
    header, claims, _signature = make_token(b"k" * 32, user, lifetime).split(".")
    decoded = [json.loads(base64.urlsafe_b64decode(part + "==")) for part in (header, claims)]
    assert decoded[0]["alg"] == "HS256"
    assert decoded[1]["sun"] == user
    assert (decoded[1]["exp"] - decoded[1]["iat"] > 0) == (lifetime > 0)


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
