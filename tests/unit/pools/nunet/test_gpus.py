import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.pools.nunet.peers import kind_in, kind_of
from bridge.protocol.model.announcement import Announcement
from controllers.virtual import announcement_validation


@pytest.mark.parametrize(
    ("name", "vram", "kind"),
    [
        ("Tesla P100-PCIE-16GB", 16384, "nvidia.tesla.p100.16gb"),
        ("NVIDIA GeForce RTX 3080", 10240, "nvidia.rtx.3080.10gb"),
        ("NVIDIA GeForce RTX 3090", 24576, "nvidia.rtx.3090.24gb"),
        ("NVIDIA GeForce RTX 4070 Ti", 12282, "nvidia.rtx.4070.ti.12gb"),
        ("NVIDIA A100-SXM4-40GB", 40536, "nvidia.a100.40gb"),
        ("AMD Radeon RX 7900 XTX", 24560, "amd.radeon.rx.7900.xtx.24gb"),
        ("Radeon Instinct MI50", 16384, "amd.radeon.instinct.mi50.16gb"),
        ("Intel(R) Arc(TM) A770 Graphics", 16384, "intel.arc.a770.16gb"),
        ("NVIDIA", 512, "nvidia.gpu.1gb"),
        ("", 0, "nvidia.gpu.1gb"),
    ],
)
def test_a_driver_name_becomes_a_kind(name, vram, kind):
    assert kind_of(name, vram) == kind


@given(st.text(max_size=200), st.integers(0, 10**9))
def test_every_kind_is_a_resource_that_kubernetes_accepts_and_is_read_back(name, vram):
    kind = kind_of(name, vram)
    content = {"capacity": {f"nunet.io/gpu.{kind}": "3"}, "labels": {"gpu-type": kind}}
    told = Announcement(pool="p", submitter="s", time=0, period=1, version="", **content)
    assert not announcement_validation.check(told).problems
    assert kind_in(f"nunet.io/gpu.{kind}") == kind_in(f"nunet.gpu.{kind}") == kind


@given(st.text(alphabet="abcz019.-_ GB", max_size=40))
def test_a_malformed_gpu_resource_is_an_error_and_no_other_kind(rest):
    try:
        kind = kind_in(f"nunet.io/gpu.{rest}")
    except ValueError as error:
        assert "nvidia.rtx.3080.10gb" in str(error)
    else:
        assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9][a-z0-9.]*\.\d+gb", kind)


@pytest.mark.parametrize("other", ["cpu", "nvidia.com/gpu", "nunet.io/cpu.mhz", ""])
def test_other_resources_are_no_gpu(other):
    assert kind_in(other) is None
