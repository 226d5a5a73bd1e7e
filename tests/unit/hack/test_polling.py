import pytest

from cluster.polling import eventually


def test_returns_the_first_true_value():
    values = iter([0, "", None, 7, 8])
    assert eventually(lambda: next(values), every=0.001) == 7


def test_names_the_state_and_the_last_value():
    with pytest.raises(AssertionError, match=r"timed out after 0.01 s waiting for: a job \(last value: \[\]\)"):
        eventually(list, "a job", timeout=0.01)


def test_an_exception_of_the_check_ends_the_wait():
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 / 0)
