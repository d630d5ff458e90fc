"""Field values as text."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from drain.formatting import clock

# As users read them, unlike in JSON.
WORDS_OF_STATES = {"inflight": "in flight", "finished": "completed"}


def json_default(value: Any) -> str:
    """Convert other types to text, for `json.dumps`."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def as_text(value: Any) -> str:
    """Format a field's value for users."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return clock(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=json_default)
