"""The folder of a NATS server: its configuration, its users and their secrets. An existing secret is never replaced.

::

    nats-server.conf   0600  written once; of a cluster, nats-server-NAME.conf for each server
    cluster.password   0600  password of the servers of a cluster for each other
    users.conf         0600  written each time
    hub.seed           0600  or hub.password: the only hub, if no hub has a name
    hubs/NAME.seed     0600  or hubs/NAME.password: a named hub
    hubs/NAME.owner    0600  UID of the namespace kube-system of its Kubernetes cluster
    pools/NAME.seed    0600  or pools/NAME.password, or pools/NAME.nkey: the public key alone, made at the site
    bucket             0600  name of the hub's key-value bucket, if it has one; for a named hub, -NAME follows
    jetstream/         0700  the data of the bucket; of a cluster, jetstream-NAME/ for each server
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.errors import ConfigError
from bridge.protocol.model.identifiers import POOL_PATTERN, UID_PATTERN
from bridge.protocol.nats.nats_server_config import (
    HUB,
    Listeners,
    Permissions,
    ServerCluster,
    User,
    hub_permissions,
    server_text,
    site_permissions,
    users_text,
)
from bridge.protocol.nats.subjects import ANY, DEFAULT_BUCKET
from bridge.protocol.nats.user_keys import checked_public_key, new_seed, public_key

SERVER, USERS, POOLS, HUBS = "nats-server.conf", "users.conf", "pools", "hubs"
SEED, PASSWORD, KEY, OWNER = ".seed", ".password", ".nkey", ".owner"
BUCKET, JETSTREAM = "bucket", "jetstream"
CLUSTER_FILE = "cluster.password"


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub: the file of its secret, the UID of its cluster (empty: any), its key-value bucket (empty: none)."""

    secret: Path
    owner: str = ""
    bucket: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """The content of a folder. ``new``: the files that were created or overwritten.

    ``servers``: the configuration file of each server. ``hubs``: by name; a hub without a name is ``hub``.
    """

    servers: list[Path]
    users: Path
    hubs: dict[str, Hub]
    pools: dict[str, Path]
    new: list[Path]


def write(
    folder: Path,
    prefix: str,
    pools: Sequence[str],
    listeners: Listeners,
    *,
    passwords: bool = False,
    force: bool = False,
    jetstream: bool = False,
    bucket: str = "",
    cluster: ServerCluster | None = None,
    hubs: Mapping[str, str] | None = None,
    secrets_folder: Path | None = None,
    keys_folder: Path | None = None,
) -> Written:
    """Write a folder, or update it: pools, hubs, the bucket and the cluster of an earlier run stay.

    Parameters
    ----------
    force
        Overwrite the configuration files of the servers.
    jetstream, bucket
        Give the hub a key-value bucket of this name.
    cluster
        Write a file for each of its servers. Its password is the one in the folder.
    hubs
        The UID of the Kubernetes cluster of each named hub. Each gets a user that reaches only the jobs of its cluster.
        With a named hub, there is no user ``hub``, which reaches all jobs.
    secrets_folder
        Folder with ``hub`` and ``pools/`` as above, whose secrets are used. The command creates none and copies none.

    keys_folder
        Folder with ``NAME.nkey`` for pools whose keys were made at their sites. Such a key replaces another secret.

    Raises :class:`ConfigError` for a bad name or key, and if ``secrets_folder`` lacks the secret of a user.
    """
    if secrets_folder is not None:
        _check_secrets(secrets_folder, pools, hubs or {})
    secrets_parent = secrets_folder or folder
    bucket = _bucket(folder, jetstream, bucket)
    owners = _owners(secrets_parent / HUBS, hubs or {})
    buckets = {name: f"{bucket}-{name}" if bucket and owners else bucket for name in owners or (HUB,)}
    # both raise ConfigError if a name is invalid, before anything is written
    hub_permissions_by_name = {name: hub_permissions(prefix, buckets[name], owners.get(name, ANY)) for name in buckets}
    site_permissions_by_pool = {pool: site_permissions(prefix, pool) for pool in pools}
    pools_folder = secrets_parent / POOLS
    for directory in [folder] if secrets_folder else [folder, pools_folder]:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    pool_files = sorted(pools_folder.iterdir()) if pools_folder.is_dir() else []
    key_files = {file.stem: file for file in sorted(keys_folder.glob(f"*{KEY}"))} if keys_folder else {}
    found_pools = [*key_files, *(file.stem for file in pool_files if file.suffix in (KEY, SEED, PASSWORD))]
    site_permissions_by_pool |= {pool: site_permissions(prefix, pool) for pool in found_pools}
    if not site_permissions_by_pool and keys_folder is None:
        raise ConfigError("pools: none given, and the folder has none from an earlier run")
    new_files: list[Path] = []
    hubs_by_name = _hubs(secrets_parent, owners, buckets, passwords, new_files)
    sites = {
        pool: key_files.get(pool) or _pool_file(pools_folder / pool, passwords, new_files)
        for pool in sorted(site_permissions_by_pool)
    }
    if bucket:
        _replace(folder / BUCKET, bucket + "\n")
    # the prefixes keep the names of hubs and pools apart
    users = [
        _user(f"hub-{name}" if owners else HUB, hub.secret, hub_permissions_by_name[name])
        for name, hub in hubs_by_name.items()
    ]
    users += [_user(f"pool-{pool}", file, site_permissions_by_pool[pool]) for pool, file in sites.items()]
    _check_different(users)
    _replace(folder / USERS, users_text(users, jetstream=bool(bucket)))
    servers = _servers(folder, listeners, cluster, new_files, force=force, jetstream=bool(bucket))
    return Written(servers, folder / USERS, hubs_by_name, sites, new_files)


def _check_different(users: Sequence[User]) -> None:
    """Raise :class:`ConfigError` if two users have the same key: the server would not start."""
    name_by_key: dict[str, str] = {}
    for user in users:
        if user.nkey and name_by_key.setdefault(user.nkey, user.name) != user.name:
            raise ConfigError(f"{name_by_key[user.nkey]} and {user.name} have the same key; allowed: different keys")


def _check_secrets(secrets_folder: Path, pools: Sequence[str], hubs: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` unless the folder has a secret for the hub and for each pool."""
    if hubs or (secrets_folder / HUBS).exists():
        raise ConfigError("--secrets: not with named hubs (--hub); the folder has the secret of one hub")
    for base in (secrets_folder / HUB, *(secrets_folder / POOLS / pool for pool in pools)):
        if not any(base.with_name(base.name + suffix).exists() for suffix in (SEED, PASSWORD)):
            raise ConfigError(f"--secrets: {base}: neither {base.name}{SEED} nor {base.name}{PASSWORD} exists")


def _hubs(
    folder: Path, owners: Mapping[str, str], buckets: Mapping[str, str], passwords: bool, new_files: list[Path]
) -> dict[str, Hub]:
    """Write owner and secret of each hub; without owners, the only hub has no name and no owner."""
    if not owners:
        return {name: Hub(_secret(folder / name, passwords, new_files), "", buckets[name]) for name in buckets}
    hubs_folder = folder / HUBS
    hubs_folder.mkdir(mode=0o700, exist_ok=True)
    hubs_by_name: dict[str, Hub] = {}
    for name, owner in sorted(owners.items()):
        _replace(hubs_folder / f"{name}{OWNER}", owner + "\n")
        hubs_by_name[name] = Hub(_secret(hubs_folder / name, passwords, new_files), owner, buckets[name])
    return hubs_by_name


def _servers(
    folder: Path,
    listeners: Listeners,
    cluster: ServerCluster | None,
    new_files: list[Path],
    *,
    force: bool,
    jetstream: bool,
) -> list[Path]:
    """Write the configuration file of each server unless it exists."""
    existing_files = sorted(folder.glob("nats-server-*.conf"))
    if existing_files and cluster is None:
        if force:
            raise ConfigError(
                f"{folder} holds a cluster ({existing_files[0].name}, ...): to overwrite it, name its servers"
            )
        return existing_files
    if cluster:
        cluster = replace(cluster, password=_cluster_password(folder / CLUSTER_FILE))
    servers = []
    for name in cluster.hosts if cluster else (None,):
        server = folder / (f"nats-server-{name}.conf" if name else SERVER)
        servers.append(server)
        if server.exists() and not force:
            continue
        if jetstream:
            store = folder / (f"{JETSTREAM}-{name}" if name else JETSTREAM)
            store.mkdir(mode=0o700, exist_ok=True)
            listeners = replace(listeners, jetstream=str(store.resolve()))
        text = server_text(listeners, USERS, name=name, cluster=cluster) if name else server_text(listeners, USERS)
        _replace(server, text)
        new_files.append(server)
    return servers


def _cluster_password(file: Path) -> str:
    if not file.exists():
        _replace(file, secrets.token_urlsafe(32) + "\n")
    return file.read_text().strip()


def _owners(folder: Path, hub_uids: Mapping[str, str]) -> dict[str, str]:
    """Return the UID of the cluster of each named hub: of ``hub_uids``, and of an earlier run if its secret exists."""
    owners: dict[str, str] = {}
    for file in folder.glob(f"*{OWNER}"):
        if any(file.with_suffix(suffix).exists() for suffix in (SEED, PASSWORD)):
            owners[file.stem] = file.read_text().strip()
    for name, owner in hub_uids.items():
        if not re.fullmatch(POOL_PATTERN, name):
            raise ConfigError(f"hub {name!r}: must be 1 to 63 of a-z, 0-9 and -, without - at the beginning or end")
        if not re.fullmatch(UID_PATTERN, owner):
            raise ConfigError(f"hub {name}: UID {owner!r}: must be 1 to 64 letters, digits and -")
        if owners.setdefault(name, owner) != owner:
            raise ConfigError(
                f"hub {name}: its UID is {owners[name]}, not {owner}",
                hint=f"To replace it, remove {folder / name}{OWNER} and its secret first.",
            )
    shared_uids = {owner for owner in owners.values() if list(owners.values()).count(owner) > 1}
    if shared_uids:
        raise ConfigError(
            f"hubs: {', '.join(sorted(name for name in owners if owners[name] in shared_uids))} have the same UID"
        )
    return owners


def _bucket(folder: Path, jetstream: bool, requested_name: str) -> str:
    """Return the name of the bucket: the requested one, or that of an earlier run; empty if there is none."""
    file = folder / BUCKET
    earlier_name = file.read_text().strip() if file.exists() else ""
    return (requested_name or earlier_name or DEFAULT_BUCKET) if jetstream or earlier_name else ""


def _pool_file(base: Path, passwords: bool, new_files: list[Path]) -> Path:
    """Return the file of a pool's public key, or that of its secret; create the secret if there is neither."""
    key_file = base.with_name(base.name + KEY)
    return key_file if key_file.exists() else _secret(base, passwords, new_files)


def _secret(base: Path, passwords: bool, new_files: list[Path]) -> Path:
    """Return the file of a secret; create it if it does not exist."""
    for suffix in (SEED, PASSWORD):
        if (file := base.with_name(base.name + suffix)).exists():
            return file
    file = base.with_name(base.name + (PASSWORD if passwords else SEED))
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write((secrets.token_urlsafe(32) if passwords else new_seed()) + "\n")
    new_files.append(file)
    return file


def _user(name: str, file: Path, permissions: Permissions) -> User:
    text = file.read_text().strip()
    if file.suffix == PASSWORD:
        return User(name, permissions, password=text)
    try:
        return User(name, permissions, nkey=checked_public_key(text) if file.suffix == KEY else public_key(text))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def set_key(folder: Path, pool: str, key: str) -> None:
    """Make ``key``, a public key, the only one of a pool in a folder of :func:`write`; its secret is removed."""
    base = folder / POOLS / pool
    _replace(base.with_name(base.name + KEY), checked_public_key(key) + "\n")
    for suffix in (SEED, PASSWORD):
        base.with_name(base.name + suffix).unlink(missing_ok=True)


def _replace(file: Path, text: str) -> None:
    new_file = file.with_name(f".{file.name}.new")
    new_file.unlink(missing_ok=True)
    with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write(text)
    new_file.replace(file)
