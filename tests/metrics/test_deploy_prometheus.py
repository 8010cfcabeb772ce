"""The rules, the alerts and the dashboard, by Prometheus' own tool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from metrics.instruments import TABLE, Instruments

DEPLOY = Path(__file__).parents[2] / "deploy"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's package prometheus")


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["promtool", *arguments], input=given, capture_output=True, cwd=DEPLOY / "prometheus")


@needs_promtool
def test_promtool_has_nothing_to_say_about_our_metrics() -> None:
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    instruments.set_state("ready")
    instruments.ttft.labels("/v1/stream", "m").observe(0.1)
    instruments.itl.labels("/v1/stream", "m").observe(0.1)
    instruments.requests.labels("/v1/stream", "m", "completed").inc()
    done = promtool("check", "metrics", given=generate_latest(registry))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml", "alerts.yml"),
     ("test", "rules", "alerts.test.yml")],
)  # fmt: skip
def test_promtool_accepts_configuration_rules_and_alerts(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_dashboard_and_rules_name_only_metrics_that_exist() -> None:
    texts = [path.read_text() for path in [*DEPLOY.glob("prometheus/*.yml"), DEPLOY / "grafana" / "tailrace.json"]]
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for text in texts for name in re.findall(r"tailrace_\w+", text)}
    assert named <= {row.name for row in TABLE}
    assert len(named) > 8


def test_the_dashboard_is_one_and_its_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "tailrace.json").read_text())
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
