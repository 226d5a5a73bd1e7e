"""What Slurm has given to a job, as the answers of several versions show it."""

import pytest

from bridge.slurm import allotments
from bridge.slurm.allotments import Allotment


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ({"tres_alloc_str": "cpu=8,mem=4000M,node=2,billing=8", "tres_per_node": ""}, Allotment(8, 4000, ())),
        ({"tres_alloc_str": "cpu=8,mem=1.5G", "tres_per_node": "gres/gpu:2"}, Allotment(8, 1536, (("gpu", 4),))),
        ({"tres_alloc_str": "", "tres_per_node": "gres:gpu:a100:2"}, Allotment(8, 0, (("gpu:a100", 4),))),
        ({"tres_per_node": "gres/gpu:a100:1,gres/fpga"}, Allotment(8, 0, (("fpga", 2), ("gpu:a100", 2)))),
        ({"tres_per_node": "gres/gpu=2", "tres_per_job": "gres/gpu:1"}, Allotment(8, 0, (("gpu", 5),))),
        ({"tres_per_node": "", "tres_per_task": "gres/gpu:1"}, Allotment(8, 0, (("gpu", 3),))),
        ({"tres_per_node": "gres/gpu:1g.5gb:2"}, Allotment(8, 0, (("gpu:1g.5gb", 4),))),
        ({"tres_per_node": "gres:gpu:1g.5gb"}, Allotment(8, 0, (("gpu:1g.5gb", 2),))),
        ({"tres_per_node": "gres/gpu:80:2"}, Allotment(8, 0, (("gpu:80", 4),))),
        ({"tres_per_node": "gres/gpu:2,gres/band:width:4K"}, Allotment(8, 0, (("band:width", 8192), ("gpu", 4)))),
        ({"tres_per_node": "gres/gpu:2,gres/band::4"}, Allotment(8, 0, None)),
        ({}, Allotment(8, 0, None)),
    ],
)
def test_the_answer_about_a_job(texts, wanted):
    assert allotments.of_job(8, 2, 3, texts) == wanted


def entry(node="n1", cores="0xF0", **more):
    fixed = {"sockets_per_node": 2, "cores_per_socket": 4, "mem_alloc": 1000, "gres": []}
    return {"node": node, "core_bitmap": cores, **fixed} | more


def test_the_answer_about_the_nodes_of_a_job():
    gpus = [{"name": "gpu", "type": "", "count": 2, "index": "0-1"}, {"name": "fpga", "type": "x", "count": 1}]
    found = allotments.of_nodes([entry(gres=gpus), entry("n2", "0x1")], {"n1": 8, "n2": 16})
    each = (("n1", Allotment(4, 1000, (("fpga:x", 1), ("gpu", 2)))), ("n2", Allotment(2, 1000, ())))
    assert found == Allotment(4 + 2, 2000, (("fpga:x", 1), ("gpu", 2)), each), "the cores of n2 have two threads"
    assert allotments.of_nodes([entry(), entry("n2", "0x1")], {}, 10).cpus == 10, "the nodes are not known yet"
    assert allotments.of_nodes([entry(gres=gpus)], {}).nodes == (), "the total is that of the node"
    assert found.count("gpu", "") == 2 and found.count("fpga", "") == found.count("fpga", "x") == 1
    assert found.count("fpga", "y") == 0


@pytest.mark.parametrize("wrong", [{"core_bitmap": "x"}, {"mem_alloc": None}, {"gres": [{"name": "gpu"}]}])
def test_an_answer_that_cannot_be_read_shows_nothing(wrong):
    assert allotments.of_nodes([entry(), entry("n2", **wrong)], {}) is None


def old_entry(node, cores, memory=100):
    """Return what Slurm 22.05 shows of a node; it lists the allocated cores alone."""
    sockets = {str(number): {"cores": {"0": "allocated"}} for number in range(cores)}
    return {"nodename": node, "sockets": sockets, "cpus_used": 0, "memory_used": 0, "memory_allocated": memory}


def test_the_nodes_of_a_job_in_the_answer_of_22_05():
    listed = {"allocated_nodes": [old_entry("n1", 7), old_entry("n2", 1, 50)]}
    texts = ["gpu:2(IDX:0-1),fpga:x:1(IDX:0)", "gpu:0(IDX:N/A)"]
    assert allotments.of_job_nodes(listed, texts, 8) == (
        ("n1", Allotment(7, 100, (("fpga:x", 1), ("gpu", 2)))),
        ("n2", Allotment(1, 50, (("gpu", 0),))),
    )
    assert allotments.of_job_nodes(listed, texts[:1], 16) == (
        ("n1", Allotment(14, 100, None)),
        ("n2", Allotment(2, 50, None)),
    ), "two threads a core; a list with another number of nodes shows no gres"
    assert allotments.of_job_nodes({"allocated_nodes": [old_entry("n1", 7)]}, texts[:1], 7) == ()


@pytest.mark.parametrize(
    "listed",
    [
        None,
        {},
        [],
        {"allocated_nodes": []},
        {"allocated_nodes": [{}, {}]},
        {"allocated_nodes": [old_entry("n1", 0)] * 2},
    ],
)
def test_nodes_that_cannot_be_read_are_not_compared(listed):
    assert allotments.of_job_nodes(listed, [], 8) == ()
    wrong = {"allocated_nodes": [old_entry("n1", 1), old_entry("n2", 1, "much")]}
    assert allotments.of_job_nodes(wrong, [], 8) == ()
