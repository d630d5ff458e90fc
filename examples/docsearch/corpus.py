"""Corpus of the example: the documentation strings of the installed standard library.

Modules written in Python are parsed and never imported, since importing some of them opens a browser or prints a poem.
Modules compiled into the interpreter have no source, and are imported.
"""

from __future__ import annotations

import ast
import importlib
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_COMPILED_METHODS = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
)


class Entry(NamedTuple):
    """Documentation string, with the name by which `python -m pydoc` finds it."""

    name: str
    text: str


def entries(limit: int) -> list[Entry]:
    """Collect the documentation strings, in the same order in each run.

    Args:
        limit: Upper bound of the entries; if there are more, a selection spread evenly over all of them.
    """
    found: dict[str, str] = {}
    for name, text in (*_compiled(), *_written_in_python()):
        found.setdefault(name, _storable(text))
    everything = [Entry(name, text) for name, text in found.items() if text]
    count = min(limit, len(everything))
    return [everything[position * len(everything) // count] for position in range(count)]


def _written_in_python() -> Iterator[Entry]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] not in sys.stdlib_module_names:
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield from _written_in(path, name)


# Cached, since parsing takes some seconds, and installed files do not change while the process runs.
@cache
def _written_in(path: Path, name: str) -> tuple[Entry, ...]:
    tree = _parse(path)
    return () if tree is None else tuple(_documented(tree, name))


def _parse(path: Path) -> ast.Module | None:
    """Parse a file; None if it is no Python 3, as some files of the library's own tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return None


def _documented(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[Entry]:
    text = ast.get_docstring(node)
    if text:
        yield Entry(name, text)
    # Not in functions: pydoc has no names for functions inside of functions.
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _documented(child, f"{name}.{child.name}")


def _compiled() -> Iterator[Entry]:
    for name in sorted(sys.builtin_module_names):
        # Some interpreters have modules built in that Python is about to drop.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            module = importlib.import_module(name)
        yield Entry(name, _text_of(module))
        for key, member in sorted(vars(module).items()):
            if getattr(member, "__module__", None) != name:
                continue
            if isinstance(member, type):
                yield from _compiled_class(member, f"{name}.{key}")
            elif isinstance(member, types.BuiltinFunctionType):
                yield Entry(f"{name}.{key}", _text_of(member))


def _compiled_class(kind: type, name: str) -> Iterator[Entry]:
    yield Entry(name, _text_of(kind))
    for key, member in sorted(vars(kind).items()):
        if isinstance(member, _COMPILED_METHODS):
            yield Entry(f"{name}.{key}", _text_of(member))


def _text_of(thing: object) -> str:
    # The __doc__ of some classes is a descriptor for the __doc__ of their instances.
    text = thing.__doc__
    return text if isinstance(text, str) else ""


def _storable(text: str) -> str:
    """Remove the characters that PostgreSQL cannot store: NUL, and halves of surrogate pairs."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
