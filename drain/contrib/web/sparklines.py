"""Small SVG curves, with the same in words."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from drain.contrib.web.templating import rounded
from drain.read.queue_overview import Number

_WIDTH, _HEIGHT = 144, 28
_SVG = Markup(
    '<svg class="curve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
    'aria-label="{words}" preserveAspectRatio="none"><title>{words}</title><path d="{path}"/></svg>'
)


def words(curve: Sequence[Number | None]) -> str:
    """Describe a curve."""
    known = [each for each in curve if each is not None]
    if not known:
        return "not counted yet"
    total, most = sum(each.number for each in known), max(each.number for each in known)
    about = "about " if any(each.is_estimate for each in known) else ""
    if about:
        total, most = rounded(total), rounded(most)
    minutes = 5 * len(known)
    span = f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
    return f"{about}{total:,} ended in {span}, {about}{most:,} at most in 5 min"


def draw(curve: Sequence[Number | None]) -> Markup:
    """Draw a bar for each known step."""
    most = max((each.number for each in curve if each is not None), default=0) or 1
    width = _WIDTH // max(1, len(curve))
    path = "".join(
        f"M{number * width} {_HEIGHT}v-{height:.1f}h{width - 1}v{height:.1f}z"
        for number, each in enumerate(curve)
        if each is not None and each.number
        for height in [max(1.0, _HEIGHT * each.number / most)]
    )
    return _SVG.format(width=_WIDTH, height=_HEIGHT, words=words(curve), path=path)
