"""`drain web` as a process: its port, its end, and settings that cannot be used."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from drain.__main__ import main
from tests.helpers import PATIENCE_SECONDS, drain_command, end, environment, stage_jobs, wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("processes")
def test_the_program_serves_until_a_signal_even_with_open_streams(
    database_url: str, redis_url: str, tmp_path: Path, number: int
) -> None:
    stage_jobs(database_url, queue="mail")
    token = tmp_path / "token"
    token.write_text("a token that nobody guesses\n")
    env = environment(database_url, redis_url)
    with drain_command(
        "web", "--port", "0", "--token-file", str(token), "--prefix", "/jobs", env=env
    ) as command:
        (event,) = wait_until(lambda: command.events("web_serving"))
        assert event["access"] == "read-write"
        address = event["address"].removesuffix("/jobs/")
        page = httpx.get(f"{address}/", timeout=PATIENCE_SECONDS)
        assert 'href="/jobs/queues/mail"' in page.text
        assert "server" not in page.headers
        for origin, refusal in ((address, "only a form"), ("http://127.0.0.1:1", "another site or port")):
            answer = httpx.post(f"{address}/login", headers={"Origin": origin}, timeout=PATIENCE_SECONDS)
            assert refusal in answer.text
        with httpx.stream("GET", f"{address}/stream?page=/", timeout=PATIENCE_SECONDS) as answer:
            # Kept: the end of the iterator would close the connection.
            lines = answer.iter_lines()
            assert next(lines).startswith("retry")
            assert end(command, number) == 0
        assert "a token that nobody" not in command.output
        assert "Traceback" not in command.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--trust-header", "X-User", "--host", "0.0.0.0"), "anybody who reaches the port could name a user"),
        (("--trust-header", "X User"), "the name of a header has letters, digits and - only"),
        (("--prefix", "jobs/"), "--prefix is a path such as /jobs"),
        (("--host", "no such host"), "cannot serve the page on no such host:"),
        (("--token-file", "/dev/null"), "needs at least 16 characters"),
        (("--port", "65536"), "a port from 1 to 65535, or 0 for any free one, not"),
    ],
)
def test_an_invalid_setting_is_reported_on_one_line(words: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(
        main, ["web", "--database-url", "postgresql://nowhere/shop", "--port", "0", *words]
    )
    assert result.exit_code == 1, result.output
    assert text in result.output.splitlines()[-1]


def test_a_port_in_use_is_reported_on_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = CliRunner().invoke(
            main, ["web", "--database-url", "postgresql://nowhere/shop", "--port", port]
        )
    assert result.exit_code == 1
    assert f"cannot serve the page on 127.0.0.1:{port}" in result.output
