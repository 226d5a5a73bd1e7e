"""Valid and invalid redis URLs, and the errors of a server that breaks the protocol."""

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from bridge.config.pools import RedisStoreSection
from bridge.pools.store.redis_store import RedisStore, options
from bridge.pools.store.synchronizer import StoreError

OWNER = "c1"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", {"host": "host", "port": 6379, "db": 0}),
        ("redis://[::1]:7000/3", {"host": "::1", "port": 7000, "db": 3}),
        ("unix:///run/redis%20x.sock", {"unix_socket_path": "/run/redis x.sock"}),
        ("rediss://h:1/0", {"host": "h", "port": 1, "db": 0, "ssl": True, "ssl_ca_certs": None}),
    ],
)
def test_urls(url: str, expected: dict[str, object]) -> None:
    assert options(RedisStoreSection(url=url)) == expected


def test_a_private_authority_is_the_one_that_counts(tmp_path: Path) -> None:
    found = options(RedisStoreSection(url="rediss://h", ca_file=tmp_path / "ca.pem"))
    assert found["ssl_ca_certs"] == str(tmp_path / "ca.pem")


def test_a_password_file_that_is_not_there_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.password"):
        section = RedisStoreSection(url="redis://127.0.0.1:1", password_file=tmp_path / "none.password")
        RedisStore(section, OWNER).load("pools")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400\r\n\r\n", b"*999999999\r\n", b"\x00\xff\r\n", b"", b"*-5\r\n$x\r\n"])
def test_a_server_that_speaks_nonsense_is_an_error_of_the_store(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _address = server.accept()
                    with peer:
                        peer.recv(65536)
                        peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        store = RedisStore(RedisStoreSection(url=f"redis://127.0.0.1:{server.getsockname()[1]}"), OWNER)
        with pytest.raises(StoreError):
            store.load("pools")
