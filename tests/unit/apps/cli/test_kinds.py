"""The kinds of objects on the command line, in the spellings of kubectl."""

import click
import pytest
from click.testing import CliRunner

from bridge.apps.cli.kinds import KINDS, KindGroup, KindType, singular


@click.group(cls=KindGroup)
def group():
    """Stand for ``explain``."""


@group.command("pod")
@click.argument("name")
def pod(name):
    """Print the name."""
    click.echo(f"pod {name}")


@group.command("queues")
def queues():
    """Print a word."""
    click.echo("all queues")


@click.command()
@click.argument("kind", type=KindType())
@click.argument("name", required=False)
def command(kind, name):
    """Print both arguments."""
    click.echo(f"{kind} {name}")


@pytest.mark.parametrize("word", ["pod", "pods", "po", "Pod", "PODS"])
def test_spellings_of_a_kind(word):
    assert singular(word) == "pod"


def test_other_spellings():
    assert [singular(kind) for kind in KINDS] == list(KINDS)
    assert [singular(f"{kind}s") for kind in KINDS] == list(KINDS)
    assert singular("no") == "node"
    assert singular("masterqueues") == "queue"
    assert singular("secrets") == "secrets"


@pytest.mark.parametrize("words", [["pod", "a"], ["pods", "a"], ["po/a"], ["pod/a"]])
def test_a_group_has_the_command_of_each_spelling(words):
    assert CliRunner().invoke(group, words).output == "pod a\n"


def test_a_plural_command_is_found_by_the_singular():
    assert CliRunner().invoke(group, ["queue"]).output == "all queues\n"


@pytest.mark.parametrize("words", [["secret", "a"], ["secret/a"], ["/a"], [""]])
def test_another_kind_is_no_command(words):
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2
    assert f"No such command '{words[0]}'" in done.output


def test_an_argument_is_a_kind_or_a_kind_with_a_name():
    assert CliRunner().invoke(command, ["nodes", "n"]).output == "('node', '') n\n"
    assert CliRunner().invoke(command, ["nodes/n"]).output == "('node', 'n') None\n"
    assert "'secret' is not one of pod, job, jobset," in CliRunner().invoke(command, ["secret/n"]).output
