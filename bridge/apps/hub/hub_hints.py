"""Receives hints from Slurm in a hub: a named pipe, and a port for HTTPS with a token."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence

from bridge.config.hub import HintsSection
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.serving.client_access import Files, OptionNames, ServerAccess
from bridge.serving.hints import BODY_LIMIT, HintPipe, Wake, hint_app, remove_stale_pipes
from bridge.serving.https import Server

log = logging.getLogger(__name__)

PREFIX = "podbridge-"
RETRY_PERIOD = 5.0
"""Seconds between two attempts to listen. podbridge works without hints too, so it does not end."""
REFRESH_PERIOD = 30.0
"""Seconds between two checks of the certificate files."""
THREADS = 2
_OPTIONS = OptionNames("hints.tokenFile", "hints.certFile", "hints.keyFile", "")


class HintServers:
    """Receives hints for ``wake``. Raises :class:`ConfigError` if the token or the certificate cannot be used."""

    def __init__(self, settings: HintsSection, parts: Sequence[str], wake: Wake) -> None:
        self._settings, self._wake = settings, wake
        # a pipe for each process: the script of slurmctld writes each hint to all pipes of the directory
        self._name = f"{PREFIX}{'-'.join(parts)}-{secrets.token_hex(4)}.pipe"
        self._access: ServerAccess | None = None
        if settings.port is not None:
            self._access = ServerAccess(Files(settings.token_file, settings.cert_file, settings.key_file), _OPTIONS)
        self.port = 0

    def start(self, supervisor: Supervisor) -> None:
        """Start the threads of the servers that are configured."""
        if self._settings.directory is not None:
            supervisor.spawn("hints-pipe", lambda: self._serve(supervisor, self._pipe))
        access = self._access
        if access is not None:
            supervisor.spawn("hints-https", lambda: self._serve(supervisor, lambda: self._https(access)))
            supervisor.spawn_every("hints-files", REFRESH_PERIOD, access.refresh)

    def _pipe(self) -> HintPipe:
        directory = self._settings.directory
        assert directory is not None  # noqa: S101
        remove_stale_pipes(directory, PREFIX)
        return HintPipe(directory / self._name, self._wake)

    def _https(self, access: ServerAccess) -> Server:
        return Server(
            hint_app(self._wake, access.refusal),
            self._settings.host,
            self._settings.port or 0,
            threads=THREADS,
            certificates=access.certificates,
            name="hints-https",
            body_limit=BODY_LIMIT,
        )

    def _serve(self, supervisor: Supervisor, make: Callable[[], HintPipe | Server]) -> None:
        failed = False
        while not supervisor.stopping.is_set():
            try:
                server = make()
                server.start()
            except (BridgeError, OSError) as error:  # a directory that cannot be searched
                if not failed:
                    log.warning("no hints from Slurm: trying again", extra=kv(error=error, seconds=RETRY_PERIOD))
                failed = True
                supervisor.wait(RETRY_PERIOD)
                continue
            self.port = server.port or self.port
            log.info("receiving hints from Slurm", extra=kv(server=server.name, port=server.port))
            server.run(supervisor.stopping)
