"""The hub's side of a command and of a connection to a port, over a link without a network."""

import pytest

from bridge.errors import SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.sessions import EXIT, RESIZE, STDERR, STDIN, STDOUT, Exit, Output
from bridge.protocol.nats.request_client import NatsConnection, NatsSession
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.two_way import StreamClosedError, TwoWay, TwoWays
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

SUBJECTS = Subjects("bridge.v1", "alpha", "c1")


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def site(link: FakeLink) -> TwoWay:
    """The site's end of the stream."""
    end = TwoWay(link, SUBJECTS.stream("s"), FakeClock())  # type: ignore[arg-type]
    link.subscribe(SUBJECTS.input("s"), lambda _subject, data, _respond: end.deliver(data))
    return end


@pytest.fixture
def session(link: FakeLink, site: TwoWay) -> NatsSession:
    return NatsSession(link, SUBJECTS, "s", FakeClock(), TwoWays(link))  # type: ignore[arg-type]


def test_output_until_the_exit_code(site: TwoWay, session: NatsSession) -> None:
    site.send(STDOUT, b"a")
    site.send(STDERR)  # an end without data
    site.send(STDERR, b"b")
    site.send(EXIT, b"137")
    assert [session.receive() for _ in range(3)] == [Output(STDOUT, b"a"), Output(STDERR, b"b"), Exit(137)]


@pytest.mark.parametrize("code", [b"", b"-1", b"x", b"1000"])
def test_an_exit_code_that_is_none_is_an_unknown_outcome(site: TwoWay, session: NatsSession, code: bytes) -> None:
    site.send(EXIT, code)
    with pytest.raises(SiteUnknownOutcomeError, match="invalid exit code"):
        session.receive()


def test_input_its_end_and_the_size_of_the_terminal(site: TwoWay, session: NatsSession) -> None:
    session.send(b"a")
    session.resize(80, 24)
    session.end_input()
    received = [site.receive() for _ in range(3)]
    assert [(head.channel, data, head.end) for head, data in received] == [
        (STDIN, b"a", False),
        (RESIZE, b"80 24", False),
        (STDIN, b"", True),
    ]


def test_a_session_is_closed_once_at_both_ends(link: FakeLink, site: TwoWay, session: NatsSession) -> None:
    session.close()
    assert session.is_over and site.is_over
    with pytest.raises(StreamClosedError):
        site.send(STDOUT, b"too late")
    with pytest.raises(SiteRefusedError, match="the session was ended"):
        session.receive()
    session.send(b"too late")  # the command may have ended at any moment: no error
    assert [one.subjects for one in link.subscriptions] == [(SUBJECTS.input("s"),)]
    before = len(link.sent)
    session.close()
    assert len(link.sent) == before


def test_the_error_of_a_site_ends_a_session(site: TwoWay, session: NatsSession) -> None:
    site.send(STDOUT, error="no such container")
    with pytest.raises(SiteRefusedError, match="no such container"):
        session.receive()


def test_a_connection_has_the_data_of_the_port_its_end_and_then_none(link: FakeLink, site: TwoWay) -> None:
    connection = NatsConnection(link, SUBJECTS, "s", FakeClock(), TwoWays(link))  # type: ignore[arg-type]
    site.send(STDOUT, b"a")
    site.send(STDERR, b"no data of the port")
    site.send(STDOUT, end=True)
    site.send(EXIT)
    assert [connection.receive() for _ in range(3)] == [b"a", b"", None]
