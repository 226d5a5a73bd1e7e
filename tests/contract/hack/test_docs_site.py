"""The built site of the documentation in a real browser."""

import functools
import http.server
import json
import subprocess
from contextlib import contextmanager

import pytest

from cluster import places
from cluster.polling import eventually
from cluster.systems.browser import Browser
from tests.fakes.web_server import serving

pytestmark = pytest.mark.real

DIAGRAM = 'class="mermaid"'
HEIGHTS = "return JSON.stringify([...document.querySelectorAll('div.mermaid')].map(e => e.offsetHeight))"
SMALL = 20
"""Pixels: a diagram that is not drawn has the height of its margins at most."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """Serve a folder of files; yield the URL."""
    with serving(functools.partial(Quiet, directory=str(folder))) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.long_only  # the site is built with mermaid, which npm fetches
@pytest.mark.timeout(900)
def test_each_diagram_is_drawn_and_no_page_has_an_error(tmp_path):
    site = tmp_path / "site"
    subprocess.run([places.CHECKOUT / "hack" / "docs.sh", site], check=True, capture_output=True)
    pages = {page.relative_to(site): page.read_text().count(DIAGRAM) for page in sorted(site.rglob("*.html"))}
    assert sum(map(bool, pages.values())) > 30
    (tmp_path / "browser").mkdir()
    with served(site) as url, Browser(tmp_path / "browser") as browser:
        browser.size(1200, 900)
        for page, count in pages.items():
            browser.open(f"{url}/{page}")

            def drawn(count=count):
                heights = json.loads(browser.run(HEIGHTS))
                return len(heights) == count and all(height > SMALL for height in heights)

            eventually(drawn, f"the {count} diagrams of {page}", 20)
            assert not browser.problems(), page
