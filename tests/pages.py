"""The README and the pages of docs/ as the tests read them: code blocks, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Pages of the documentation, and those at the root that belong to it.
PAGES = [
    path
    for path in (README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md")))
    if path.exists()
]

_FENCE = re.compile(r"^ *```+ *(\w*)(?: +title=\"([^\"]+)\")?.*$")
_COMMENT = re.compile(r"^<!-- (not run|test): (.+) -->$")
# It may go on in the next line of its paragraph.
_INLINE = re.compile(r"`(?:[^`\n]|\n(?!\n))+`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A code block of a page, or a test's expression in a comment.

    Attributes:
        line: Number of its first line in the page.
        language: What the fence says, such as `python`; `test` for an expression.
        title: Name of the file that the block is, or "added to FILE"; empty for none.
        text: The lines.
        not_run: Why no test runs the block; None if one does.
    """

    line: int
    language: str
    title: str
    text: str
    not_run: str | None = None


def blocks(page: Path) -> Iterator[Block]:
    """All code blocks of a page and the expressions of its tests, in their order."""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    not_run = None
    for number, line in lines:
        comment = _COMMENT.match(line)
        if comment and comment[1] == "test":
            yield Block(number, "test", "", comment[2])
        elif fence := _FENCE.match(line):
            text = []
            for _, inner in lines:
                if inner.strip().startswith("```"):
                    break
                text.append(inner)
            yield Block(number + 1, fence[1], fence[2] or "", "\n".join(text) + "\n", not_run)
        not_run = comment[2] if comment and comment[1] == "not run" else None


def shell_lines(block: Block) -> list[str]:
    """The command lines of a block, each continued line joined."""
    joined = block.text.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").strip() for line in joined if line.strip() and not line.startswith("#")]


def words_of_drain(line: str) -> list[str] | None:
    """What follows `drain` in a command line, up to a pipe, an `&` or a comment; None without `drain`."""
    lexer = shlex.shlex(line.replace("$(which drain)", "drain"), posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words = list(lexer)
    begin = next((number for number, word in enumerate(words) if re.fullmatch(r"(\S*/)?drain", word)), None)
    if begin is None or words[:1] == ["#"]:
        return None
    following = words[begin + 1 :]
    end = next((number for number, word in enumerate(following) if word[0] in "#|&;<>"), len(following))
    return following[:end]


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `drain` of each command line in a page's blocks for shells."""
    for block in blocks(page):
        if block.language in ("sh", "console", "bash"):
            for line in shell_lines(block):
                if (words := words_of_drain(line)) is not None:
                    yield words


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    """What stands between backticks in a page's prose."""
    return [text.strip("`") for text in _INLINE.findall(prose(page))]


def links(page: Path) -> list[str]:
    """Targets of a page's links to other pages and files."""
    text = _INLINE.sub("", prose(page))
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs name them."""
    headings = re.findall(r"^#+ +(.+?)(?: +\{.*\})?$", prose(page), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
