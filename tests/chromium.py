"""Chromium of the machine, driven by Playwright; tests that need it are skipped where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
WIDE, NARROW = (1280, 900), (320, 640)
# Findings of axe that keep somebody from using a page.
_SEVERE = {"serious", "critical"}
_WIDER_THAN_ITS_WINDOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
_HACKED = "() => window.hacked === true"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window for as long as the block runs."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as running:
        # A container's user is root, whom Chromium's sandbox refuses.
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(
    browser: Browser, address: str, size: tuple[int, int] = WIDE, *, dark: bool = False
) -> Iterator[Page]:
    """Open a tab of a visitor's own; what scripts complain of, and requests to other hosts, fail the test."""
    complaints: list[str] = []
    width, height = size
    context = browser.new_context(
        base_url=address,
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(f"error of a script: {error}"))
    page.on(
        "request",
        lambda request: complaints.append(request.url) if not request.url.startswith(address) else None,
    )
    try:
        yield page
    finally:
        context.close()
    assert complaints == []


def severe_findings(page: Page) -> list[str]:
    """What axe finds serious or critical on the page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found
        if each["impact"] in _SEVERE
        for node in each["nodes"]
    ]


def overhang(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return int(page.evaluate(_WIDER_THAN_ITS_WINDOW))


def is_hacked(page: Page) -> bool:
    """Whether a text of somebody's ran as a script."""
    return bool(page.evaluate(_HACKED))
