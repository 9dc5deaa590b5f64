"""The dashboard and the alert rules name only what recorders, middleware and relay really export."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from faststream_outbox import NoRetry
from faststream_outbox.cli.relay.metrics import RelayMetrics
from faststream_outbox.cli.relay.status import Status
from faststream_outbox.metrics.prometheus import PrometheusRecorder
from faststream_outbox.prometheus import OutboxPrometheusMiddleware
from faststream_outbox.storage import NewRow
from tests.backends import PostgresBackend
from tests.metrics.brokers import Events, make_broker, publish, running, stop_during_a_handler
from tests.metrics.promql import ADDED, grouped_by, outer_labels, selectors
from tests.metrics.test_recorders import Recorded, run_ten

FOLDER = files("faststream_outbox.metrics")
DASHBOARD: dict[str, Any] = json.loads(FOLDER.joinpath("dashboard.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load(FOLDER.joinpath("alerts.yaml").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
RELAY = "faststream_outbox_relay_"


@pytest.fixture
def driver() -> str:
    """One will do: metrics do not depend on it."""
    return "asyncpg"


class Exported(NamedTuple):
    """By metric: its labels, and the values of each that were seen."""

    labels: dict[str, set[str]]
    values: dict[str, set[tuple[str, str]]]

    @classmethod
    def by(cls, *registries: Any) -> "Exported":
        labels: dict[str, set[str]] = {}
        values: dict[str, set[tuple[str, str]]] = {}
        for registry in registries:
            for family in registry.collect():
                for sample in family.samples:
                    labels.setdefault(sample.name, set()).update(sample.labels)
                    values.setdefault(sample.name, set()).update(sample.labels.items())
        return cls(labels, values)


class Scraped:
    """What a relay answers, parsed again."""

    def __init__(self, metrics: RelayMetrics) -> None:
        self._text = metrics.render().decode()

    def collect(self) -> list[Any]:
        return list(text_string_to_metric_families(self._text))


def relay_metrics() -> Scraped:
    """Return the metrics of a relay that waits for one of its destinations."""
    status = Status({"orders": "orders-topic"}, "redis://127.0.0.1")
    relay: Any = SimpleNamespace(down=False, paused_destinations={"orders-topic": OSError("full")}, paused_queues={})
    status.relay = relay
    return Scraped(RelayMetrics(status, "shop"))


async def run_everything(postgres: PostgresBackend, events: Events) -> None:
    """Make a broker report every event that a recorder exports."""
    broker = make_broker(postgres, events, graceful_timeout=0.05)
    await postgres.insert(*(NewRow("contended", b"1", key=key) for key in "abc"))
    await postgres.run("ALTER TABLE outbox ADD CHECK (queue <> 'refused')")
    with pytest.raises(Exception, match="outbox"):
        await publish(postgres, broker, [1], queue="refused")

    @broker.subscriber("contended")
    async def handle(_number: int) -> None: ...

    async with postgres.engine.begin() as rival, running(broker):
        await rival.execute(text("SELECT id FROM outbox FOR UPDATE"))
        await events.wait_for("keys_contended")
        await rival.rollback()
        await events.wait_for("acked", 3)
        await events.wait_for("backlog", queue="contended")
    await stop_during_a_handler(postgres, make_broker(postgres, events, graceful_timeout=0.05))


async def export_by_recorder(postgres: PostgresBackend) -> Exported:
    recorded = Recorded()
    await run_ten(postgres, recorded)
    recorded.events.backlog_interval = 0.05
    await run_everything(postgres, recorded.events)
    return Exported.by(recorded.registry, relay_metrics())


def expressions() -> Iterator[Any]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for rule in RULES:
        yield pytest.param(rule["expr"], id=rule["alert"])


def problems(expression: str, exported: Exported) -> list[str]:
    """Return what an expression names that is not exported."""
    found = []
    known: set[str] = set(ADDED)
    for name, labels, values in selectors(expression):
        if name not in exported.labels:
            found.append(f"{name} is not exported")
            continue
        known |= exported.labels[name]
        found += [f"{name} has no label {label}" for label in labels - exported.labels[name]]
        found += [f"{name} never has {label}={value!r}" for label, value in values - exported.values[name]]
    return found + [f"nothing has the label {label}" for label in grouped_by(expression) - known]


async def test_all_that_they_name_is_exported_by_a_recorder(postgres: PostgresBackend) -> None:
    exported = await export_by_recorder(postgres)
    everything = [parameter.values[0] for parameter in expressions()]
    assert sum(1 for each in everything for _ in selectors(each)) > 40
    assert [problem for each in everything for problem in problems(each, exported)] == []
    # And the other way round: what is exported is shown, except for what says the same.
    shown = {name for each in everything for name, _, _ in selectors(each)}
    kept_back = re.compile(r"_(created|sum|count|size_bytes_bucket)$|^process_|^faststream_received_messages_total$")
    hidden = {name for name in exported.labels if name not in shown and not kept_back.search(name)}
    assert hidden == {"faststream_published_messages_exceptions_total"}


async def test_the_metrics_of_faststream_are_there_with_the_middleware_too(postgres: PostgresBackend) -> None:
    registry = CollectorRegistry()
    events = Events(PrometheusRecorder(registry=registry, include_bus_metrics=False))
    broker = make_broker(postgres, events, middlewares=[OutboxPrometheusMiddleware(registry=registry, app_name="shop")])

    @broker.subscriber("orders", retry_strategy=NoRetry())
    async def handle(number: int) -> None:
        if number:
            raise ValueError(number)

    async with running(broker):
        await publish(postgres, broker, range(2))
        await events.wait_for("nacked_terminal")
    exported = Exported.by(registry)
    named = {(each.name, *each.labels) for rule in expressions() for each in selectors(rule.values[0])}
    own = [each for each in named if not each[0].startswith(("faststream_outbox_", RELAY))]
    assert len(own) > 4
    for name, *labels in own:
        assert exported.labels[name] >= set(labels)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rate(faststream_nothing_total[5m])", "faststream_nothing_total is not exported"),
        ('faststream_outbox_backlog_rows{state="lost"}', "faststream_outbox_backlog_rows never has state='lost'"),
        ('faststream_outbox_backlog_rows{handler="a"}', "faststream_outbox_backlog_rows has no label handler"),
        ("sum by (phase) (faststream_outbox_backlog_rows)", "nothing has the label phase"),
    ],
)
def test_the_check_finds_what_is_not_exported(expression: str, problem: str) -> None:
    registry = CollectorRegistry()
    PrometheusRecorder(registry=registry)("backlog", {"queue": "orders"})
    assert problem in problems(expression, Exported.by(registry))


def test_the_dashboard_has_what_grafana_needs() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["id"]) == ("faststream-outbox", None)
    assert DASHBOARD["schemaVersion"] >= 39
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "app_name", "queue"}
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        used = {name for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])}
        assert used <= variables | {"__rate_interval"}
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= outer_labels(target["expr"]), panel["title"]


def test_no_two_panels_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["alert"].startswith("Outbox")
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    annotations = rule["annotations"]
    assert annotations["summary"].endswith(".")
    assert annotations["description"].endswith(".")
    named = set(re.findall(r"\$labels\.(\w+)", annotations["summary"] + annotations["description"]))
    assert named <= outer_labels(rule["expr"])


def test_every_alert_has_its_own_name() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) == 15


@pytest.mark.parametrize(("what", "file"), [("dashboard", "dashboard.json"), ("alerts", "alerts.yaml")])
def test_a_command_prints_them(what: str, file: str) -> None:
    command = [sys.executable, "-m", "faststream_outbox.metrics", what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == FOLDER.joinpath(file).read_text()


def series(name: str, values: str, **labels: str) -> tuple[str, str]:
    """Return a metric, and its values minute by minute."""
    written = {"app_name": "shop", "broker": "outbox", **labels}
    return f"faststream_outbox_{name}{{{','.join(f'{label}={value!r}' for label, value in written.items())}}}", values


# A counter that begins with its first event, as those of prometheus_client do.
FAILED = [series("terminal_total", "_x20 1x40", handler="H", reason="rejected")]
# Two processes count the same queue.
WAITING = [series("oldest_ready_age_seconds", "0+60x60", queue="q", instance=each) for each in "ab"]
# One of two relays to the same broker runs until the 20th minute.
RELAYS = [
    series("relay_up", "0x60", to="kafka", instance="a"),
    series("relay_up", "1x20 0x40", to="kafka", instance="b"),
]
# The metrics, when to look at which alert, and the labels of what fires then.
CASES: list[tuple[list[tuple[str, str]], str, str, dict[str, str] | None]] = [
    (FAILED, "25m", "OutboxMessagesFailed", {"handler": "H", "reason": "rejected", "severity": "warning"}),
    (FAILED, "50m", "OutboxMessagesFailed", None),
    (WAITING, "10m", "OutboxLag", {"queue": "q", "severity": "warning"}),
    (WAITING, "30m", "OutboxLagIsLong", {"queue": "q", "severity": "critical"}),
    (
        [series("backlog_rows", "5x20 6x40", queue="q", state="dead")],
        "25m",
        "OutboxDeadLetters",
        {"queue": "q", "severity": "warning"},
    ),
    ([series("backlog_rows", "5x60", queue="q", state="dead")], "25m", "OutboxDeadLetters", None),
    (RELAYS, "15m", "OutboxRelayStopped", None),
    (RELAYS, "25m", "OutboxRelayStopped", {"to": "kafka", "severity": "critical"}),
]


def test_prometheus_accepts_the_rules_and_fires_them_when_it_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool: apt-get install prometheus")
    (tmp_path / "alerts.yaml").write_text(FOLDER.joinpath("alerts.yaml").read_text())
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in metrics],
            "alert_rule_test": [
                {
                    "eval_time": at,
                    "alertname": alert,
                    "exp_alerts": [] if labels is None else [{"exp_labels": {"app_name": "shop", **labels}}],
                }
            ],
        }
        for metrics, at, alert, labels in CASES
    ]
    # Annotations are compared too, so the rules are tested without them.
    bare = {
        "groups": [{**group, "rules": [without_texts(rule) for rule in group["rules"]]} for group in ALERTS["groups"]]
    }
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(bare))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["bare.yaml"], "tests": tests}))
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "tests.yaml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def without_texts(rule: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rule.items() if name != "annotations"}


def test_the_page_names_every_alert() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []
