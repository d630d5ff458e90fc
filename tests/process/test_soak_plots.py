"""The pictures of the soak's report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import flat, plots
from tests.soak.flat import Sample


# Matplotlib looks for fonts by a program.
@pytest.mark.usefixtures("processes")
def test_the_plots_have_a_panel_for_each_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    samples = [Sample(at, {"disk": {"logs": at}, "memory": {"a worker": 2 * at}}) for at in range(100)]
    plots.draw(flat.series(samples), tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
