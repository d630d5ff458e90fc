"""Database URLs as applications have them: of any driver, and with a schema of their own."""

import re

import pytest
import sqlalchemy
from hypothesis import given, strategies as some
from psycopg.conninfo import conninfo_to_dict

from drain import urls
from drain.config import Settings
from drain.errors import ConfigError

DRIVERS = ["psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000"]


def parts(url: str) -> dict[str, str]:
    """What libpq reads, but for user, host and database."""
    read = conninfo_to_dict(Settings(database_url=url).database_url)
    return {
        name: str(value) for name, value in read.items() if name not in ("user", "password", "host", "dbname")
    }


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_the_name_of_any_driver_is_left_out(scheme: str, driver: str) -> None:
    url = f"{scheme}+{driver}://user:p%40ss@localhost:5433/shop"

    settings = Settings(database_url=url)

    assert settings.database_url == "postgresql://user:p%40ss@localhost:5433/shop"
    assert settings.namespace == "shop"


@pytest.mark.parametrize(
    ("query", "means"),
    [
        ("ssl=require", {"sslmode": "require"}),
        ("ssl=verify-full&sslrootcert=/etc/ca.pem", {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}),
        ("ssl=true", {"sslmode": "require"}),
        ("ssl=disable", {"sslmode": "disable"}),
        ("sslmode=prefer", {"sslmode": "prefer"}),
        ("timeout=7", {"connect_timeout": "7"}),
        ("prepared_statement_cache_size=0&statement_cache_size=0&command_timeout=5", {}),
        ("target_session_attrs=primary", {"target_session_attrs": "primary"}),
        ("application_name=my+shop", {"application_name": "my shop"}),
        ("options=-c+search_path%3Djobs", {"options": "-c search_path=jobs"}),
        ("options=-csearch_path%3Djobs&ssl=require", {"options": "-csearch_path=jobs", "sslmode": "require"}),
    ],
)
def test_a_drivers_parameter_is_translated_to_its_libpq_equivalent(query: str, means: dict[str, str]) -> None:
    assert parts(f"postgresql+asyncpg://user@localhost/shop?{query}") == means


def test_a_url_without_a_driver_keeps_a_literal_plus() -> None:
    url = "postgresql://user@localhost/shop?application_name=a+b&options=-cjit%3Doff"

    assert Settings(database_url=url).database_url == url


def test_a_url_without_a_driver_accepts_driver_parameters() -> None:
    assert parts("postgresql://localhost/shop?ssl=require") == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("query", "hosts", "ports"),
    [
        ("host=a:5433&host=b:5434", "a,b", "5433,5434"),
        ("host=a&host=b", "a,b", None),
        ("host=a:5433&host=b", "a,b", "5433,"),
        ("host=/run/postgresql", "/run/postgresql", None),
    ],
)
def test_several_hosts_as_sqlalchemy_writes_them_are_libpqs_list(
    query: str, hosts: str, ports: str | None
) -> None:
    read = conninfo_to_dict(Settings(database_url=f"postgresql+psycopg2:///shop?{query}").database_url)

    assert (read["host"], read.get("port")) == (hosts, ports)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("ssl=s3cret", "ssl must be one of disable, allow,"),
        ("unix_sock=/tmp/s3cret", "the parameter unix_sock is another driver's, and libpq's is host="),
        ("direct_tls=true", "libpq's is sslnegotiation=direct"),
        ("server_settings=s3cret", "libpq's is options="),
    ],
)
def test_a_parameter_that_libpq_lacks_is_refused_on_one_line_without_its_value(query: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        Settings(database_url=f"postgresql+asyncpg://user:s3cret@localhost/shop?{query}")

    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql+://localhost/shop", "postgresql+psycopg:/x", "mysql+asyncpg://h/d"]
)
def test_a_url_without_a_postgresql_driver_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"postgresql\+DRIVER://"):
        Settings(database_url=url)


@given(
    some.text(some.characters(codec="ascii", exclude_categories=["C"]), min_size=1),
    some.text(some.characters(codec="ascii", exclude_categories=["C"]), min_size=1),
)
def test_a_url_written_by_sqlalchemy_is_read_as_sqlalchemy_means_it(password: str, value: str) -> None:
    written = sqlalchemy.URL.create(
        "postgresql+psycopg2", "user", password, "localhost", 5433, "shop", {"application_name": value}
    ).render_as_string(hide_password=False)

    read = conninfo_to_dict(Settings(database_url=written).database_url)

    assert (read["password"], read["application_name"]) == (password, value)


def test_the_url_leads_to_the_configured_schema() -> None:
    settings = Settings(database_url="postgresql+asyncpg://localhost/shop?ssl=require", schema="jobs")

    read = conninfo_to_dict(settings.database_url)
    assert read["options"] == "-c drain.schema=jobs -c search_path=jobs"
    assert read["sslmode"] == "require"
    assert settings.namespace == "shop-jobs"
    assert urls.schema_of(settings.database_url) == "jobs"


def test_the_schema_follows_the_urls_options_and_is_added_only_once() -> None:
    once = urls.in_schema("postgresql://localhost/shop?options=-csearch_path%3Dothers", "jobs")

    assert conninfo_to_dict(once)["options"] == (
        "-csearch_path=others -c drain.schema=jobs -c search_path=jobs"
    )
    assert urls.in_schema(once, "jobs") == once
    assert urls.schema_of(urls.in_schema(once, "other")) == "other"


def test_a_program_given_only_the_url_has_the_schema_and_namespace() -> None:
    given = Settings(database_url="postgresql://localhost/shop", schema="jobs")

    assert Settings(database_url=given.database_url) == given


def test_a_search_path_alone_does_not_set_the_schema() -> None:
    settings = Settings(database_url="postgresql://localhost/shop?options=-csearch_path%3Djobs")

    assert (settings.schema, settings.namespace) == ("", "shop")


@pytest.mark.parametrize(
    "name",
    ["Jobs", "my jobs", 'jobs"', "jobs;", "pg_jobs", "information_schema", "1a", "x" * 64, "a,b", "a\n"],
)
def test_an_invalid_schema_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="DRAIN_SCHEMA must be the name of a schema") as caught:
        Settings(database_url="postgresql://localhost/shop", schema=name)

    assert "\n" not in str(caught.value)
    assert "up to 63 lower-case letters" in str(caught.value)
    assert "not reserved by PostgreSQL" in str(caught.value)
