"""A store in redis: each kind of each cluster is one hash, ``<prefix>:<owner>:<kind>``.

It works with every server that has the commands HSCAN, HSET and HDEL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bridge.config.pools import RedisStoreSection
from bridge.pools.store.synchronizer import StoreError

TIMEOUT = 5.0
"""Seconds to wait for a connection, and for an answer."""
_PAGE = 1000
_PORT = 6379


def options(section: RedisStoreSection) -> dict[str, Any]:
    """Return the address for redis-py. Its own URL parser is not used: it accepts options in the URL."""
    parts = urlsplit(section.url or "")
    if parts.scheme == "unix":
        return {"unix_socket_path": unquote(parts.path)}
    address = {"host": parts.hostname, "port": parts.port or _PORT, "db": int(parts.path.strip("/") or "0")}
    tls = {"ssl": True, "ssl_ca_certs": str(section.ca_file) if section.ca_file else None}
    return {**address, **(tls if parts.scheme == "rediss" else {})}


class RedisStore:
    """One redis server, over one connection. A failed connection is closed, and its request is not
    repeated: the server may be empty when it returns. Files are read at each connect.

    ``owner``: the cluster that the values belong to. Values of other clusters under the same prefix are not visible.
    """

    def __init__(self, section: RedisStoreSection, owner: str) -> None:
        self._section, self._owner = section, owner
        self._options = options(section)
        self._client: redis.Redis | None = None

    def load(self, kind: str) -> dict[str, bytes]:
        """Return all values of a kind by key."""
        with self._connection() as client:
            fields = client.hscan_iter(self._hash(kind), count=_PAGE)
            return {key.decode("utf-8", "replace"): value for key, value in fields}

    def put(self, kind: str, values: Mapping[str, bytes]) -> None:
        """Store these values with one command."""
        with self._connection() as client:
            fields: dict[Any, Any] = dict(values)
            client.hset(self._hash(kind), mapping=fields)

    def delete(self, kind: str, keys: Collection[str]) -> None:
        """Delete these keys with one command."""
        with self._connection() as client:
            client.hdel(self._hash(kind), *keys)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def __str__(self) -> str:
        return f"redis at {self._section.url}"

    def _hash(self, kind: str) -> str:
        return f"{self._section.prefix}:{self._owner}:{kind}"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[redis.Redis]:
        """Yield the connection. Any error closes it and becomes a StoreError."""
        try:
            if self._client is None:
                self._client = self._connect()
            yield self._client
        except redis.AuthenticationError as error:
            self.close()
            file = self._section.password_file
            hint = (
                f"See the password in {file}."
                if file
                else "The server requires a password: set pools.store.redis.passwordFile."
            )
            raise StoreError(f"{self} refuses the login of {self._user_name()}: {error}", hint=hint) from error
        except redis.exceptions.NoPermissionError as error:
            self.close()
            hint = f"The user needs +hscan +hset +hdel on the keys {self._section.prefix}:*"
            raise StoreError(f"{self} refuses the command to {self._user_name()}: {error}", hint=hint) from error
        except Exception as error:  # redis-py raises errors of any kind if the server breaks the protocol
            self.close()
            raise StoreError(f"{self}: {error or type(error).__name__}") from error

    def _user_name(self) -> str:
        return f"user {self._section.user}" if self._section.user else "the default user"

    def _connect(self) -> redis.Redis:
        file = self._section.password_file
        return redis.Redis(
            **self._options,
            username=self._section.user,
            password=file.read_text().strip() if file else None,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            # redis-py must not reconnect by itself: the server may have lost its data
            single_connection_client=True,
            retry=Retry(NoBackoff(), 0),
            # RESP 3 begins with HELLO, which servers before redis 6 do not know
            protocol=2,
        )
