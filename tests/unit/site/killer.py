"""The death of a submitter at a chosen step of its work."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bridge.errors import BridgeError

STEPS = ("mkdir", "open", "write", "rename", "replace", "fsync", "unlink")


class Killed(BaseException):
    """As SIGKILL: nobody catches it."""


class Killer:
    """Counts the calls that change something on disk, and dies instead of making the chosen one."""

    def __init__(self, monkeypatch: Any, world: Any) -> None:
        self.left: int | None = None
        self.count = 0
        for name in STEPS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))
        real = world.batch.submit

        def submit(request: Any) -> str:
            self.step()
            answer: str = real(request)
            self.step()  # the batch system has the job, and nobody hears it
            return answer

        world.batch.submit = submit
        real_array = world.batch.submit_array

        def submit_array(request: Any, pods: Any) -> Any:
            self.step()
            answer = real_array(request, pods)
            self.step()
            return answer

        world.batch.submit_array = submit_array

    def _wrapped(self, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            writes = real.__name__ != "open" or (len(args) > 1 and args[1] & os.O_CREAT)
            if writes:
                self.step()
            return real(*args, **more)

        return call

    def step(self) -> None:
        self.count += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def steps_of(self, act: Callable[[], object]) -> int:
        """Act, and return the number of steps."""
        before = self.count
        act()
        return self.count - before

    def at(self, point: int, act: Callable[[], object]) -> bool:
        """Act, and die at this step; return whether it came to that."""
        self.left = point
        try:
            act()
        except Killed:
            return True
        except BridgeError:
            return False
        finally:
            self.left = None
        return False
