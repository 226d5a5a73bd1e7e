"""The options of sbatch that users may set, if the site allows any: those that request resources.

This is a list of allowed options: a word that is no option would become the script, and options such as ``--output``,
``--wrap`` or ``--uid`` would override options on which the submitter relies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from bridge.errors import BatchError
from bridge.script import option_words

_VALUES = """account acctg-freq bb begin cluster-constraint comment constraint core-spec cores-per-socket cpu-freq
cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution exclude extra-node-info gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint licenses mail-type mail-user mcs-label mem mem-bind
mem-per-cpu mem-per-gpu mincpus network nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket partition prefer priority qos reservation sockets-per-node switches thread-spec threads-per-core time
time-min tmp tres-bind tres-per-task wckey"""
_WITH_VALUE = frozenset(_VALUES.split())
_BARE = frozenset({"contiguous", "overcommit", "oversubscribe", "spread-job", "use-min-nodes"})
_EITHER = frozenset({"exclusive", "nice"})
"""Options with an optional value, which follows ``=`` in the same word."""
_REFUSED = {"nodelist": "/", "exclude": "/", "bb": "#"}
"""Parts of values. sbatch reads a name with a slash as a file of hosts, which may never end; a directive of a burst
buffer (``#``) may copy files of the submitter's user."""
_SHORT = {
    "A": "account", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "d": "dependency",
    "F": "", "G": "gpus", "L": "licenses", "m": "distribution", "N": "nodes", "n": "ntasks", "p": "partition",
    "q": "qos", "S": "core-spec", "D": "chdir", "H": "hold", "I": "immediate", "k": "no-kill",
    "t": "time", "w": "nodelist", "x": "exclude", "O": "overcommit", "s": "oversubscribe",
}  # fmt: skip


_OWN = """job-name output error input chdir export export-file requeue no-requeue parsable open-mode quiet verbose gid
get-user-env array wait wrap test-only help usage version"""
_RELIED_ON = frozenset(_OWN.split())
"""Options that podbridge sets itself, or that its jobs have no use for."""
_RELIED_ON_SHORT = {"J": "job-name", "o": "output", "e": "error", "i": "input", "D": "chdir", "Q": "quiet",
                    "v": "verbose", "a": "array", "W": "wait"}  # fmt: skip
_NO_VALUE = """requeue no-requeue parsable quiet verbose get-user-env wait test-only help usage version"""
_VALUELESS = frozenset(_NO_VALUE.split())
_SIZES_OF_MEMORY = ("mem-per-cpu", "mem-per-gpu")


_AMOUNTS = """core-spec cores-per-socket cpus-per-gpu cpus-per-task exclusive extra-node-info gpus gpus-per-node
gpus-per-socket gpus-per-task gres hint mem mem-per-cpu mem-per-gpu mincpus nodes ntasks ntasks-per-core ntasks-per-gpu
ntasks-per-node ntasks-per-socket sockets-per-node thread-spec threads-per-core tres-per-task"""
AMOUNTS = frozenset(_AMOUNTS.split())
"""Options that request more than the pod does."""
# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
_TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)


def held_options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of the list that the site's own words set: option -> value."""
    options = option_words.read(words, _SHORT, _BARE | _EITHER)
    return {option.name: option.value for option in options if option.name in _BARE | _EITHER | _WITH_VALUE}


def check_caps(flags: Sequence[str], held: Mapping[str, str], most_seconds: float | None, capped: str) -> None:
    """Raise :class:`BatchError` for flags (``--option=value``) that contradict the site's settings.

    ``held``: options that the site sets itself. ``most_seconds``: its time limit. ``capped``: name of the flavor with
    ``max_resources``, or empty.
    """
    for flag in flags:
        option, _, value = flag[2:].partition("=")
        if option in held and value != held[option]:
            raise BatchError(f"flag {flag!r} is not allowed", hint=f"this site sets --{option}={held[option]}")
        if option in ("time", "time-min") and most_seconds is not None and not _seconds(value) <= most_seconds:
            raise BatchError(f"flag {flag!r} is not allowed", hint=f"allowed: at most {most_seconds:.0f} s")
        if capped and option in AMOUNTS:
            raise BatchError(
                f"flag {flag!r} is not allowed",
                hint=f"flavor {capped} has max_resources: CPUs, memory, GPUs and nodes follow from the pod's requests",
            )


def check_no_amounts(flags: Sequence[str]) -> None:
    """Raise :class:`BatchError` for flags (``--option=value``) that change the size of the job of a group."""
    for flag in flags:
        if flag[2:].partition("=")[0] in AMOUNTS:
            raise BatchError(
                f"flag {flag!r} is not allowed",
                hint="the job of a group: CPUs, memory, GPUs and nodes follow from the requests of its pods",
            )


def _seconds(text: str) -> float:
    """Read a time of sbatch(1), in seconds; infinite if it is malformed or unlimited, as each time of 0 is."""
    match = _TIME.fullmatch(text)
    if match is None:
        return math.inf
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:
        seconds = ((days * 24 + first) * 60 + second) * 60 + third
    elif match[4] is not None:
        seconds = (first * 60 + second) * 60 + third
    else:
        seconds = first * 60 + second
    return seconds or math.inf


def allowed_flags(words: Sequence[str]) -> list[str]:
    """Return a user's words as ``--option=value``; raises :class:`BatchError` for one that is not allowed."""
    return list(_read(list(words)))


def without_own(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without the options that podbridge sets itself, and the names of those left out."""
    options = option_words.read(words, _RELIED_ON_SHORT, _VALUELESS)
    return option_words.without(options, _RELIED_ON), [each.name for each in options if each.name in _RELIED_ON]


def merged(*groups: Sequence[str]) -> list[str]:
    """Return the options of all groups as ``--option=value``, each once: the last value, at the place of the first.

    ``--mem`` gives way to ``--mem-per-cpu`` and ``--mem-per-gpu``, beside which sbatch refuses it. Any option is
    allowed; raises :class:`BatchError` for a word that is none, which would become the script.
    """
    flags_by_option: dict[str, str] = {}
    for words in groups:
        for flag in _read(list(words), free=True):
            flags_by_option[flag.partition("=")[0]] = flag
    if any(f"--{option}" in flags_by_option for option in _SIZES_OF_MEMORY):
        flags_by_option.pop("--mem", None)
    return list(flags_by_option.values())


def _read(words: list[str], *, free: bool = False) -> Iterator[str]:
    while words:
        word = words.pop(0)
        option, sign, value = _split(word)
        if option in _BARE and not sign:
            yield f"--{option}"
        elif option in _EITHER:
            yield f"--{option}{sign}{value}"
        elif option in _WITH_VALUE or (free and re.fullmatch("[a-z][a-z0-9-]*", option)):
            if not sign and words and not words[0].startswith("-"):
                sign, value = "=", words.pop(0)
            if option in _WITH_VALUE:
                if not sign:
                    raise BatchError(f"flag {word!r} needs a value")
                _require_printable(value)
            if not free and (part := _REFUSED.get(option, "\0")) in value:
                raise BatchError(f"flag '--{option}={value}' is not allowed", hint=f"allowed: a value without {part}")
            yield f"--{option}{sign}{value}"
        else:
            raise _no(word)


def _split(word: str) -> tuple[str, str, str]:
    """Return the long name of an option, ``=`` if the word has a value, and the value."""
    _require_printable(word)
    if word.startswith("--"):
        return word[2:].partition("=")
    if not word.startswith("-") or len(word) == 1:
        raise _no(word)
    value = word[2:].removeprefix("=")
    return _SHORT.get(word[1], ""), "=" if value else "", value


def _require_printable(word: str) -> None:
    if any(ord(letter) < 32 for letter in word):
        raise _no(word)


def _no(word: str) -> BatchError:
    return BatchError(
        f"flag {word!r} is not allowed",
        hint=f"allowed: {', '.join('--' + name for name in sorted([*_WITH_VALUE, *_BARE, *_EITHER]))}",
    )
