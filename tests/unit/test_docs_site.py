"""The site of the documentation: its navigation names each page, and links out of docs/ lead to pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import docs_hooks

ROOT = Path(__file__).parents[2]
NAMED = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]))


def test_the_navigation_names_each_page_and_no_other():
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages | set(docs_hooks.OUTSIDE.values()) == NAMED, "add the page to nav in mkdocs.yml"


@pytest.mark.parametrize(
    ("source", "link", "wanted"),
    [
        ("docs/install.md", "](../helm/podbridge/README.md#values)", "](chart.md#values)"),
        ("docs/install.md", "](image.md)", "](image.md)"),
        ("docs/runbooks/README.md", "](../monitoring.md)", "](../monitoring.md)"),
        ("docs/runbooks/README.md", "](../../CONTRIBUTING.md)", "](../contributing.md)"),
        ("helm/podbridge/README.md", "](../../docs/install.md#uninstall)", "](install.md#uninstall)"),
        ("docs/install.md", "](https://pre-commit.com)", "](https://pre-commit.com)"),
        ("docs/install.md", "](../helm/podbridge/values.yaml)", "](../helm/podbridge/values.yaml)"),
    ],
)
def test_links_of_the_repository_are_links_of_the_site(source, link, wanted):
    assert docs_hooks.site_links(f"[text{link}", source) == f"[text{wanted}"


def test_each_link_of_a_page_outside_of_docs_leads_to_a_page_of_the_site():
    for source in docs_hooks.OUTSIDE:
        text = docs_hooks.site_links((ROOT / source).read_text(), source)
        targets = set(re.findall(r"\]\(([^)\s#:]+\.md)", text))
        assert targets <= NAMED, source
