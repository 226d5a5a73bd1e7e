"""Accounting of one Slurm: a slurmdbd on a port of the loopback, and its MariaDB behind a socket of its own.

Both run as Slurm's user and see Slurm's folder at ``/srv`` as its other daemons do. The database lives there, small and
not forced to disk: it has to outlive its processes, not the machine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.ports import listening
from cluster.processes import run
from cluster.views import SEEN_AS

FOLDER = "database"
DATA = f"{SEEN_AS}/{FOLDER}/data"
SOCKET = f"{SEEN_AS}/{FOLDER}/socket"
_OPTIONS = (
    "--no-defaults",
    "--user=slurm",
    f"--datadir={DATA}",
    f"--socket={SOCKET}",
    f"--pid-file={SEEN_AS}/{FOLDER}/pid",
    "--skip-networking",
    "--innodb-buffer-pool-size=8M",
    "--innodb-log-file-size=4M",
    "--innodb-flush-log-at-trx-commit=0",
)
# The steps of mariadb-install-db, which needs the client. The user slurm, known by the socket, gets all rights.
# slurmdbd creates its database only after a failed connection. After one, libmariadb of MariaDB 11.8.9 has no limit of
# columns but 0, so each query fails (error 5027).
_MAKE = f"""
mkdir {DATA}; chown slurm {DATA}; cd /usr/share/mariadb 2>/dev/null || cd /usr/share/mysql; {{
    printf 'create database slurm;\\ncreate database mysql;\\nuse mysql;\\n'
    echo "set @auth_root_socket='slurm';"
    cat m*_system_tables.sql m*_performance_tables.sql m*_system_tables_data.sql
}} | mariadbd {" ".join(_OPTIONS)} --bootstrap
"""


@dataclass(frozen=True)
class Accounting:
    """The records of the Slurm in ``folder``; ``auth`` is what its slurm.conf says about authentication."""

    folder: Path
    enter: Path
    port: int
    auth: Mapping[str, str]

    def settings(self) -> dict[str, str]:
        """Return its settings for slurm.conf."""
        result = {"AccountingStorageHost": "127.0.0.1", "AccountingStoragePort": str(self.port)}
        munge = self.auth.get("AuthInfo", "").removeprefix("socket=")
        return result | {"AccountingStoragePass": munge} if munge else result

    def write(self, owner: int) -> None:
        """Write slurmdbd's configuration and create the database; ``owner`` is the uid of Slurm's user."""
        database = self.folder / FOLDER
        database.mkdir(mode=0o700)
        os.chown(database, owner, owner)
        conf = self.folder / "etc" / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text("".join(f"{key}={value}\n" for key, value in {**self.auth, **self._conf()}.items()))
        os.chown(conf, owner, owner)
        run([str(self.enter), "sh", "-ec", _MAKE])

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each daemon, in the order of starting."""
        mariadbd = f'rm -f {SOCKET}; exec mariadbd "$@"'
        # slurmdbd itself tries again only after five seconds
        slurmdbd = f"until [ -S {SOCKET} ]; do sleep 0.05; done; exec slurmdbd -D"
        return {
            "mariadbd": [str(self.enter), "sh", "-c", mariadbd, "sh", *_OPTIONS],
            "slurmdbd": [str(self.enter), "env", f"MYSQL_UNIX_PORT={SOCKET}", "sh", "-c", slurmdbd],
        }

    def awaited(self, command: list[str]) -> list[str]:
        """Return a command that waits for slurmdbd first: a slurmctld that never reached one ends without it."""
        look = f"until (exec 3<>/dev/tcp/127.0.0.1/{self.port}) 2>/dev/null; do sleep 0.05; done"
        return [command[0], "bash", "-c", f'{look}; exec "$@"', "bash", *command[1:]]

    def answers(self, name: str) -> bool:
        """Return whether a daemon answers."""
        if name == "slurmdbd":
            return listening(self.port)
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / FOLDER / "socket")) == 0

    def _conf(self) -> dict[str, str]:
        return {
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self.port),
            "SlurmUser": "slurm",
            # slurmrestd asks slurmdbd for QOS and associations with the token of its caller
            "AuthAltTypes": "auth/jwt",
            "AuthAltParameters": f"jwt_key={SEEN_AS}/etc/jwt_hs256.key",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
            "StorageUser": "slurm",
            "StorageLoc": "slurm",
            "PidFile": f"{SEEN_AS}/run/slurmdbd.pid",
            "DebugLevel": "info",
            "LogTimeFormat": "iso8601_ms,format_stderr",
        }
