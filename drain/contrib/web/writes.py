"""Actions: checked, confirmed if they touch several jobs, transactional, and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from drain.contrib.web.forms import Form, read_form, require_storable
from drain.contrib.web.routing import respond, root_of, site_of
from drain.contrib.web.views import View
from drain.database.postgres import Connection
from drain.errors import DrainError

log = logging.getLogger(__name__)

_CONFIRMED = "confirmed"
_SECRET = "secret"  # noqa: S105
# Arguments may be confidential; the job's history has them.
_NOT_LOGGED = (_SECRET, "args", "kwargs")


@dataclass(frozen=True)
class Write:
    """One write; its transaction commits when the action returns, and the action must not."""

    connection: Connection
    form: Form
    view: View
    who: str


@dataclass(frozen=True)
class Done:
    """Result of a write.

    Attributes:
        text: Message, such as `queue mail is paused`.
        undo: Values for the Undo button; see `pages.undo`.
        template: Rendered instead of the next page, for content shown only once.
    """

    text: str
    to: str
    fields: dict[str, Any] = field(default_factory=dict)
    undo: Mapping[str, Any] | None = None
    template: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


class RefusedError(DrainError):
    """The visitor may not write, or the form is not from this page."""


@dataclass(frozen=True)
class Question:
    """Question before a write that touches several jobs, such as `Retry 12 dead jobs of queue mail?`.

    Attributes:
        effects: Changes to expect, one sentence each.
        back: Address of Cancel; by default the overview.
    """

    text: str
    jobs: int
    yes: str = ""
    effects: Sequence[str] = ()
    back: str = ""


Act = Callable[[Write], Done]
Ask = Callable[[Write], Question]


def action(path: str, act: Act, *, name: str, ask: Ask | None = None) -> Route:
    """Return the route of a write: a POST by an authorized user.

    Args:
        act: Called in a thread and transaction; a `DrainError` rolls back and is shown.
        name: For `url` and the log event.
        ask: Counts the jobs before, in its own transaction; several, or more than confirmed, need confirmation.
    """

    async def answer(request: Request) -> Response:
        form = await read_form(request)
        return await run_in_threadpool(_answer, request, form, act, name, ask)

    return Route(path, answer, name=name, methods=["POST"])


def _answer(request: Request, form: Form, act: Act, name: str, ask: Ask | None) -> Response:
    view = _checked(request, form)
    who = view.who or ""
    if ask is not None:
        with view.site.sessions.writing() as connection:
            question = ask(Write(connection, form, view, who))
        if question.jobs > max(1, _confirmed(form)):
            kept = [(key, text) for key, text in form.fields if key not in (_CONFIRMED, _SECRET)]
            return respond(request, "question.html", {"question": question, "fields": kept})
    with view.site.sessions.writing() as connection:
        done = act(Write(connection, form, view, who))
    said = {key: text[:200] for key, text in form.as_dict().items() if key not in _NOT_LOGGED}
    details = {"action": name, "who": who, "given": {**view.params, **said}, **done.fields}
    log.info("%s: %s by %s", name, done.text, who, extra={"event": "web_write", **details})
    if done.template:
        return respond(request, done.template, done.values)
    response = RedirectResponse(done.to, status_code=303)
    view.site.access.notify(request, response, done.text, done.undo)
    return response


def require_form(request: Request, form: Form) -> None:
    """Require the visitor's form secret; RefusedError if it is missing or wrong."""
    if not site_of(request).access.is_from_a_form(request, form.text(_SECRET)):
        raise RefusedError(
            "the form is too old, or none of this page: go back, reload the page and try again"
        )


def _checked(request: Request, form: Form) -> View:
    require_form(request, form)
    require_storable(map(str, request.path_params.values()))
    site = site_of(request)
    if (who := site.access.who(request)) is None:
        raise RefusedError("you need to sign in to write")
    return View(site, root_of(request), request.path_params, request.query_params, who)


def _confirmed(form: Form) -> int:
    text = form.text(_CONFIRMED)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
