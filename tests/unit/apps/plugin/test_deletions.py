import pytest

from bridge.apps.plugin import deletions
from bridge.apps.plugin.deletions import Deletions
from tests.fakes.pool import FakePool


def pending(*uids):
    found = Deletions()
    for uid in uids:
        found.repeat(uid, {"uid": uid})
    return found


def test_a_client_that_deletes_again_does_not_change_the_order():
    found = pending("a", "b", "a")
    assert list(found.undelivered()) == ["a", "b"]


@pytest.mark.parametrize(("delivered", "left"), [(False, ["b", "a"]), (True, ["b"])], ids=["failed", "delivered"])
def test_a_cancellation_that_failed_again_comes_last_unless_it_was_delivered_meanwhile(delivered, left):
    found = pending("a", "b")
    if delivered:
        found.delivered("a")
    found.postpone("a")
    assert list(found.undelivered()) == left


def test_beyond_the_limit_only_known_cancellations_are_repeated(monkeypatch):
    monkeypatch.setattr(deletions, "MOST_DELETED", 2)
    found = pending("a", "b", "c", "a")
    assert list(found.undelivered()) == ["a", "b"]


def test_beyond_the_limit_the_oldest_jobs_that_a_site_lists_are_forgotten_but_no_followed_one(monkeypatch):
    monkeypatch.setattr(deletions, "MOST_DELETED", 2)
    found, pool = Deletions(), FakePool("p")
    found.ends("a", None)
    found.ends("b", pool)
    assert not found.has_room()
    found.ends("c", None)
    assert [found.is_deleted(uid) for uid in "abc"] == [False, True, True]
    found.ends("d", None)
    assert found.followed() == {"b": pool}
    found.gone("b")
    assert found.followed() == {}
