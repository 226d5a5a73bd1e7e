import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SlurmError
from bridge.slurm import hostlist
from bridge.slurm.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        ("n[1,3-4]", ("n1", "n3", "n4")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("n[007-010]", ("n007", "n008", "n009", "n010")),
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
        ("x,n[1-2]-ib,y", ("x", "n1-ib", "n2-ib", "y")),
        ("n[8-10],n[1]", ("n8", "n9", "n10", "n1")),
    ],
)
def test_expands_as_scontrol_does(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1", "n1]", "n[a-b]", "n[3-1]", "n[]", "n[1-]", "n[[1]]", "n]1[", "n[1-2-3]"])
def test_says_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(SlurmError, match="not a hostlist"):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-9999999]", "r[1-2000]n[1-2000]", "a[1-600000],b[1-600000]"])
def test_refuses_to_fill_the_memory(text: str) -> None:
    with pytest.raises(SlurmError, match="more than 1000000 names"):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n0", "n1", "n2", "n5"], "n[0-2,5]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n1", "n01"], "n1,n01"),
        (["n1-ib", "login"], "login,n1-ib"),
        (["n2", "n1", "n2"], "n[1-2]"),
    ],
)
def test_compresses(names: list[str], text: str) -> None:
    assert compress(names) == text


NAMES = st.from_regex(r"[a-z]{0,2}[0-9]{0,3}-?[a-z]?[0-9]{0,4}", fullmatch=True).filter(bool)


@given(st.sets(NAMES))
def test_what_is_compressed_expands_to_the_same_names(names: set[str]) -> None:
    again = expand(compress(names))
    assert len(again) == len(names)
    assert set(again) == names


@given(st.text(alphabet="ab1029[],- ", max_size=30))
def test_nothing_but_its_own_error_comes_out(text: str) -> None:
    with contextlib.suppress(SlurmError):
        expand(text)


def test_the_ranges_of_a_bracket_have_the_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    ranges = hostlist._ranges

    def counted(text: str, room: int) -> Iterator[str]:
        for name in ranges(text, room):
            made.append(name)
            yield name

    monkeypatch.setattr(hostlist, "_ranges", counted)
    monkeypatch.setattr(hostlist, "LIMIT", 100)
    with pytest.raises(SlurmError, match="more than 100 names"):
        expand(f"n[{','.join(['0-99'] * 1000)}]")
    assert len(made) <= 101
