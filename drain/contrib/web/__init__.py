"""Web interface of `drain web`: queues, running and dead jobs, and actions on them.

    import drain.contrib.web

    app.mount("/jobs", drain.contrib.web.application(hosts=["shop.example.com"]))

    asgi        `application`: the ASGI application
    program     the server of `drain web`
    command     `drain web`
    site        settings, sessions, Redis, templates and access, shared by all pages
    sessions    PostgreSQL sessions: a few read-only, one for each write
    connections client connections, bounded in number and time
    clients     client address for limits, as the proxy reports it
    guards      checks of host and origin, and response headers
    access      authorization: token, proxy header, or application callback
    tokens      signatures of cookies and forms
    routing     page routes: a function returns values, a template renders them
    views       argument of page functions
    writes      actions: checked, confirmed, transactional, logged
    forms       bounded form parsing
    failures    error pages
    paging      keyset pagination
    templating  templates: escaping, and formats of numbers and times
    files       style sheet and script, cached until they change
    live        one polling thread while any tab is open
    stream      server-sent events for one tab
    memory      answers cached for seconds, shared by visitors
    history     finished jobs of the last hours in five-minute steps
    sparklines  small SVG curves
    histogram   deaths over time as SVG bars
    search      jobs by id, key, or part of a name, tag or argument
    shortening  large values, cut to a bound
    pages       one module per page, rendered by `templates` with the files in `static`

Invariants: pages issue bounded queries in read-only sessions and work without Redis. A write is a POST with the
visitor's form secret, an allowed origin and an authorized user; it is logged as `web_write`. Foreign text is escaped,
and pages contain no inline scripts or styles.
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
