"""A registry for images and charts on the loopback, with TLS: distribution, from Debian's package in the cache."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import yaml

from cluster.pki import Authority
from cluster.ports import free_block, listening
from cluster.processes import Processes
from cluster.systems import debian

_NAME = "docker-registry"
_HOST = "127.0.0.1"


class Registry:
    """A registry in the folder ``state``, until the end of a ``with`` block. It needs no login."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._processes = Processes(state / "run", state / "logs")
        self._port = free_block(1)
        self.host = f"{_HOST}:{self._port}"
        """Address and port."""
        state.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(state, "registry-ca")

    @property
    def env(self) -> dict[str, str]:
        """Environment of clients that verify its certificate: skopeo, Helm and other programs written in Go."""
        return {"SSL_CERT_FILE": str(self._authority.certificate)}

    def __enter__(self) -> Registry:
        """Start it, and wait until it accepts connections."""
        debian.ensure_unpacked(_NAME)
        certificate, key = self._authority.write(self._state / "registry", "registry", hosts=[_HOST])
        settings = {
            "version": 0.1,
            "log": {"accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._state / "blobs")}},
            "http": {"addr": self.host, "tls": {"certificate": str(certificate), "key": str(key)}},
        }
        file = self._state / "registry.yaml"
        file.write_text(yaml.safe_dump(settings))
        program = debian.unpacked(_NAME) / _NAME
        self._processes.start(_NAME, [str(program), "serve", str(file)])
        self._processes.wait(_NAME, lambda: listening(self._port))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop it."""
        self._processes.stop([_NAME], 5)
        self._processes.forget(_NAME)
