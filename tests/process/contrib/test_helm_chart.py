"""The Helm chart, linted and rendered by helm where it is on PATH, and compared with the code."""

import importlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from drain.__main__ import main
from drain.workers.supervisor import supervisor
from tests.unit.test_kubernetes import CHART, check_triggers

yaml = pytest.importorskip("yaml")

HELM = shutil.which("helm")
pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(HELM is None, reason="helm is not on PATH"),
]
# All that can be switched on.
FULL = """
jobs: shop.jobs
workers:
  - name: calls
    queues: [calls]
    processes: 2
    threads: 4
    egress: [{ports: [{port: 443}]}]
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
networkPolicy:
  enabled: true
  postgresql: {port: 6432, to: [{ipBlock: {cidr: 10.0.0.5/32}}]}
  metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
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


def test_the_chart_runs_two_enqueuers_on_different_nodes_after_creating_the_tables(tmp_path: Path) -> None:
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


def test_each_program_connects_with_its_own_secret(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "web: {enabled: true}")
    found = {}
    for name, pod in pods(objects):
        env = {each["name"]: each for each in pod["containers"][0]["env"]}
        found[name.removeprefix("shop-job-drain-")] = env["DRAIN_DATABASE_URL"]["valueFrom"]["secretKeyRef"]
    assert {name: secret["name"] for name, secret in found.items()} == {
        "init": "job-drain-owner",
        "enqueuer": "job-drain-enqueuer",
        "worker-default": "job-drain-worker",
        "web": "job-drain-web",
    }
    assert {secret["key"] for secret in found.values()} == {"database-url"}


def test_workers_without_queues_serve_the_queues_of_their_jobs(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "jobs: shop.jobs")
    pod = objects["Deployment", "shop-job-drain-worker-default"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["work", "--processes=1"]


def test_network_policies_allow_the_ports_of_pods_and_stores(tmp_path: Path) -> None:
    objects = rendered(tmp_path, FULL)
    policies = {name: each["spec"] for (kind, name), each in objects.items() if kind == "NetworkPolicy"}
    assert policies.keys() == {
        "shop-job-drain",
        *(f"shop-job-drain-{of}" for of in ("metrics", "web", "worker-calls")),
    }
    base = policies["shop-job-drain"]
    assert (base["policyTypes"], "ingress" in base) == (["Ingress", "Egress"], False)
    assert [[port["port"] for port in rule["ports"]] for rule in base["egress"]] == [[53, 53], [6432], [6379]]
    assert base["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.0.0.5/32"}}]
    assert "to" not in base["egress"][2]
    (metrics,) = policies["shop-job-drain-metrics"]["ingress"]
    assert metrics["from"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }
    assert policies["shop-job-drain-web"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    assert policies["shop-job-drain-worker-calls"]["egress"] == [{"ports": [{"port": 443}]}]
    for _, pod in pods(objects):
        (container,) = pod["containers"]
        assert {port["name"] for port in container.get("ports", [])} <= {"metrics", "http"}


def test_a_workers_termination_grace_covers_its_jobs_and_the_supervisor(tmp_path: Path) -> None:
    objects = rendered(tmp_path, FULL)
    for name, grace in (("calls", 120), ("rest", 30)):
        pod = objects["Deployment", f"shop-job-drain-worker-{name}"]["spec"]["template"]["spec"]
        assert f"--grace-seconds={grace}" in pod["containers"][0]["args"]
        assert pod["terminationGracePeriodSeconds"] > grace + supervisor._KILL_SECONDS


def test_workers_scale_by_their_queues_on_request(tmp_path: Path) -> None:
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


def test_a_file_of_rules_reaches_prometheus_as_it_is(tmp_path: Path) -> None:
    objects = rendered(tmp_path, FULL)
    (group,) = objects["PrometheusRule", "shop-job-drain-slo"]["spec"]["groups"]
    assert group["rules"][0]["annotations"] == {"x": "{{ $value }}"}
    monitors = {name for kind, name in objects if kind == "PodMonitor"}
    assert monitors == {"shop-job-drain-drain-run", "shop-job-drain-drain-work"}


@pytest.mark.parametrize(
    "values",
    [
        "workers: [{name: Calls, queues: [calls]}]",
        "databaseSecret: {name: owner, key: database-url}",
        "enqueuer: {databaseSecret: {name: ''}}",
        "workers: [{name: calls, autoscaling: {enabled: true}}]",
        "networkPolicy: {redis: {port: '6379'}}",
        "workers: [{name: calls, queues: []}]",
        "workers: [{name: calls, queues: ['a b']}]",
        "workers: [{name: calls, queues: [a], replica: 3}]",
        "workers: [{name: calls, queues: [a], autoscaling: {within: soon}}]",
        "enqueuer: {replicas: 0}",
    ],
)
def test_an_invalid_value_is_refused(tmp_path: Path, values: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    assert helm("template", "shop", ".", "--values", str(file)).returncode != 0


@pytest.mark.parametrize("values", ["{}", FULL])
def test_the_objects_fit_the_schemas_of_kubernetes(tmp_path: Path, values: str) -> None:
    pytest.importorskip("kubernetes_validate")
    validator = importlib.import_module("kubernetes_validate")
    for (kind, _), each in rendered(tmp_path, values).items():
        if kind not in ("ScaledObject", "PodMonitor", "PrometheusRule"):
            validator.validate(each, "1.30", strict=True)
