"""A store in redis: each kind of each cluster is one hash, ``<prefix>:<owner>:<kind>``.

It works with every server that has the commands HSCAN, HSET and HDEL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bridge.errors import ConfigError
from bridge.pools.store.store_interface import StoreError

TIMEOUT = 5.0
"""Seconds to wait for a connection, and for an answer."""
SCHEMES = ("redis", "rediss", "unix")
_PAGE = 1000
_PORT = 6379


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """Address and credentials. ``url``: ``redis://host:port/database``, ``rediss://`` (TLS) or ``unix:///socket``.

    The files are read at each connect. Without ``user``, the password is that of redis' default user.
    """

    url: str
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    prefix: str = "podbridge"

    def options(self) -> dict[str, Any]:
        """Return the arguments for redis-py. Its own URL parser is not used: it accepts options in the URL."""
        parts = urlsplit(self.url)
        try:
            port = parts.port or _PORT
        except ValueError as error:
            raise ConfigError(f"redis URL: {error}") from error
        if parts.scheme not in SCHEMES or parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "redis URL: must be redis://host:port/database, rediss:// or unix:///path, without user, password and"
                " options"
            )
        if parts.scheme == "unix":
            return {"unix_socket_path": unquote(parts.path)}
        database = parts.path.strip("/") or "0"
        if not parts.hostname or not database.isdecimal():
            raise ConfigError("redis URL: redis://host:port/database needs a host, and a number as database")
        tls = {"ssl": True, "ssl_ca_certs": str(self.ca_file) if self.ca_file else None}
        address = {"host": parts.hostname, "port": port, "db": int(database)}
        return {**address, **(tls if parts.scheme == "rediss" else {})}


class RedisStore:
    """One redis server, over one connection. A failed connection is closed, and its request is not
    repeated: the server may be empty when it returns.

    ``owner``: the cluster that the values belong to. Values of other clusters under the same prefix are not visible.
    """

    def __init__(self, access: RedisAccess, owner: str) -> None:
        self._access, self._owner = access, owner
        self._options = access.options()
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
        return f"redis at {self._access.url}"

    def _hash(self, kind: str) -> str:
        return f"{self._access.prefix}:{self._owner}:{kind}"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[redis.Redis]:
        """Yield the connection. Any error closes it and becomes a StoreError."""
        try:
            if self._client is None:
                self._client = self._connect()
            yield self._client
        except redis.AuthenticationError as error:
            self.close()
            file = self._access.password_file
            hint = (
                f"See the password in {file}."
                if file
                else "The server requires a password: set pools.store.redis.passwordFile."
            )
            raise StoreError(f"{self} refuses the login of {self._user_name()}: {error}", hint=hint) from error
        except redis.exceptions.NoPermissionError as error:
            self.close()
            hint = f"The user needs +hscan +hset +hdel on the keys {self._access.prefix}:*"
            raise StoreError(f"{self} refuses the command to {self._user_name()}: {error}", hint=hint) from error
        except Exception as error:  # redis-py raises errors of any kind if the server breaks the protocol
            self.close()
            raise StoreError(f"{self}: {error or type(error).__name__}") from error

    def _user_name(self) -> str:
        return f"user {self._access.user}" if self._access.user else "the default user"

    def _connect(self) -> redis.Redis:
        file = self._access.password_file
        return redis.Redis(
            **self._options,
            username=self._access.user,
            password=file.read_text().strip() if file else None,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            # redis-py must not reconnect by itself: the server may have lost its data
            single_connection_client=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
