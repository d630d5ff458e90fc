"""Hooks of MkDocs: links to files outside docs/, and diagrams that follow the theme.

On GitHub `../../deploy/job-drain.service` is a link like any other. MkDocs knows only docs/, so each such file is
copied to repository/ on the site.

GitHub shows a diagram as an image, whose colours follow the reader's system. On the site it is inlined to follow the
page's theme.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Files outside of docs/ that are pages of the site; other Markdown files are copied as plain text.
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_DIAGRAM = re.compile(r'<p><img alt="[^"]*" src="[^"]*images/diagrams/([\w-]+)\.svg" ?/?></p>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + list(ROOT_PAGES)
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            files.append(File.generated(config, _uri(path), abs_src_path=str(ROOT / path)))
        if path in ROOT_PAGES or path.startswith("docs/"):
            text = (ROOT / path).read_text(encoding="utf-8")
            linked = {target for target in _targets(text, path) if not target.startswith("docs/")}
            waiting += sorted(linked - seen)
            seen |= linked
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Replace links to files outside of docs/ by links to their copies on the site."""
    uri = page.file.src_uri
    path = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"

    def replace(match: re.Match[str]) -> str:
        target = _resolve(match[2], path)
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(_uri(target), posixpath.dirname(uri)) + match[3]

    return _LINK.sub(replace, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Replace images of diagrams by the diagrams themselves."""

    def inline(match: re.Match[str]) -> str:
        diagram = ROOT / "docs" / "images" / "diagrams" / f"{match[1]}.svg"
        return f'<div class="diagram-box">{diagram.read_text(encoding="utf-8")}</div>'

    return _DIAGRAM.sub(inline, html)


def _targets(markdown: str, path: str) -> Iterator[str]:
    for match in _LINK.finditer(markdown):
        target = _resolve(match[2], path)
        if target is not None:
            yield target


def _resolve(link: str, path: str) -> str | None:
    """Path in the repository of a link's target; None if outside of the repository."""
    if ":" in link or link.startswith("/"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return target if (ROOT / target).is_file() else None


def _uri(path: str) -> str:
    """Path of a file of the repository on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    suffix = ".txt" if path.endswith(".md") and path not in ROOT_PAGES else ""
    return f"repository/{path}{suffix}"
