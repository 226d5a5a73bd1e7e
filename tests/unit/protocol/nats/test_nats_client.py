"""The private names of nats-py that bridge/protocol/nats/nats_client.py uses: they exist, and behave as it expects.

When one of these tests fails after an upgrade of nats-py, read bridge/protocol/nats/nats_client.py before you change
the pins.
"""

import asyncio
import functools
import json
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from aiohttp import ClientWebSocketResponse, web
from nats.aio.client import Client
from nats.aio.transport import TcpTransport, WebSocketTransport

from bridge.protocol.nats.nats_client import DirectClient

ROOT = Path(__file__).parents[4]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHECKED = "2.16.0"
INFO = {"server_id": "x", "version": "2.11.0", "proto": 1, "headers": True, "max_payload": 1024}
OPTIONS = {"allow_reconnect": False, "max_reconnect_attempts": -1, "reconnect_time_wait": 3600, "pending_size": -1}


class FakeServer:
    """Speaks enough of the protocol to accept a client. ``chunks`` has the data of each read, or of each frame."""

    def __init__(self, **info: Any) -> None:
        self.info = f"INFO {json.dumps({**INFO, **info})}\r\n".encode()
        self.chunks: list[bytes] = []
        self.ended = asyncio.Event()
        self.send: Callable[[bytes], Awaitable[None]] | None = None

    @property
    def received(self) -> bytes:
        return b"".join(self.chunks)

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(5):
            while text not in self.received:
                await asyncio.sleep(0.005)

    async def take(self, data: bytes) -> None:
        self.chunks.append(data)
        assert self.send is not None
        for _ in range(data.count(b"PING\r\n")):
            await self.send(b"PONG\r\n")

    def listens(self, scheme: str) -> AbstractAsyncContextManager[str]:
        return self.websocket() if scheme == "ws" else self.tcp()

    @asynccontextmanager
    async def tcp(self) -> AsyncIterator[str]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def send(data: bytes) -> None:
                writer.write(data)
                await writer.drain()

            self.send = send
            try:
                await send(self.info)
                while data := await reader.read(65536):
                    await self.take(data)
            except ConnectionError:
                pass
            self.ended.set()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()

    @asynccontextmanager
    async def websocket(self) -> AsyncIterator[str]:
        async def handle(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            self.send = socket.send_bytes
            await socket.send_bytes(self.info)
            async for message in socket:
                await self.take(message.data)
            self.ended.set()
            return socket

        app = web.Application()
        app.router.add_get("/", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@asynccontextmanager
async def connected(address: str, scheme: str = "nats", **options: Any) -> AsyncIterator[DirectClient]:
    client = DirectClient(**options)

    async def ignore(*_: Any) -> None:
        pass

    try:
        await client.connect(servers=[f"{scheme}://{address}"], connect_timeout=5, error_cb=ignore, **OPTIONS)
        yield client
    finally:
        with suppress(Exception):
            await client.close()
        await client.drop()


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


def test_the_release_is_the_one_that_was_checked() -> None:
    assert version("nats-py") == CHECKED
    assert f"nats-py=={CHECKED} " in (ROOT / "requirements.lock").read_text()
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"nats-py[nkeys,aiohttp]=={CHECKED}" in dependencies


@in_a_loop
async def test_the_private_names_exist() -> None:
    client = Client()
    names = ("_sid", "_transport", "_pending", "_pending_data_size", "_process_msg")
    assert [name for name in (*names, "_process_info") if not hasattr(client, name)] == []
    assert TcpTransport().__dict__.keys() >= {"_io_writer", "_bare_io_writer"}
    socket = WebSocketTransport()
    assert socket.__dict__.keys() >= {"_ws", "_client"}
    await socket._client.close()
    assert "_conn" in ClientWebSocketResponse.__init__.__code__.co_names


@in_a_loop
async def test_a_message_goes_to_the_subscriber_whose_number_the_client_foresaw() -> None:
    server, found = FakeServer(), []
    async with server.tcp() as address, connected(address) as client:
        for subject in ("a", "b"):
            number, _ = await client.listen(subject, "", lambda *message: found.append(message))
            await server.until(f"SUB {subject}  {number}\r\n".encode())
        assert server.send is not None
        await server.send(b"MSG b 2 reply.to 5\r\nhello\r\nMSG no.such.route 9 2\r\n..\r\n")
        await server.send(b"HMSG a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
        await client.flush(5)
        assert found == [("b", b"hello", "reply.to", False, ""), ("a", b"", "", True, "")]


@pytest.mark.parametrize("scheme", ["nats", "ws"])
@in_a_loop
async def test_several_messages_leave_as_one_command(scheme: str) -> None:
    command = b"PUB a  1\r\n1\r\nPUB b reply.to 2\r\n22\r\n"

    server = FakeServer()
    async with server.listens(scheme) as address, connected(address, scheme) as client:
        await client.subscribe("c")
        await client.send([("a", b"1", "", ""), ("b", b"22", "reply.to", "")])
        await client.flush(5)
        assert server.received.count(command) == 1
        assert server.received.index(b"SUB c") < server.received.index(command)
        assert scheme == "nats" or command in server.chunks, "one frame"
        assert client.pending_data_size == 0
        await client.close()
        with pytest.raises(nats.errors.ConnectionClosedError):
            await client.send([("a", b"1", "", "")])


@pytest.mark.parametrize(("headers", "command"), [(True, b"HPUB a r 82 83\r\n"), (False, b"PUB a r 1\r\n")])
@in_a_loop
async def test_a_trace_context_is_a_header_if_the_server_accepts_headers(headers: bool, command: bytes) -> None:
    server = FakeServer()
    async with server.tcp() as address, connected(address) as client:
        client._server_info = {**client._server_info, "headers": headers}
        await client.send([("a", b"1", "r", TRACEPARENT)])
        await server.until(command)
        assert (b"traceparent: " + TRACEPARENT.encode() in server.received) is headers


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"traceparent: {TRACEPARENT}", TRACEPARENT),
        (f"a: b\r\nTraceparent:{TRACEPARENT}", TRACEPARENT),
        (f"x-traceparent: {TRACEPARENT}", ""),
        ("traceparent: 00-0-0-01", ""),
        ("\xff\x00", ""),
    ],
)
@in_a_loop
async def test_the_trace_context_of_a_message_is_read_from_its_header(header: str, found: str) -> None:
    server, messages = FakeServer(), []
    async with server.tcp() as address, connected(address) as client:
        number, _ = await client.listen("a", "", lambda *message: messages.append(message))
        await server.until(f"SUB a  {number}\r\n".encode())
        head = b"NATS/1.0\r\n" + header.encode("latin-1") + b"\r\n\r\n"
        assert server.send is not None
        await server.send(f"HMSG a {number} {len(head)} {len(head) + 1}\r\n".encode() + head + b"1\r\n")
        await client.flush(5)
        assert messages == [("a", b"1", "", False, found)]


@in_a_loop
async def test_a_server_without_tls_gets_no_credentials() -> None:
    server = FakeServer()
    async with server.tcp() as address:
        with pytest.raises(nats.errors.SecureConnWantedError):
            async with connected(address, "tls", require_tls=True):
                pass
        assert server.received == b""


@in_a_loop
async def test_servers_that_a_server_names_are_not_used() -> None:
    server = FakeServer(connect_urls=["127.0.0.1:1", "127.0.0.1:2"])
    async with server.tcp() as address, connected(address) as client:
        assert [uri.netloc for uri in client.servers] == [address]


@pytest.mark.parametrize("scheme", ["nats", "ws"])
@in_a_loop
async def test_a_dropped_connection_ends_at_once(scheme: str) -> None:
    server = FakeServer()
    async with server.listens(scheme) as address, connected(address, scheme) as client, asyncio.timeout(2):
        await client.drop()
        await server.ended.wait()
