"""Authorization of writes."""

from __future__ import annotations

import hmac
import re
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from drain.contrib.web.clients import Visitor, network_of
from drain.contrib.web.tokens import Signer, checked_token, nonce
from drain.errors import ConfigError
from drain.formatting import visible

# Browsers drop larger cookies.
_LARGEST_COOKIE = 3800
SESSION, VISIT, NOTICE = "drain_session", "drain_visit", "drain_notice"
SESSION_SECONDS = 12 * 3600
_NOTICE_SECONDS = 60
_UNDO_SECONDS = 3600
# Wrong tokens per minute and address, and addresses remembered. A limit over all addresses would let anyone lock out
# token holders.
_WRONG_TOKENS = 10
_ADDRESSES = 10_000
_LONGEST_NAME = 100
_VISIT = re.compile("[A-Za-z0-9_-]{24}")

User = Callable[[Request], str | None]


class Notice(NamedTuple):
    """Message, and the sealed value of its Undo button; "" for none."""

    text: str
    undo: str = ""


class Access:
    """Authorizes writes by token, header or callback (reads too if private), and issues cookies and form secrets."""

    def __init__(
        self,
        *,
        token: str | None = None,
        trust_header: str | None = None,
        user: User | None = None,
        is_private: bool = False,
        now: Callable[[], float] = time,
    ) -> None:
        if trust_header is not None and not re.fullmatch("[A-Za-z0-9-]+", trust_header):
            raise ConfigError("the name of a header has letters, digits and - only, such as X-Remote-User")
        self._token = None if token is None else checked_token(token)
        self._header = trust_header
        self._user = user
        self.is_private = is_private
        self._now = now
        if is_private and self.is_read_only:
            raise ConfigError(
                "a private page needs a token, a header or a user function, or it would be closed to everyone"
            )
        # Processes with the same token accept each other's cookies; a new token ends all logins.
        self.signer = Signer(self._token or secrets.token_urlsafe(32))
        self._wrong: dict[str, deque[float]] = {}

    @property
    def takes_token(self) -> bool:
        """True if users log in with a token."""
        return self._token is not None

    @property
    def is_read_only(self) -> bool:
        """True if nothing allows writes."""
        return self._token is None and self._header is None and self._user is None

    def who(self, request: Request) -> str | None:
        """Return the user with write access, if any."""
        if self._user is not None and (name := self._user(request)):
            return _clean(name)
        if self._header is not None and (names := request.headers.getlist(self._header)):
            # With two headers, the visitor sent one that the proxy did not remove.
            return _clean(names[0]) or None if len(names) == 1 else None
        return self._logged_in(request)

    def _logged_in(self, request: Request) -> str | None:
        if self._token is None:
            return None
        value = self.signer.unseal("session", request.cookies.get(SESSION, ""))
        if value is None or value["until"] < self._now():
            return None
        return str(value["name"])

    def log_in(self, request: Request, response: Response, token: str, name: str) -> bool:
        """Set the login cookie if the token is right; TooManyTokensError after many wrong ones from this address."""
        address, _ = self.visitor(request)
        wrong = self._wrong.get(address, deque[float]())
        if len(wrong) == _WRONG_TOKENS and monotonic() - wrong[0] <= 60:
            raise TooManyTokensError
        if self._token is None or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            self._note_wrong_token(address)
            return False
        value = {"name": _clean(name) or "token", "until": self._now() + SESSION_SECONDS}
        self._set(request, response, SESSION, self.signer.seal("session", value), SESSION_SECONDS)
        return True

    def _note_wrong_token(self, address: str) -> None:
        # Moved to the end, to be evicted last.
        wrong = self._wrong.pop(address, deque[float](maxlen=_WRONG_TOKENS))
        wrong.append(monotonic())
        self._wrong[address] = wrong
        if len(self._wrong) > _ADDRESSES:
            del self._wrong[next(iter(self._wrong))]

    def log_out(self, request: Request, response: Response) -> None:
        """Delete the login cookie."""
        self._set(request, response, SESSION, "", 0)

    def visitor(self, request: Request) -> Visitor:
        """Identify the visitor for limits."""
        host = request.client.host if request.client else ""
        return Visitor(network_of(host), request.cookies.get(VISIT, "")[:_LONGEST_NAME])

    def secret_of_form(self, request: Request) -> str:
        """Return the secret for this visitor's forms."""
        return self.signer.mark("form", _visit(request))

    def is_from_a_form(self, request: Request, secret: str) -> bool:
        """Return True if the form secret belongs to this visitor."""
        cookie = request.cookies.get(VISIT, "")
        return bool(_VISIT.fullmatch(cookie)) and self.signer.is_marked("form", cookie, secret)

    def remember_visit(self, request: Request, response: Response) -> None:
        """Set a missing visitor cookie."""
        if (visit := _visit(request)) != request.cookies.get(VISIT):
            self._set(request, response, VISIT, visit, None)

    def notify(
        self, request: Request, response: Response, text: str, undo: Mapping[str, Any] | None = None
    ) -> None:
        """Show a message on the next page, with an Undo button if it fits in a cookie."""
        value = {"text": text[:500]}
        until = {"until": self._now() + _UNDO_SECONDS}
        sealed = self.signer.seal("notice", {**value, "undo": {**undo, **until} if undo else None})
        if len(sealed) > _LARGEST_COOKIE:
            sealed = self.signer.seal("notice", value)
        self._set(request, response, NOTICE, sealed, _NOTICE_SECONDS)

    def notice(self, request: Request) -> Notice:
        """Return the message, if any."""
        value = self.signer.unseal("notice", request.cookies.get(NOTICE, ""))
        if value is None:
            return Notice("")
        undo = value.get("undo")
        return Notice(str(value["text"]), self.signer.seal("undo", undo) if undo else "")

    def unseal_undo(self, sealed: str) -> dict[str, Any] | None:
        """Read an Undo button's value; None if forged or too old."""
        value = self.signer.unseal("undo", sealed)
        return value if value is not None and value["until"] >= self._now() else None

    def forget_notice(self, request: Request, response: Response) -> None:
        """Delete the shown message."""
        if NOTICE in request.cookies:
            self._set(request, response, NOTICE, "", 0)

    def _set(self, request: Request, response: Response, name: str, value: str, seconds: int | None) -> None:
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=request.scope.get("root_path", "") + "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


class TooManyTokensError(Exception):
    """Too many failed logins."""


def _clean(name: str) -> str:
    return visible(name.strip())[:_LONGEST_NAME]


def _visit(request: Request) -> str:
    """Return the visitor's secret: the cookie's, or a new one for the whole request."""
    cookie = request.cookies.get(VISIT, "")
    if _VISIT.fullmatch(cookie):
        return cookie
    if not hasattr(request.state, "drain_visit"):
        request.state.drain_visit = nonce()
    return str(request.state.drain_visit)
