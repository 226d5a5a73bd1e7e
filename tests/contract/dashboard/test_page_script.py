"""Chromium runs the script of the page against a server that can refuse the stream of changes for a while."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bridge.serving.streaming import hung_up
from cluster.places import CHECKOUT
from cluster.systems.browser import Browser

pytestmark = pytest.mark.real

SCRIPT = CHECKOUT / "bridge/apps/dashboard/static/page.js"
PAGE = '<body data-number="0"><script src="/page.js"></script><p id="live"></p><main data-live="a">{}</main></body>'


class Handler(BaseHTTPRequestHandler):
    refused = 0
    pages = 0
    open = 0

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        state = type(self)
        if self.path.startswith("/changes"):
            state.refused += 1
            self.send_response(503 if state.refused == 1 else 200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            if state.refused > 1:
                state.open += 1
                while not hung_up(self.connection):
                    threading.Event().wait(0.05)
                state.open -= 1
            return
        state.pages += self.path == "/"
        body = SCRIPT.read_bytes() if self.path == "/page.js" else PAGE.format(state.pages).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if self.path == "/page.js" else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server():
    Handler.refused = Handler.pages = Handler.open = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_a_refused_stream_is_opened_again_and_the_page_is_not_live_before(tmp_path, server):
    with Browser(tmp_path / "browser") as browser:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        browser.wait(lambda page: page.text("#live") == "connection lost", "the refused stream")
        browser.run("update()")
        browser.wait(lambda page: page.text("main") == "2", "the update")
        assert browser.text("#live") == "connection lost"
        browser.wait(lambda page: page.text("#live") == "live", "the second stream")


def test_a_hidden_page_has_no_stream_and_reads_itself_again_when_it_is_shown(tmp_path, server):
    Handler.refused = 1
    with Browser(tmp_path / "browser") as browser:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        browser.wait(lambda _: Handler.open == 1, "the stream")
        turn = """Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));"""
        browser.run(turn, True)
        browser.wait(lambda _: Handler.open == 0, "the end of the stream")
        browser.run("openFeed()")
        assert (Handler.refused, Handler.pages) == (2, 1)
        browser.run(turn, False)
        browser.wait(lambda page: page.text("main") == "2", "the update")
        browser.wait(lambda _: Handler.open == 1, "one stream")
