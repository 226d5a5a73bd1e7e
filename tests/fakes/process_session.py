"""The session of a hub whose other end is a process of this machine."""

from __future__ import annotations

import contextlib
import subprocess

from bridge.protocol.model.sessions import STDOUT, Exit, Output


class ProcessSession:
    """Passes on input and output of a process, whose files are pipes without buffers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._into, self._out = process, process.stdin, process.stdout

    def receive(self) -> Output | Exit:
        data = self._out.read(65536)
        return Output(STDOUT, data) if data else Exit(self.process.wait(10))

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            while data:
                data = data[self._into.write(data) :]

    def close(self) -> None:
        self.process.kill()

    def end_input(self) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...
