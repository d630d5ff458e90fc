"""Web interface of `drain web`.

    app.mount("/jobs", drain.contrib.web.application(hosts=["shop.example.com"]))

    asgi        `application`
    program     server of `drain web`
    command     `drain web`
    site        parts shared by all pages
    sessions    PostgreSQL sessions
    connections bounded client connections
    clients     client address behind a proxy
    guards      host and origin checks, response headers
    access      authorization
    tokens      signatures of cookies and forms
    routing     page routes
    views       argument of page functions
    writes      actions: checked, confirmed, transactional, logged
    bulk_actions retries and discards in slices, with progress
    forms       bounded form parsing
    failures    error pages
    paging      keyset pagination
    templating  escaping, and formats of numbers and times
    files       style sheet and script
    live        one polling thread while any tab is open
    stream      server-sent events for one tab
    memory      answers cached for seconds
    history     finished jobs in five-minute steps
    levels      waiting and running jobs, sampled each minute
    charts      SVG charts, each with the same in words
    search      jobs by a word
    shortening  large values
    pages       one module per page; see `templates` and `static`

Pages issue bounded queries in read-only sessions and work without Redis. A write is a POST with the visitor's form
secret, an allowed origin and an authorized user; it is logged as `web_write`. Foreign text is escaped, and pages
contain no inline scripts or styles.
"""

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ModuleNotFoundError as missing:
    from drain import extras

    raise ModuleNotFoundError(
        f"drain.contrib.web needs Starlette and Jinja: {extras.install('web')}", name=missing.name
    ) from None

from drain.contrib.web.asgi import application

__all__ = ["application"]
