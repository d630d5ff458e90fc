"""A transport for Sentry's SDK that keeps what is sent, in memory or in a file."""

import json
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

DSN = "https://key@sentry.invalid/1"


class Kept(Transport):
    """Keeps each event and each transaction."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__({"dsn": DSN})
        self._path = None if path is None else Path(path)
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type in {"event", "transaction"} and item.payload.json is not None:
                self._keep(item.payload.json)

    def _keep(self, sent: Any) -> None:
        self.items.append(sent)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(sent, default=str) + "\n")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") != "transaction"]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction"]


def keeping(path: str | None = None, **options: Any) -> Kept:
    """Initialize the SDK with such a transport."""
    transport = Kept(path)
    sentry_sdk.init(dsn=DSN, transport=transport, traces_sample_rate=1.0, **options)
    return transport
