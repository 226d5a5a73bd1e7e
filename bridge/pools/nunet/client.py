"""Requests to a DMS over HTTP: one request, no repetition, bounded answers, errors of the project."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from bridge.clock import Clock
from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.http_client import was_sent
from bridge.pools.nunet import dialect
from bridge.pools.nunet.dialect import JobAnswer
from bridge.pools.nunet.peer import Peer

MOST_BYTES = 32 * 2**20
"""Bytes of one answer, at most."""
_SHOWN = 300
_CONNECTIONS = 40
_TOKEN_BYTES = 16384


@dataclass(frozen=True, slots=True)
class DmsAccess:
    """How to reach a DMS. Times in seconds."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    connect_timeout: float = 5.0
    timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class PeerList:
    """The peers of the network. ``asked``: monotonic time at which the list was requested."""

    peers: tuple[Peer, ...]
    asked: float


class NotFoundError(SiteError):
    """The DMS itself answered 404."""

    reason = "NotFound"


class DmsClient:
    """One DMS. Thread-safe. All methods raise :class:`SiteError`."""

    def __init__(self, access: DmsAccess, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._session = _session()
        self._lock = threading.Lock()
        self._peer_path = ""
        self._list: PeerList | None = None

    # --- the API ------------------------------------------------------------------------------------------------------
    def peers(self, at_most: float) -> PeerList:
        """Return the peers; a list that was requested at most ``at_most`` seconds ago is not requested again."""
        with self._lock:  # the virtual nodes of one DMS share a list
            known = self._list
            if known is not None and self._clock.monotonic() - known.asked <= at_most:
                return known
            asked = self._clock.monotonic()
            self._list = PeerList(tuple(dialect.peers(self._peers())), asked)
            return self._list

    def _peers(self) -> object:
        paths = [self._peer_path] if self._peer_path else list(dialect.PEER_PATHS)
        for path in paths:
            try:
                told = self._call("GET", path)
            except (NotFoundError, SiteRefusedError) as error:
                if path != paths[-1] and getattr(error, "status", 404) in (404, 405, 410):
                    continue
                self._peer_path = ""  # the DMS may have been replaced by another version
                raise
            self._peer_path = path
            return told
        raise SiteError("the DMS has no list of peers")

    def submit(self, body: dict[str, Any], timeout: float) -> str:
        """Submit a job; return the DMS's id of it. Raises SiteUnknownOutcomeError if it may have been accepted."""
        job = dialect.submitted_job(self._call("POST", dialect.SUBMIT_PATH, body, timeout, writes=True))
        if not job:
            raise SiteUnknownOutcomeError("the DMS accepted the job but its answer has no id of the job")
        return job

    def status(self, job: str) -> JobAnswer | None:
        """Request the state of a job; ``None`` if the DMS does not know it."""
        try:
            return dialect.job_answer(self._call("GET", dialect.status_path(job)))
        except NotFoundError:
            return None

    def cancel(self, method: str, template: str, job: str) -> None:
        """Request the cancellation of a job. A job that the DMS does not know is no error."""
        try:
            self._call(method, dialect.cancel_path(template, job), writes=True)
        except NotFoundError:
            return

    # --- HTTP ---------------------------------------------------------------------------------------------------------
    def _call(
        self, method: str, path: str, body: object = None, timeout: float | None = None, *, writes: bool = False
    ) -> object:
        """Send a request; return the JSON of the answer, or its text."""
        access = self._access
        where = f"{method} {access.url}{path}"
        unclear = SiteUnknownOutcomeError if writes else SiteDownError
        for file in (access.ca_file, access.cert_file, access.key_file):
            if file is not None and not file.is_file():
                raise SiteDownError(f"{where}: {file} does not exist")
        try:
            # a write has a connection of its own: if the DMS closed an idle one, the outcome would be unknown
            session = _session() if writes else self._session
            with session.request(
                method,
                access.url + path,
                json=body,
                headers={"Accept": "application/json", **self._authorization()},
                timeout=(access.connect_timeout, timeout or access.timeout),
                verify=True if access.ca_file is None else str(access.ca_file),
                cert=self._certificate(),
                allow_redirects=False,
                stream=True,
            ) as answer:
                data = b"".join(bounded(answer, MOST_BYTES))
                return self._read(answer, data, where, writes)
        except requests.ConnectTimeout as error:
            raise SiteDownError(f"{where}: no connection in {access.connect_timeout:g} s") from error
        except requests.exceptions.SSLError as error:
            # a record that cannot be decrypted, or an alert, may come after the DMS has read the request
            raise (unclear if was_sent(error) else SiteDownError)(f"{where}: TLS: {error}") from error
        except requests.ConnectionError as error:
            if "NewConnectionError" in repr(error) or "NameResolutionError" in repr(error):
                raise SiteDownError(f"{where}: no connection") from error
            raise unclear(f"{where}: the connection was closed") from error
        except requests.Timeout as error:
            raise unclear(f"{where}: no answer in {timeout or access.timeout:g} s") from error
        except (requests.RequestException, OSError) as error:
            raise unclear(f"{where}: {type(error).__name__}: {error}") from error

    def _read(self, answer: requests.Response, data: bytes, where: str, writes: bool) -> object:
        code = answer.status_code
        told: object = data.decode("utf-8", "replace").strip()
        is_json = False
        with contextlib.suppress(ValueError, RecursionError):
            told, is_json = json.loads(data), True
        if 200 <= code < 300:
            if not is_json and not writes:
                raise SiteError(f"{where}: the answer is not JSON: {str(told)[:_SHOWN]!r}")
            return told
        text = f"{where}: HTTP {code}: {_message(told)}"
        # a proxy that cannot reach the DMS answers 404 with a page
        if code == 404 and is_json:
            raise NotFoundError(text)
        if code in (401, 403):
            raise SiteRefusedError(text, reason="SiteAuth", retryable=True, hint="check tokenFile of the pool")
        if code == 429:
            raise SiteDownError(text)
        if code >= 500 and writes:
            raise SiteUnknownOutcomeError(text)
        if code >= 500:
            raise SiteDownError(text)
        # not yet submitted, but not the pod's fault either: 3xx, and 404 of a proxy
        raise SiteRefusedError(text, retryable=code < 400 or code == 404)

    def _authorization(self) -> dict[str, str]:
        """Return the header with the token; its file is read for each request."""
        path = self._access.token_file
        if path is None:
            return {}
        try:
            with path.open("rb") as file:
                token = file.read(_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SiteRefusedError(f"token file {path}: {error}", reason="SiteAuth", retryable=True) from error
        return {"Authorization": f"Bearer {token}"}

    def _certificate(self) -> str | tuple[str, str] | None:
        cert, key = self._access.cert_file, self._access.key_file
        return None if cert is None else str(cert) if key is None else (str(cert), str(key))


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # no proxy and no .netrc of the environment
    adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def bounded(answer: requests.Response, most: int) -> Iterator[bytes]:
    """Iterate over the body of an answer; raises SiteError beyond ``most`` bytes."""
    size = 0
    for piece in answer.iter_content(65536):
        size += len(piece)
        if size > most:
            raise SiteError(f"the answer of the DMS has more than {most} bytes")
        yield piece


def _message(told: object) -> str:
    if isinstance(told, dict):
        told = next((told[key] for key in ("error", "message", "detail") if told.get(key)), told)
    return str(told)[:_SHOWN]
