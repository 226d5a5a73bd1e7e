"""Drivers of other packages: found by entry points, and left out with a warning where they can't be used."""

import pytest

from bridge.core import drivers


class Base:
    kind = "base"


class Own(Base):
    kind = "own"


class Theirs(Base):
    kind = "theirs"


class Taken(Base):
    kind = "own"


class Reserved(Base):
    kind = "nats"


class Malformed(Base):
    kind = "A-b"


class Entry:
    group = name = value = "x"

    def __init__(self, found):
        self.found = found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def table(monkeypatch, *found):
    monkeypatch.setattr(drivers.metadata, "entry_points", lambda group: [Entry(each) for each in found])
    return drivers.table("group", Base, [Own], reserved=["nats"])


def test_a_driver_of_another_package_stands_beside_our_own(monkeypatch, caplog):
    assert table(monkeypatch, Theirs) == {"own": Own, "theirs": Theirs}
    assert not caplog.records


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (ImportError("no module named x"), "no module named x"),
        (SystemError("broken"), "broken"),
        (object, "no subclass of"),
        ("text", "no subclass of"),
        (Taken, "'own' is taken"),
        (Reserved, "'nats' is taken"),
        (Malformed, "'A-b'"),
    ],
)
def test_one_that_cannot_be_used_is_named_and_left_out(monkeypatch, caplog, found, why):
    assert table(monkeypatch, found, Theirs) == {"own": Own, "theirs": Theirs}
    assert why in caplog.text and "of group group is not used" in caplog.text
