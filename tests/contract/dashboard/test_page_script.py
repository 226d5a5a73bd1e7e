"""Chromium runs the script of the page against a server that can refuse the stream of changes for a while."""

import threading
from collections import Counter

import pytest

from bridge.serving.streaming import hung_up
from cluster.places import CHECKOUT
from cluster.systems.browser import Browser
from tests.fakes.web_server import Handler, serving

pytestmark = pytest.mark.real

SCRIPT = CHECKOUT / "bridge/apps/dashboard/static/page.js"
PAGE = '<body data-number="0"><script src="/page.js"></script><p id="live"></p><main data-live="a">{}</main></body>'


class PageHandler(Handler):
    def respond(self):
        if self.path.startswith("/changes"):
            return self.stream()
        if self.path == "/page.js":
            return self.answer(SCRIPT.read_bytes(), headers={"Content-Type": "text/javascript"})
        self.server.count["pages"] += self.path == "/"
        return self.answer(PAGE.format(self.server.count["pages"]).encode(), headers={"Content-Type": "text/html"})

    def stream(self):
        count = self.server.count
        count["streams"] += 1
        self.answer(status=503 if count["streams"] == 1 else 200, headers={"Content-Type": "text/event-stream"})
        if count["streams"] > 1:
            count["open"] += 1
            while not hung_up(self.connection):
                threading.Event().wait(0.05)
            count["open"] -= 1


@pytest.fixture
def server():
    with serving(PageHandler) as server:
        server.count = Counter()
        yield server


def test_a_refused_stream_is_opened_again_and_the_page_is_not_live_before(tmp_path, server):
    with Browser(tmp_path / "browser") as browser:
        browser.open(f"http://127.0.0.1:{server.server_port}/")
        browser.wait(lambda page: page.text("#live") == "connection lost", "the refused stream")
        browser.run("update()")
        browser.wait(lambda page: page.text("main") == "2", "the update")
        assert browser.text("#live") == "connection lost"
        browser.wait(lambda page: page.text("#live") == "live", "the second stream")


def test_a_hidden_page_has_no_stream_and_reads_itself_again_when_it_is_shown(tmp_path, server):
    server.count["streams"] = 1
    with Browser(tmp_path / "browser") as browser:
        browser.open(f"http://127.0.0.1:{server.server_port}/")
        browser.wait(lambda _: server.count["open"] == 1, "the stream")
        turn = """Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));"""
        browser.run(turn, True)
        browser.wait(lambda _: server.count["open"] == 0, "the end of the stream")
        browser.run("openFeed()")
        assert (server.count["streams"], server.count["pages"]) == (2, 1)
        browser.run(turn, False)
        browser.wait(lambda page: page.text("main") == "2", "the update")
        browser.wait(lambda _: server.count["open"] == 1, "one stream")
