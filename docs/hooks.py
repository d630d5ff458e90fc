"""Hook of MkDocs: a link from a page to a file of the repository outside of docs/ works on the site too.

On GitHub `../../deploy/job-drain.service` is a link like any other. MkDocs knows only what is in docs/, so each such
file is copied to repository/ on the site, and the link leads there. Markdown files become pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of the site that are Markdown files at the root of the repository.
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md")
_PREFIX = "repository"
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the Markdown files of the repository's root that are pages."""
    for name in ROOT_PAGES:
        if (ROOT / name).exists():
            files.append(_file(config, name))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files outside of docs/ by links to their copies on the site."""
    uri = page.file.src_uri
    is_root_page = uri.startswith(f"{_PREFIX}/")
    # Directory of the page in the repository, and on the site.
    home = "" if is_root_page else posixpath.dirname(f"docs/{uri}")

    def replace(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith(("/", "mailto:")):
            return match[0]
        path = posixpath.normpath(posixpath.join(home, target))
        if path.startswith("docs/"):
            copy = path.removeprefix("docs/")
        elif (ROOT / path).is_file():
            copy = f"{_PREFIX}/{path}"
            if files.get_file_from_path(copy) is None:
                files.append(_file(config, path))
        else:
            return match[0]
        return match[1] + posixpath.relpath(copy, posixpath.dirname(uri)) + match[3]

    return _LINK.sub(replace, markdown)


def _file(config: MkDocsConfig, path: str) -> File:
    return File.generated(config, f"{_PREFIX}/{path}", abs_src_path=str(ROOT / path))
