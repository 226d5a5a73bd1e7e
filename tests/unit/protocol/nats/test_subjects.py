import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import _validate_subject

from bridge.errors import ConfigError
from bridge.protocol.nats.request_table import SUBMIT
from bridge.protocol.nats.subjects import ANY, Subjects, decode, encode, kind_of, last_token, owner_of, pool_of

OWNER = "c1"
SUBJECTS = Subjects("bridge.v1", "alpha", OWNER)
TEXT = st.text(max_size=300)
NASTY = st.text(alphabet=" .*>\r\n\t=$-_aZ0é\U0001f600\x00", max_size=60)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("default-web-0", "default-web-0"),
        ("a.b", "a=2Eb"),
        ("*", "=2A"),
        (">", "=3E"),
        (" \r\n", "=20=0D=0A"),
        ("=", "=3D"),
        ("é", "=C3=A9"),
        ("", "="),
    ],
)
def test_encode(text: str, token: str) -> None:
    assert encode(text) == token
    assert decode(token) == text


@given(TEXT | NASTY)
def test_any_text_is_one_token_and_comes_back(text: str) -> None:
    token = encode(text)
    _validate_subject(f"a.{token}.b", strict=True)
    assert len(f"a.{token}.b".split(".")) == 3
    assert not set(token) & set("*> \r\n\t.")
    if len(token) < 1000:
        assert decode(token) == text


@given(st.text())
def test_decode_never_raises(token: str) -> None:
    decode(token)


@given(NASTY, NASTY)
def test_names_of_a_pod_never_break_a_subject(namespace: str, name: str) -> None:
    subject = SUBJECTS.request(SUBMIT, f"{namespace}-{name}", "uid-1")
    _validate_subject(subject, strict=True)
    assert len(subject.split(".")) == 7
    assert pool_of("bridge.v1", subject) == "alpha"
    assert last_token(subject) == "uid-1"


def test_the_longest_names_there_can_be_fit_a_protocol_line() -> None:
    name = ".".join("a" for _ in range(127))
    assert len(SUBJECTS.request(SUBMIT, f"{'n' * 63}-{name}", "u" * 64)) < 2000
    assert len(encode("." * 100_000)) == 1000


def test_subjects_are_those_of_the_design() -> None:
    assert SUBJECTS.announce == "bridge.v1.alpha.announce"
    assert SUBJECTS.stream("s") == "bridge.v1.alpha.stream.c1.s"
    assert SUBJECTS.input("s") == "bridge.v1.alpha.input.c1.s"
    assert Subjects("bridge.v1", ANY, OWNER).event == "bridge.v1.*.event.c1"


@pytest.mark.parametrize("pool", ["", "A", "a.b", "-a", "a-", ">", "a b", "a" * 64, "a\n"])
def test_pools_that_can_not_be(pool: str) -> None:
    with pytest.raises(ConfigError):
        Subjects("bridge.v1", pool, OWNER)


@pytest.mark.parametrize("prefix", ["", ".", "a.", "a..b", "a.*", ">", "a b", "a\n", "é"])
def test_prefixes_that_can_not_be(prefix: str) -> None:
    with pytest.raises(ConfigError):
        Subjects(prefix, "alpha", OWNER)


@pytest.mark.parametrize(
    ("subject", "pool"),
    [
        ("bridge.v1.alpha.event", "alpha"),
        ("bridge.v1.alpha", ""),
        ("bridge.v1", ""),
        ("bridge.v10.alpha.event", ""),
        ("bridge.v1.*.event.c1", ""),
        ("bridge.v1..event", ""),
        ("other", ""),
    ],
)
def test_pool_of(subject: str, pool: str) -> None:
    assert pool_of("bridge.v1", subject) == pool


@pytest.mark.parametrize(
    ("subject", "kind", "owner"),
    [
        (SUBJECTS.request(SUBMIT, "ns-pod", "u"), "submit", "c1"),
        (SUBJECTS.stream("s"), "stream", "c1"),
        ("bridge.v1.alpha.event.c1", "event", "c1"),
        ("bridge.v1.alpha.event.*", "event", ""),
        ("bridge.v1.alpha.announce", "announce", ""),
        ("bridge.v1.alpha", "", ""),
        ("bridge.v10.alpha.event.c1", "", ""),
    ],
)
def test_kind_and_owner_of(subject: str, kind: str, owner: str) -> None:
    assert (kind_of("bridge.v1", subject), owner_of("bridge.v1", subject)) == (kind, owner)
