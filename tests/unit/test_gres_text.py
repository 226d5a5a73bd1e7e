"""Generic resources in every form in which Slurm prints them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import gres_text
from bridge.gres_text import Gres
from bridge.site.batch import slurm_text
from bridge.slurm import allotments

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
_COUNT = re.compile(r"[0-9]+[kmgtp]?", re.IGNORECASE)
TYPES = st.one_of(
    st.just(""),
    st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,8}", fullmatch=True),
    st.sampled_from(("1g.5gb", "2080ti", "80")),
)
FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
DEVICES = st.sampled_from(("0", "0-1", "0,2", "0-1,4-7", "N/A"))


@st.composite
def printed(draw: st.DrawFn) -> tuple[str, Gres]:
    """Return a resource as Slurm prints it, and what it is."""
    name, kind = draw(NAMES), draw(TYPES)
    number, unit = draw(st.integers(0, 10**4)), draw(st.sampled_from(sorted(FACTORS)))
    prefix, equals = draw(st.sampled_from(("", "gres/", "gres:"))), draw(st.sampled_from(":="))
    written = f"{prefix}{name}{f':{kind}' if kind else ''}"
    form = draw(st.sampled_from(("count", "count", "devices", "sockets", "no devices", "not consumed", "no count")))
    if form == "no count" and not _COUNT.fullmatch(kind):
        return written, Gres(name, kind, 1)
    if form == "no devices":
        return f"{written}(CNT:{number}{unit})", Gres(name, kind, number * FACTORS[unit])
    if form == "not consumed":
        written += ":no_consume"
    written += f"{equals}{number}{draw(st.sampled_from((unit, unit.lower())))}"
    written += {"devices": f"(IDX:{draw(DEVICES)})", "sockets": f"(S:{draw(DEVICES)})"}.get(form, "")
    return written, Gres(name, kind, number * FACTORS[unit])


@given(st.lists(printed(), max_size=4))
def test_what_slurm_prints_is_read_as_it_was_meant(found: list[tuple[str, Gres]]) -> None:
    written, meant = ",".join(text for text, _ in found), [one for _, one in found]
    assert list(map(gres_text.read, gres_text.listed(written))) == meant
    assert list(map(gres_text.read, map(str, meant))) == meant
    counted: dict[str, int] = {}
    for one in meant:
        counted[one.kind] = counted.get(one.kind, 0) + one.count
    assert slurm_text.gres_counts(written) == counted
    assert allotments.of_job(1, 1, 1, {"tres_per_node": written}).gres == tuple(sorted(counted.items()))


def test_devices_in_use_without_a_type_are_counted() -> None:
    assert gres_text.counts("gpu:(null):3(IDX:0-2)") == {"gpu": 3}


@given(st.text(alphabet="gpu:=/,()0123456789kKTx.-_ \u0661\n", max_size=40))
def test_any_other_text_is_read_or_refused(text: str) -> None:
    for part in gres_text.listed(text):
        try:
            one = gres_text.read(part)
        except ValueError:
            continue
        assert gres_text.read(str(one)) == one
        assert part.isascii()


@pytest.mark.parametrize("text", ["", "(null)", "()", ",", " , "])
def test_nothing_is_nothing(text: str) -> None:
    assert gres_text.listed(text) == []


@pytest.mark.parametrize("text", ["N/A", "gpu:", "gpu::2", ":2", "2", "gpu:a:b:c", "gpu:-1", "gpu 2"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name\[:type\]"):
        gres_text.read(text)


def test_a_count_that_slurm_cannot_hold_is_refused() -> None:
    assert gres_text.read(f"gpu:{2**64 - 1}").count == 2**64 - 1
    for text in (f"gpu:{2**64}", "gpu:16384P"):
        with pytest.raises(ValueError, match="above"):
            gres_text.read(text)
