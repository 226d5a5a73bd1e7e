"""Kinds of objects as kubectl's users write them: ``pod``, ``pods``, ``po`` and ``pod/NAME``."""

from __future__ import annotations

import re

import click

KINDS = ("pod", "job", "jobset", "leaderworkerset", "podgroup", "trainjob", "raycluster", "node", "pool", "queue")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SHORT = {"po": "pod", "no": "node", "masterqueue": "queue", "lw": "leaderworkerset"}  # lws, without its s


def singular(word: str) -> str:
    """Return the kind that ``word`` names; another word as it is."""
    kind = word.lower().removesuffix("s")
    kind = _SHORT.get(kind, kind)
    return kind if kind in KINDS else word


class ObjectName(click.ParamType[str]):
    """The name of an object or of a namespace. Any other word would name another path of the API: a list for ``''``."""

    name = "name"

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; fail if no object can have it."""
        if not (_NAME.fullmatch(value) or (self._optional and not value)):
            self.fail(f"{value[:120]!r} is not a name; allowed: a-z, 0-9, - and ., at most 253 characters", param, ctx)
        return value


class KindType(click.ParamType[tuple[str, str]]):
    """An argument of the form ``KIND`` or ``KIND/NAME``; its value is a pair, with an empty name for the first form."""

    name = "kind"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the kinds, as a choice shows them."""
        return "{" + "|".join(KINDS) + "}"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return kind and name; fail if the kind is unknown."""
        if isinstance(value, tuple):
            return value
        word, _, name = value.partition("/")
        kind = singular(word)
        if kind not in KINDS:
            self.fail(f"'{word}' is not one of {', '.join(KINDS)}.", param, ctx)
        return kind, ObjectName(optional=True).convert(name, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Complete a kind."""
        return [click.shell_completion.CompletionItem(kind) for kind in KINDS if kind.startswith(incomplete)]


class KindGroup(click.Group):
    """A group with one command for each kind, under any spelling of the kind."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the kind that the first argument names; ``pod/NAME`` is ``pod NAME``."""
        word, slash, name = args[0].partition("/")
        spelled = {singular(command): command for command in self.commands}
        spelled |= {command.removesuffix("s"): command for command in self.commands}
        if (command := spelled.get(singular(word))) is not None:
            args = [command, *([name] if slash else []), *args[1:]]
        return super().resolve_command(ctx, args)
