"""Subscriptions that change while a connection is being opened."""

import asyncio
from typing import Any

from bridge.config.pools import NatsSection
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_session import Session
from bridge.protocol.nats.subscription import Route


class FakeSession:
    """Subscribes at once."""

    max_payload = 1

    def __init__(self) -> None:
        self.routes: set[Route] = set()

    def listening(self) -> set[Route]:
        return set(self.routes)

    def remove(self, route: Route, *, drain: bool = False) -> None:
        self.routes.discard(route)


def test_a_subscription_that_ends_while_a_connection_is_opened_gets_no_messages_of_it() -> None:
    link, session = Link(NatsSection(servers=["nats://x"]), "n"), FakeSession()
    old, closed = (link.subscribe(subject, lambda *_: None, threads=0) for subject in ("p.*", "q"))
    session.routes.update(link._routes())
    new = link.subscribe("p.a", lambda *_: None, threads=0)
    old.drain()
    closed.close()
    assert not link._adopt(session)  # type: ignore[arg-type]
    session.routes.update(link._routes())
    assert link._adopt(session)  # type: ignore[arg-type]
    assert session.routes == set(new.routes)


def test_a_session_tells_its_routes_without_that_of_the_answers() -> None:
    async def listen(*_: Any) -> Any:
        return 1, None

    async def run() -> None:
        session = Session("nats://x", {}, "_INBOX")
        session._client.listen = listen  # type: ignore[method-assign]
        route = Route("a", "", lambda *_: None)
        await session._listen(route)
        await session._listen(session._inbox_route)
        assert session.listening() == {route}

    asyncio.run(run())
