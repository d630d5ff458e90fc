"""The Docker image: what the Dockerfile copies is installed into an empty environment, and runs a job."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import click
import psycopg
import pytest

from drain.__main__ import main
from tests.dockerfile import Image, context, instructions
from tests.helpers import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DOCUMENTED = (ROOT / "docs" / "howto" / "docker.md").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    root = tmp_path_factory.mktemp("image")
    yield Image(root, DOCKERFILE)
    subprocess.run(["chmod", "-R", "u+w", root], check=True)


def test_the_image_contains_everything_to_run_one_job(
    image: Image, empty_database_url: str, redis_url: str
) -> None:
    settings = {
        "DRAIN_DATABASE_URL": empty_database_url,
        "DRAIN_REDIS_URL": redis_url,
        "DRAIN_JOBS": "examples.hello",
        # The port of the image may be in use here.
        "DRAIN_METRICS_PORT": "0",
        "DRAIN_WORK_METRICS_PORT": "0",
    }

    def drain(*words: str) -> str:
        done = image.run(*words, **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    drain("init")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO staged_jobs (job_name, job_args) VALUES ('examples.hello.greet', '[\"you\"]')"
        )
    assert drain("run", "--once") == "1 job went to Redis\n"
    assert drain("work", "default", "--burst") == "hello, you\n"
    assert json.loads(drain("status", "--json"))["finished"] == 1
    checked = image.execute(image.healthcheck, settings)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_installed_packages_are_the_copied_ones_and_read_only(image: Image) -> None:
    program = (
        "import drain.workers, drain.pipeline as p; print(drain.__file__, drain.workers.__file__, p.__file__)"
    )
    places = image.execute(["python", "-c", program]).stdout.split()
    assert len(places) == 3
    for place in places:
        assert "/venv/lib/" in place
        assert not place.startswith(str(ROOT / "drain"))
        assert image.execute(["sh", "-c", f"echo >> {place}"]).returncode != 0


def test_the_user_is_numeric_and_the_ports_match_the_settings(image: Image) -> None:
    assert re.fullmatch(r"[1-9]\d*(:\d+)?", image.user)
    for variable in ("DRAIN_METRICS_PORT", "DRAIN_WORK_METRICS_PORT"):
        assert image.ports == image.environment[variable]


def test_a_source_change_does_not_reinstall_dependencies() -> None:
    steps = list(instructions(DOCKERFILE))
    installs = next(
        step for step, (name, rest) in enumerate(steps) if name == "RUN" and "pip install" in rest
    )
    copied = [rest.split()[0] for name, rest in steps[:installs] if name == "COPY"]
    assert copied == ["deploy/requirements.txt"]
    assert all("--no-deps" in rest for name, rest in steps[installs + 1 :] if name == "RUN")


def test_the_build_context_holds_only_copied_files() -> None:
    sent = set(context())
    assert not [path for path in sent if "__pycache__" in path or path.startswith((".", "tests"))]
    sources = [
        source for name, rest in instructions(DOCKERFILE) if name == "COPY" for source in rest.split()[:-1]
    ]
    assert all(any(path == source or path.startswith(f"{source}/") for source in sources) for path in sent)


@pytest.mark.parametrize("words", re.findall(r'command: \["((?:init|run|work|web)\b.*)"\]', COMPOSE))
def test_each_command_of_the_compose_file_parses(words: str) -> None:
    name, *arguments = shlex.split(words.replace('", "', " "))
    command: click.Command = main.commands[name]
    command.make_parser(click.Context(command, **main.context_settings)).parse_args(arguments)


def test_the_documented_application_image_extends_ours_and_keeps_its_user(image: Image) -> None:
    (text,) = re.findall(r"```dockerfile\n(.*?)```", DOCUMENTED, re.DOTALL)
    steps = list(instructions(text))
    assert steps[0] == ("FROM", "job-drain")
    assert f"docker build --tag {steps[0][1]} ." in DOCUMENTED
    assert [rest for name, rest in steps if name == "USER"][-1] == image.user
    # Where the package is copied to, and mounted: beside the examples, on the import path.
    assert ("COPY", "shop shop") in steps
    assert "- ./shop:/app/shop:ro" in DOCUMENTED


def test_the_compose_file_serves_the_page_at_the_documented_port() -> None:
    # On all addresses of the container: Docker publishes no port of its loopback.
    assert 'command: ["web", "--host", "0.0.0.0", "--port", "9189"]' in COMPOSE
    assert '"127.0.0.1:${WEB_PORT:-9189}:9189"' in COMPOSE
    assert "| `http://localhost:9189/` | `WEB_PORT` |" in DOCUMENTED


def test_the_compose_file_publishes_ports_on_localhost_only() -> None:
    ports = re.findall(r'- "(.*):(\d+)"', COMPOSE)
    assert {port for _, port in ports} == {"5432", "6379", "9186", "9189", "9090", "3000"}
    assert all(host.startswith("127.0.0.1:") for host, _ in ports)
