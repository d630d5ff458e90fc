"""The Helm chart and the manifest for KEDA, compared with the code; `test_helm_chart.py` renders the chart."""

import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from drain.contrib.scaling import answers
from tests.helpers import ROOT

yaml = pytest.importorskip("yaml")

CHART = ROOT / "deploy" / "helm" / "job-drain"
KEDA = ROOT / "deploy" / "keda" / "scaledobject.yaml"


def values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def check_triggers(scaled: Any) -> None:
    """Check that the enqueuers' port understands each question of a ScaledObject."""
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "metrics-api"
        assert trigger["metadata"]["valueLocation"] == "wanted"
        url = urlsplit(trigger["metadata"]["url"])
        assert url.port == 9186
        answers._queue(url.path.removeprefix("/scale/"))
        answers._read_query(url.query)


def test_the_manifest_for_keda_asks_questions_that_the_port_understands() -> None:
    check_triggers(yaml.safe_load(KEDA.read_text(encoding="utf-8")))


def test_the_version_of_the_chart_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    version = re.search(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert version is not None
    assert (chart["version"], chart["appVersion"]) == (version[1], version[1])


def test_the_chart_runs_as_the_user_of_the_image() -> None:
    user = values()["podSecurityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_each_program_has_its_own_secret_and_only_init_has_the_owners() -> None:
    default = values()
    programs = ("init", "enqueuer", "workerDefaults", "web")
    names = {name: default[name]["databaseSecret"]["name"] for name in programs}
    assert len(set(names.values())) == len(programs)
    assert [name for name in programs if "owner" in names[name]] == ["init"]
    assert "databaseSecret" not in default
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    assert "root.Values.databaseSecret" not in helpers


def test_workers_serve_all_queues_of_their_jobs_by_default() -> None:
    (entry,) = values()["workers"]
    assert "queues" not in entry
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["workers"]["items"]["allOf"][1]["required"] == ["name"]


def test_the_policy_of_the_network_has_the_ports_of_the_pods() -> None:
    policy = values()["networkPolicy"]
    assert policy["enabled"] is False
    assert (policy["postgresql"]["port"], policy["redis"]["port"]) == (5432, 6379)
    text = (CHART / "templates" / "network.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"port: (\w+)", text)) == {"53", "metrics", "http"}
    assert text.count("policyTypes: [Ingress, Egress]") == 1
