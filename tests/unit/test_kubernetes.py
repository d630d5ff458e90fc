"""The Helm chart and the manifest for KEDA: linted and rendered by helm where there is one, compared with the code."""

import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest

from drain.__main__ import main
from drain.scaling import answers
from tests.helpers import ROOT
from workers.supervisor import supervisor

yaml = pytest.importorskip("yaml")

CHART = ROOT / "deploy" / "helm" / "job-drain"
KEDA = ROOT / "deploy" / "keda" / "scaledobject.yaml"
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no helm on PATH")
# All that can be switched on.
FULL = """
jobs: shop.jobs
workers:
  - name: calls
    queues: [calls]
    processes: 2
    threads: 4
    graceSeconds: 120
    autoscaling: {enabled: true, maxReplicas: 40}
  - {name: rest, queues: [default, mail.it], replicas: 3, concurrency: 50, args: [--max-memory=500]}
monitoring:
  podMonitor: true
  labels: {release: prom}
  ruleFiles: {slo: "groups: [{name: a, rules: [{alert: b, expr: '1', annotations: {x: '{{ $value }}'}}]}]"}
enqueuer:
  strictAntiAffinity: true
  args: [--keep-days=30]
  databaseSecret: {name: roles, key: enqueuer}
env: {DRAIN_SCHEMA: jobs, DRAIN_DEPTH: 0}
web: {enabled: true, tokenSecret: page}
"""


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *args], cwd=CHART, capture_output=True, text=True, timeout=60, check=False)


def rendered(tmp_path: Path, values: str) -> dict[tuple[str, str], Any]:
    """All objects of the chart, by kind and name."""
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    linted = helm("lint", "--strict", ".", "--values", str(file))
    assert linted.returncode == 0, linted.stdout + linted.stderr
    done = helm("template", "shop", ".", "--namespace", "prod", "--values", str(file))
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def pods(objects: dict[tuple[str, str], Any]) -> Iterator[tuple[str, Any]]:
    for (kind, name), each in objects.items():
        if kind in ("Deployment", "Job"):
            yield name, each["spec"]["template"]["spec"]


def check_arguments(args: list[str]) -> None:
    """Let the command line read the arguments of a container."""
    command = main.commands.get(args[0])
    # The page is an extra.
    if command is not None:
        with command.make_context(args[0], args[1:], **main.context_settings) as context:
            assert isinstance(context, click.Context)


def check_triggers(scaled: Any) -> None:
    """Check that the enqueuers' port understands each question of a ScaledObject."""
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "metrics-api"
        assert trigger["metadata"]["valueLocation"] == "wanted"
        url = urlsplit(trigger["metadata"]["url"])
        assert url.port == 9186
        answers._queue(url.path.removeprefix("/scale/"))
        answers._read_query(url.query)


@needs_helm
@pytest.mark.parametrize("values", ["{}", FULL])
def test_the_chart_renders_and_its_programs_understand_their_arguments(
    tmp_path: Path, values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(tmp_path, values)
    for variable in ("DRAIN_DATABASE_URL", "DRAIN_REDIS_URL"):
        monkeypatch.setenv(variable, "")
    for name, pod in pods(objects):
        (container,) = pod["containers"]
        check_arguments(container["args"])
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
        env = {each["name"]: each for each in container["env"]}
        assert "secretKeyRef" in env["DRAIN_DATABASE_URL"]["valueFrom"]
        assert "secretKeyRef" in env["DRAIN_REDIS_URL"]["valueFrom"]
    for (kind, name), each in objects.items():
        assert len(name) <= 63
        if kind == "Deployment":
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()


@needs_helm
def test_the_chart_has_two_enqueuers_on_different_nodes_and_the_tables_before_them(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "{}")
    enqueuer = objects["Deployment", "shop-job-drain-enqueuer"]["spec"]
    assert enqueuer["replicas"] == 2
    assert "podAntiAffinity" in enqueuer["template"]["spec"]["affinity"]
    (container,) = enqueuer["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert objects["PodDisruptionBudget", "shop-job-drain-enqueuer"]["spec"]["minAvailable"] == 1
    job = objects["Job", "shop-job-drain-init"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    kinds = {kind for kind, _ in objects}
    assert kinds == {"Deployment", "Job", "PodDisruptionBudget", "Service"}


@needs_helm
def test_a_worker_has_the_time_that_its_jobs_and_the_supervisor_need(tmp_path: Path) -> None:
    objects = rendered(tmp_path, FULL)
    for name, grace in (("calls", 120), ("rest", 30)):
        pod = objects["Deployment", f"shop-job-drain-worker-{name}"]["spec"]["template"]["spec"]
        assert f"--grace-seconds={grace}" in pod["containers"][0]["args"]
        assert pod["terminationGracePeriodSeconds"] > grace + supervisor._KILL_SECONDS


@needs_helm
def test_workers_are_scaled_by_their_queues_where_that_is_wanted(tmp_path: Path) -> None:
    objects = rendered(tmp_path, FULL)
    scaled = objects["ScaledObject", "shop-job-drain-worker-calls"]
    check_triggers(scaled)
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["url"] == (
        "http://shop-job-drain-enqueuer.prod.svc:9186/scale/calls?within=30s&concurrency=8"
    )
    assert "replicas" not in objects["Deployment", "shop-job-drain-worker-calls"]["spec"]
    assert objects["Deployment", "shop-job-drain-worker-rest"]["spec"]["replicas"] == 3
    assert [name for kind, name in objects if kind == "ScaledObject"] == ["shop-job-drain-worker-calls"]


@needs_helm
def test_a_file_of_rules_reaches_prometheus_as_it_is(tmp_path: Path) -> None:
    objects = rendered(tmp_path, FULL)
    (group,) = objects["PrometheusRule", "shop-job-drain-slo"]["spec"]["groups"]
    assert group["rules"][0]["annotations"] == {"x": "{{ $value }}"}
    monitors = {name for kind, name in objects if kind == "PodMonitor"}
    assert monitors == {"shop-job-drain-drain-run", "shop-job-drain-drain-work"}


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        "workers: [{name: Calls, queues: [calls]}]",
        "workers: [{name: calls}]",
        "workers: [{name: calls, queues: []}]",
        "workers: [{name: calls, queues: ['a b']}]",
        "workers: [{name: calls, queues: [a], replica: 3}]",
        "workers: [{name: calls, queues: [a], autoscaling: {within: soon}}]",
        "enqueuer: {replicas: 0}",
    ],
)
def test_a_value_that_cannot_be_used_is_refused(tmp_path: Path, values: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    assert helm("template", "shop", ".", "--values", str(file)).returncode != 0


@needs_helm
@pytest.mark.parametrize("values", ["{}", FULL])
def test_the_objects_fit_the_schemas_of_kubernetes(tmp_path: Path, values: str) -> None:
    pytest.importorskip("kubernetes_validate")
    validator = importlib.import_module("kubernetes_validate")
    for (kind, _), each in rendered(tmp_path, values).items():
        if kind not in ("ScaledObject", "PodMonitor", "PrometheusRule"):
            validator.validate(each, "1.30", strict=True)


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
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    user = values["podSecurityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
