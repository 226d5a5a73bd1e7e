import threading
import time

import pytest

from bridge.apps.plugin.plugin_pods import PoolSlots
from bridge.errors import SiteDownError


@pytest.fixture
def held():
    """Return slots of which pool ``a`` uses the only one, and the event that releases it."""
    slots, release, used = PoolSlots(stalled_after=0.3), threading.Event(), threading.Event()

    def use():
        with slots.hold("a", 1):
            used.set()
            release.wait(10)

    thread = threading.Thread(target=use)
    thread.start()
    used.wait(10)
    yield slots, release
    release.set()
    thread.join(10)


def test_another_pool_has_slots_of_its_own(held):
    slots, _ = held
    with slots.hold("b", 1):
        pass


def test_a_request_waits_until_a_slot_is_free(held):
    slots, release = held
    slots._stalled_after = 10.0  # a busy machine wakes the timer late
    threading.Timer(0.1, release.set).start()
    with slots.hold("a", 1):
        assert release.is_set()


def test_a_stalled_pool_refuses_after_a_while_and_then_at_once(held):
    slots, _ = held
    for longest in (0.6, 0.05):
        began = time.monotonic()
        with pytest.raises(SiteDownError, match="pool a: 1 requests wait"), slots.hold("a", 1):
            pass
        assert time.monotonic() - began < longest


def test_an_error_is_no_accepted_request():
    slots = PoolSlots(stalled_after=0.2)
    with slots.hold("a", 2):
        time.sleep(0.3)
        with pytest.raises(KeyError), slots.hold("a", 2):
            raise KeyError
        with pytest.raises(SiteDownError), slots.hold("a", 1):
            pass
    with slots.hold("a", 1):
        pass
