import pytest

from tests.fakes.store import FakeStore
from tests.fakes.store_suite import StoreSuite


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


class TestFake(StoreSuite):
    """The fake passes the tests of the real stores."""
