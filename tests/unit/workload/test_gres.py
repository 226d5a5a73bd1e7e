import pytest

from bridge import names
from bridge.gres_text import Gres
from bridge.workload import annotations
from bridge.workload.devices import gres


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", [Gres("gpu", "", 1)]),
        ("gpu:2", [Gres("gpu", "", 2)]),
        ("gpu=2", [Gres("gpu", "", 2)]),
        ("gres/gpu:a100", [Gres("gpu", "a100", 1)]),
        ("gres:gpu:a100=3", [Gres("gpu", "a100", 3)]),
        ("gpu:2080ti:1", [Gres("gpu", "2080ti", 1)]),
        ("gpu:2080ti", [Gres("gpu", "2080ti", 1)]),
        ("gpu:1g.10gb:2, gpu:3g.20gb", [Gres("gpu", "1g.10gb", 2), Gres("gpu", "3g.20gb", 1)]),
        ("gpu:2:2", [Gres("gpu", "2", 2)]),
        ("gpu:2080:4", [Gres("gpu", "2080", 4)]),
        ("mps:1k", [Gres("mps", "", 1024)]),
        ("gpu:1g", [Gres("gpu", "", 2**30)]),
        ("gpu:0", [Gres("gpu", "", 0)]),
    ],
)
def test_what_slurm_reads(text: str, expected: list[Gres]) -> None:
    assert list(gres.parse(text)) == expected
    assert annotations.check({names.GRES: text}) == []
    assert gres.parse(",".join(map(str, expected))) == tuple(expected)


@pytest.mark.parametrize(
    "text", ["", "2", "gpu:", "gpu:a:b:c", "gpu:-1", "gpu,,fpga", "gpu 2", "gpu:1,gpu:3", "gpu:a:3,gpu:a:1"]
)
def test_what_slurm_refuses_or_does_not_count_in_full(text: str) -> None:
    with pytest.raises(ValueError):
        gres.parse(text)
    assert len(annotations.check({names.GRES: text})) == 1


@pytest.mark.parametrize("text", ["gpu:3,gpu:a100:1", "gpu:a100:1,gpu:3", "gpu,gpu"])
def test_a_name_stands_once_or_with_types(text: str) -> None:
    (problem,) = annotations.check({names.GRES: text})
    assert "each once" in problem
