"""Values as the text of a YAML file: mappings, lists, texts and numbers, and no other part of YAML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "Mapping[str, Value] | Sequence[Value] | str | int | float"

# Indentation of each level.
_STEP = "  "


def dump(value: Mapping[str, Value]) -> str:
    """Write a mapping, in the order of its keys; each text in quotes, so that none is read as anything else."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Mapping[str, Value] | Sequence[Value]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _entry(f"{key}:", each, _STEP)
        return
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *more = _lines(each)
            yield f"- {first}"
            yield from (_STEP + line for line in more)
        else:
            yield from _entry("-", each, _STEP)


def _entry(head: str, value: Value, step: str) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        # Every text of JSON is a text of YAML.
        yield f"{head} {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
        return
    yield head
    yield from (step + line for line in _lines(value))
