"""Which words of sbatch a user may write, where the site takes any: those that ask for resources.

A list of what is allowed, not of what is not: a word that is no option would become the script, and options such as
``--output``, ``--wrap`` or ``--uid`` would undo what the submitter relies on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridge.errors import BatchError

_VALUES = """account acctg-freq bb begin cluster-constraint comment constraint core-spec cores-per-socket cpu-freq
cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution exclude extra-node-info gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint licenses mail-type mail-user mcs-label mem mem-bind
mem-per-cpu mem-per-gpu mincpus network nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket partition prefer priority qos reservation sockets-per-node switches thread-spec threads-per-core time
time-min tmp tres-bind tres-per-task wckey"""
_WITH_VALUE = frozenset(_VALUES.split())
_BARE = frozenset({"contiguous", "overcommit", "oversubscribe", "spread-job", "use-min-nodes"})
_EITHER = frozenset({"exclusive", "nice"})
"""Options whose value may be left out; it stands after ``=``, never in a word of its own."""
_SHORT = {
    "A": "account", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "d": "dependency",
    "F": "", "G": "gpus", "L": "licenses", "m": "distribution", "N": "nodes", "n": "ntasks", "p": "partition",
    "q": "qos", "S": "core-spec", "t": "time", "w": "nodelist", "x": "exclude", "O": "overcommit", "s": "oversubscribe",
}  # fmt: skip


def allowed_flags(words: Sequence[str]) -> list[str]:
    """Write a user's words as ``--option=value``; raises :class:`BatchError` that names what is not allowed."""
    return list(_read(list(words)))


def _read(words: list[str]) -> Iterator[str]:
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            option, sign, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            option, value = _SHORT.get(word[1], ""), word[2:].removeprefix("=")
            sign = "=" if value else ""
        else:
            raise _no(word)
        if any(ord(letter) < 32 for letter in word):
            raise _no(word)
        if option in _BARE and not sign:
            yield f"--{option}"
        elif option in _EITHER:
            yield f"--{option}{sign}{value}"
        elif option in _WITH_VALUE:
            if not sign:
                if not words or words[0].startswith("-"):
                    raise BatchError(f"flag {word!r} needs a value")
                value = words.pop(0)
            if any(ord(letter) < 32 for letter in value):
                raise _no(value)
            yield f"--{option}={value}"
        else:
            raise _no(word)


def _no(word: str) -> BatchError:
    return BatchError(
        f"flag {word!r} is not allowed",
        hint=f"allowed: {', '.join('--' + name for name in sorted([*_WITH_VALUE, *_BARE, *_EITHER]))}",
    )
