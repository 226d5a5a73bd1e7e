"""Scenes on a cluster: commands as a user would type them, and their output."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable

from cluster.world import World


class Story:
    """Plays scenes and counts the commands."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shown: list[str] = []

    def say(self, text: str) -> None:
        """Print an explanation."""
        print(f"\033[2m# {text}\033[0m" if sys.stdout.isatty() else f"# {text}", flush=True)

    def do(self, command: str, text: str | None = None, *, show_input: bool = False, check: bool = True) -> str:
        """Run a command as a user would; print it and its output. ``show_input``: also its input ``text``.

        Raise AssertionError if it fails, unless ``check`` is false.
        """
        print(f"$ {command}", flush=True)
        if text is not None and show_input:
            self.show(text)
        env = {**self.world.cluster.env}
        done = subprocess.run(shlex.split(command), input=text, env=env, capture_output=True, text=True, timeout=60)
        self.show(done.stdout + done.stderr)
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def show(self, text: str) -> None:
        """Print an output."""
        print("".join(f"  {line}\n" for line in text.splitlines()), end="", flush=True)

    def scene(self, title: str, play: Callable[[], None]) -> None:
        """Play one scene."""
        print(f"\n== {len(self.shown) + 1}. {title}", flush=True)
        before = time.monotonic()
        play()
        self.shown.append(f"{title} ({time.monotonic() - before:.1f} s)")

    def play(self) -> None:
        """Play all scenes; raise AssertionError if a state is not reached."""
        raise NotImplementedError
