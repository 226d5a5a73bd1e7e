"""The configuration of nats-server, alone or as a cluster: one user for each hub and one for each pool.

Each user has only the permissions that it needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from bridge.errors import ConfigError
from bridge.protocol.nats.subjects import ANY, BucketSubjects, Subjects

HUB = "hub"
INBOX = "_INBOX.hub"
"""Prefix of the subjects of answers to hubs, followed by the owner. No site may subscribe to them."""
MAX_PAYLOAD = 8 * 1024 * 1024
MAX_STORE = 1024 * 1024 * 1024
ACCOUNT = "PODBRIDGE"
CLUSTER = "podbridge"
"""Name of the NATS cluster. A server refuses routes of a cluster with another name."""
ROUTE_USER = "route"
ANSWER_WITHIN = "5m"
"""Time for which a site may answer a request; longer than any deadline."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects that one user may publish and subscribe to. ``answers``: it may also answer each request once."""

    publish: list[str]
    subscribe: list[str]
    answers: bool = False

    def text(self, indent: str) -> str:
        """Return the section in nats-server's format."""
        lines = [
            f"publish: {{allow: {_list(self.publish, indent)}}}",
            f"subscribe: {{allow: {_list(self.subscribe, indent)}}}",
        ]
        if self.answers:
            lines.append(f'allow_responses: {{max: 1, expires: "{ANSWER_WITHIN}"}}')
        return ("\n" + indent).join(lines)


@dataclass(frozen=True, slots=True)
class User:
    """A user that authenticates with the private key of ``nkey``, or with a password."""

    name: str
    permissions: Permissions
    nkey: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Listeners:
    """The addresses of the server as host:port; empty for none. Without a certificate, connections are not encrypted.

    ``jetstream``: folder of the buckets; empty: JetStream is off.
    """

    client: str = "127.0.0.1:4222"
    websocket: str = ""
    certificate: str = ""
    key: str = ""
    max_payload: int = MAX_PAYLOAD
    jetstream: str = ""


@dataclass(frozen=True, slots=True)
class ServerCluster:
    """The servers of a NATS cluster. They authenticate to each other with one password.

    ``hosts``: host name or address of each server by the server's name. ``port``: port for routes between the servers.
    ``authority``: file with the CA of the servers' certificates; empty: the system's CAs. With a certificate
    (:class:`Listeners`), both servers of a route verify each other's certificate.
    """

    hosts: dict[str, str]
    port: int = 6222
    authority: str = ""
    password: str = field(default="", repr=False)

    def text(self, server: str, tls: str) -> list[str]:
        """Return the section of one server. ``tls``: its certificate and key; empty for none."""
        other_hosts = [host for name, host in self.hosts.items() if name != server]
        routes = [f"nats-route://{ROUTE_USER}:{self.password}@{_bracketed(host)}:{self.port}" for host in other_hosts]
        lines = [
            "cluster: {",
            f"  name: {CLUSTER}",
            f"  listen: {_quote(f'0.0.0.0:{self.port}')}",
            f"  authorization: {{user: {ROUTE_USER}, password: {_quote(self.password)}, timeout: 5}}",
            f"  routes: {_list(routes, '  ')}",
            "  # hubs and sites have all addresses in their configuration",
            "  no_advertise: true",
            # the default closes a silent route after four minutes, and loses the requests of that time
            '  ping_interval: "5s"',
            "  ping_max: 2",
        ]
        if tls:
            authority = f", ca_file: {_quote(self.authority)}" if self.authority else ""
            lines.append(f"  tls: {{{tls}{authority}, verify: true, timeout: 5}}")
        return [*lines, "}"]


def hub_permissions(prefix: str, bucket: str = "", owner: str = ANY) -> Permissions:
    """Return the permissions of a hub: requests about its owner's jobs to all pools, their events, and its bucket.

    ``owner``: UID of the hub's cluster; ``ANY`` for the only hub of a server.
    """
    all_pools = Subjects(prefix, ANY, owner)
    store = BucketSubjects(bucket).publish() if bucket else []
    inbox = f"{INBOX}.>" if owner == ANY else f"{INBOX}.{owner}.>"
    return Permissions(
        [*all_pools.requests().values(), all_pools.inputs, *store],
        [*all_pools.published().values(), all_pools.streams, inbox],
    )


def site_permissions(prefix: str, pool: str) -> Permissions:
    """Return the permissions of a site: requests to its pool, as a member of the pool's queue group, and answers."""
    if pool == ANY:
        raise ConfigError(f"pool {pool!r}: must be the name of one pool")
    subjects = Subjects(prefix, pool, ANY)
    # SUBJECT QUEUE: only as a member of this group; a plain subscription would get a copy of each request
    request_patterns = [f"{pattern} {pool}" for pattern in subjects.requests().values()]
    return Permissions(
        [*subjects.published().values(), subjects.streams],
        [*request_patterns, subjects.inputs],
        answers=True,
    )


def users_text(users: list[User], *, jetstream: bool = False) -> str:
    """Return the file of users. A new or removed pool changes only this file."""
    lines = [
        "# Written by podbridge nats config, which overwrites it at each run.",
        "accounts: {",
        f"  {ACCOUNT}: {{",
        *(["    jetstream: enabled"] if jetstream else []),
        "    users: [",
    ]
    lines += [user_text(user, "      ") for user in users]
    return "\n".join([*lines, "    ]", "  }", "}", ""])


def user_text(user: User, indent: str = "") -> str:
    """Return an element of the list ``users`` of an account."""
    if user.nkey:
        login = [f"  nkey: {user.nkey}  # {user.name}"]
    else:
        login = [f"  user: {_quote(user.name)}", f"  password: {_quote(user.password)}"]
    permissions = ["  permissions: {", f"    {user.permissions.text(indent + '    ')}", "  }"]
    return "\n".join(indent + line for line in ("{", *login, *permissions, "}"))


def server_text(
    listeners: Listeners, users_file: str, *, name: str = "podbridge", cluster: ServerCluster | None = None
) -> str:
    """Return the configuration of the server ``name``. ``cluster``: the cluster that it belongs to, if any."""
    lines = [
        "# Written once by podbridge nats config; you can change it.",
        f"server_name: {_quote(name)}",
        f"listen: {_quote(listeners.client)}",
        f"max_payload: {listeners.max_payload}",
        "# disconnects clients that read too slowly",
        'write_deadline: "10s"',
        'ping_interval: "20s"',
        "ping_max: 2",
    ]
    pair = f"cert_file: {_quote(listeners.certificate)}, key_file: {_quote(listeners.key)}"
    tls = f"{{{pair}}}"
    if listeners.certificate:
        lines.append(f"tls: {tls}")
    if listeners.websocket:
        websocket_tls = f"tls: {tls}" if listeners.certificate else "no_tls: true  # behind a proxy that terminates TLS"
        lines += ["websocket: {", f"  listen: {_quote(listeners.websocket)}", f"  {websocket_tls}", "}"]
    if listeners.jetstream:
        size = f"max_memory_store: 0, max_file_store: {MAX_STORE}"
        lines.append(f"jetstream: {{store_dir: {_quote(listeners.jetstream)}, {size}}}")
    if cluster:
        lines += cluster.text(name, pair if listeners.certificate else "")
    lines.append(f"include {_quote(users_file)}")
    return "\n".join(lines) + "\n"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(items: list[str], indent: str) -> str:
    return "[" + "".join(f"\n{indent}  {_quote(item)}" for item in items) + f"\n{indent}]"
