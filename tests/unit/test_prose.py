"""The prose reads as English: awkward patterns are as rare as in code and docs that are known to read well."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Uses per 100,000 words, measured over the docstrings, comments and messages (818,000 words) of psycopg, SQLAlchemy,
# click, Starlette, Rich, redis-py, RQ, Django, Hypothesis and prometheus_client.
PATTERNS = {
    "is no, is none": (
        r"(?<!there )\b(?:is|are|was|were) (?-i:no|none)\b(?! longer| more than| doubt)",
        0.0,
    ),
    "of which": (r"\b(?:of|for|in|by|from|with|on|to|at|under) which\b", 35.5),
    "who, as a noun": (
        r"(?:^|[.:;(] |\b(?:and|or|of|by|to|than|for|with|from|is|are|says?|shows?|knows?) )who \w+s?\b",
        0.0,
    ),
    "whoever": (r"\bwho(?:so|m)?ever\b", 0.0),
    "whatever": (r"\bwhatever\b", 5.9),
    "somebody, nobody": (r"\b(?:somebody|nobody|one who|those who)\b", 1.3),
    "what, as a noun": (
        (
            r"(?:^|[.:;,(] |\b(?:and|or|of|by|to|than|for|with|from|in|on|is|are) )"
            r"what (?:is|are|was|has|have|had|\w+s|\w+ed)\b"
        ),
        4.9,
    ),
    "tell": (r"\b(?:tells?|told|telling)\b", 11.6),
    "news": (r"\bnews\b", 1.6),
    "away": (r"\b(?:is|are|was|were|be) away\b", 0.0),
    "beside": (r"\bbeside\b(?!:)", 0.0),
    "of its own": (r"\bof (?:ours|its own|their own|theirs)\b", 2.0),
    "anew, in vain": (r"\b(?:anew|in vain)\b", 0.0),
    "has to be": (r"\b(?:has|have) to be\b", 5.9),
    "by itself": (r"\bby (?:itself|themselves)\b", 1.6),
    "and the like": (r"\b(?:and|or) the like\b|\bsuch an? one\b", 0.2),
    "lives": (r"\b(?:former|earlier) lives\b", 0.1),
    "meanwhile": (r"\bmeanwhile\b", 0.2),
    "hence": (r"\b(?:hence|there(?:of|by)|whereby)\b", 3.2),
    "so that it": (r"\bso that (?:it|they)\b", 9.3),
    "at last, lately": (r"\b(?:at last|lately)\b", 0.0),
    "that there is": (r"\bthat there (?:is|are)\b", 3.1),
}
Passages = Iterator[tuple[str, str]]


def without_code(text: str) -> str:
    """Blank out code, links and comments of Markdown, keeping lines."""
    for pattern in (r"```.*?```", r"<!--.*?-->", r"`[^`\n]*`", r"\]\([^)]*\)", r"https?://\S+"):
        text = re.sub(pattern, lambda match: "\n" * match[0].count("\n") or "X", text, flags=re.DOTALL)
    return text


def pages() -> Passages:
    for path in (
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
    ):
        yield str(path.relative_to(ROOT)), without_code(path.read_text(encoding="utf-8"))


def literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
        yield node.lineno, "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def code() -> Passages:
    """Docstrings, comments and texts with a space; SQL is left out."""
    for top in ("drain", "workers", "pipeline"):
        for path in sorted((ROOT / top).rglob("*.py")):
            text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
            for number, literal in literals(ast.parse(text)):
                if " " in literal and not re.search(r"\b(?:SELECT|INSERT|UPDATE|CREATE|DELETE)\b", literal):
                    yield f"{name}:{number}", without_code(literal)
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    yield f"{name}:{token.start[0]}", without_code(token.string.lstrip("# "))


def templates() -> Passages:
    for path in sorted({*ROOT.glob("drain/contrib/**/*.html"), *ROOT.glob("pipeline/**/*.html")}):
        text = re.sub(r"\{[{%#].*?[}%#]\}|<[^>]*>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield str(path.relative_to(ROOT)), text


def schema() -> Passages:
    """Comments outside of functions: those inside are in every database, and change by a migration alone."""
    text = "".join((ROOT / "schema.sql").read_text(encoding="utf-8").split("$$")[::2])
    yield "schema.sql", "\n".join(re.findall(r"--\s*(.*)", text))


def uses(passages: Passages) -> tuple[int, dict[str, list[str]]]:
    """Count words, and find each use of each pattern, with its place."""
    words, found = 0, defaultdict[str, list[str]](list)
    for place, text in passages:
        words += len(text.split())
        for name, (pattern, _) in PATTERNS.items():
            for match in re.finditer(pattern, text, re.MULTILINE | re.IGNORECASE):
                around = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
                found[name].append(f"{place}: {around}")
    return words, found


@pytest.mark.parametrize("source", [pages, code, templates, schema], ids=lambda source: source.__name__)
def test_no_pattern_is_more_frequent_than_in_good_english(source: object) -> None:
    words, found = uses(source())  # type: ignore[operator]
    assert words > 500
    assert {
        name: places for name, places in found.items() if len(places) > PATTERNS[name][1] * words / 100_000
    } == {}


def test_the_patterns_match_awkward_prose() -> None:
    bad = "`job` is none. Who waits is shown. It lists all, and what waits. In which case nobody tells the news?"
    found = uses(iter([("bad", bad)]))[1]
    assert found.keys() == {
        "is no, is none",
        "of which",
        "who, as a noun",
        "what, as a noun",
        "somebody, nobody",
        "tell",
        "news",
    }
