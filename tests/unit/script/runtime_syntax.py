"""What container runtimes make of a command line: reference parsers, written from the programs' manuals and sources.

Each returns options with their values as the runtime takes them apart, and never less than the real program would find.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

SWITCHES = {
    "apptainer": {
        "no-umask", "no-eval", "fakeroot", "userns", "uts", "sharens", "containall", "no-init", "no-home", "no-privs",
        "cleanenv", "unsquash", "writable-tmpfs", "nv", "rocm", "net", "contain", "pid", "ipc",
    },
    "podman": {"read-only", "rootfs"},
    "enroot": {"rw", "root"},
    "charliecloud": {"no-passwd", "write", "private-tmp", "env-no-expand"},
}  # fmt: skip
"""Options without a value; every other option has one."""


@dataclass
class Command:
    """A command line: its options in their order, its other words, and what the options mean."""

    options: list[tuple[str, str | None]]
    words: list[str]
    mounts: list[tuple[str, str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value or "" for option, value in self.options if option == name]


def split(runtime: str, words: list[str]) -> Command:
    """Take options from the words up to the first that is none, as all these programs do."""
    options: list[tuple[str, str | None]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        assert word.startswith("--"), word
        name, equals, value = word[2:].partition("=")
        if name in SWITCHES[runtime]:
            assert not equals, word
            options.append((name, None))
        else:
            options.append((name, value if equals else rest.pop(0)))
    return Command(options, rest)


def apptainer(words: list[str]) -> Command:
    """``--bind`` is a list of comma-separated values whose parts ``[^,^:]+`` are sources, places and options."""
    command = split("apptainer", words)
    for value in command.values("bind"):
        for spec in _csv(value):
            parts = [part.strip() for part in re.findall(r"[^,^:]+:?", spec.replace("\\", ":"))]
            assert len(parts) == 3 and parts[0].endswith(":") and parts[1].endswith(":"), (value, parts)
            command.mounts.append((parts[0][:-1], parts[1][:-1], parts[2]))
    for value in command.values("fusemount"):
        (spec,) = _csv(value)
        fields = spec.split()
        assert fields[0] in ("host:/bin/bash", "container:/bin/sh") and len(fields) == 3, value
        command.mounts.append((fields[0] + " " + fields[1], fields[2], "fuse"))
    return command


def podman(words: list[str]) -> Command:
    """``--volume`` is split at colons, its third part at commas; ``--entrypoint`` may be a list in JSON."""
    command = split("podman", words)
    for value in command.values("volume"):
        source, place, options = value.split(":")
        assert "," not in options
        command.mounts.append((source, place, options))
    for value in command.values("entrypoint"):
        try:
            assert not isinstance(json.loads(value), list | None), value
        except ValueError:
            assert value
    return command


def enroot(words: list[str]) -> Command:
    """``--mount`` is a line of fstab(5) with colons in the place of blanks, so backslashes escape."""
    command = split("enroot", words)
    for value in command.values("mount"):
        assert re.fullmatch(r"\S+:\S+", value) and not re.search(r"[\\\s]", value), value
        source, place, kind, options = value.split(":")
        assert kind == "none"
        create, bind, access = options.split(",")
        assert (create, bind) in (("x-create=dir", "rbind"), ("x-create=file", "bind"))
        command.mounts.append((source, place, access))
    return command


def charliecloud(words: list[str]) -> Command:
    """``--bind`` is split at its first colon; ``--set-env`` with ``=`` is a variable, else a file."""
    command = split("charliecloud", words)
    for value in command.values("bind"):
        source, place = value.split(":")
        command.mounts.append((source, place, "ro" if re.search(r"\.ro\.\d+$", source) else "rw"))
    for value in command.values("set-env"):
        assert "=" not in value
    return command


PARSERS = {"apptainer": apptainer, "podman": podman, "enroot": enroot, "charliecloud": charliecloud}


def _csv(value: str) -> list[str]:
    (record,) = csv.reader([value])
    return record


_QUOTED = r"""'[^']*'|"'"|\\'"""
_EXPORT = re.compile(rf"export ([A-Za-z_][A-Za-z0-9_]*)=((?:{_QUOTED})*)\n")
_PART = re.compile(_QUOTED)


def exports(text: str) -> dict[str, str]:
    """Read lines of a shell that only export variables, each value quoted; everything else is an error."""
    found, at = {}, 0
    while at < len(text):
        match = _EXPORT.match(text, at)
        assert match, text[at : at + 200]
        found[match[1]] = _PART.sub(lambda part: part[0][1:-1] or (part[0] == "\\'") * "'", match[2])
        at = match.end()
    return found


def lines(text: str, quote: str) -> dict[str, str]:
    """Read ``NAME=VALUE`` line by line; podman drops blanks before a name, and takes ``NAME*`` for a pattern."""
    found = {}
    for line in re.split(r"\n", text):
        if not line or line.startswith("#"):
            continue
        name, equals, value = (line if quote else line.lstrip()).partition("=")
        assert equals, line
        if quote:
            assert value[:1] == quote and value[-1:] == quote and len(value) > 1, line
            value = value[1:-1]
        found[name] = value
    return found


def foreign(data: Iterable[str]) -> dict[str, str]:
    """Read ``NAME=VALUE``, each with NUL at its end."""
    return dict(entry.split("=", 1) for entry in data)


def netrc(text: str) -> dict[str, tuple[str, str]]:
    """Read logins as enroot does: awk and curl split at blanks, and a password that begins with ``$`` is a command."""
    found = {}
    for line in text.splitlines():
        machine, host, login, user, password, secret = line.split()
        assert (machine, login, password) == ("machine", "login", "password"), line
        assert not secret.startswith("$"), line
        found[host] = (user, secret)
    return found
