"""The inbox: a flooding pool loses only its own messages, and is reported."""

from bridge.pools.submitter import inbox
from bridge.pools.submitter.inbox import MOST_BYTES, MOST_MESSAGES, MOST_RATE, Inbox


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Inbox, list[str], Clock]:
    floods: list[str] = []
    clock = Clock()
    return Inbox(floods.append, clock), floods, clock


def read(box: Inbox) -> list[tuple[str, bytes]]:
    found = []
    while (message := box.get(0)) is not None:
        found.append((message[0], message[1][1]))
    return found


def test_pools_are_read_in_turn_and_each_in_its_order() -> None:
    box, _, _ = made()
    for number in range(4):
        box.put("loud", ("s", b"%d" % number))
    box.put("quiet", ("s", b"a"))
    assert read(box) == [("loud", b"0"), ("quiet", b"a"), ("loud", b"1"), ("loud", b"2"), ("loud", b"3")]
    assert box.get(0) is None


def test_what_does_not_fit_is_dropped_and_told_once_with_the_next_message() -> None:
    box, _, _ = made()
    for _ in range(MOST_MESSAGES + 5):
        box.put("loud", ("s", b"x"))
    box.put("quiet", ("s", b"a"))
    first = box.get(0)
    assert first is not None
    assert first[2]
    assert len(read(box)) == MOST_MESSAGES
    box.put("loud", ("s", b"y"))
    later = box.get(0)
    assert later is not None
    assert not later[2]


def test_bytes_are_counted_too() -> None:
    box, _, _ = made()
    for _ in range(3):
        box.put("loud", ("s", b"x" * (MOST_BYTES // 2)))
    assert len(read(box)) == 2


def test_a_flood_is_told_once_a_second() -> None:
    box, floods, clock = made()
    for _ in range(2):
        for _ in range(MOST_RATE * 2):
            box.put("loud", ("s", b"x"))
        for _ in range(MOST_RATE):
            box.put("busy", ("s", b"x"))
        clock.now += 1
    assert floods == ["loud", "loud"]
    box.put("large", ("s", b"x" * (inbox.MOST_BYTE_RATE + 1)))
    assert floods[2:] == ["large"]


def test_bytes_after_decompression_count_for_the_rate() -> None:
    box, floods, clock = made()
    for pool in ("loud", "busy"):
        box.put(pool, ("s", b"x"))
    read(box)
    for _ in range(3):
        box.charge("loud", inbox.MOST_BYTE_RATE // 2)
    box.charge("busy", inbox.MOST_BYTE_RATE // 2)
    clock.now += 1
    box.charge("busy", inbox.MOST_BYTE_RATE - 1)
    assert floods == ["loud"]
    box.forget("loud")
    box.charge("loud", inbox.MOST_BYTE_RATE * 2)
    assert floods == ["loud"]


def test_a_queue_can_be_emptied_and_forgotten() -> None:
    box, _, _ = made()
    for pool in ("a", "b"):
        box.put(pool, ("s", b"x"))
    box.clear("a")
    box.forget("b")
    assert read(box) == []
    box.put("a", ("s", b"y"))
    assert read(box) == [("a", b"y")]
