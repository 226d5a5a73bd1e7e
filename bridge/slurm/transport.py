"""HTTP to slurmrestd: connections, time limits, and the errors of failed connections."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import unquote

import requests
from requests.adapters import HTTPAdapter

from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import ConfigError, SlurmUnavailableError, SlurmUnknownOutcomeError
from bridge.fencing import guard_pool
from bridge.http_client import UnixAdapter, innermost, was_sent
from bridge.metrics import SLURM_REQUEST_SECONDS, SLURM_REQUESTS, SLURM_RESPONSE_BYTES
from bridge.slurm.answers import WRITES
from bridge.slurm.auth import TokenSource
from bridge.slurm.models import JsonObject

_CHUNK = 1 << 16
LARGEST_ANSWER = 1 << 29
"""Bytes. 20,000 jobs, more than Slurm keeps by default, are 180 MB."""
_counter, _seconds = cache(SLURM_REQUESTS.labels), cache(SLURM_REQUEST_SECONDS.labels)


class Transport:
    """One pool of connections to slurmrestd over http, https or a unix socket; for any thread."""

    def __init__(self, config: Config, tokens: TokenSource, *, pool_size: int, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock
        self._longest = 2 * config.slurm.read_timeout
        self._session = requests.Session()
        self._session.trust_env = False  # no lookup of proxies and .netrc for each call
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=pool_size, max_retries=0)
        self._base = config.slurm_rest_api
        if self._base.startswith("unix://"):
            adapter = UnixAdapter(unquote(self._base.removeprefix("unix://")), pool_maxsize=pool_size)
            self._base = "http://localhost"
        else:
            self._session.proxies.update(requests.utils.get_environ_proxies(self._base))
            self._use_certificates(config)
        classes = adapter.poolmanager.pool_classes_by_scheme
        adapter.poolmanager.pool_classes_by_scheme = {scheme: guard_pool(pool) for scheme, pool in classes.items()}
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._options: Any = {
            "timeout": (config.slurm.connect_timeout, config.slurm.read_timeout),
            "stream": True,
            "verify": self._session.verify,
            "cert": self._session.cert,
            "proxies": self._session.proxies,
        }

    def _use_certificates(self, config: Config) -> None:
        slurm = config.slurm
        for key, path in (("caFile", slurm.ca_file), ("certFile", slurm.cert_file), ("keyFile", slurm.key_file)):
            if path is not None and not path.is_file():
                raise ConfigError(f"slurm.{key}: no such file: {path}")
        if slurm.ca_file is not None:
            self._session.verify = str(slurm.ca_file)
        if slurm.cert_file is not None:
            pair = (str(slurm.cert_file), str(slurm.key_file)) if slurm.key_file else str(slurm.cert_file)
            self._session.cert = pair

    def send(
        self, method: str, path: str, endpoint: str, body: JsonObject | None = None, patience: float = 1
    ) -> tuple[int, bytes]:
        """Send one request; return the status and the body of the answer.

        The whole answer must arrive within ``patience`` times twice the read time limit. Raises
        :class:`SlurmUnavailableError` without an answer, and :class:`SlurmUnknownOutcomeError` if a write may have been
        carried out.
        """
        headers = self._tokens.headers()
        began = self._clock.monotonic()
        code = "none"
        try:
            request = self._prepared(method, path, headers, body)
            connect, read = self._options["timeout"]
            options = {**self._options, "timeout": (connect, patience * read)}
            with self._session.get_adapter(request.url or "").send(request, **options) as response:
                code = str(response.status_code)
                content = self._read(response, began, patience * self._longest)
                return response.status_code, content
        except (requests.RequestException, OSError, ValueError) as error:
            if isinstance(error, ValueError) and not isinstance(error, requests.RequestException):
                raise SlurmUnavailableError(f"{endpoint}: the request cannot be built: {error}") from error
            why = f"{endpoint}: no answer from slurmrestd: {innermost(error)}"
            if endpoint in WRITES and was_sent(error):
                raise SlurmUnknownOutcomeError(why) from error
            raise SlurmUnavailableError(why) from error
        finally:
            _counter(endpoint, code).inc()
            _seconds(endpoint).observe(self._clock.monotonic() - began)

    def _prepared(
        self, method: str, path: str, headers: dict[str, str], body: JsonObject | None
    ) -> requests.PreparedRequest:
        """Return the request without a session's cookies, redirects and hooks: they take half of the time of a call."""
        request = requests.PreparedRequest()
        request.prepare_method(method)
        request.url = self._base + path
        request.prepare_headers({**headers, "Accept": "application/json", "User-Agent": "podbridge"})
        request.prepare_body(None, None, json=body)
        return request

    def _read(self, response: requests.Response, began: float, longest: float) -> bytes:
        """Read the body within ``longest`` seconds; a time limit of ``requests`` starts again at every byte."""
        parts, size = [], 0
        while chunk := self._read_some(response):
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST_ANSWER:
                raise requests.ConnectionError(f"more than {LARGEST_ANSWER} bytes")
            if self._clock.monotonic() - began > longest:
                raise requests.ConnectionError(f"not complete after {longest:g} s")
        SLURM_RESPONSE_BYTES.inc(size)
        return b"".join(parts)

    @staticmethod
    def _read_some(response: requests.Response) -> bytes:
        """Read the available bytes; ``iter_content`` would wait for a whole chunk."""
        try:
            return bytes(response.raw.read1(_CHUNK, decode_content=True))
        except Exception as error:  # any error of urllib3 means here that the answer is incomplete
            raise requests.ConnectionError(error) from error
