from __future__ import annotations

import pytest

from tests.unit.store.fake_store import FakeStore
from tests.unit.store.store_suite import StoreSuite


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


class TestFake(StoreSuite):
    """The fake does what the real ones do."""
