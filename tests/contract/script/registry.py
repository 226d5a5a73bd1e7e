"""A registry for images on this machine: what a client needs to pull, and what was asked for.

Source: the distribution specification of the Open Container Initiative, 1.1 (pulling manifests and blobs).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_PATH = re.compile(r"/v2/(?P<name>[a-z0-9/]+)/(?P<kind>manifests|blobs)/(?P<reference>[A-Za-z0-9_.:-]+)")


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed says no good-bye."""


class Registry:
    """Serves images over HTTP at ``host``, to everybody or with one login (``user:password``)."""

    def __init__(self, login: str = "") -> None:
        self.login = login
        self.asked: list[str] = []
        """Methods and paths, in order; those without the login are not in it."""
        self.refused = 0
        self.held = re.compile("$.")
        """Requests (method and path) that wait for :attr:`go_on`."""
        self.go_on = threading.Event()
        self._content: dict[str, tuple[str, bytes]] = {}
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def put(
        self,
        name: str,
        tag: str,
        folder: Path,
        config: dict[str, Any] | None = None,
        folders: str = "",
        links: Mapping[str, str] | None = None,
        **files: str,
    ) -> str:
        """Add an image of a folder and more files in its root; returns the digest of its manifest.

        ``config``: its configuration; ``folders``: paths of more folders; ``links``: path -> target.
        """
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            tar.add(folder, arcname=".", filter=_of_root)
            for path in filter(None, folders.split(":")):
                entry = tarfile.TarInfo(path)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o777
                tar.addfile(entry)
            for path, target in (links or {}).items():
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
            for path, text in files.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(text), 0o644
                tar.addfile(entry, io.BytesIO(text.encode()))
        layer = gzip.compress(raw.getvalue(), 1, mtime=0)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/sh"], **(config or {})},
            "history": [{"created_by": "a test"}],
            "rootfs": {"type": "layers", "diff_ids": [_digest(raw.getvalue())]},
        }
        parts = [(_CONFIG, json.dumps(config).encode()), (_LAYER, layer)]
        described = [
            {"mediaType": kind, "digest": self._keep("application/octet-stream", data), "size": len(data)}
            for kind, data in parts
        ]
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described[0], "layers": described[1:]}
        digest = self._keep(_MANIFEST, json.dumps(manifest).encode())
        self._content[f"{name}:{tag}"] = self._content[digest]
        return digest

    def _keep(self, kind: str, data: bytes) -> str:
        digest = _digest(data)
        self._content[digest] = kind, data
        return digest

    def count(self, pattern: str) -> int:
        """Count the requests that match."""
        return sum(1 for asked in tuple(self.asked) if re.search(pattern, asked))

    def hold(self, pattern: str) -> None:
        """Have requests that match wait until :meth:`release`."""
        self.go_on.clear()
        self.held = re.compile(pattern)

    def release(self) -> None:
        """Answer what waits, and all that follows."""
        self.held = re.compile("$.")
        self.go_on.set()

    def close(self) -> None:
        """Stop: from now on nobody answers."""
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                wanted = base64.b64encode(registry.login.encode()).decode()
                if registry.login and self.headers["Authorization"] != f"Basic {wanted}":
                    registry.refused += 1
                    self._answer(401, "text/plain", b"", {"WWW-Authenticate": 'Basic realm="test"'})
                    return
                registry.asked.append(f"{self.command} {self.path}")
                if registry.held.search(f"{self.command} {self.path}"):
                    registry.go_on.wait(120)
                match = _PATH.fullmatch(self.path)
                if self.path == "/v2/":
                    self._answer(200, "application/json", b"{}")
                    return
                reference = match["reference"] if match else ""
                by_name = f"{match['name']}:{reference}" if match else ""
                kind, data = registry._content.get(reference) or registry._content.get(by_name) or ("", b"")
                self._answer(200 if kind else 404, kind or "text/plain", data)

            do_HEAD = do_GET  # noqa: N815

            def _answer(self, code: int, kind: str, data: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(code)
                digest = {"Docker-Content-Digest": _digest(data)} if code == 200 else {}
                length = {"Content-Type": kind, "Content-Length": str(len(data))}
                for name, value in {**length, **digest, **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
