"""A configuration for nats-server, alone or as a cluster: one user for each hub and one for each pool.

No user can do more than it must.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from bridge.errors import ConfigError
from bridge.wire.bucket import BucketSubjects
from bridge.wire.subjects import ANY, Subjects

HUB = "hub"
INBOX = "_INBOX.hub"
"""Where answers to hubs go, each to its own part named by its owner: no site may listen there."""
MAX_PAYLOAD = 8 * 1024 * 1024
MAX_STORE = 1024 * 1024 * 1024
ACCOUNT = "PODBRIDGE"
CLUSTER = "podbridge"
"""Name of the NATS cluster: servers of another name are refused as routes."""
ROUTE_USER = "route"
ANSWER_WITHIN = "5m"
"""How long a site may take to answer a request; longer than any deadline."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What one user may publish and listen to; with ``answers``, also one answer to each request that it gets."""

    publish: list[str]
    subscribe: list[str]
    answers: bool = False

    def text(self, indent: str) -> str:
        """Write it as nats-server reads it."""
        lines = [
            f"publish: {{allow: {_list(self.publish, indent)}}}",
            f"subscribe: {{allow: {_list(self.subscribe, indent)}}}",
        ]
        if self.answers:
            lines.append(f'allow_responses: {{max: 1, expires: "{ANSWER_WITHIN}"}}')
        return ("\n" + indent).join(lines)


@dataclass(frozen=True, slots=True)
class User:
    """A user that proves who it is with the key to ``nkey``, or with a password."""

    name: str
    permissions: Permissions
    nkey: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the server listens: addresses as host:port, empty for none. Without a certificate nothing is encrypted.

    ``jetstream``: the folder in which it keeps buckets; empty: it keeps nothing.
    """

    client: str = "127.0.0.1:4222"
    websocket: str = ""
    certificate: str = ""
    key: str = ""
    max_payload: int = MAX_PAYLOAD
    jetstream: str = ""


@dataclass(frozen=True, slots=True)
class ServerCluster:
    """The servers of a NATS cluster, which authenticate to each other with one password.

    ``hosts``: name of a server -> host name or address under which the others reach it. ``port``: where each listens
    for the others. ``authority``: file with the CA that signed the servers' certificates; empty: the system's. With a
    certificate (:class:`Listeners`), each server verifies the other's, in both directions.
    """

    hosts: dict[str, str]
    port: int = 6222
    authority: str = ""
    password: str = field(default="", repr=False)

    def text(self, server: str, tls: str) -> list[str]:
        """Write the section of one server; ``tls`` is its certificate and key, empty for none."""
        others = [host for name, host in self.hosts.items() if name != server]
        routes = [f"nats-route://{ROUTE_USER}:{self.password}@{_bracketed(host)}:{self.port}" for host in others]
        lines = [
            "cluster: {",
            f"  name: {CLUSTER}",
            f"  listen: {_quote(f'0.0.0.0:{self.port}')}",
            f"  authorization: {{user: {ROUTE_USER}, password: {_quote(self.password)}, timeout: 5}}",
            f"  routes: {_list(routes, '  ')}",
            "  # hub and sites name all servers themselves",
            "  no_advertise: true",
            # by default a silent route is given up after four minutes, and requests go there meanwhile
            '  ping_interval: "5s"',
            "  ping_max: 2",
        ]
        if tls:
            authority = f", ca_file: {_quote(self.authority)}" if self.authority else ""
            lines.append(f"  tls: {{{tls}{authority}, verify: true, timeout: 5}}")
        return [*lines, "}"]


def hub_permissions(prefix: str, bucket: str = "", owner: str = ANY) -> Permissions:
    """Return what a hub needs: ask every pool about its owner's jobs, hear of them, get answers, use its bucket.

    ``owner``: UID of its cluster; ``ANY`` for the one hub of a server that no other cluster uses.
    """
    every = Subjects(prefix, ANY, owner)
    said = [every.announce, every.buildconfig, every.event, every.streams]
    store = BucketSubjects(bucket).publish() if bucket else []
    inbox = f"{INBOX}.>" if owner == ANY else f"{INBOX}.{owner}.>"
    return Permissions([*every.requests().values(), every.acks, *store], [*said, inbox])


def site_permissions(prefix: str, pool: str) -> Permissions:
    """Give what a site needs: hear what its pool is asked, as a member of the pool's queue group, and answer."""
    if pool == ANY:
        raise ConfigError(f"pool {pool!r}: the name of one pool, not of all")
    own = Subjects(prefix, pool, ANY)
    asked = [f"{pattern} {pool}" for pattern in own.requests().values()]
    return Permissions([own.announce, own.buildconfig, own.event, own.streams], [*asked, own.acks], answers=True)


def users_text(users: list[User], *, jetstream: bool = False) -> str:
    """Write the file of users: everything that changes when a pool comes or goes."""
    lines = [
        "# Written by podbridge nats config, and written again by it.",
        "accounts: {",
        f"  {ACCOUNT}: {{",
        *(["    jetstream: enabled"] if jetstream else []),
        "    users: [",
    ]
    for user in users:
        lines.append("      {")
        if user.nkey:
            lines.append(f"        nkey: {user.nkey}  # {user.name}")
        else:
            lines += [f"        user: {_quote(user.name)}", f"        password: {_quote(user.password)}"]
        lines += ["        permissions: {", f"          {user.permissions.text('          ')}", "        }", "      }"]
    return "\n".join([*lines, "    ]", "  }", "}", ""])


def server_text(
    listeners: Listeners, users_file: str, *, name: str = "podbridge", cluster: ServerCluster | None = None
) -> str:
    """Write the file of the server ``name`` itself; with ``cluster``, it is one of its servers."""
    lines = [
        "# Written once by podbridge nats config; yours to change.",
        f"server_name: {_quote(name)}",
        f"listen: {_quote(listeners.client)}",
        f"max_payload: {listeners.max_payload}",
        "# who can't keep up is cut off, and connects anew",
        'write_deadline: "10s"',
        'ping_interval: "20s"',
        "ping_max: 2",
    ]
    pair = f"cert_file: {_quote(listeners.certificate)}, key_file: {_quote(listeners.key)}"
    tls = f"{{{pair}}}"
    if listeners.certificate:
        lines.append(f"tls: {tls}")
    if listeners.websocket:
        secure = f"tls: {tls}" if listeners.certificate else "no_tls: true  # behind a proxy that terminates TLS"
        lines += ["websocket: {", f"  listen: {_quote(listeners.websocket)}", f"  {secure}", "}"]
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
