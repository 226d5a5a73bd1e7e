"""Who sees the page."""

import base64
import random
import threading
import time
import zlib
from types import SimpleNamespace

import pytest

from bridge.apps.dashboard.changes import Changes, Feed
from bridge.apps.dashboard.cookie_seal import LIFE, CookieSeal
from bridge.apps.dashboard.dashboard_server import Dashboard, PageSettings
from bridge.apps.dashboard.page_access import LONGEST_COOKIE, ReviewedAccess
from bridge.apps.dashboard.slurm_reader import SlurmState
from bridge.config.hub import Config
from bridge.errors import ConfigError
from bridge.kube.user_client import without_credentials
from bridge.slurm.cluster_sums import ClusterSums, NodeSums
from controllers.kubelet.authentication import TokenAuthenticator
from tests.fakes.clock import FakeClock
from tests.unit.apps.dashboard.conftest import HOST, Site
from tests.unit.apps.view.test_pod_view import pod

LONG = random.Random(7).randbytes(3 * 2**10).hex()


class Users:
    """Clients by token."""

    def client(self, token):
        return f"client of {token}"


class Reviews:
    """An API server that knows the token of ann, who may list the pods of hpc."""

    def __init__(self):
        self.asked = []

    def review(self, token):
        known = token in ("anns-token", LONG)
        return {"authenticated": known, "user": {"username": "ann", "groups": ["physics"]}} if known else {}

    def create(self, path, body):
        attributes = body["spec"]["resourceAttributes"]
        self.asked.append((body["spec"]["user"], attributes["resource"], attributes.get("namespace", "")))
        return {"status": {"allowed": attributes.get("namespace") == "hpc"}}


@pytest.fixture
def reviewed():
    reviews = Reviews()
    clock = FakeClock()
    tokens = TokenAuthenticator(reviews.review, clock)
    access = ReviewedAccess(reviews, Users(), tokens, CookieSeal(clock), clock)
    site = Site(
        [pod("seen"), {**pod("x"), "metadata": {**pod("closed")["metadata"], "namespace": "other"}}], access=access
    )
    site.reviews, site.clock = reviews, clock
    return site


class TestLocal:
    def test_without_the_token_nothing_is_shown(self):
        site = Site([pod()])
        for path in ("/", "/pods", "/pods/hpc/p", "/log/hpc/p/main", "/changes", "/?token=", "/?token=wrong"):
            answer = site.get(path)
            assert answer.status_code == 401, path
            assert "hpc" not in answer.text

    def test_the_url_with_the_token_sets_a_cookie_and_leaves_the_address(self):
        site = Site([pod()])
        answer = site.get(f"/?token={site.access.token}")
        assert (answer.status_code, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
        assert site.get("/").status_code == 200

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:8088", "127.0.0.1", "127.0.0.1:80", ""])
    def test_another_host_is_refused_even_with_the_cookie(self, site, host):
        answer = site([pod()]).get("/", host=host)
        assert answer.status_code == 421
        assert "p</a>" not in answer.text

    def test_every_answer_has_the_content_policy(self, site):
        opened = site([pod()])
        for path in ("/", "/static/page.css", "/nothing", "/log/hpc/p/main", "/changes"):
            answer = opened.get(path, buffered=path != "/changes")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Frame-Options"] == "DENY"
            answer.close()

    def test_nothing_can_be_written(self, site):
        opened = site([pod()])
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = opened.browser.open("/pods/hpc/p", method=method, base_url=f"http://{HOST}")
            assert answer.status_code == 405


class TestSignIn:
    def test_without_a_token_the_form_is_shown(self, reviewed):
        answer = reviewed.get("/pods")
        assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in")
        assert 'type="password"' in reviewed.get("/sign-in").text

    def test_a_token_that_the_api_server_refuses(self, reviewed):
        answer = reviewed.browser.post("/sign-in", data={"token": "wrong"}, base_url=f"http://{HOST}")
        assert answer.status_code == 401
        assert "does not accept" in answer.text
        assert "Set-Cookie" not in answer.headers

    def test_a_user_sees_what_reviews_allow(self, reviewed):
        answer = reviewed.browser.post("/sign-in", data={"token": " anns-token "}, base_url=f"https://{HOST}")
        assert answer.status_code == 303
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "Secure" in cookie and "SameSite=Lax" in cookie
        value = cookie.partition("=")[2].partition(";")[0]
        reviewed.browser.set_cookie(reviewed.access.cookie, value, domain="127.0.0.1")
        text = reviewed.get("/pods").text
        assert "seen</a>" in text and "closed</a>" not in text
        assert "You may not list nodes" in reviewed.get("/").text
        assert ("ann", "pods", "") in reviewed.reviews.asked and ("ann", "pods", "other") in reviewed.reviews.asked
        reviewed.slurm = SlurmState(ClusterSums(nodes=(NodeSums("secret-node"),)), "")
        assert "secret-node" not in reviewed.get("/map").text
        assert ("ann", "configmaps", "podbridge") in reviewed.reviews.asked

    def test_a_proxy_sends_the_token_in_the_header(self, reviewed):
        headers = {"Host": HOST, "Authorization": "Bearer anns-token"}
        assert reviewed.browser.get("/pods", headers=headers).status_code == 200
        headers["Authorization"] = "Bearer other"
        assert reviewed.browser.get("/pods", headers=headers).status_code == 303

    def test_each_token_is_another_identity(self, reviewed):
        found = [reviewed.access.viewer(f"Bearer {token}", "") for token in ("anns-token", "anns-token", LONG)]
        assert [viewer.name for viewer in found] == ["ann"] * 3
        assert found[0].identity == found[1].identity != found[2].identity

    def test_a_form_of_another_site_is_refused(self, reviewed):
        headers = {"Host": HOST, "Origin": "https://evil.example"}
        answer = reviewed.browser.post("/sign-in", data={"token": "anns-token"}, headers=headers)
        assert answer.status_code == 403

    def test_a_token_that_no_cookie_takes(self, reviewed):
        answer = reviewed.browser.post("/sign-in", data={"token": LONG}, base_url=f"http://{HOST}")
        assert answer.status_code == 401
        assert f"{len(LONG)} characters" in answer.text
        assert "Set-Cookie" not in answer.headers

    def test_the_cookie_does_not_contain_the_token(self, reviewed):
        reviewed.browser.post("/sign-in", data={"token": "anns-token"}, base_url=f"http://{HOST}")
        value = reviewed.browser.get_cookie("podbridge-token", domain="127.0.0.1").value
        assert "anns-token" not in value
        body = base64.urlsafe_b64decode(value)
        assert b"anns-token" not in body and zlib.compress(b"anns-token", 9) not in body
        assert reviewed.get("/pods").status_code == 200

    def test_a_cookie_that_expired_or_is_no_cookie_of_this_page_means_to_sign_in_again(self, reviewed):
        other = CookieSeal(reviewed.clock).close("anns-token")
        for value in ("anns-token", other, other[:-4], "", "é", "a" * 3000):
            reviewed.browser.set_cookie("podbridge-token", value, domain="127.0.0.1")
            answer = reviewed.get("/pods")
            assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in"), value
        reviewed.browser.set_cookie("podbridge-token", reviewed.access.value("anns-token"), domain="127.0.0.1")
        reviewed.clock.advance(LIFE)
        assert reviewed.get("/pods").status_code == 200
        reviewed.clock.advance(1)
        assert reviewed.get("/pods").headers["Location"] == "/sign-in"


class TestSeal:
    def test_replicas_with_the_same_private_key_open_each_others_cookies(self, tmp_path):
        clock, file = FakeClock(), tmp_path / "tls.key"
        file.write_bytes(b"private key 1")
        first, second = CookieSeal(clock, file), CookieSeal(clock, file)
        cookie = first.close("anns-token")
        assert second.open(cookie) == "anns-token"
        file.write_bytes(b"private key 2")
        assert second.open(cookie) is None
        renewed = first.close("anns-token")
        file.unlink()
        assert first.open(renewed) == second.open(renewed) == "anns-token"

    def test_a_token_of_3800_characters_fits_in_a_cookie(self):
        token = base64.urlsafe_b64encode(random.Random(7).randbytes(2850)).decode()
        assert len(token) == 3800
        assert len(CookieSeal(FakeClock()).close(token)) <= LONGEST_COOKIE


class TestSettings:
    def test_another_address_than_loopback_needs_tokens_and_a_certificate(self):
        with pytest.raises(ConfigError, match="not allowed without --sign-in"):
            Dashboard(Config(), PageSettings(host="0.0.0.0"), None)  # noqa: S104
        with pytest.raises(ConfigError, match="--tls-cert"):
            Dashboard(Config(), PageSettings(host="0.0.0.0", sign_in=True), None)  # noqa: S104

    def test_a_client_for_users_has_no_credentials_of_the_process(self):
        loaded = SimpleNamespace(cert_file="own", key_file="own", username="own", password="own")
        loaded.api_key = loaded.api_key_prefix = {"authorization": "own"}
        loaded.refresh_api_key_hook = print
        found = without_credentials(loaded)
        assert (found.cert_file, found.key_file, found.username, found.password) == (None,) * 4
        assert (found.api_key, found.api_key_prefix, found.refresh_api_key_hook) == ({}, {}, None)


class TestChanges:
    def test_any_number_of_changes_is_one_message(self):
        changes = Changes()
        feed = Feed(changes, 0)
        assert next(feed).startswith(b"retry")
        for _ in range(1000):
            changes.mark("add", None, {})
        changes.publish()
        changes.publish()
        assert next(feed) == b"id: 1\nevent: change\ndata: 1\n\n"
        assert changes.number == 1

    def test_a_page_that_is_older_than_the_last_change_gets_it_at_once(self):
        changes = Changes()
        changes.mark()
        changes.publish()
        feed = Feed(changes, 0)
        next(feed)
        assert b"data: 1" in next(feed)

    def test_a_closed_page_and_the_end_of_the_process_end_the_stream(self):
        changes, stop = Changes(), threading.Event()
        feeds = [Feed(changes, 0), Feed(changes, 0)]
        ended = []
        threads = [threading.Thread(target=lambda f=feed: ended.append(list(f))) for feed in feeds]
        runner = threading.Thread(target=changes.run, args=(stop,))
        for thread in (*threads, runner):
            thread.start()
        time.sleep(0.1)
        feeds[0].close()
        threads[0].join(5)
        assert not threads[0].is_alive()
        stop.set()
        threads[1].join(5)
        assert len(ended) == 2
