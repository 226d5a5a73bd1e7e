"""The loop of the controllers: what its thread and the workers share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from cluster.polling import eventually
from tests.fakes.memory_hub import MemoryHub


class Shared(dict[str, float]):
    """A dict during whose iteration another thread calls ``meanwhile``."""

    def __init__(self, meanwhile: Any) -> None:
        super().__init__({"a": 1e18, "b": 1e18})
        self.meanwhile = meanwhile

    def items(self) -> Iterator[tuple[str, float]]:  # type: ignore[override]
        for item in super().items():
            thread = threading.Thread(target=self.meanwhile, daemon=True)
            thread.start()
            thread.join(0.2)  # with the lock, the thread waits for the end of the iteration
            yield item


def test_a_worker_that_ends_while_the_loop_decides() -> None:
    hub = MemoryHub(("n1",))
    controllers = hub.controllers
    queue = hub.queues[1]
    controllers._dispatch("workload", "key", object(), lambda: None)
    (call,) = queue.calls.values()
    controllers._resting = Shared(call)
    controllers.reconcile()
    eventually(lambda: "key" in controllers._resting)
    assert set(controllers._resting) == {"a", "b", "key"}
