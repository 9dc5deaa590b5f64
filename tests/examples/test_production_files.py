"""The files that deploy examples/production: valid for their tools, and in agreement with each other and the code."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from examples.production.shop.settings import GRACEFUL_TIMEOUT
from faststream_outbox.cli.relay.settings import RelaySettings
from tests.servers.kafka_jars import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "production"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
RELAY = tomllib.loads((FOLDER / "relay.toml").read_text())
MANIFESTS = sorted(set((FOLDER / "kubernetes").glob("*.yaml")) - {FOLDER / "kubernetes" / "kustomization.yaml"})
RESOURCES: list[dict[str, Any]] = [
    each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text()) if each is not None
]
UNITS = {file.stem.removeprefix("shop-"): file.read_text() for file in (FOLDER / "systemd").iterdir()}
ROLES = ("web", "worker", "relay")
# The oldest that has `preStop: sleep` by default, and the newest that the schemas know.
KUBERNETES = ("1.30", "1.36")
# For the last outcomes, if the database is slow, on top of what running handlers get.
SPARE_SECONDS = 15


def resource(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in RESOURCES if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod(role: str) -> dict[str, Any]:
    found: dict[str, Any] = resource("Deployment", role)["spec"]["template"]["spec"]
    return found


def container(role: str) -> dict[str, Any]:
    [found] = pod(role)["containers"]
    return dict(found)


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def names_in_code() -> set[str]:
    """The variables that the service and the configuration of the relay read."""
    code = "".join(file.read_text() for file in (FOLDER / "shop").glob("*.py"))
    of_relay = re.findall(r'"env:(\w+)"', (FOLDER / "relay.toml").read_text())
    return {*re.findall(r'environ\["(\w+)"\]', code), *of_relay}


def test_the_compose_file_is_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("item", RESOURCES, ids=lambda item: f"{item['kind']} {item['metadata']['name']}")
def test_a_manifest_is_valid(item: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(item, version, strict=True)


def test_a_manifest_with_a_wrong_field_would_be_found() -> None:
    wrong = resource("Deployment", "worker") | {"spec": {"replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_of_systemd_is_valid(name: str, tmp_path: Path) -> None:
    installed = re.sub(r"/opt/shop/venv/bin/\S+", sys.executable, UNITS[name])
    assert installed != UNITS[name]
    file = tmp_path / f"{name}.service"
    file.write_text(installed)
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_dockerfile_has_nothing_to_complain_of() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("there is no hadolint for this platform")
    done = subprocess.run([hadolint, "Dockerfile"], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_the_dockerfile_copies_is_there() -> None:
    sources = [word for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()]
    assert len(sources) >= 5
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == set(sources)


def test_the_relay_is_configured_alike_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    [text] = resource("ConfigMap", "relay")["data"].values()
    assert tomllib.loads(text) == RELAY
    for name in ("RELAY_DATABASE", "KAFKA"):
        monkeypatch.setenv(name, re.sub(r"\$\{.*?:-(.*?)\}", r"\1", COMPOSE["x-shop"]["environment"][name]))
    settings = RelaySettings.load({}, FOLDER / "relay.toml")
    assert settings.routes == {"confirmed": "shop.confirmed"}
    assert f'queue="{next(iter(settings.routes))}"' in (FOLDER / "shop" / "worker.py").read_text()
    assert "--topic=shop.confirmed" in COMPOSE["services"]["topics"]["command"]


def test_the_page_shows_these_files() -> None:
    page = (ROOT / "docs" / "processes.md").read_text()
    [shown] = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert tomllib.loads(shown) == RELAY
    assert f"Kubernetes {' and '.join(KUBERNETES)}" in page
    named = re.findall(r"^\| `([\w*./]+)` \|", page, re.MULTILINE)
    assert [name for name in named if not list(FOLDER.glob(name))] == []
    assert len(named) == 5


def test_every_deployment_gives_the_variables_that_the_code_reads() -> None:
    names = names_in_code()
    assert names == {"DATABASE_URL", "RELAY_DATABASE", "KAFKA"}
    assert COMPOSE["x-shop"]["environment"].keys() == names
    assert resource("Secret", "shop")["stringData"].keys() == names
    assert names <= set(re.findall(r"\b([A-Z_]+)=", "".join(UNITS.values())))
    for role in ROLES:
        assert container(role)["envFrom"] == [{"secretRef": {"name": "shop"}}]


def test_all_start_the_same_programs() -> None:
    for role in ROLES:
        assert container(role)["command"] == COMPOSE["services"][role]["command"]
    [in_image] = re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(in_image) == COMPOSE["services"]["web"]["command"]
    [migrating] = resource("Job", "migrate")["spec"]["template"]["spec"]["containers"]
    assert migrating["command"] == COMPOSE["services"]["migrate"]["command"]
    for role, unit in UNITS.items():
        [started] = re.findall(r"^ExecStart=/opt/shop/venv/bin/(.+)$", unit, re.MULTILINE)
        # On a machine of its own the port is for this machine only.
        assert started.replace("127.0.0.1", "0.0.0.0").split() == COMPOSE["services"][role]["command"]  # noqa: S104


@pytest.mark.parametrize("role", ROLES)
def test_probes_ask_where_the_program_listens(role: str) -> None:
    command = container(role)["command"]
    listens = int(RELAY["health"].partition(":")[2]) if role == "relay" else int(command[command.index("--port") + 1])
    [port] = container(role)["ports"]
    assert port["containerPort"] == listens
    for probe, path in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
        asked = container(role)[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/health/{path}", "port": port["name"]}
    test = COMPOSE["services"][role]["healthcheck"]["test"]
    assert test == ["CMD", "python", "-m", "shop.probe", str(listens), "/health/ready"]
    assert str(listens) in re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)[0].split()


@pytest.mark.parametrize("role", ["worker", "relay"])
def test_the_time_to_stop_is_longer_than_the_graceful_timeout(role: str) -> None:
    graceful = RELAY["graceful_timeout"] if role == "relay" else GRACEFUL_TIMEOUT
    assert "lifecycle" not in container(role), "a preStop hook takes its time from the same grace period"
    [unit] = re.findall(r"^TimeoutStopSec=(\d+)$", UNITS[role], re.MULTILINE)
    given = {
        "Kubernetes": pod(role)["terminationGracePeriodSeconds"],
        "compose": seconds(COMPOSE["services"][role]["stop_grace_period"]),
        "systemd": int(unit),
    }
    assert {tool for tool, number in given.items() if number < graceful + SPARE_SECONDS} == set()


@pytest.mark.parametrize("role", ROLES)
def test_a_disruption_and_a_rollout_leave_one_to_work(role: str) -> None:
    deployment = resource("Deployment", role)["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    budget = resource("PodDisruptionBudget", role)["spec"]
    assert budget["selector"]["matchLabels"] == labels
    [spread] = pod(role)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    assert deployment["replicas"] > budget["maxUnavailable"] == 1
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("role", [*ROLES, "migrate"])
def test_no_container_may_more_than_it_needs(role: str) -> None:
    spec = pod(role) if role != "migrate" else resource("Job", role)["spec"]["template"]["spec"]
    [only] = spec["containers"]
    # What the restricted standard of Kubernetes asks for, and a file system that cannot be changed.
    assert only["securityContext"] == {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert only["resources"].keys() == {"requests", "limits"}
    [user] = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(user) > 0


def test_the_kustomization_has_every_manifest_but_the_example_of_a_secret() -> None:
    kustomization = yaml.safe_load((FOLDER / "kubernetes" / "kustomization.yaml").read_text())
    assert set(kustomization["resources"]) == {file.name for file in MANIFESTS} - {"secret.example.yaml"}
    [image] = kustomization["images"]
    assert {container(role)["image"] for role in ROLES} == {image["name"]} == {COMPOSE["x-shop"]["image"]}


def test_versions_are_those_that_the_tests_run_on() -> None:
    images = {name: service["image"] for name, service in COMPOSE["services"].items()}
    assert images["kafka"] == images["topics"] == f"apache/kafka:{KAFKA_VERSION}"
    supported = (ROOT / "docs" / "upgrading.md").read_text()
    [postgres] = re.findall(r"^postgres:(\d+)$", images["postgres"])
    assert re.search(rf"\| {postgres} \|", supported)
    [python] = set(re.findall(r"^FROM python:(3\.\d+)-slim", DOCKERFILE, re.MULTILINE))
    assert re.search(rf"^\| {re.escape(python)} \|", supported, re.MULTILINE)
