"""What people and their shells may type or export: what cannot be used is one line, and no traceback."""

import pytest
from click.testing import CliRunner
from hypothesis import example, given, strategies as st

from drain import wire
from drain.__main__ import main
from drain.config import VARIABLES, Settings
from drain.database import url
from drain.errors import ConfigError

NOBODY_LISTENS = "postgresql://127.0.0.1:1/shop"
ENV = {
    "DRAIN_DATABASE_URL": NOBODY_LISTENS,
    "DRAIN_REDIS_URL": "redis://127.0.0.1:1/0",
    "DRAIN_JOBS": "tests.helpers",
    **dict.fromkeys(("DRAIN_NAMESPACE", "DRAIN_METRICS_PORT", "DRAIN_BATCH_SIZE", "COLUMNS")),
}
WORDS = [
    ["show", "1e9"],
    ["show", "\uff11"],
    ["show", "1_0"],
    ["show", "-1"],
    ["show", ""],
    ["show", "\x1b[31m"],
    ["show", "9" * 5000],
    ["dead", "retry", "\uff11", "--yes"],
    ["dead", "discard", "1", "--all"],
    ["dead", "list", "--limit", "nan"],
    ["list", "\x1b[31m"],
    ["list", "dead", "--queue", "a\x1b[31m\n\u202e"],
    ["list", "dead", "--limit", "0"],
    ["work", "a\x1b[31m"],
    ["work", ""],
    ["work", "--grace-seconds", "nan", "--burst"],
    ["work", "--grace-seconds", "inf", "--burst"],
    ["work", "--processes", "1e3"],
    ["run", "--metrics-port", "99999"],
    ["run", "--metrics-host", "nosuch.invalid\n"],
    ["backfill", "x.parquet", "--job", "m.f", "--max-rows-per-second", "nan"],
    ["drill", "\x1b[31m"],
    ["\x1b[31m"],
    ["--\x1b[31m"],
    ["status", "--\x1b[31m\n"],
]
VALUES = [
    ("DRAIN_BATCH_SIZE", "\uff11\uff10"),
    ("DRAIN_BATCH_SIZE", "1_000"),
    ("DRAIN_BATCH_SIZE", "10\n20"),
    ("DRAIN_BATCH_SIZE", "9" * 5000),
    ("DRAIN_POLL_SECONDS", "inf"),
    ("DRAIN_POLL_SECONDS", "\uff11"),
    ("DRAIN_NAMESPACE", "a\nb"),
    ("DRAIN_FORWARD_QUEUES", "mail,\x1b[31m"),
    ("DRAIN_METRICS_PORT", "\x1b[31m"),
    ("DRAIN_REDIS_URL", "redis://host:abc"),
    ("DRAIN_REDIS_URL", "redis://host:99999"),
    ("DRAIN_REDIS_URL", "redis://a..b/0"),
    ("DRAIN_REDIS_URL", "redis://ho\nst/0"),
    ("DRAIN_REDIS_URL", "redis://\x1b[31m/0"),
    ("DRAIN_REDIS_URL", "redis://localhost/0?socket_timeout=nan"),
    ("DRAIN_REDIS_URL", "redis://localhost/0?socket_timeout=-1"),
    ("DRAIN_DATABASE_URL", "postgresql://a..b/shop"),
    ("DRAIN_DATABASE_URL", "postgresql://localhost/%ff"),
    ("DRAIN_DATABASE_URL", "postgresql://127.0.0.1:1/%0a%1b[31m"),
    ("DRAIN_DATABASE_URL", "postgresql://localhost/sh\nop"),
    ("DRAIN_DATABASE_URL", "postgresql://localhost:abc/shop"),
]


def refuses(words: list[str], **env: str) -> None:
    result = CliRunner().invoke(main, words, env=ENV | env)

    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    *usage, last = result.stderr.splitlines()
    assert last.startswith("Error: ")
    assert last.isprintable()
    # Of wrong usage click also says what would be right.
    assert not usage or (result.exit_code == 2 and usage[0].startswith("Usage: "))


@pytest.mark.parametrize("words", WORDS, ids=lambda words: ascii(" ".join(words))[:60])
def test_invalid_arguments_are_reported_on_one_line(words: list[str]) -> None:
    refuses(words)


def test_contradictory_options_are_a_usage_error() -> None:
    words = ["work", "--only-tracked", "--plain", "inline", "--burst"]
    result = CliRunner().invoke(main, words, env=ENV)
    assert result.exit_code == 2
    assert "not both" in result.stderr


@pytest.mark.parametrize(("variable", "text"), VALUES, ids=lambda text: ascii(text)[:60])
def test_an_invalid_variable_is_reported_on_one_line(variable: str, text: str) -> None:
    refuses(["run", "--once"] if variable != "DRAIN_METRICS_PORT" else ["run"], **{variable: text})


@pytest.mark.parametrize("columns", ["0", "\u00b2", "-5", "wide", "99999999999"])
def test_an_invalid_terminal_width_is_ignored(columns: str) -> None:
    refuses(["status"], COLUMNS=columns)


def test_a_trailing_newline_in_a_variable_is_ignored() -> None:
    settings = Settings.from_environment(
        {"DRAIN_DATABASE_URL": f"{NOBODY_LISTENS}\n", "DRAIN_BATCH_SIZE": " 7\n"}
    )

    assert (settings.database_url, settings.batch_size) == (NOBODY_LISTENS, 7)


anything = st.text(st.characters(categories=None), max_size=40)
urls = st.one_of(
    anything,
    st.tuples(
        st.sampled_from(["postgresql://", "redis://", "unix://", "rediss://"]),
        st.text("ab:/@?#[]%.=&1-_\x00\n\u202e\u00e9", max_size=30),
    ).map("".join),
)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(VARIABLES, anything) | {"database_url": urls, "redis_url": urls}
    )
)
@example({"database_url": "postgresql://x", "redis_url": "redis://a..b"})
def test_settings_are_read_or_refused_in_one_line(texts: dict[str, str]) -> None:
    assert refusal_of(texts).isprintable()


def refusal_of(texts: dict[str, str]) -> str:
    try:
        settings = Settings.from_texts(texts)
        url.conninfo(settings.database_url, "test")
        wire.connect(settings.redis_url or "redis://localhost").close()
    except ConfigError as error:
        return str(error)
    return ""
