"""`drain web`."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from pathlib import Path

import click

from drain import extras, log
from drain.config import Settings
from drain.errors import ConfigError
from drain.terminal.commandline import Port, settings_options, verbose_option


@click.command(short_help="Serve the dashboard.")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--port",
    type=Port("DRAIN_WEB_PORT", "any free one"),
    default=9189,
    show_default=True,
    envvar="DRAIN_WEB_PORT",
    show_envvar=True,
    help="Port; 0 picks a free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    envvar="DRAIN_WEB_HOST",
    show_envvar=True,
    help="Address to listen on.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    envvar="DRAIN_WEB_NAMES",
    show_envvar=True,
    help="Public host name of the page, with its port unless 80 or 443; repeatable.",
)
@click.option(
    "--prefix",
    default="",
    metavar="PATH",
    envvar="DRAIN_WEB_PREFIX",
    show_envvar=True,
    help="Path prefix that the proxy strips: /jobs.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="DRAIN_WEB_TOKEN_FILE",
    show_envvar=True,
    help="File with the write token; or set DRAIN_WEB_TOKEN.",
)
@click.option(
    "--trust-header",
    metavar="NAME",
    envvar="DRAIN_WEB_TRUST_HEADER",
    show_envvar=True,
    help="Header that names a user with write access. The proxy must strip it from incoming requests.",
)
@click.option("--private", is_flag=True, help="Require write access to read, too.")
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Trust X-Forwarded-* headers, and --trust-header beyond loopback: only the proxy can reach the port.",
)
@click.option(
    "--statistics",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="DRAIN_WEB_STATISTICS",
    show_envvar=True,
    help="File from `drain stats --html`, shown under Statistics.",
)
@verbose_option
def web(
    settings: Settings,
    *,
    port: int,
    host: str,
    names: tuple[str, ...],
    prefix: str,
    token_file: Path | None,
    trust_header: str | None,
    private: bool,
    behind_proxy: bool,
    statistics: Path | None,
    verbose: bool,
) -> None:
    """Serve the dashboard: queues, jobs, failures, schedules and workers.

    Any visitor can read it, including job arguments, unless it is --private. Writing needs a token or an authenticating
    proxy. On SIGTERM or SIGINT, it exits with code 0. Needs the extra [web].

    \b
    drain web
    drain web --token-file /etc/drain/web-token
    drain web --trust-header X-Remote-User --allow-host jobs.example.com
    """  # noqa: D301
    if trust_header and not (behind_proxy or is_loopback(host)):
        raise ConfigError(
            f"--trust-header on {host}: anybody who reaches the port could name a user; listen on 127.0.0.1, "
            "or say --behind-proxy if only the proxy reaches it"
        )
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigError(f"--prefix is a path such as /jobs, without a / at its end, not {prefix!r}")
    try:
        from drain.contrib.web import program
        from drain.contrib.web.asgi import application
    except ModuleNotFoundError as error:
        raise ConfigError(f"drain web needs Starlette, uvicorn and Jinja: {extras.install('web')}") from error
    log.configure("DEBUG" if verbose else "INFO")
    # An empty file must not silently make the page read-only.
    token = token_file.read_text(encoding="utf-8") if token_file else None
    app = application(
        settings,
        hosts=[*names, f"{host}:{port}"],
        token=token,
        trust_header=trust_header,
        private=private,
        statistics=statistics,
    )
    with program.listen(host, port) as listening:
        program.run(app, listening, prefix=prefix, behind_proxy=behind_proxy or trust_header is not None)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
