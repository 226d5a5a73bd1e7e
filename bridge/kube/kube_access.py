"""The address of the API server and the credentials, which the ``kubernetes`` library reads."""

from __future__ import annotations

import logging
import os
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPSConnection
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

from bridge.clock import Clock
from bridge.errors import ConfigError
from bridge.http.curl_client import Address, CurlClient
from bridge.logs import kv

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
HEADER_LIFE = 10.0
"""Seconds to cache the authorization header: during the last five minutes of a token, the library would run an exec
plug-in on every call, in each thread."""
RENEW_PERIOD = 5.0
"""Minimum seconds between two reads of the whole configuration after 401."""
RENEW_WAIT = 4.0
"""Seconds for which a call waits for new credentials after 401. A lease is lost in time if an exec plug-in hangs."""
READER_LIFE = 60.0
"""Seconds after which an exec plug-in that has not answered is given up, and another one may run. The time doubles
with each, so that few of them hang."""

WATCHES = 1024
"""Connections of watches that are kept for the next watch, at most: each pool has a watch."""
FILE_ATTRIBUTES = ("ssl_ca_cert", "cert_file", "key_file")
"""The attributes of the library's ``Configuration`` that are names of files."""
KEYS_PREFIX = "podbridge-keys-"
KEY_READS = 3
"""Attempts: the library shares the files of equal certificates among all threads, and another one may delete them."""


class KubeAccess:
    """The connections to one API server, with credentials that are read again after rotation.

    ``client`` is for calls and keeps ``pool_size`` idle connections at most, ``pool`` is for watches. The library reads
    an in-cluster token every minute and runs an exec plug-in again before its token expires. It does not do so for
    ``tokenFile``, for certificates on disk and for plug-ins without an expiry; :meth:`renew` reads these again after an
    answer 401.

    A thread reads them, which holds the lock meanwhile: an exec plug-in may hang, and other calls use the old ones.
    """

    def __init__(self, load: Callable[[], Any], *, pool_size: int, clock: Clock) -> None:
        self._load = load
        self._pool_size = pool_size
        self._clock = clock
        self._lock, self._reads_since = threading.Lock(), float("-inf")
        self._giving_up, self._given_up = threading.Lock(), 0
        self._open()

    def _open(self) -> None:
        from kubernetes.client.rest import RESTClientObject

        configuration = self._load()
        configuration.connection_pool_maxsize = WATCHES
        configuration.retries = False
        self.server: str = configuration.host.rstrip("/")
        manager: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        parts = urlsplit(self.server)
        self.pool = manager.connection_from_url(self.server)
        if parts.scheme == "https":
            self.pool.ConnectionCls = _Connection
        self.client = CurlClient(_address(configuration, manager), pool_size=self._pool_size)
        # a proxy needs the full URL for http only; https is tunnelled
        self.prefix = self.server if parts.scheme == "http" and manager.proxy is not None else parts.path
        self._configuration = configuration
        self._opened_at = self._clock.monotonic()
        self._read()

    def _read(self) -> None:
        value = self._configuration.auth_settings().get("BearerToken", {}).get("value")
        self._header: str | None = value.strip() if value else None
        self._read_at = self._clock.monotonic()

    def authorization(self) -> str | None:
        """Return the ``Authorization`` header; ``None`` with client certificates. After ``HEADER_LIFE``, refresh it."""
        if self._clock.monotonic() - self._read_at >= HEADER_LIFE and (lock := self._acquire(0)) is not None:
            self._read_at = self._clock.monotonic()
            self._start(self._read, 0, lock)
        return self._header

    def renew(self, refused: str | None) -> bool:
        """Read all credentials again after the header ``refused`` was answered with 401; return whether to retry."""
        client, lock = self.client, self._acquire(RENEW_WAIT)
        if lock is None:
            return False
        if self._header != refused or self._clock.monotonic() - self._opened_at < RENEW_PERIOD:
            lock.release()
        else:
            self._opened_at = self._clock.monotonic()
            self._start(self._open, RENEW_WAIT, lock)
        return self._header != refused or self.client is not client

    def _acquire(self, wait: float) -> threading.Lock | None:
        """Return the lock, held; ``None`` if a reader holds it for ``wait`` seconds. Give up a reader that hangs."""
        now = self._clock.monotonic()
        with self._giving_up:
            if self._lock.locked() and now - self._reads_since > READER_LIFE * 2**self._given_up:
                self._lock, self._reads_since = threading.Lock(), now
                self._given_up += 1
            lock = self._lock
        if not lock.acquire(timeout=wait):
            return None
        self._reads_since = now
        return lock

    def _start(self, read: Callable[[], None], wait: float, lock: threading.Lock) -> None:
        """Read credentials in a thread, which releases the lock; wait for it for at most ``wait`` seconds."""

        def run() -> None:
            try:
                read()
                self._given_up = 0
            except Exception as error:  # the library and plug-ins raise anything; the old ones may still be valid
                log.warning("credentials not read", extra=kv(error=str(error)))
            finally:
                lock.release()

        thread = threading.Thread(target=run, name="credentials", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left
            lock.release()
            log.warning("credentials not read", extra=kv(error=str(error)))
            return
        thread.join(wait)


class _Connection(HTTPSConnection):
    """A connection of a watch, which verifies the API server as ``kubectl`` and the calls do.

    From Python 3.13 on, urllib3 would set ``VERIFY_X509_STRICT``: it refuses authorities and certificates without key
    identifiers, which many clusters have. Each connection has a context of its own: urllib3 loads the certificates into
    it, and a process crashes if two threads do so in one context.
    """

    def connect(self) -> None:
        """Connect and verify."""
        self.ssl_context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs), verify_flags=0)
        if self.ca_certs is None and self.ca_cert_data is None:
            self.ssl_context.load_default_certs()
        super().connect()


def _address(configuration: Any, manager: urllib3.PoolManager) -> Address:
    """Return the address of the API server and how to reach it, from the library's ``Configuration``."""
    return Address(
        configuration.host.rstrip("/"),
        ca_file=configuration.ssl_ca_cert or ssl.get_default_verify_paths().cafile,
        verify=configuration.verify_ssl,
        verify_name=configuration.assert_hostname is not False,
        server_name=configuration.tls_server_name or "",
        cert_file=configuration.cert_file,
        key_file=configuration.key_file,
        proxy=configuration.proxy if manager.proxy is not None else "",
        proxy_headers=configuration.proxy_headers,
    )


def configuration(kubeconfig: str | None, context: str | None) -> Any:
    """Load the library's ``Configuration``.

    The source is the given file, else ``$KUBECONFIG``, else the pod's service account, else ``~/.kube/config``. Raises
    :class:`ConfigError`, which names the source.
    """
    from kubernetes import config
    from kubernetes.client import Configuration

    library: Any = config
    result = Configuration()
    source = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if source is None and context is None and SERVICE_ACCOUNT.exists():
            source = "the pod's service account"
            library.load_incluster_config(client_configuration=result)
        else:
            source = source or "~/.kube/config"
            load(
                lambda folder: library.load_kube_config(
                    config_file=source, context=context, client_configuration=result, temp_file_path=folder
                ),
                result,
            )
    except Exception as error:  # of the file, of YAML, or where the library reads a value of another type
        raise ConfigError(f"cannot load the connection to Kubernetes from {source}: {error}") from error
    return result


def current_namespace(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of the kubeconfig's context; ``default`` if it has none."""
    from kubernetes import config

    library: Any = config
    try:
        contexts, active = library.list_kube_config_contexts(config_file=kubeconfig or os.environ.get("KUBECONFIG"))
    except Exception:  # :func:`configuration` names it
        return "default"
    chosen = next((entry for entry in contexts if entry["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")


class MemoryFile(str):
    """The name of a file in memory, which only this process can open. It exists as long as this object."""

    __slots__ = ("_descriptor",)
    _descriptor: int

    def __new__(cls, content: bytes) -> MemoryFile:
        """Create the file. Raises ``OSError``."""
        descriptor = os.memfd_create("podbridge-key")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
        except BaseException:
            os.close(descriptor)
            raise
        result = super().__new__(cls, f"/proc/self/fd/{descriptor}")
        result._descriptor = descriptor
        return result

    def __del__(self) -> None:
        os.close(self._descriptor)


def load(read: Callable[[str | None], None], configuration: Any) -> None:
    """Call ``read`` with a folder for files, and replace these in ``configuration`` by files in memory.

    ``read`` fills the library's ``Configuration``. It gets ``None`` on a system other than Linux: the library's files
    stay. Raises what ``read`` raises, and ``OSError``.
    """
    if sys.platform != "linux":
        read(None)
        return
    for attempt in range(KEY_READS):
        with tempfile.TemporaryDirectory(prefix=KEYS_PREFIX) as folder:
            read(folder)
            try:
                _move(configuration)
                return
            except FileNotFoundError:
                if attempt == KEY_READS - 1:
                    raise


def _move(configuration: Any) -> None:
    for attribute in FILE_ATTRIBUTES:
        name = getattr(configuration, attribute)
        if name and Path(name).parent.name.startswith(KEYS_PREFIX):
            setattr(configuration, attribute, MemoryFile(Path(name).read_bytes()))
