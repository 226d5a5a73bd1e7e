"""Processes, as ``/proc`` shows them."""

from __future__ import annotations

import builtins
import errno
import os
from typing import Any

import pytest

from bridge.site.batch import processes


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.ENOENT, errno.ESRCH])
def test_processes_of_other_users_may_be_hidden(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """With ``hidepid=1``, reading one of them is not permitted."""
    fail_for_others(monkeypatch, code)
    assert (processes.read(1), list(processes.read_all())) == (None, [os.getpid()])


def test_a_process_that_can_not_be_read_now_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for_others(monkeypatch, errno.EMFILE)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        processes.read(1)


def fail_for_others(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let only this process be read."""
    really = builtins.open

    def fake(path: Any, *arguments: Any, **more: Any) -> Any:
        if str(path).startswith("/proc/") and path != f"/proc/{os.getpid()}/stat":
            raise OSError(code, os.strerror(code), path)
        return really(path, *arguments, **more)

    monkeypatch.setattr(processes, "open", fake, raising=False)
