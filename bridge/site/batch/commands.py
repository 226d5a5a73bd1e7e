"""The commands of a batch system: how they are run, and what they answer."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.logs import kv
from bridge.site.cpus import all_given

log = logging.getLogger(__name__)

LONGEST_WORDS = 1000
MOST_IDS = 500
"""Ids on one command line."""


class CommandTimeoutError(BatchError):
    """A command did not end in time and was killed: its effect may have happened."""

    reason = "BatchSystemSilent"


class CommandNotFoundError(BatchError):
    """The command does not exist on this machine."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The output of a command, and its exit status."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The error text of the command, on one line."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return "; ".join(lines)[:LONGEST_WORDS] or f"exit status {self.code}"

    def complaints(self, expected: re.Pattern[str]) -> list[str]:
        """Return the lines that a command that failed wrote to standard error, but for ``expected`` ones."""
        return [line for line in self.err.splitlines() if self.code and line.strip() and not expected.search(line)]


class Commands:
    """The commands of one batch system, in a directory or on PATH. ``programs``: words in place of a command's name."""

    def __init__(
        self,
        bin_dir: str | None,
        timeout: float,
        environment: Mapping[str, str],
        programs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._bin_dir, self._timeout, self._programs = bin_dir, timeout, dict(programs or {})
        self.environment = dict(environment)
        """The variables of each command."""

    def run(self, *words: str, input: str = "", extra: Mapping[str, str] | None = None) -> CommandResult:
        """Run a command; raises :class:`CommandTimeoutError`, or :class:`BatchError` if it can't be run."""
        program, *more = self.find(words[0])
        try:
            with all_given():
                process = subprocess.Popen(
                    [program, *more, *words[1:]],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**self.environment, **(extra or {})},
                    cwd="/",
                    # a group of its own: a time-out also kills what a wrapper of the site (programs) has started
                    start_new_session=True,
                )
        except FileNotFoundError as error:
            raise CommandNotFoundError(f"{program} was not found", retryable=True) from error
        except OSError as error:
            raise BatchError(f"{program} can't be run: {error.strerror}", retryable=True) from error
        with process:
            try:
                out, err = process.communicate(input.encode(), self._timeout)
            except subprocess.TimeoutExpired as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise CommandTimeoutError(
                    f"{words[0]} did not end within {self._timeout:g} s", retryable=True
                ) from error
        return CommandResult(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def ask(self, *words: str, extra: Mapping[str, str] | None = None) -> CommandResult:
        """Run a query; raises :class:`BatchError`, retryable, for any exit status but 0."""
        result = self.run(*words, extra=extra)
        if result.code != 0:
            raise BatchError(f"{words[0]}: {result.words}", retryable=True)
        return result

    def submit(
        self,
        uid: str,
        *words: str,
        job_id: re.Pattern[str],
        unknown: re.Pattern[str],
        later: re.Pattern[str],
        input: str = "",
    ) -> str:
        """Run a command that submits the job of the pod ``uid``; return the id of the job.

        Parameters
        ----------
        job_id
            Finds the id in the output; group 1 is the id.
        unknown
            Errors of the command after which the job may exist.
        later
            Errors of the command that a later submission may not have.

        Raises
        ------
        BatchUnknownOutcomeError
            The command did not end in time, printed no id, or printed an error of ``unknown``.
        BatchError
            The job does not exist; retryable after an error of ``later``.
        """
        try:
            result = self.run(*words, input=input)
        except CommandTimeoutError as error:
            raise BatchUnknownOutcomeError(str(error), retryable=True) from error
        match = job_id.search(result.out)
        if result.code == 0 and match:
            # sbatch prints warnings to stderr and exits with 0: the job exists
            if result.err.strip():
                log.info("the submission printed a warning", extra=kv(job=uid, command=words[0], words=result.words))
            return match[1]
        if result.code == 0 or unknown.search(result.err):
            raise BatchUnknownOutcomeError(f"{words[0]}: {result.words}", retryable=True)
        raise BatchError(result.words, retryable=bool(later.search(result.err)))

    def find(self, name: str) -> list[str]:
        """Return the words that run a command; raises :class:`CommandNotFoundError`."""
        program, *more = self._programs.get(name) or [name]
        if "/" in program:
            return [program, *more]
        if self._bin_dir is not None:
            return [str(Path(self._bin_dir) / program), *more]
        program_path = shutil.which(program)
        if program_path is None:
            raise CommandNotFoundError(
                f"{program} is not on PATH", retryable=True, hint="set bin_dir, or start the submitter where it is"
            )
        return [program_path, *more]


def portions(ids: Collection[str]) -> Iterator[list[str]]:
    """Return ids in order, in lists that fit on a command line."""
    sorted_ids = sorted(ids)
    return (sorted_ids[start : start + MOST_IDS] for start in range(0, len(sorted_ids), MOST_IDS))


def command_environment(job: Mapping[str, str], kept: Sequence[str]) -> dict[str, str]:
    """Return the environment of commands: that of jobs, and the variables of this process named in ``kept``."""
    return {**{name: os.environ[name] for name in kept if name in os.environ}, **job}
