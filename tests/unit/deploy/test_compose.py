"""What docker-compose.yml promises, without an engine."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml

from services.gateway.config import GatewayConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from tokenloom.up.nats import USERS, permissions

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
SERVICES = ("gateway", "scheduler", "worker", "usage", "registry")
stack = yaml.safe_load(COMPOSE.read_text())


def default(config, name):
    return config.model_fields[name].default


def seconds(text):
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("name", re.findall(r"\$\{(\w*(?:PASSWORD|KEY)\w*)", COMPOSE.read_text()))
def test_no_secret_has_a_default(name):
    references = re.findall(rf"\$\{{{name}([^}}]*)}}", COMPOSE.read_text())
    assert all(rest.startswith(":?") for rest in references)


def test_the_development_environment_has_every_secret_fresh_each_time():
    environment = runpy.run_path(str(ROOT / "deploy" / "environment.py"))["environment"]
    demanded = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    first, second = environment(), environment()
    assert first.keys() == demanded
    assert not set(first.values()) & set(second.values())
    # NATS reads a bare number as a number, and URLs have characters of their own.
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{20,}", value) for value in first.values())


@pytest.mark.parametrize(
    ("service", "longest_drain_s"),
    [
        ("gateway", default(GatewayConfig, "drain_grace_s") + 15),
        ("scheduler", default(SchedulerConfig, "drain_grace_s") + 10),
        ("worker", default(WorkerConfig, "drain_grace_s") + 5),
        ("usage", 30),
        ("registry", 30),
    ],
)
def test_a_container_is_given_longer_to_stop_than_its_service_takes(service, longest_drain_s):
    assert seconds(stack["services"][service]["stop_grace_period"]) > longest_drain_s


@pytest.mark.parametrize("service", SERVICES)
def test_health_is_asked_of_the_service_where_it_listens(service):
    described = stack["services"][service]
    assert described["healthcheck"]["test"][:4] == ["CMD", "python", "-m", "kit.probe"]
    listens = [v for k, v in described["environment"].items() if k.endswith("_LISTEN") and "HTTP" not in k]
    assert "0.0.0.0:9000" in listens
    assert described["healthcheck"]["test"][4] == "127.0.0.1:9000"


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_an_exec_form_entry_point_and_no_root(service):
    lines = (ROOT / "services" / service / "Dockerfile").read_text().splitlines()
    assert lines[-1] == f'ENTRYPOINT ["python", "-m", "services.{service}"]'
    assert lines[-2] == "USER tokenloom"


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_the_code_of_its_own_service_alone(service):
    dockerfile = (ROOT / "services" / service / "Dockerfile").read_text()
    copied = re.findall(r"^COPY services/(\w+) ", dockerfile, re.MULTILINE)
    assert set(copied) == {service}


@pytest.mark.parametrize("folder", ["kit", "services", "tokenloom/api"])
def test_no_service_asks_for_an_installation_that_its_image_lacks(folder):
    """Images hold the code alone: the package's metadata, so its version, are not installed there."""
    asking = [path for path in (ROOT / folder).rglob("*.py") if "importlib.metadata" in path.read_text()]
    assert asking == []


def test_a_nats_user_may_do_in_the_stack_what_it_may_under_the_supervisor():
    text = (ROOT / "deploy" / "nats" / "nats.conf").read_text()
    users = json.loads(re.sub(r"(\$TOKENLOOM_\w+)", r'"\1"', text))["authorization"]["users"]
    assert {user["user"]: user["permissions"] for user in users} == {
        user: permissions(user) for user in USERS
    }, "stale: python deploy/nats/render.py > deploy/nats/nats.conf"
    assert {user["password"] for user in users} == {f"$TOKENLOOM_NATS_PASSWORD_{u.upper()}" for u in USERS}


def test_prometheus_scrapes_every_service():
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert set(discovery["names"]) == set(SERVICES)
    for service in SERVICES:
        listen = stack["services"][service]["environment"]["TOKENLOOM_METRICS_LISTEN"]
        assert listen == f"0.0.0.0:{discovery['port']}"


def test_only_gateways_and_prometheus_are_published_and_only_to_this_host():
    published = {name: service.get("ports") for name, service in stack["services"].items()}
    assert {name for name, ports in published.items() if ports} == {"gateway", "prometheus"}
    assert all("127.0.0.1" in port for ports in published.values() for port in ports or ())
