"""compose.yaml names files, addresses and images that are there."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from settings import CHANGED_FLAGS
from tests.deploy.conftest import DEPLOY

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def test_there_is_tailrace_and_what_stands_around_it() -> None:
    assert set(SERVICES) == {"tailrace", "nginx", "prometheus", "grafana"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name: str) -> None:
    assert re.search(r":v?\d+\.\d+\.\d+(-alpine)?$", SERVICES[name]["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_mount_leads_to_something(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source, target, *options = mount.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
            assert options == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


def test_tailrace_is_built_from_this_repository_and_may_drain() -> None:
    tailrace = SERVICES["tailrace"]
    assert (DEPLOY / tailrace["build"]["context"] / "Dockerfile").exists()
    shutdown_timeout_s = next(flag.default for flag in CHANGED_FLAGS if flag.name == "shutdown-timeout")
    assert isinstance(shutdown_timeout_s, int)
    assert seconds(tailrace["stop_grace_period"]) > shutdown_timeout_s + 10
    assert seconds(SERVICES["nginx"]["stop_grace_period"]) >= seconds(tailrace["stop_grace_period"])
    (device,) = tailrace["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_only_nginx_listens_to_the_outside() -> None:
    outside = {
        name for name, service in SERVICES.items() if not all(p.startswith("127.0.0.1:") for p in service["ports"])
    }
    assert outside == {"nginx"}


def test_nginx_listens_where_compose_looks_and_asks_where_tailrace_is() -> None:
    configuration = (DEPLOY / "nginx" / "tailrace.conf").read_text()
    (port,) = SERVICES["nginx"]["ports"]
    assert re.search(rf"^\s*listen {port.split(':')[1]};", configuration, re.MULTILINE)
    assert re.search(r"^\s*server tailrace:8000\b", configuration, re.MULTILINE)


def test_prometheus_scrapes_as_it_does_elsewhere_but_for_the_address() -> None:
    (file,) = [flag.split("=")[1] for flag in SERVICES["prometheus"]["command"] if flag.startswith("--config.file=")]
    here = yaml.safe_load((DEPLOY / file.replace("/etc/prometheus", "prometheus")).read_text())
    elsewhere = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert here["scrape_configs"][0]["static_configs"] == [{"targets": ["tailrace:8000"]}]
    elsewhere["scrape_configs"][0]["static_configs"] = here["scrape_configs"][0]["static_configs"]
    assert here == elsewhere


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's package prometheus")
def test_promtool_accepts_the_configuration() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", "compose.yml"], cwd=DEPLOY / "prometheus", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tailrace.yaml").read_text())["providers"]
    dashboards = [mount.split(":")[1] for mount in SERVICES["grafana"]["volumes"] if "tailrace.json" in mount]
    assert dashboards == [provider["options"]["path"] + "/tailrace.json"]
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboards[0]
