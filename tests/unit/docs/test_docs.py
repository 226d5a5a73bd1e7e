import re
from pathlib import Path

import pytest

from bridge import names
from generate import reference
from generate.reasons import REASONS

ROOT = Path(__file__).parents[3]
NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]


def test_each_name_of_a_key_is_in_a_reference():
    text = reference.text() + (ROOT / "docs/sites/interlink-slurm.md").read_text()
    keys = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str) and "/" in value}
    assert len(keys) > 50
    assert not {key for key in keys if key not in text}


def test_each_reason_of_the_reference_is_in_the_code():
    files = [
        file for name in ("admission", "bridge", "controllers", "scheduler") for file in (ROOT / name).rglob("*.py")
    ]
    words = {word for file in files for word in re.findall(r'"([A-Z]\w+)"', file.read_text())}
    words |= {f"Queue{word}" for word in words}  # controllers/queues puts it before the reason of the condition
    documented = {reason for rows in REASONS.values() for reason, _ in rows}
    assert len(documented) > 80
    assert not documented - words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_page_installs_podbridge_by_its_name_from_an_index():
    """No index has podbridge: a page names the wheel."""
    files = [*PAGES, *sorted((ROOT / "hack/krew").iterdir())]
    commands = [line for file in files for line in re.findall(r"pip3? install .*", file.read_text())]
    assert any("podbridge-" in line for line in commands)
    by_name = [line for line in commands if re.search(r"""[\s'"]podbridge\b(?!-)""", line)]
    assert not [line for line in by_name if "--no-index" not in line]


def test_the_reasons_in_troubleshooting_exist():
    page = (ROOT / "docs/admins/troubleshooting.md").read_text()
    source = "".join(file.read_text() for file in sorted((ROOT / "bridge").rglob("*.py")))
    known = reference.text() + source
    used = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][A-Za-z]+)+)`", page))
    assert len(used) > 30
    assert not [word for word in sorted(used) if f"`{word}`" not in known and f'"{word}"' not in known]
