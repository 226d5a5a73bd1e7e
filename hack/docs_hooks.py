"""Hooks of mkdocs: pages of the site whose text is outside of docs/, and the links between them and docs/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# file in the repository -> page of the site
OUTSIDE = {
    "helm/podbridge/README.md": "chart.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def site_links(text: str, source: str) -> str:
    """Return a page with its relative links as links between pages of the site.

    Parameters
    ----------
    text : str
        Markdown of the page.
    source : str
        Path of the page in the repository, for example ``docs/install.md``.

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
