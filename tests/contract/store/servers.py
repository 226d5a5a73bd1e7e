"""Real servers with a store: redis with a password (and TLS), and nats-server as `podbridge nats config` sets it up."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from bridge.config.pools import RedisStoreSection
from bridge.pools.store.nats_store import NatsStore
from bridge.pools.store.redis_store import RedisStore
from bridge.pools.store.synchronizer import KeyValueStore
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_server_config import INBOX
from cluster.polling import eventually
from tests.contract.nats.servers import OWNER, PREFIX, NatsServer, World, certificate, free_port, nats_config

PASSWORD = "hunter2-redis"


class RedisServer:
    """A redis that can be killed and started again; it loses its data unless ``durable``."""

    def __init__(self, folder: Path, *, tls: bool = False, durable: bool = False, acl: str = "") -> None:
        self.folder, self.port, self.tls = folder, free_port(), tls
        self.password_file = folder / "redis.password"
        self.password_file.write_text(PASSWORD + "\n")
        self.socket = folder / "redis.sock"
        self.log = folder / "redis.log"
        listen = f"port {self.port}"
        if tls:
            ca, cert, key = certificate(folder, "localhost", "127.0.0.1")
            listen = f"port 0\ntls-port {self.port}\ntls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {ca}\n"
            listen += "tls-auth-clients no"
        keep = "appendonly yes\nappendfsync always" if durable else 'appendonly no\nsave ""'
        self.config = folder / "redis.conf"
        self.config.write_text(
            f"bind 127.0.0.1\n{listen}\nunixsocket {self.socket}\nunixsocketperm 700\ndir {folder}\n"
            f"requirepass {PASSWORD}\n{acl}\n{keep}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is missing: python -m cluster install"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([binary, str(self.config)], stdout=log, stderr=log)
        eventually(self._up)
        return self

    def _up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def access(self, **changes: Any) -> RedisStoreSection:
        return RedisStoreSection(**{"url": self.url, "password_file": self.password_file, **changes})

    def cli(self, *words: str) -> str:
        command = ["redis-cli", "-s", str(self.socket), "--no-auth-warning", "-a", PASSWORD, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Broker:
    """A nats-server with a bucket for the hub, and the credentials of hub and sites."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.out = folder / "nats"
        nats_config("--pools", "alpha,beta", "--out", self.out, "--prefix", PREFIX, *words)
        self.server = NatsServer(folder, config_file=self.out / "nats-server.conf").start()

    def hub(self, world: World, name: str = "hub", *, wait: bool = True) -> Link:
        seed = self.out / "hub.seed"
        return world.link(self.server.url, name, wait=wait, inbox_prefix=INBOX, seed_file=seed)

    def site(self, world: World, pool: str = "alpha") -> Link:
        return world.link(self.server.url, pool, seed_file=self.out / "pools" / f"{pool}.seed")


class Place:
    """A store of one kind on a real server; with redis, the pools use a separate nats-server."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.broker = Broker(folder, "--jetstream")
        self.redis = RedisServer(folder, durable=True).start() if kind == "redis" else None

    def store(self, link: Link) -> KeyValueStore:
        return RedisStore(self.redis.access(), OWNER) if self.redis else NatsStore(link, "podbridge", INBOX, OWNER)

    def kill(self) -> None:
        (self.redis or self.broker.server).kill()

    def start(self) -> None:
        (self.redis or self.broker.server).start()

    def end(self) -> None:
        self.broker.server.kill()
        if self.redis:
            self.redis.kill()
