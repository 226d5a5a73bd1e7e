"""Shares: nobody takes all places."""

import pytest

from bridge.core.shares import Shares
from bridge.errors import ShareExceededError


def test_a_group_always_leaves_a_place_for_another():
    shares = Shares(256, "logs", "namespace", "pod")
    taken = []
    for number in range(8):
        with pytest.raises(ShareExceededError, match=f"of namespace 'ns-{number}'"):
            for pod in range(1000):
                taken.append((number, shares.enter(f"ns-{number}", str(pod))))
    assert [sum(group == number for group, _ in taken) for number in range(8)] == [128, 64, 32, 16, 8, 4, 2, 1]
    for _, leave in taken:
        leave()
        leave()
    assert len([shares.enter("ns-0", str(pod)) for pod in range(128)]) == 128


def test_a_member_has_a_part_of_its_group():
    shares = Shares(256, "logs", "namespace", "pod")
    leaves = [shares.enter("a", "x") for _ in range(32)]
    with pytest.raises(ShareExceededError, match="32 logs of this pod"):
        shares.enter("a", "x")
    shares.enter("a", "y")
    leaves[0]()
    shares.enter("a", "x")


def test_a_place_is_given_back_after_a_failure():
    shares = Shares(2, "logs", "namespace", "pod", of_member=2)
    for _ in range(3):
        with pytest.raises(KeyError), shares.unless_it_fails("a", "x"):
            raise KeyError
    shares.enter("a", "x")
