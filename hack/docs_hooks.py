"""Hooks of mkdocs: pages of the site whose text is outside of docs/, their links, and a check of the built pages."""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# file in the repository -> page of the site
OUTSIDE = {
    "helm/podbridge/README.md": "admins/chart.md",
    "CONTRIBUTING.md": "developers/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
_FENCE = re.compile(r" *```")
_FIRST_ITEM = re.compile(r" *1\. ")
_warnings = logging.getLogger("mkdocs.hooks.podbridge")
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def site_links(text: str, source: str) -> str:
    """Return a page with its relative links as links between pages of the site.

    Parameters
    ----------
    text : str
        Markdown of the page.
    source : str
        Path of the page in the repository, for example ``docs/admins/install.md``.

    A link between two files of docs/ stays as it is. A link to a file that is not a page of the site stays too, and the
    strict build refuses it.
    """
    page = OUTSIDE.get(source) or posixpath.relpath(source, "docs")

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if target in OUTSIDE:
            linked = OUTSIDE[target]
        elif target.startswith("docs/"):
            linked = posixpath.relpath(target, "docs")
        else:
            return match[0]
        return match[1] + posixpath.relpath(linked, posixpath.dirname(page) or ".") + match[3]

    return _LINK.sub(replace, text)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose text is outside of docs/. mkdocs calls this once for each build."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of one page. mkdocs calls this for each page."""
    name = page.file.src_uri
    source = next((path for path, outside in OUTSIDE.items() if outside == name), f"docs/{name}")
    return site_links(markdown, source)


def problems(markdown: str, html: str) -> list[str]:
    """Return what the site shows otherwise than the source says: blocks of code as text, lists that begin again.

    mkdocs nests a block in a list only if it is indented by 4 spaces; GitHub accepts 3.
    """
    found = []
    fences, lists, inside, blank = 0, 0, False, True
    for number, line in enumerate(markdown.splitlines(), start=1):
        indent = len(line) - len(line.lstrip())
        if blank and not inside and line.strip() and indent % 4:
            found.append(f"line {number}: indent a block in a list by 4 spaces, not {indent}")
        if _FENCE.match(line):
            fences += not inside
            inside = not inside
        elif not inside:
            lists += bool(_FIRST_ITEM.match(line))
        blank = not line.strip()
    for what, source, site in (("blocks of code", fences, "<pre"), ("numbered lists", lists, "<ol")):
        if html.count(site) != source:
            found.append(f"{source} {what} in the source, {html.count(site)} in the site; fence code, do not indent it")
    return found


def on_page_content(html: str, page: Any, **_: Any) -> None:
    """Warn about each problem of a page. mkdocs calls this for each page; the strict build fails on a warning."""
    for problem in problems(page.markdown, html):
        _warnings.warning("%s: %s", page.file.src_uri, problem)
