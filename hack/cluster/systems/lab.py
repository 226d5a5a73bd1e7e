"""A user of JupyterHub in a browser: logs in, starts a server at a site, runs cells in JupyterLab."""

from __future__ import annotations

import contextlib

from cluster.polling import eventually
from cluster.systems.browser import Browser
from cluster.systems.jupyter import JupyterHub

_CELLS = ".jp-Notebook .jp-Cell"
_FOCUS = f"""
const text = document.querySelectorAll('{_CELLS}')[arguments[0]]?.querySelector('.cm-content');
text?.focus();
document.execCommand('selectAll');
return text?.innerText.trim()"""
_OUTPUT = f"""
return document.querySelectorAll('{_CELLS}')[arguments[0]].querySelector('.jp-OutputArea-output')?.innerText.trim()"""
_RUN = "[data-command='notebook:run-cell-and-select-next']"
_IDLE = ".jp-NotebookPanel .jp-Notebook-ExecutionIndicator[data-status=idle]"


class LabUser:
    """One user in ``browser``; the user before is logged out by it."""

    def __init__(self, browser: Browser, hub: JupyterHub, name: str) -> None:
        self.browser, self.name = browser, name
        self._hub = hub
        browser.devtools("Network.clearBrowserCookies")
        browser.open(f"{hub.url}/hub/login")
        for field, text in (("username", name), ("password", hub.password)):
            browser.click(f"#{field}_input")
            browser.press(*text)
        browser.click("#login_submit")
        browser.wait(lambda page: "/hub/login" not in page.url, f"the login of {name}")

    def start(self, site: str, timeout: float = 120) -> None:
        """Start the server at a site, and wait until JupyterLab is there."""
        self.browser.open(f"{self._hub.url}/hub/spawn")
        self.browser.click(f"#profile-item-{site}")
        self.browser.click("#spawn_form button[type=submit]")
        self.browser.wait(lambda page: f"/user/{self.name}/lab" in page.url, f"the server at {site}", timeout)

    def open_notebook(self) -> None:
        """Create a notebook from the launcher, and wait for its kernel."""
        self.browser.open(f"{self._hub.url}/user/{self.name}/lab?reset")  # without the notebooks of the last time
        card = ".jp-LauncherCard[data-category=Notebook]"
        self.browser.wait(
            lambda page: _exists(page, card) and not _exists(page, "#jupyterlab-splash"), "JupyterLab", 60
        )
        self.browser.click(card)
        self.browser.wait(lambda page: _exists(page, _IDLE), "the kernel", 60)

    def run(self, code: str) -> str:
        """Type code into the last cell, run it, and return its output."""
        page = self.browser
        cell = int(page.run(f"return document.querySelectorAll('{_CELLS}').length")) - 1

        def output() -> str:
            """Try once: JupyterLab replaces a new notebook's cell, and its kernel's connection, within a second."""
            if page.run(_FOCUS, cell) != code:
                page.press(*code)
            page.run(_FOCUS, cell)
            page.click(_RUN)
            with contextlib.suppress(AssertionError):
                page.wait(lambda page: page.run(_OUTPUT, cell), "output", 3)
            return str(page.run(_OUTPUT, cell) or "")

        return eventually(output, f"the output of {code}")

    def stop(self) -> None:
        """Stop the server by the button of the Hub's page, and wait until the page says that it has stopped."""
        self.browser.open(f"{self._hub.url}/hub/home")
        self.browser.wait(_is_stopping, "the button", 30)
        self.browser.wait(lambda page: page.text("#start") == "Start My Server", "the end of the server", 60)


def _is_stopping(page: Browser) -> bool:
    """Click the button, which has no effect until the scripts of the page are loaded."""
    page.click("#stop")
    return bool(page.run("return document.querySelector('#start').title"))


def _exists(page: Browser, selector: str) -> bool:
    return bool(page.run("return !!document.querySelector(arguments[0])", selector))
