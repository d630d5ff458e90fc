"""Signatures of cookies and forms."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from typing import Any

from drain.errors import ConfigError

# Shorter tokens can be guessed.
FEWEST_CHARACTERS = 16


class Signer:
    """Signs with a key derived from the secret."""

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"drain web\0" + secret.encode()).digest()

    def mark(self, purpose: str, text: str) -> str:
        """Sign a text for one purpose."""
        digest = hmac.digest(self._key, f"{purpose}\0{text}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def is_marked(self, purpose: str, text: str, mark: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.mark(purpose, text).encode(), mark.encode())

    def seal(self, purpose: str, value: dict[str, Any]) -> str:
        """Sign a value for a cookie."""
        text = (
            base64.urlsafe_b64encode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
            .decode()
            .rstrip("=")
        )
        return f"{text}.{self.mark(purpose, text)}"

    def unseal(self, purpose: str, sealed: str) -> dict[str, Any] | None:
        """Read a signed value; None if the signature is not ours."""
        text, _, mark = sealed.partition(".")
        if not sealed.isascii() or not self.is_marked(purpose, text, mark):
            return None
        value = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return value if isinstance(value, dict) else None


def nonce() -> str:
    """Return an unguessable text."""
    return secrets.token_urlsafe(18)


def checked_token(token: str) -> str:
    """Strip a token; ConfigError if it is too short."""
    stripped = token.strip()
    if len(stripped) < FEWEST_CHARACTERS or not stripped.isprintable():
        raise ConfigError(
            f"the token of the page needs at least {FEWEST_CHARACTERS} characters; "
            "`openssl rand -base64 24` makes one"
        )
    return stripped
