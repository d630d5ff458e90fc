"""Lines for `drain slo list` and `drain status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from drain.contrib.slo.compliance import Lately
from drain.formatting import count, figure, visible


def show_lately(found: Sequence[Lately]) -> None:
    """Print target, compliance and burn rate."""
    console = Console(highlight=False, markup=False)
    for text in texts(found):
        console.print(text)


def texts(found: Sequence[Lately]) -> Iterator[Text]:
    """Format each objective, in red if overspent."""
    for each in found:
        slo = each.slo
        words = f"slo {slo.kind} {visible(slo.name)}: {slo.objective}; {_words(each)}"
        yield Text(words, style="red" if _is_spent(each) else "", overflow="fold")


def _words(each: Lately) -> str:
    share, burn = each.share, each.burn
    if share is None or burn is None:
        return f"no {each.unit} in the last hour"
    jobs = count(each.started + each.waiting, each.unit)
    # Never 100 % while a job is late.
    shown = f"{min(share, 99.999):.3f}".rstrip("0").rstrip(".") if share < 100 else "100"
    state = "unfinished" if each.slo.kind == "flow" else "still waiting"
    late = f" ({each.waiting:,} {state})" if each.waiting else ""
    return f"{shown}% of {jobs}{late} in the last hour, burn {figure(burn)}"


def _is_spent(each: Lately) -> bool:
    return each.burn is not None and each.burn > 1
