"""Requests to a DMS over HTTP: one request, no repetition, bounded answers, errors of the project."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from bridge.clock import Clock
from bridge.config.nunet import NunetSection
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.http.curl_client import Address, CallError, CurlClient, HttpLimits
from bridge.pools.nunet import dialect
from bridge.pools.nunet.dialect import JobAnswer
from bridge.pools.nunet.peers import PeerList
from bridge.pools.polled.polled_pool import authorization

CONNECT_TIMEOUT, TIMEOUT = 5.0, 30.0
"""Seconds for a connection, and for the whole answer to any request but a submission: a DMS answers from memory."""
MOST_BYTES = 32 * 2**20
"""Bytes of one answer, at most."""
_SHOWN = 300
_CONNECTIONS = 40


class NotFoundError(SiteError):
    """The DMS itself answered 404."""

    reason = "NotFound"


class DmsClient:
    """One DMS. Thread-safe. All methods raise :class:`SiteError`."""

    def __init__(self, section: NunetSection, clock: Clock) -> None:
        self._section = section
        self._clock = clock
        ca_file = section.ca_file or DEFAULT_CA_BUNDLE_PATH
        # no proxy and no .netrc of the environment
        self._address = Address(section.url, ca_file, cert_file=section.cert_file, key_file=section.key_file)
        self._reads = CurlClient(self._address, pool_size=_CONNECTIONS)
        self._peer_list: PeerList | None = None
        self._loads: SingleFlightCache[PeerList] = SingleFlightCache(clock)

    # --- the API ------------------------------------------------------------------------------------------------------
    def peers(self, at_most: float) -> PeerList:
        """Return the peers; a list that was requested at most ``at_most`` seconds ago is not requested again."""
        # the virtual nodes of one DMS share a list, and a request for it with its error
        return self._recent(at_most) or self._loads.get("peers", lambda: (self._recent(at_most) or self._load(), 0.0))

    def _recent(self, at_most: float) -> PeerList | None:
        peer_list = self._peer_list
        return (
            peer_list if peer_list is not None and self._clock.monotonic() - peer_list.requested_at <= at_most else None
        )

    def _load(self) -> PeerList:
        requested_at = self._clock.monotonic()
        self._peer_list = peer_list = PeerList(tuple(dialect.peers(self._call("GET", dialect.PEER_PATH))), requested_at)
        return peer_list

    def submit(self, body: dict[str, Any], timeout: float) -> str:
        """Submit a job; return the DMS's id of it. Raises SiteUnknownOutcomeError if it may have been accepted."""
        job = dialect.submitted_job(self._call("POST", dialect.SUBMIT_PATH, body, timeout, writes=True))
        if not job:
            raise SiteUnknownOutcomeError("the DMS accepted the job but its answer has no id of the job")
        return job

    def status(self, job: str) -> JobAnswer | None:
        """Request the state of a job; ``None`` if the DMS does not know it."""
        try:
            return dialect.job_answer(self._call("GET", dialect.job_path(dialect.STATUS_PATH, job)))
        except NotFoundError:
            return None

    def cancel(self, job: str) -> None:
        """Request the cancellation of a job. A job that the DMS does not know is no error."""
        method, _, path = self._section.cancel_path.rpartition(" ")
        with contextlib.suppress(NotFoundError):
            self._call(method or "DELETE", dialect.job_path(path, job), writes=True)

    # --- HTTP ---------------------------------------------------------------------------------------------------------
    def _call(
        self, method: str, path: str, body: object = None, timeout: float | None = None, *, writes: bool = False
    ) -> object:
        """Send a request; return the JSON of the answer, or its text. ``timeout``: seconds for the whole answer."""
        section, seconds = self._section, timeout or TIMEOUT
        request_name = f"{method} {section.url}{path}"
        for file in section.files.values():
            if not file.is_file():
                raise SiteDownError(f"{request_name}: {file} does not exist")
        kind = "" if body is None else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind, **authorization(section.token_file)}
        data = json.dumps(body).encode() if body is not None else b"" if writes else None
        # a write has a connection of its own: if the DMS closed an idle one, the outcome would be unknown
        client = CurlClient(self._address, pool_size=0) if writes else self._reads
        try:
            answer = client.call(method, path, headers, data, HttpLimits(CONNECT_TIMEOUT, seconds, seconds, MOST_BYTES))
        except ValueError as error:
            raise SiteDownError(f"{request_name}: the request cannot be built: {error}") from error
        except CallError as error:
            raise (SiteUnknownOutcomeError if writes and error.sent else SiteDownError)(
                f"{request_name}: {error}"
            ) from error
        return self._read(answer.status, answer.body, request_name, writes)

    def _read(self, code: int, data: bytes, request_name: str, writes: bool) -> object:
        content: object = data.decode("utf-8", "replace").strip()
        is_json = False
        with contextlib.suppress(ValueError, RecursionError):
            content, is_json = json.loads(data), True
        if 200 <= code < 300:
            if not is_json and not writes:
                raise SiteError(f"{request_name}: the answer is not JSON: {str(content)[:_SHOWN]!r}")
            return content
        text = f"{request_name}: HTTP {code}: {_message(content)}"
        # a proxy that cannot reach the DMS answers 404 with a page
        if code == 404 and is_json:
            raise NotFoundError(text)
        if code in (401, 403):
            raise SiteRefusedError(text, reason="SiteAuth", retryable=True, hint="check tokenFile of the pool")
        if code == 429:
            raise SiteDownError(text)
        # a proxy may answer 408 to a request that the DMS has got, and a DMS 409 if it has the job already
        if writes and (code >= 500 or code in (408, 409)):
            raise SiteUnknownOutcomeError(text)
        if code >= 500:
            raise SiteDownError(text)
        # not yet submitted, but not the pod's fault either: 3xx, and 404 of a proxy
        raise SiteRefusedError(text, retryable=code < 400 or code == 404)


def _message(content: object) -> str:
    if isinstance(content, dict):
        content = next((content[key] for key in ("error", "message", "detail") if content.get(key)), content)
    return str(content)[:_SHOWN]
