"""HTTP to slurmrestd: connections, time limits, and the errors of failed connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies

from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.errors import ConfigError, SlurmUnavailableError, SlurmUnknownOutcomeError
from bridge.http.curl_client import Address, CallError, CurlClient, HttpLimits
from bridge.slurm import slurm_answers
from bridge.slurm.auth import TokenSource
from bridge.slurm.models import JsonObject
from bridge.slurm.slurm_answers import WRITES
from bridge.slurm.versions import VERSIONS, ApiVersion, newest_common, of_release
from bridge.telemetry.metrics import SLURM_REQUEST_SECONDS, SLURM_REQUESTS, SLURM_RESPONSE_BYTES

T = TypeVar("T")

MOST_PATIENCE = 16.0
"""Largest time for a list of all jobs, as a multiple of ``readTimeout``."""
LARGEST_ANSWER = 1 << 29
"""Bytes. 20,000 jobs, more than Slurm keeps by default, are 180 MB."""
_counter, _seconds = cache(SLURM_REQUESTS.labels), cache(SLURM_REQUEST_SECONDS.labels)


class Transport:
    """One pool of connections to slurmrestd over http, https or a unix socket; for any thread."""

    def __init__(self, config: Config, tokens: TokenSource, *, pool_size: int, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock
        self._connect, self._read = config.slurm.connect_timeout, config.slurm.read_timeout
        self._client = CurlClient(_address(config), pool_size=pool_size)

    def send(
        self, method: str, path: str, endpoint: str, body: JsonObject | None = None, patience: float = 1
    ) -> tuple[int, bytes]:
        """Send one request; return the status and the body of the answer.

        The whole answer must arrive within ``patience`` times twice the read time limit. Raises
        :class:`SlurmUnavailableError` without an answer, and :class:`SlurmUnknownOutcomeError` if a write may have been
        carried out.
        """
        headers = {**self._tokens.headers(), "Accept": "application/json", "User-Agent": "podbridge"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        began = self._clock.monotonic()
        code = "error"
        # a limit in all, too: an answer that drips byte by byte never exceeds the one between two parts
        limits = HttpLimits(self._connect, patience * self._read, 2 * patience * self._read, LARGEST_ANSWER)
        try:
            answer = self._client.call(method, path, headers, data, limits)
            code = str(answer.status)
            SLURM_RESPONSE_BYTES.inc(len(answer.body))
        except ValueError as error:
            raise SlurmUnavailableError(f"{endpoint}: the request cannot be built: {error}") from error
        except CallError as error:
            message = f"{endpoint}: no answer from slurmrestd: {error}"
            if endpoint in WRITES and error.sent:
                raise SlurmUnknownOutcomeError(message) from error
            raise SlurmUnavailableError(message) from error
        else:
            return answer.status, answer.body
        finally:
            _counter(endpoint, code).inc()
            _seconds(endpoint).observe(self._clock.monotonic() - began)


def _address(config: Config) -> Address:
    """Return the address of slurmrestd; raises :class:`ConfigError` for a file that does not exist."""
    slurm, base = config.slurm, config.slurm_rest_api
    if base.startswith("unix://"):
        path = unquote(base.removeprefix("unix://"))
        return Address("http://localhost", unix_socket=path)
    for key, file in (("caFile", slurm.ca_file), ("certFile", slurm.cert_file), ("keyFile", slurm.key_file)):
        if file is not None and not file.is_file():
            raise ConfigError(f"slurm.{key}: no such file: {file}")
    proxies = get_environ_proxies(base)
    return Address(
        base,
        ca_file=slurm.ca_file or DEFAULT_CA_BUNDLE_PATH,
        cert_file=slurm.cert_file,
        key_file=slurm.key_file,
        proxy=proxies.get(urlsplit(base).scheme) or proxies.get("all") or "",
    )


class Patience:
    """The time for lists of all jobs, by endpoint. After a time-out, the next call has twice the time.

    slurmrestd continues to build the list after the caller's time-out, so the next call would time out too. After an
    answer in less than a quarter of its time, the next call has half of it.
    """

    def __init__(self, read_timeout: float, clock: Clock) -> None:
        self._read_timeout, self._clock = read_timeout, clock
        self._factors: dict[str, float] = {}

    def call(self, endpoint: str, send: Callable[..., T]) -> T:
        """Return the result of ``send``, whose argument ``patience`` is a multiple of ``readTimeout``."""
        patience, began = self._factors.get(endpoint, 1.0), self._clock.monotonic()
        try:
            answer = send(patience=patience)
        except SlurmUnavailableError:
            if self._clock.monotonic() - began >= patience * self._read_timeout:
                self._factors[endpoint] = min(2 * patience, MOST_PATIENCE)
            raise
        if self._clock.monotonic() - began < patience * self._read_timeout / 4:
            self._factors[endpoint] = max(patience / 2, 1.0)
        return answer

    def expect(self, endpoint: str, seconds: float) -> None:
        """Give the next call enough time for an answer that takes ``seconds``."""
        if seconds > self._read_timeout:
            self._factors[endpoint] = min(2 * seconds / self._read_timeout, MOST_PATIENCE)


class Negotiation:
    """The API version that podbridge and one slurmrestd share; ``pinned`` is the configured one.

    Pings until slurmrestd knows a version: at most eight answers of 200 bytes, 2 ms each (``/openapi/v3`` has 0.2 to
    0.9 MB). Raises :class:`ConfigError` if slurmrestd does not serve the pinned version. For any thread.
    """

    def __init__(self, transport: Transport, pinned: str | None) -> None:
        self._transport = transport
        self._pinned = pinned
        self._result: tuple[ApiVersion, str] | None = None
        self._doubted = False

    @property
    def version(self) -> ApiVersion:
        """The version, as found before, else now."""
        return (self._result or self._renegotiate())[0]

    @property
    def release(self) -> str:
        """Release of slurmrestd, as found with the version."""
        return (self._result or self._renegotiate())[1]

    def confirmed(self) -> ApiVersion:
        """Return the version; find it again after a doubt."""
        return self._renegotiate()[0] if self._doubted else self.version

    def doubt(self) -> None:
        """Report that slurmrestd does not seem to serve the version any more."""
        self._doubted = True

    def _renegotiate(self) -> tuple[ApiVersion, str]:
        # without a lock: several threads may negotiate at the same time, but none waits for one that hangs
        result = self._result = self._negotiate()
        self._doubted = False
        return result

    def _negotiate(self) -> tuple[ApiVersion, str]:
        for name in [self._pinned] if self._pinned else reversed(VERSIONS):
            status, body = self._transport.send("GET", f"/slurm/{name}/ping", "ping")
            data = slurm_answers.read_answer(body)
            if data is not None:  # slurmrestd knows the version, whatever slurmctld does
                release = slurm_answers.release(data)
                return of_release(newest_common([name], self._pinned), release), release
            if status != 404:
                slurm_answers.judge(None, "ping", status, body)
        served = slurm_answers.served(self._transport.send("GET", "/openapi/v3", "openapi")[1])
        if not served:
            raise SlurmUnavailableError("ping: HTTP 404 for every API version: not slurmrestd's address?", status=404)
        return newest_common(served, self._pinned), ""
