"""Each podbridge command in a code block of the documentation is accepted by the parsers of the command line."""

import re
import shlex
from pathlib import Path

import click
import pytest

from bridge.apps.cli import slurm_hint
from bridge.apps.cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "helm" / "podbridge" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("sh", "bash", "shell", "console")
"""Languages of fenced blocks that contain commands."""
START = re.compile(r"(?:^|[|(;&])\s*(?:\S*/bin/|kubectl )?podbridge\s")
PLACEHOLDER = re.compile(r"[A-Z]+")
REDIRECTIONS = (">", ">>", "<", ">&", "&>")
BUILT_IN = ("--help", "-h", "--version")


def lines_of_code(text):
    """Yield the lines of fenced blocks of a shell; a continued line is one line."""
    language = None
    for line in re.sub(r" *\\\n *", " ", text).splitlines():
        if fence := re.match(r" *```(\S*)", line):
            language = fence[1] if language is None else None
        elif language in SHELLS:
            yield line.strip()


def commands_of(line):
    """Return the arguments of each podbridge command of one line of a shell, without redirections and comments."""
    lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found, skip = [[]], False
    for word in lexer:
        if skip:
            skip = False
        elif word in REDIRECTIONS:
            skip = True
        elif set(word) <= set("|&;()<>"):
            found.append([])
        else:
            found[-1].append(word)
    words = [command[1:] if command[:1] == ["kubectl"] else command for command in found]
    return [command[1:] for command in words if command and command[0].rpartition("/")[2] == "podbridge"]


def documented():
    """Yield page and arguments of each command. ``[OPTIONS]`` marks a line of usage, which is made from the code."""
    for page in PAGES:
        for line in lines_of_code(page.read_text()):
            if START.search(line) and "[OPTIONS]" not in line:
                for words in commands_of(line):
                    yield str(page.relative_to(ROOT)), tuple(words)


def parse(words):
    """Parse a command line as the program does, without running it; raises :class:`click.UsageError`."""
    if words[:1] == ["slurm-hint"]:
        try:
            slurm_hint._options(words[1:])
        except SystemExit as error:
            if error.code:
                raise click.UsageError(f"slurm-hint {words[1:]}") from error
        return
    command, name, parent = cli, "podbridge", None
    while not set(words[:1]) & set(BUILT_IN):
        context = command.make_context(name, list(words), parent=parent)
        rest = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not rest:
            return
        parent, (name, command, words) = context, command.resolve_command(context, rest)


@pytest.mark.parametrize(
    ("page", "words"),
    sorted(set(documented())),
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:80],
)
def test_the_parser_accepts_the_command(page, words, monkeypatch):
    monkeypatch.setattr(click.File, "convert", lambda self, value, *_: value)  # the files of the page do not exist here
    # a placeholder stands for a name, and names have no capital letters
    parse([word.lower() if PLACEHOLDER.fullmatch(word) else word for word in words])


def test_commands_are_found_on_many_pages():
    assert len({page for page, _ in documented()}) >= 10


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("podbridge get pods   # all of them", [["get", "pods"]]),
        ("podbridge rbac pools a b | kubectl apply -f -", [["rbac", "pools", "a", "b"]]),
        ("podbridge config schema > podbridge.schema.json", [["config", "schema"]]),
        ("source <(podbridge completion bash)", [["completion", "bash"]]),
        ("~/podbridge/bin/podbridge plugin --site site.toml", [["plugin", "--site", "site.toml"]]),
        ("kubectl podbridge get pods -A && podbridge check", [["get", "pods", "-A"], ["check"]]),
        ("podbridge nats config --hub prod=$(kubectl get ns -o 'jsonpath={.uid}')",
         [["nats", "config", "--hub", "prod=SUBSTITUTED"]]),
        ("helm test podbridge --logs", []),
    ],
)  # fmt: skip
def test_the_commands_of_a_line(line, found):
    assert commands_of(line) == found


def test_blocks_of_other_languages_have_no_commands():
    text = (
        "```yaml\npodbridge a\n```\n    ```sh\n    podbridge b \\\n      --all\n    ```\n"
        "```sh\npodbridge c\n```\npodbridge d\n"
    )
    assert list(lines_of_code(text)) == ["podbridge b --all", "podbridge c"]


@pytest.mark.parametrize(
    "line",
    ["get secrets", "get pods --every", "get pods -o xml", "nats config --websocket-port many", "explain pod",
     "dashboard --port", "slurm-hint --urls http://a", "brake confirm"],
)  # fmt: skip
def test_what_does_not_exist_is_refused(line):
    with pytest.raises(click.UsageError):
        parse(line.split())
