"""Chromium without a screen, driven by the W3C WebDriver protocol: for tests of the web page."""

from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster import views
from cluster.errors import ClusterError
from cluster.polling import eventually
from cluster.ports import free_block, http_status
from cluster.systems import debian

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element's id in an answer (W3C WebDriver, section 12.1)."""
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Space": "\ue00d"}


class Browser:
    """One browser with an empty profile, in the root folder of Debian that has Chromium. ``folder`` is its home."""

    def __init__(self, folder: Path) -> None:
        debian.ensure_added("chromium")
        debian.ensure_added("fonts")
        self._folder = folder
        self._port = free_block(1)
        self._session = ""
        self._driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Browser:
        folder, root = self._folder, debian.added_root("chromium")
        (folder / "etc").mkdir(parents=True, exist_ok=True)
        views.write_accounts(root, folder / "etc", {})
        script = folder / "enter"
        homes = {"HOME": views.SEEN_AS, "TMPDIR": views.SEEN_AS}  # a killed browser leaves folders in TMPDIR
        script.write_text(views.root_view(folder, root, homes, run=False))
        script.chmod(0o755)
        # a pid namespace: all processes of the browser end with the driver
        own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with (folder / "chromedriver.log").open("wb") as log:
            self._driver = subprocess.Popen(
                [*own, str(script), "chromedriver", f"--port={self._port}"], stdout=log, stderr=log
            )
        eventually(lambda: http_status(f"http://127.0.0.1:{self._port}/status") == 200, "chromedriver", 60)
        options = {"args": list(FLAGS)}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self._session = self._call("POST", "/session", {"capabilities": wanted})["sessionId"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()

    def open(self, url: str) -> None:
        """Open a URL, and wait until it is loaded."""
        self._command("POST", "url", {"url": url})

    @property
    def url(self) -> str:
        """The URL of the page."""
        return str(self._command("GET", "url"))

    def size(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels, as a phone would have it."""
        device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **device)

    def prefer(self, scheme: str) -> None:
        """Prefer the color scheme ``dark`` or ``light``."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def devtools(self, method: str, **params: object) -> Any:
        """Send a command of the Chrome DevTools protocol."""
        return self._command("POST", "goog/cdp/execute", {"cmd": method, "params": params})

    def run(self, script: str, *args: object) -> Any:
        """Run JavaScript in the page; return what it returns."""
        return self._command("POST", "execute/sync", {"script": script, "args": list(args)})

    def text(self, selector: str = "main") -> str:
        """Return the visible text of an element; empty if there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def click(self, selector: str) -> None:
        """Click an element as a user does."""
        found = self._command("POST", "element", {"using": "css selector", "value": selector})
        self._command("POST", f"element/{found[ELEMENT]}/click", {})

    def press(self, *keys: str) -> None:
        """Press keys, by their names in :data:`KEYS` or as characters."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._command("POST", "actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def wait(self, check: Callable[[Browser], object], what: str, timeout: float = 15) -> None:
        """Wait until ``check`` is true for this browser."""
        eventually(lambda: check(self), what, timeout)

    def screenshot(self, file: Path) -> None:
        """Write a PNG of the page."""
        file.write_bytes(base64.b64decode(self._command("GET", "screenshot")))

    def problems(self) -> list[str]:
        """Return the errors of the console: exceptions, refused resources, violations of the content policy."""
        entries = self._command("POST", "se/log", {"type": "browser"})
        return [str(entry["message"]) for entry in entries if entry["level"] == "SEVERE"]

    def load_time(self) -> float:
        """Return the seconds from the start of the navigation to the complete page."""
        script = "const n = performance.getEntriesByType('navigation')[0]; return n.loadEventEnd"
        for _ in range(50):
            if found := float(self.run(script)):
                return found / 1000
            time.sleep(0.02)
        raise ClusterError("the page is not loaded")

    def _command(self, method: str, path: str, body: object = None) -> Any:
        return self._call(method, f"/session/{self._session}/{path}", body)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise ClusterError(f"{method} {path}: {error.read().decode()[:1000]}") from error
