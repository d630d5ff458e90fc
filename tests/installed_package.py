"""A package with entry points, as `importlib.metadata` finds it, though nothing was installed."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    monkeypatch: pytest.MonkeyPatch, path: Path, entry_points: Mapping[str, str], modules: Mapping[str, str]
) -> None:
    """Install the package `shop` for one test.

    Args:
        monkeypatch: The test's.
        path: Directory of the test's.
        entry_points: Lines of each group.
        modules: Text of each module.
    """
    info = path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    groups = [f"[{group}]\n{lines}\n" for group, lines in entry_points.items()]
    (info / "entry_points.txt").write_text("".join(groups))
    for name, text in modules.items():
        (path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(path)
