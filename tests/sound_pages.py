"""What holds for the HTML of every page, whatever the jobs are called: no script of others, and names for all parts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# Elements without an end.
VOID = {"meta", "link", "input", "br", "hr", "img", "rect", "path"}
ACTIVE = {"iframe", "object", "embed", "base", "img", "style", "marquee", "math", "template", "noscript"}
# A control of the terminal or of the text's direction, but for newlines and tabs.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufffe\ud800-\udfff]")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.inputs: list[dict[str, str | None]] = []
        self.within_label: list[bool] = []
        self.tables = self.captions = self.mains = 0
        self.texts: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs), attrs
        assert tag not in ACTIVE, tag
        for name, text in given.items():
            assert not name.startswith("on"), given
            assert name not in ("style", "srcdoc"), given
            assert re.fullmatch("[a-zA-Z-]+", name), given
            assert not INVISIBLE.search(text or ""), given
            if name in ("href", "src", "action", "formaction", "data-stream"):
                assert re.fullmatch(r"/[^/].*|/|#.*", text or "", re.DOTALL), given
                self.links.append(text or "")
        if tag == "script":
            assert given.get("src", "").startswith("/static/"), given  # type: ignore[union-attr]
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in given:
            self.ids.append(given["id"] or "")
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.mains += tag == "main"
        if tag == "label" and given.get("for"):
            self.labelled.add(given["for"] or "")
        if tag in ("input", "select", "textarea", "progress") and given.get("type") != "hidden":
            self.inputs.append(given)
            self.within_label.append("label" in self.open)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> ends nothing"
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert not INVISIBLE.search(data), data
        if self.open and self.open[-1] == "script":
            assert not data.strip()
        self.texts.append(data)


def assert_sound(html: str) -> str:
    """Fail if the page is not; returns all of its texts."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert reader.headings[0] == 1
    assert reader.headings.count(1) == reader.mains == 1
    assert all(
        after <= before + 1 for before, after in zip(reader.headings, reader.headings[1:], strict=False)
    )
    assert reader.tables == reader.captions
    assert len(set(reader.ids)) == len(reader.ids), reader.ids
    for given, is_within in zip(reader.inputs, reader.within_label, strict=True):
        assert is_within or given.get("aria-label") or given.get("id") in reader.labelled, given
    return "".join(reader.texts)
