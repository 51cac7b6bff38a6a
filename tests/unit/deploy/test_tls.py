"""What docker-compose.tls.yml promises: every service its own identity, and no other's key."""

import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kit.config import ENV_PREFIX
from tests.conftest import NATS_SERVER
from tests.support.certificates import Authority
from tokenloom.up.nats import USERS

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docker-compose.tls.yml"
services = yaml.safe_load(FILE.read_text())["services"]


def mounts(service):
    return dict(
        re.fullmatch(r".*\}/([\w.]+):/certs/([\w.]+):ro", volume).groups()[::-1]
        for volume in services[service]["volumes"]
        if "/certs/" in volume
    )


@pytest.mark.parametrize("service", services)
def test_a_container_sees_its_own_key_alone(service):
    own = {"ca.pem": "ca.pem", "own.pem": f"{service}.pem", "own.key": f"{service}.key"}
    public = {"edge.pem": "edge.pem", "edge.key": "edge.key"} if service == "gateway" else {}
    assert mounts(service) == {**own, **public}


@pytest.mark.parametrize("service", USERS)
def test_every_variable_is_one_that_the_service_reads_and_names_a_mounted_file(service):
    module = importlib.import_module(f"services.{service}.config")
    (config,) = (value for name, value in vars(module).items() if name == f"{service.title()}Config")
    environment = dict(services[service]["environment"])
    assert environment.pop("TOKENLOOM_NATS_URL").startswith(f"tls://{service}:")
    for variable, path in environment.items():
        assert variable.removeprefix(ENV_PREFIX).lower() in config.model_fields
        assert path.removeprefix("/certs/") in mounts(service)


def test_nats_takes_its_configuration(tmp_path):
    authority = Authority(tmp_path)
    for name in ("nats.conf", "tls.conf"):
        text = (ROOT / "deploy" / "nats" / name).read_text()
        (tmp_path / name).write_text(
            text.replace("/certs/own", f"{tmp_path}/nats").replace("/certs", str(tmp_path))
        )
    passwords = {f"TOKENLOOM_NATS_PASSWORD_{user.upper()}": "secret-word" for user in USERS}
    command = [NATS_SERVER, "-t", "-c", tmp_path / "tls.conf"]
    done = subprocess.run(command, env=os.environ | passwords, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert authority.pair("nats").key.exists()
