"""Field values as text, for tables and JSON."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from drain.formatting import clock

# States as users read them, unlike in JSON and in `drain list finished`.
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
