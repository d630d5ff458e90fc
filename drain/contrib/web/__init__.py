"""The page of `drain web`: what waits, what runs and what has failed, in a browser, and the few things to do about it.

    import drain.contrib.web

    app.mount("/jobs", drain.contrib.web.application(hosts=["shop.example.com"]))

    asgi        `application`: all parts, put together as one ASGI application
    program     the application on a port of its own
    command     `drain web`
    site        what all pages share: settings, sessions, Redis, templates, who may write
    sessions    a few sessions of PostgreSQL that only read, and one for each write
    connections connections of `drain web`, bounded in number and time
    clients     the address that a limit counts by, as the proxy names it
    guards      names of hosts, origins and headers, checked and set for each request
    access      who may write: a token in a signed cookie, or a proxy's header
    tokens      the signatures of cookies and forms
    routing     pages: a function returns values, and a template shows them
    views       what the function of a page is given
    writes      actions: checked, asked about, done in one transaction, logged
    forms       texts of a form, read with an upper bound
    failures    pages of errors: what is away comes back, what is unknown is said
    paging      pages of a long list, each behind the last place of the one before
    templating  templates: texts of others are escaped, numbers and times have one format
    files       style sheet and script, which browsers keep until they change
    live        one thread that measures while somebody listens, and hands the news to all
    stream      one tab's connection on which the news travel
    memory      answers that are remembered for a moment, for all visitors
    history     jobs that finished in the last hours, in steps of five minutes
    sparklines  small curves, drawn as SVG
    histogram   numbers of deaths over time, drawn as SVG
    search      jobs that are found by a word: an id, a key, a part of a name, a tag or an argument
    shortening  large values, shown up to a bound
    pages       the pages, a module each; their templates in `templates`, style sheet and script in `static`

What always holds: a page asks bounded questions only, in a session that cannot write. A write is a POST with a secret
of the visitor's from an allowed origin, by somebody who may write, and is logged as `web_write`. A text of others is
escaped before it becomes HTML, and no script or style stands in a page. A page does not need Redis.
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
