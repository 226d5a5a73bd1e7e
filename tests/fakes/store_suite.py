"""The behaviour of a store: unit tests run this suite on the fake, contract tests on real servers."""

from __future__ import annotations

from bridge.pools.store.synchronizer import KeyValueStore


class StoreSuite:
    def test_an_empty_store_has_nothing(self, store: KeyValueStore) -> None:
        assert store.load("pools") == {}

    def test_what_is_put_is_there_until_it_is_deleted(self, store: KeyValueStore) -> None:
        store.put("pools", {"a": b"1", "b": b"2"})
        store.put("pools", {"b": b"3"})
        assert store.load("pools") == {"a": b"1", "b": b"3"}
        store.delete("pools", ["a"])
        assert store.load("pools") == {"b": b"3"}

    def test_what_is_not_there_can_be_deleted(self, store: KeyValueStore) -> None:
        store.put("pools", {"a": b"1"})
        store.delete("pools", ["never", "was"])
        assert store.load("pools") == {"a": b"1"}

    def test_kinds_are_apart(self, store: KeyValueStore) -> None:
        store.put("pools", {"a": b"1"})
        store.put("jobs", {"a": b"2", "b": b"3"})
        store.delete("jobs", ["a"])
        assert store.load("pools") == {"a": b"1"}
        assert store.load("jobs") == {"b": b"3"}

    def test_keys_and_values_are_any(self, store: KeyValueStore) -> None:
        values = {
            "site-a/7d0e0f0a-0000-4000-8000-000000000000": b"{}",
            "a b": b"\x00\xff\r\n",
            "*": b"1",
            ">": b"2",
            "a.b": b"3",
            "a": b"4",
            "a=b": b"5",
            "Ünï/😀": b"6",
            "$KV.x": b"7",
            "": b"8",
            "k" * 300: b"v" * 200_000,
        }
        store.put("jobs", values)
        assert store.load("jobs") == values
        store.delete("jobs", ["*", ">"])
        assert store.load("jobs") == {key: value for key, value in values.items() if key not in "*>" or not key}
        store.delete("jobs", list(values))
        assert store.load("jobs") == {}

    def test_a_store_that_was_closed_opens_again(self, store: KeyValueStore) -> None:
        store.put("pools", {"a": b"1"})
        store.close()
        assert store.load("pools") == {"a": b"1"}
        store.close()
        store.close()
