"""docs/reference/commands.md, from the help texts of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from bridge.apps.cli.main import cli

TARGET = Path(__file__).parents[2] / "docs/reference/commands.md"
INTRODUCTION = """\
# Commands

After reading this page you can list and explain pods and jobs, check an installation, and use podbridge as a plugin of
kubectl.

<!-- written by hack/generate.sh from the code; a test compares -->

## Find the right command
| question | command |
|---|---|
| Is everything installed and connected? | `podbridge check` |
| What runs, what waits, what is used? | `podbridge top` |
| Why does this pod wait? | `podbridge explain pod NAME` |
| Why does this job of Slurm wait? | `podbridge explain job ID` |
| What can this pool run now? | `podbridge explain pool NAME` |
| Do pods and jobs agree? | `podbridge get jobs`, column PROBLEM |
| What are all facts about an object? | `podbridge explain KIND NAME` |
| Which job does this manifest become? | `podbridge render -f pod.yaml` |
| How do I convert the values of slurm-bridge or of the NATS plugin? | `podbridge convert` |

## Rules for all commands
| subject | rule |
|---|---|
| configuration | `--config FILE`, else `$PODBRIDGE_CONFIG`, else what the cluster publishes, else the defaults |
| installation | `$PODBRIDGE_INSTALLATION`, else `podbridge`: the one whose published configuration is used |
| cluster | `--kubeconfig FILE` and `--context NAME`, else `$KUBECONFIG`, `~/.kube/config`, the service account |
| kinds | in the spellings of kubectl: `pods`, `pod`, `po`; `pod/NAME` is `pod NAME` |
| output | tables are for people and may change; `-o json` and `-o yaml` keep their fields; `-o name` is for scripts |
| fields of `-o json` | `podbridge get KIND -o schema` describes them; lines of `explain` are texts for people |
| colours | on a terminal, unless `NO_COLOR` is set |
| output of `--watch` | `-o json` prints one object a line |
| messages | errors and hints go to standard error |
| exit status | 1: the command has failed, or `check` found a failure; 2: invalid option or argument; 130: Ctrl-C |

## Completion
```sh
source <(podbridge completion bash)
```

The names of pods, jobs, nodes, pools, queues and namespaces are completed, too. For zsh and fish, use their name
instead of `bash`.

## Plugin of kubectl
[The package](../admins/releases.md#install-the-package) with the extra `[hub]` installs the programs
`kubectl-podbridge` and `kubectl_complete-podbridge`, which kubectl finds in `PATH`. All commands work as `kubectl
podbridge`, and are completed if the completion of kubectl (1.26 or later) is on:

```sh
kubectl podbridge get pods -A
kubectl podbridge explain pod train-7 -n hpc
```

`python hack/krew.py HOMEPAGE URL FOLDER` writes an archive of the plugin and its manifest for krew.

"""


RULES = ("--config", "--kubeconfig", "--context")
"""Options of most commands, which the rules for all commands explain."""


def commands(command: click.Command, path: tuple[str, ...] = ("podbridge",)) -> Iterator[tuple[str, click.Command]]:
    """Return each command that runs and is not hidden, with its full name, in alphabetical order."""
    if isinstance(command, click.Group):
        if command.invoke_without_command:
            yield " ".join(path), command
        for name in sorted(command.commands):
            if not command.commands[name].hidden:
                yield from commands(command.commands[name], (*path, name))
    else:
        yield " ".join(path), command


def section(name: str, command: click.Command, tables: dict[str, str]) -> str:
    """Return the section of a command: its usage, help, options and examples.

    ``tables`` has the table of options of each earlier command, with its name: an equal table becomes a link.
    """
    context = click.Context(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context))
    usage = f"```sh\n{name} {pieces}\n```" if pieces != "[OPTIONS]" else ""
    parts = [f"### {name}", usage, inspect.cleandoc(command.help or "").replace("\b\n", "")]
    if table := _options(command, context):
        first = tables.setdefault(table, name)
        same = f"Options: those of [{first}](#{first.replace(' ', '-')})."
        parts.append(table if first == name else same)
    if command.epilog:
        examples = [line.strip() for line in command.epilog.splitlines() if line.startswith("  ")]
        parts.append("\n".join(["```sh", *examples, "```"]))
    return "\n\n".join(part for part in parts if part)


def _options(command: click.Command, context: click.Context) -> str:
    """Return the table of the options of a command; empty if it has none of its own."""
    shown = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    rows = [record for each in shown if (record := each.get_help_record(context))]
    options = [(names, text) for names, text in rows if names.split()[-1] != "--help" and names.split()[0] not in RULES]
    lines = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in options]
    return "\n".join(["| option | meaning |", "|---|---|", *lines]) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def files() -> dict[Path, str]:
    """Return the page."""
    tables: dict[str, str] = {}
    sections = [section(name, command, tables) for name, command in commands(cli)]
    return {TARGET: INTRODUCTION + "## Reference\n" + "\n\n".join(sections) + "\n"}
