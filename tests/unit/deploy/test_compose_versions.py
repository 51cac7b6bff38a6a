"""Each Compose on this machine, 1.29 or 2, reads the same stack; no engine is needed for it."""

import os
import runpy
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.compose.stack import COMMANDS, answers

ROOT = Path(__file__).parents[3]
STACK, GPU = ("-f", "docker-compose.yml"), ("-f", "docker-compose.gpu.yml")


@pytest.fixture(scope="module", params=COMMANDS, ids=" ".join)
def compose(request, tmp_path_factory):
    if not answers(request.param):
        pytest.skip(f"there is no `{' '.join(request.param)}` here")
    env_file = tmp_path_factory.mktemp("compose") / "env"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENLOOM", "COMPOSE"))}

    def run(files, **environment):
        env_file.write_text("".join(f"{name}={value}\n" for name, value in environment.items()))
        command = [*request.param, "--env-file", str(env_file), *files, "config"]
        return subprocess.run(
            command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=False, timeout=60
        )

    return run


@pytest.fixture
def secrets():
    return runpy.run_path(str(ROOT / "deploy" / "environment.py"))["environment"]()


def test_the_stack_is_read_with_what_the_environment_file_says(compose, secrets):
    done = compose(STACK, **secrets, TOKENLOOM_KV_BYTES="12345", TOKENLOOM_TAG="x")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    written = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    always = {name for name, service in written.items() if "profiles" not in service}
    assert always <= services.keys() <= written.keys()
    assert services["worker"]["image"] == "tokenloom-worker:x"
    assert services["worker"]["environment"]["TOKENLOOM_KV_BYTES"] == "12345"
    assert services["worker"]["entrypoint"] == ["python", "-m", "kit.seat", "worker"]
    password = secrets["TOKENLOOM_NATS_PASSWORD_WORKER"]
    assert services["worker"]["environment"]["TOKENLOOM_NATS_URL"] == f"nats://worker:{password}@nats:4222"
    assert services["nats"]["environment"]["TOKENLOOM_NATS_PASSWORD_WORKER"] == password
    assert "deploy" not in services["worker"]


def test_the_gpu_file_adds_a_gpu_and_another_image(compose, secrets):
    done = compose((*STACK, *GPU), **secrets)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    assert services["worker"]["image"] == "tokenloom-worker-cuda:latest"
    assert services["worker"]["build"]["args"]["WHEELS"] == "deploy/wheels/cuda"
    assert services["worker"]["environment"]["TOKENLOOM_WORKER_DEVICE"] == "cuda"
    assert services["scheduler"]["environment"]["TOKENLOOM_PIPELINE_DEPTH"] == "2"


def test_a_missing_secret_is_named(compose, secrets):
    del secrets["TOKENLOOM_POSTGRES_PASSWORD"]
    done = compose(STACK, **secrets)
    assert done.returncode != 0
    assert "TOKENLOOM_POSTGRES_PASSWORD is not set" in done.stderr
