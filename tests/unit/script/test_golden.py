"""Scripts of all kinds of pods, as they were looked at and found good.

``./hack/test.sh tests/unit/script/test_golden.py --update-golden`` writes them. The library, which is the same in
every script, is left out of them.
"""

import difflib
import re
from pathlib import Path

import pytest

from bridge.script import library
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.runtimes import runtime_table as runtimes
from tests.unit.script.pods import KINDS, OBJECTS, SITE

GOLDEN = Path(__file__).parent / "golden"
RUNTIMES = ("apptainer", "enroot", "podman", "charliecloud", "none")


def config(kind):
    return BuildConfig.model_validate({**SITE, "runtime": {"kind": kind}})


def cases():
    with_none = [(kind, "apptainer" if kind in ("image", "annotated") else "none") for kind in KINDS]
    others = [("files", runtime) for runtime in RUNTIMES[:-1]]
    return [*with_none, *others, ("image", "enroot"), ("image", "podman"), ("mounted", "apptainer")]


def golden_files():
    """Return the text of each golden file.

    The beginning of all scripts stands once, and that of the simple pod is whole. The first script of another kind is
    its differences to that one, and for another runtime those to the first of its kind.
    """
    texts, first = {}, {}
    for kind, runtime in cases():
        settings = config(runtime)
        job = build(KINDS[kind], settings, OBJECTS, "virtual-a")
        beginning, rest = job.script.split(library.text(runtimes.of(settings).library))
        beginning = re.sub(r" work/.*(?=\)$)", "", beginning, flags=re.MULTILINE)  # of the containers and the runtime
        assert texts.setdefault("beginning.sh", beginning) == beginning
        asked = (job.cpus, job.memory, job.gpus, job.gpu_resource, job.time_limit, job.flags, job.flavor, job.grace)
        lines = [f"# {asked!r}", *rest.splitlines()]
        base = first.get(kind) or first.get("simple")
        first.setdefault(kind, lines)
        if base is not None:
            changes = difflib.unified_diff(base, lines, n=1, lineterm="")
            lines = [re.sub(r"^@@ .* @@$", "@@", line) for line in list(changes)[2:]]
        texts[f"{kind}.{runtime}.{'sh' if base is None else 'diff'}"] = "\n".join(lines) + "\n"
    return texts


def test_golden(request):
    texts = golden_files()
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        for path in GOLDEN.iterdir():
            path.unlink()
        for name, text in texts.items():
            (GOLDEN / name).write_text(text)
    found = {path.name: path.read_text() for path in GOLDEN.iterdir()}
    assert found.keys() == texts.keys()
    for name, text in texts.items():
        assert text == found[name], f"{name}: if this is meant: --update-golden"


NEWER = {
    "4.3": (r"\bwait\s+-n\b", r"\b(local|declare|typeset)\s+-\w*n", r"\[-\d+\]=", r"\[\[ -v \w+\["),
    "4.4": (
        r"\$\{[\w\[\]@*!]+@[A-Za-z]\}",
        r"\b(mapfile|readarray)\b.*\s-\w*d",
        r"\blocal\s+-(\s|$)",
        r"\binherit_errexit\b",
    ),
    "5.0": (r"\$\{?EPOCH(REALTIME|SECONDS)", r"\bBASH_ARGV0\b", r"\bwait\s+-f\b", r"\blocalvar_inherit\b"),
    "5.1": (r"\$\{?SRANDOM", r"\bwait\s+-p\b"),
    "5.3": (r"\$\{[ |]",),
}
"""What a bash has since, as patterns."""


@pytest.mark.parametrize(("kind", "runtime"), cases())
def test_nothing_newer_than_bash_4_2(kind, runtime):
    script = build(KINDS[kind], config(runtime), OBJECTS, "virtual-a").script
    lines = script.splitlines()
    found = [
        (since, line)
        for since, patterns in NEWER.items()
        for each in patterns
        for line in lines
        if re.search(each, line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("since", "line"),
    [
        ("4.3", "wait -n"),
        ("4.3", "local -n x=y"),
        ("4.3", "declare -An x"),
        ("4.3", "a[-1]=2"),
        ("4.3", "[[ -v a[x] ]]"),
        ("4.4", 'echo "${x@Q}"'),
        ("4.4", "echo ${x[@]@A}"),
        ("4.4", "mapfile -t -d '' x"),
        ("4.4", "readarray -d : x"),
        ("4.4", "local -"),
        ("5.0", "now=$EPOCHREALTIME"),
        ("5.1", "wait -p x"),
        ("5.3", "x=${ date; }"),
    ],
)
def test_newer_things_are_found(since, line):
    assert any(re.search(pattern, line) for pattern in NEWER[since])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_script_is_small(runtime):
    """What is sent for each job, without the library that sites hold themselves; and what is written at the site."""
    script = build(KINDS["simple"], config(runtime), OBJECTS, "virtual-a").script
    assert len(script) - len(library.text(runtime)) < 2 << 10
    assert len(script) < 71 << 10
