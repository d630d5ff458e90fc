import re
import socket

import pytest

from drain import wire
from drain.config import VARIABLES, Settings, process_name
from drain.database import postgres, url
from drain.errors import ConfigError, DrainError

URL = "postgresql://user:s3cret@localhost/shop"

# Passwords that somebody forgot to percent-encode. Each holds the two parts that must not be shown.
SPECIAL_PASSWORDS = [f"hush{character}quiet" for character in "@/?#[]:% \u2100"]


def test_every_setting_is_read_from_its_variable() -> None:
    settings = Settings.from_environment(
        {
            "DRAIN_DATABASE_URL": URL,
            "DRAIN_REDIS_URL": "redis://localhost:6379/0",
            "DRAIN_JOBS": "shop.jobs, shop.mail,",
            "DRAIN_NAMESPACE": "shop-1",
            "DRAIN_FORWARD_QUEUES": "mail,sms",
            "DRAIN_THIN_QUEUES": "push",
            "DRAIN_WHOLE_QUEUES": "*",
            "DRAIN_BATCH_SIZE": "7",
            "DRAIN_POLL_SECONDS": "0.5",
        }
    )

    assert settings.jobs == ("shop.jobs", "shop.mail")
    assert settings.namespace == "shop-1"
    assert settings.forward_queues == {"mail", "sms"}
    assert settings.thin_queues == {"push"}
    assert settings.whole_queues == {"*"}
    assert (settings.batch_size, settings.poll_seconds) == (7, 0.5)
    assert settings.required_redis_url == "redis://localhost:6379/0"


def test_every_setting_but_the_database_has_a_default() -> None:
    settings = Settings.from_environment({"DRAIN_DATABASE_URL": URL})

    assert (settings.jobs, settings.forward_queues) == ((), frozenset())
    assert (settings.batch_size, settings.poll_seconds) == (2500, 1.0)


def test_an_empty_variable_counts_as_unset() -> None:
    empty = dict.fromkeys(VARIABLES.values(), "")

    assert Settings.from_environment(empty | {"DRAIN_DATABASE_URL": URL}) == Settings(database_url=URL)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_database_url_may_have_any_of_the_usual_schemes(scheme: str) -> None:
    assert Settings(database_url=f"{scheme}://localhost/shop").database_url == "postgresql://localhost/shop"


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("postgresql://localhost/shop", "shop"),
        ("postgresql://user:pw@localhost:5433/my_shop?sslmode=require", "my_shop"),
        ("postgresql:///my%20shop%C3%A9.eu?host=/tmp", "my_shop__eu"),
        ("postgresql://localhost", "drain"),
        (f"postgresql://localhost/{'x' * 63}", "x" * 63),
    ],
)
def test_the_namespace_is_the_database_name_in_a_form_rq_accepts(url: str, namespace: str) -> None:
    assert Settings(database_url=url).namespace == namespace


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"DRAIN_DATABASE_URL": ""}, "DRAIN_DATABASE_URL"),
        ({"DRAIN_DATABASE_URL": "mysql://user:s3cret@localhost/shop"}, "postgresql://"),
        ({"DRAIN_DATABASE_URL": "user:s3cret@localhost/shop"}, "postgresql://"),
        ({"DRAIN_REDIS_URL": "http://:s3cret@localhost"}, "redis://"),
        ({"DRAIN_NAMESPACE": "a b"}, "DRAIN_NAMESPACE"),
        ({"DRAIN_NAMESPACE": "x" * 64}, "DRAIN_NAMESPACE"),
        ({"DRAIN_THIN_QUEUES": "a", "DRAIN_WHOLE_QUEUES": "a"}, "'a' is named in DRAIN_THIN_QUEUES and in"),
        ({"DRAIN_BATCH_SIZE": "0"}, "DRAIN_BATCH_SIZE"),
        ({"DRAIN_BATCH_SIZE": "100001"}, "DRAIN_BATCH_SIZE"),
        ({"DRAIN_BATCH_SIZE": "many"}, "DRAIN_BATCH_SIZE"),
        ({"DRAIN_POLL_SECONDS": "0"}, "DRAIN_POLL_SECONDS"),
        ({"DRAIN_POLL_SECONDS": "nan"}, "DRAIN_POLL_SECONDS"),
        ({"DRAIN_POLL_SECONDS": "61"}, "DRAIN_POLL_SECONDS"),
        ({"DRAIN_POLL_SECONDS": "soon"}, "DRAIN_POLL_SECONDS"),
    ],
)
def test_an_invalid_value_is_named_on_one_line(changes: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        Settings.from_environment({"DRAIN_DATABASE_URL": URL} | changes)

    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_missing_redis_url_is_reported_with_its_variable() -> None:
    with pytest.raises(ConfigError, match="DRAIN_REDIS_URL"):
        _ = Settings(database_url=URL).required_redis_url


def test_settings_do_not_show_passwords() -> None:
    settings = Settings(database_url=URL, redis_url="redis://:hush@localhost/0")

    assert "s3cret" not in repr(settings)
    assert "hush" not in repr(settings)


@pytest.mark.parametrize("password", SPECIAL_PASSWORDS)
def test_database_url_errors_never_reveal_the_password(password: str) -> None:
    def connect() -> None:
        settings = Settings(database_url=f"postgresql://user:{password}@127.0.0.1:1/shop")
        postgres.connect(settings.database_url, "test").close()

    with pytest.raises(DrainError) as caught:
        connect()

    assert "hush" not in str(caught.value)
    assert "quiet" not in str(caught.value)


@pytest.mark.parametrize("password", [*SPECIAL_PASSWORDS, "12/quiet"])
def test_redis_url_errors_never_reveal_the_password(password: str) -> None:
    def connect() -> None:
        settings = Settings(database_url=URL, redis_url=f"redis://:{password}@127.0.0.1:1/0")
        wire.Producer(settings.redis_url, settings.namespace).ping()

    with pytest.raises(DrainError) as caught:
        connect()

    assert "hush" not in str(caught.value)
    assert "quiet" not in str(caught.value)


@pytest.mark.parametrize("part", ["?frobnicate=1", "?socket_timeout=soon", ":99999/0"])
def test_a_redis_url_that_redis_rejects_is_a_configuration_error(part: str) -> None:
    with pytest.raises(ConfigError, match="DRAIN_REDIS_URL"):
        wire.connect(f"redis://localhost{part}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hush@cache.example:6380/2?password=hush", "cache.example:6380/2"),
        ("rediss://:hush@cache.example/0", "cache.example/0"),
        ("unix:///run/redis.sock?password=hush", "/run/redis.sock"),
        ("redis://", "localhost"),
    ],
)
def test_a_redis_is_described_without_its_password(url: str, shown: str) -> None:
    assert wire.describe(url) == shown


def test_a_database_is_described_by_host_port_and_name() -> None:
    described = url.describe("postgresql://user:s3cret@db.example:5433/shop?sslmode=require")

    assert described == "db.example:5433/shop"


@pytest.mark.parametrize("path", ["/x", "/1/2", "/-1", "/\uff11"])
def test_a_redis_database_is_a_number(path: str) -> None:
    with pytest.raises(ConfigError, match="number of a database"):
        Settings(database_url="postgresql://h/d", redis_url=f"redis://h{path}")


@pytest.mark.parametrize("name", ["forward_queues", "only_tracked_queues", "thin_queues", "whole_queues"])
def test_an_invalid_queue_name_is_reported_with_its_variable(name: str) -> None:
    with pytest.raises(ConfigError, match=f"DRAIN_{name.upper()}: 'm il'"):
        Settings.from_texts({"database_url": "postgresql://h/d", name: "m il"})


def test_a_process_keeps_its_name_when_its_host_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claims are fenced by that name."""
    name = process_name()
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert process_name() == name
