"""The site of the documentation: its navigation names each page, and links out of docs/ lead to pages."""

import posixpath
import re
from pathlib import Path

import pytest

import docs_hooks

ROOT = Path(__file__).parents[3]
NAMED = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]))


def test_the_navigation_names_each_page_and_no_other():
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages | set(docs_hooks.OUTSIDE.values()) == NAMED, "add the page to nav in mkdocs.yml"


@pytest.mark.parametrize(
    ("source", "link", "wanted"),
    [
        ("docs/admins/install.md", "](../../helm/podbridge/README.md#values)", "](chart.md#values)"),
        ("docs/admins/install.md", "](image.md)", "](image.md)"),
        ("docs/admins/runbooks/README.md", "](../monitoring.md)", "](../monitoring.md)"),
        ("docs/admins/runbooks/README.md", "](../../../CONTRIBUTING.md)", "](../../developers/contributing.md)"),
        ("helm/podbridge/README.md", "](../../docs/admins/install.md#uninstall)", "](install.md#uninstall)"),
        ("docs/admins/install.md", "](https://pre-commit.com)", "](https://pre-commit.com)"),
        ("docs/admins/install.md", "](../../helm/podbridge/values.yaml)", "](../../helm/podbridge/values.yaml)"),
    ],
)
def test_links_of_the_repository_are_links_of_the_site(source, link, wanted):
    assert docs_hooks.site_links(f"[text{link}", source) == f"[text{wanted}"


def test_each_link_of_a_page_outside_of_docs_leads_to_a_page_of_the_site():
    for source in docs_hooks.OUTSIDE:
        text = docs_hooks.site_links((ROOT / source).read_text(), source)
        folder = posixpath.dirname(docs_hooks.OUTSIDE[source])
        links = re.findall(r"\]\(([^)\s#:]+\.md)", text)
        assert {posixpath.normpath(posixpath.join(folder, link)) for link in links} <= NAMED, source


PAGE = "# Page\n\n1. one\n\n    ```sh\n    x\n    ```\n\n2. two\n"
SITE = "<ol><li>one<pre>x</pre></li><li>two</li></ol>"


@pytest.mark.parametrize(
    ("markdown", "html", "problem"),
    [
        (PAGE, SITE, ""),
        (PAGE.replace("    ", "   "), SITE, "line 5: indent a block in a list by 4 spaces, not 3"),
        (PAGE, SITE.replace("<pre>x</pre>", "<p>sh x</p>"), "1 blocks of code in the source, 0 in the site"),
        (PAGE.replace("```sh\n    x\n    ```", "x"), SITE, "0 blocks of code in the source, 1 in the site"),
        (PAGE, SITE.replace("</li><li>", "</li></ol><ol><li>"), "1 numbered lists in the source, 2 in the site"),
    ],
)
def test_the_build_warns_of_blocks_and_lists_that_the_site_shows_otherwise(markdown, html, problem):
    found = docs_hooks.problems(markdown, html)
    assert [each for each in found if each.startswith(problem)] if problem else not found
