"""The command line and the page use the words of the glossary, and no others for the same things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drain.contrib.web.routing import STATES
from drain.read.causes import CAUSES
from tests.golden import PRINTED
from tests.unit.test_prose import ROOT, templates

# Words that people would use for the same thing, by the glossary's.
OTHERS = {
    "attempts": r"\btries\b|\battempts lost\b|\battempts at most\b",
    "completed": r"\bfinishing\b|\bended in\b|\bsuccessful\b|\bsucceeded\b",
    "dead": r"\bdied for good\b|\bburied jobs\b|\bpoison\b|\bgraveyard\b",
    "expired": r"\blapsed\b|\bleases? (?:is|are) over\b",
    "superseded": r"\bg[ai]ves? way\b|\bstands for\b",
    "rate-limited": r"\bbehind a rate\b|\brate is used up\b|\bthrottled\b",
    "limited": r"\bbehind a limit\b",
    "queued": r"\benqueued\b|\bin the list in Redis\b",
    "next up": r"\bwho is next\b",
    "timeline": r"\bits way\b|\bhops?\b",
    "throughput": r"\bpace\b|\bended in a minute\b",
    "sign in, sign out": r"\blog(?:ged)? (?:in to write|out)\b",
    "pause updates": r"\bhold still\b|\bstands still\b",
    "~": r"(?<!in )\babout [0-9]",
}


def texts() -> list[tuple[str, str]]:
    """What commands print, their help, and the page without its tags."""
    printed = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(PRINTED.glob("*.txt"))]
    return [*printed, *templates()]


def glossary() -> str:
    return (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", OTHERS)
def test_glossary_terms_have_no_synonyms_in_the_interface(word: str) -> None:
    assert len(texts()) > 100
    found = {
        name: match[0] for name, text in texts() if (match := re.search(OTHERS[word], text, re.IGNORECASE))
    }
    # `drain trace --json` calls a step of the timeline a hop.
    assert {name: match for name, match in found.items() if name != "help-trace-80.txt"} == {}


def test_states_and_causes_are_in_the_glossary() -> None:
    words = {*map(str.lower, STATES.values()), *CAUSES.values()}
    text = glossary().lower()
    assert {word for word in words if word not in text} == set()


def test_the_templates_contain_no_wording_of_their_own() -> None:
    """States and causes come from one table each."""
    for path in Path(ROOT / "drain" / "contrib" / "web" / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"rate-limited|list full|called back", text), path.name
