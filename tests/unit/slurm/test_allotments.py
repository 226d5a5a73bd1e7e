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
    assert found == Allotment(4 + 2, 2000, (("fpga:x", 1), ("gpu", 2))), "the cores of n2 have two threads"
    assert found.count("gpu", "") == 2 and found.count("fpga", "") == found.count("fpga", "x") == 1
    assert found.count("fpga", "y") == 0


@pytest.mark.parametrize("wrong", [{"core_bitmap": "x"}, {"mem_alloc": None}, {"gres": [{"name": "gpu"}]}])
def test_an_answer_that_cannot_be_read_shows_nothing(wrong):
    assert allotments.of_nodes([entry(), entry("n2", **wrong)], {}) is None
