"""Command line of a module that measures one section on its own servers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from drain.database import schema
from drain.embedded import services

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # Full and short sizes of a measurement by name.
    Sizes = Mapping[str, tuple[float, float]]


def sizes_of(sizes: Sizes, *, quick: bool) -> dict[str, Any]:
    """Choose the short or the full sizes."""
    return {name: size[quick] for name, size in sizes.items()}


def run(name: str, section: Callable[..., str], sizes: Sizes) -> None:
    """Start servers, measure with the sizes from the command line, and print the section."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="the short form")
    for option, (whole, short) in sizes.items():
        parser.add_argument(f"--{option}", type=type(whole), help=f"{whole:,}; {short:,} in the short form")
    given = vars(parser.parse_args())
    chosen = sizes_of(sizes, quick=given.pop("quick"))
    chosen |= {option: value for option, value in given.items() if value is not None}
    with services() as started:
        schema.install(started.database_url)
        print(section(started, **chosen))
