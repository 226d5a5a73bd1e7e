"""HTTP to an interLink plugin or API server: connections, credentials, limits, errors, and logs."""

from __future__ import annotations

import codecs
import contextlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import requests

from bridge.clock import Clock
from bridge.config.interlink import InterlinkSection
from bridge.errors import ConfigError, SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.http.requests_adapter import innermost, was_sent
from bridge.pools.interlink.interlink_exchange import Exchange, ExchangeAdapter, UnixExchangeAdapter
from bridge.pools.polled.polled_pool import authorization
from bridge.telemetry import tracing

MIB = 1 << 20
SHOWN = 500
"""Characters of an answer in a message."""
CONNECT_TIMEOUT = 5.0
"""Seconds for a connection: TCP repeats a lost first packet after 1 s and after 3 s."""
_CHUNK = 1 << 16
_CONNECTIONS = 64
_SURROGATE = re.compile(r"[\ud800-\udfff]")
LOGIN_HINT = (
    "A proxy such as oauth2-proxy answers instead of interLink. Set tokenFile to a file with a bearer token that the "
    "proxy accepts, and let the proxy accept bearer tokens (skip-jwt-bearer-tokens, with the audience of the token)."
)
TOKEN_HINT = "Check tokenFile, certFile and keyFile of the pool."  # noqa: S105
PATH_HINT = "Check url and api of the pool: an API server and a plugin have different routes."


class ServerError(SiteUnknownOutcomeError):
    """An answer with HTTP status 5xx to a request that changes something. The request may have been carried out.

    ``answered``: the plugin has answered, not a proxy or an API server that waited for it, so nothing happens later.
    """

    def __init__(self, message: str, *, answered: bool) -> None:
        super().__init__(message)
        self.answered = answered


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with any HTTP status. ``request_name``: method and path of the request, for messages."""

    request_name: str
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether the request has succeeded. interLink answers 200; other plugins may answer 201 or 202."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The beginning of the body, for messages."""
        text = self.content[: 4 * SHOWN].decode("utf-8", "replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:SHOWN]

    def json(self) -> Any:
        """Return the body as data. Raises :class:`SiteError` if it is not JSON."""
        try:
            return _without_surrogates(json.loads(self.content))
        except (ValueError, RecursionError) as error:
            if self.is_page:
                raise SiteRefusedError(
                    f"{self.request_name}: the answer is a web page, not JSON", reason="LoginRequired", retryable=True,
                    hint=LOGIN_HINT,
                ) from error  # fmt: skip
            raise SiteError(f"{self.request_name}: the answer is not JSON: {self.text[:100]!r}") from error

    @property
    def is_page(self) -> bool:
        """Whether the body is a web page. The header says nothing: Flask's default type of a text is ``text/html``."""
        return self.content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"<"

    @property
    def is_json(self) -> bool:
        """Whether the body is a JSON object or list."""
        try:
            return isinstance(json.loads(self.content), dict | list)
        except (ValueError, RecursionError):
            return False


def refusal(answer: Answer, *, writes: bool = False) -> SiteError:
    """Return the error for an answer that is no success. ``writes``: the request changes something."""
    status, request_name = answer.status, answer.request_name
    answer_text = f": {answer.text}" if answer.text and not answer.is_page else ""
    if 300 <= status < 400:
        target = answer.headers.get("Location", "")
        target_text = f" to {re.split('[?#]', target)[0][:200]!r}" if target else ""
        hint = LOGIN_HINT
        if target.startswith("https://") and "oauth2" not in target and "login" not in target:
            hint = f"Set url of the pool to an address that begins with https://, or: {LOGIN_HINT}"
        return SiteRefusedError(
            f"{request_name}: HTTP {status}, a redirect{target_text}", reason="LoginRequired", retryable=True, hint=hint
        )
    if status in (401, 403):
        text = f"{request_name}: HTTP {status}, the credentials are refused{answer_text}"
        return SiteRefusedError(text, reason="CredentialsRefused", retryable=True, hint=TOKEN_HINT)
    if status in (404, 405, 501):
        text = f"{request_name}: HTTP {status}, no such route{answer_text}"
        return SiteRefusedError(text, reason="NoSuchRoute", retryable=True, hint=PATH_HINT)
    text = f"{request_name}: HTTP {status}{answer_text}"
    if status >= 500 and writes:
        # proxies answer 502, 503 or 504 in place of a plugin
        return ServerError(text, answered=status == 500)
    # a proxy may answer 408 to a request that the plugin has got, and a plugin 409 if it has the pod already
    if status in (408, 409) and writes:
        return SiteUnknownOutcomeError(text)
    if status in (502, 503, 504):
        return SiteDownError(text)
    return SiteRefusedError(text, reason="PluginRefused", retryable=status >= 500 or status in (408, 425, 429))


class PluginTransport:
    """A pool of connections to one plugin or API server; for any thread."""

    def __init__(self, section: InterlinkSection, clock: Clock) -> None:
        self._section, self._clock = section, clock
        adapter = ExchangeAdapter(pool_connections=1, pool_maxsize=_CONNECTIONS, max_retries=0)
        self._base = section.url
        self._proxies: Mapping[str, str] = {}
        if section.url.startswith("unix://"):
            adapter = UnixExchangeAdapter(unquote(section.url.removeprefix("unix://")), pool_maxsize=_CONNECTIONS)
            self._base = "http://localhost"
        else:
            self._proxies = requests.utils.get_environ_proxies(self._base)
        self._adapter = adapter
        for key, path in section.files.items():
            if not path.is_file():
                raise ConfigError(f"pools.interlink, pool {section.name}: {key}: no such file: {path}")
        self._verify: bool | str = str(section.ca_file) if section.ca_file is not None else True
        self._cert: tuple[str, str] | str | None = None
        if section.cert_file is not None:
            pair = (str(section.cert_file), str(section.key_file))
            self._cert = pair if section.key_file is not None else str(section.cert_file)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        operation: str,
        timeout: float | None = None,
        largest: int = MIB,
        writes: bool = False,
    ) -> Answer:
        """Send one request; return its answer, whatever its HTTP status.

        ``operation``: interLink's name of the request in its session header. ``timeout``: seconds for the whole answer.
        ``largest``: bytes of the answer, at most. ``writes``: the request changes something.

        Raises SiteDownError if the request was not sent or only reads, SiteUnknownOutcomeError if it may have been
        carried out.
        """
        exchange = Exchange(self._clock, self._section.timeout if timeout is None else timeout)
        with self.open(method, path, body, exchange, operation=operation, writes=writes) as response:
            try:
                content = self._read(response, largest)
            except (requests.RequestException, OSError) as error:
                raise self._no_answer(f"{method} {path}", error, writes) from error
            return Answer(f"{method} {path}", response.status_code, response.headers, content)

    def open(
        self, method: str, path: str, body: Any, exchange: Exchange, *, operation: str, writes: bool = False
    ) -> requests.Response:
        """Send one request; return its answer without the body."""
        limits: Any = (CONNECT_TIMEOUT, None)  # the exchange limits the answer
        try:
            request = requests.PreparedRequest()
            request.prepare_method(method)
            request.prepare_url(self._base + path, None)
            request.prepare_headers(self._headers(operation))
            request.prepare_body(None, None, json=body)
            with exchange.sending():
                return self._adapter.send(
                    request, stream=True, timeout=limits, verify=self._verify, cert=self._cert, proxies=self._proxies
                )
        except (requests.RequestException, OSError, ValueError) as error:
            raise self._no_answer(f"{method} {path}", error, writes) from error

    def _headers(self, operation: str) -> dict[str, str]:
        headers = {
            "Accept": "application/json, text/plain",
            "User-Agent": "podbridge",
            "InterLink-Http-Session": f"{operation}#{random.randrange(100_000)}",  # noqa: S311
        }
        if traceparent := tracing.current():
            headers["traceparent"] = traceparent
        return headers | authorization(self._section.token_file)

    def _no_answer(self, request_name: str, error: Exception, writes: bool) -> SiteError:
        message = f"{request_name}: no answer from {self._section.url}: {innermost(error)}"
        return SiteUnknownOutcomeError(message) if writes and was_sent(error) else SiteDownError(message)

    @staticmethod
    def _read(response: requests.Response, largest: int) -> bytes:
        parts, size = [], 0
        while chunk := read_some(response):
            parts.append(chunk)
            size += len(chunk)
            if size > largest:
                raise requests.ConnectionError(f"the answer has more than {largest} bytes")
        return b"".join(parts)


def read_some(response: requests.Response) -> bytes:
    """Read the available bytes; empty at the end. ``iter_content`` would wait for a whole chunk."""
    try:
        return bytes(response.raw.read1(_CHUNK, decode_content=True))
    except Exception as error:  # any error of urllib3 means here that the answer is incomplete
        raise requests.ConnectionError(error) from error


def begun(request_name: str, response: requests.Response) -> Answer:
    """Return an answer with the part of its body that is available, and close it."""
    content = b""
    with response, contextlib.suppress(requests.RequestException):
        content = read_some(response)
    return Answer(request_name, response.status_code, response.headers, content)


def _without_surrogates(value: Any) -> Any:
    """Replace halves of surrogate pairs, which JSON can contain and UTF-8 cannot."""
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case list():
            return [_without_surrogates(item) for item in value]
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


class LogPieces:
    """An iterator over the pieces of a log. The caller must close it, which ends the log at the plugin too.

    ``request`` sends the request, as ``exchange``, when the first piece is read, or at :meth:`open`. ``limit``: bytes
    after which the log ends; ``None``: no limit. Raises SiteError if the plugin refuses the log, SiteDownError if it
    breaks off.
    """

    def __init__(self, request: Callable[[], requests.Response], exchange: Exchange, limit: int | None) -> None:
        self._request, self._exchange, self._bytes_left = request, exchange, limit
        self._response: requests.Response | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._is_closed or self._bytes_left == 0:
            self.close()
            raise StopIteration
        try:
            piece = read_some(self.open() if self._response is None else self._response)
        except (SiteError, requests.RequestException, OSError) as error:
            was_closed = self._is_closed
            self.close()
            if was_closed:  # another thread has closed the log
                raise StopIteration from error
            if isinstance(error, SiteError):
                raise
            raise SiteDownError(f"the plugin broke off the log: {innermost(error)}") from error
        if not piece:
            self.close()
            raise StopIteration
        if self._bytes_left is not None:
            piece = piece[: self._bytes_left]
            self._bytes_left -= len(piece)
        return piece

    def open(self) -> requests.Response:
        """Send the request and wait for the answer's headers. Raises :class:`SiteError`."""
        response = self._request()
        with self._lock:
            self._response = response
            if self._is_closed:
                response.close()
        return response

    def close(self) -> None:
        """End the log. Any thread may call it; a request or a read in progress ends."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._response is None:
                self._exchange.end()
                return
        with contextlib.suppress(Exception):  # the connection may be over
            # ends a read that another thread waits in
            self._response.raw.shutdown()
        with contextlib.suppress(Exception):
            self._response.close()
