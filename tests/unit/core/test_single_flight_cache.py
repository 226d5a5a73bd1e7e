"""The cache with a time to live and one load at a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import BridgeError
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize("value", ["v", None, 0])
def test_a_value_is_loaded_again_after_its_time(value: str | int | None) -> None:
    clock, loads = FakeClock(), list[int]()
    cache: SingleFlightCache[str | int | None] = SingleFlightCache(clock)

    def load() -> tuple[str | int | None, float]:
        loads.append(1)
        return value, 5.0

    for advance, expected in ((0.0, 1), (4.9, 1), (0.1, 2)):
        clock.advance(advance)
        assert cache.get("key", load) == value
        assert len(loads) == expected


def test_the_number_of_values_is_bounded() -> None:
    cache: SingleFlightCache[int] = SingleFlightCache(FakeClock(), limit=10)
    for number in range(50):
        assert cache.get(number, lambda n=number: (n, 60.0)) == number  # type: ignore[misc]
        assert len(cache._entries) <= 10


@pytest.mark.parametrize("fails", [False, True])
def test_concurrent_requests_share_one_load_and_its_error(fails: bool) -> None:
    loads, started = list[int](), threading.Barrier(8)
    cache: SingleFlightCache[str] = SingleFlightCache(FakeClock())

    def load() -> tuple[str, float]:
        loads.append(1)
        time.sleep(0.3)
        if fails:
            raise BridgeError("refused")
        return "value", 60.0

    def get() -> str:
        started.wait()
        try:
            return cache.get("key", load)
        except BridgeError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        results = [future.result() for future in [threads.submit(get) for _ in range(8)]]
    assert set(results) == {"refused" if fails else "value"}
    assert len(loads) == 1


def test_an_error_is_not_cached() -> None:
    cache: SingleFlightCache[str] = SingleFlightCache(FakeClock())

    def fail() -> tuple[str, float]:
        raise BridgeError("refused")

    for _ in range(2):
        with pytest.raises(BridgeError):
            cache.get("key", fail)
    assert cache.get("key", lambda: ("value", 60.0)) == "value"


def test_values_that_have_expired_do_not_stay_in_memory() -> None:
    clock = FakeClock()
    cache: SingleFlightCache[int] = SingleFlightCache(clock)

    def fail() -> tuple[int, float]:
        raise BridgeError("refused")

    for number in range(1000):
        assert cache.get(number, lambda n=number: (n, 60.0)) == number  # type: ignore[misc]
        assert len(cache._entries) <= 70
        with pytest.raises(BridgeError):
            cache.get(("fails", number), fail)
        clock.advance(10.0)
        assert cache.get(number, fail) == number


def test_no_value_is_lost_before_its_time() -> None:
    clock = FakeClock()
    cache: SingleFlightCache[int] = SingleFlightCache(clock)
    for number in range(1000):
        cache.get(number, lambda n=number: (n, 60.0 if n % 2 else 1.0))  # type: ignore[misc]
    clock.advance(5.0)
    cache.get("one more", lambda: (0, 60.0))
    for number in range(1, 1000, 2):
        assert cache.get(number, lambda: (-1, 60.0)) == number


def test_a_value_without_a_time_is_not_kept() -> None:
    cache: SingleFlightCache[str] = SingleFlightCache(FakeClock())
    for value in ("a", "b"):
        assert cache.get("key", lambda v=value: (v, 0.0)) == value  # type: ignore[misc]
        assert cache._entries == {}
    assert cache.get("key", lambda: ("c", 1.0)) == "c"
    assert cache.get("key", lambda: ("d", 1.0)) == "c"
