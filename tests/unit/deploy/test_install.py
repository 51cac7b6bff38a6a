"""What an image installs: its own group, from the lock."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("install", ROOT / "deploy" / "docker" / "install.py")
install = importlib.util.module_from_spec(spec)
sys.modules["install"] = install
spec.loader.exec_module(install)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = """\
# written by a tool
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
Beta_two==2.0 ; python_version > "3" \\
    --hash=sha256:bb
"""


def test_an_extra_brings_what_a_caller_needs_and_the_projects_own_extras_unfolded():
    found = install.requirements(PROJECT, "usage")
    assert {"grpcio", "structlog", "asyncpg"} <= set(found)
    assert not [item for item in found if item.startswith("tokenloom")]


@pytest.mark.parametrize("service", ["gateway", "scheduler", "usage", "registry"])
def test_only_the_worker_asks_for_torch(service):
    assert not [item for item in install.requirements(PROJECT, service) if item.startswith("torch")]
    assert [item for item in install.requirements(PROJECT, "worker") if item.startswith("torch==")]


def test_an_unknown_service_is_refused():
    with pytest.raises(install.InstallError, match="there are"):
        install.requirements(PROJECT, "gatevay")


def test_only_what_was_resolved_is_installed_and_every_entry_keeps_its_hashes():
    chosen, apart = install.divide({"alpha": "1.0"}, install.locked(LOCK))
    assert chosen == "alpha==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab\n"
    assert apart == []


def test_names_are_compared_as_the_index_does():
    chosen, _ = install.divide({"beta-two": "2.0"}, install.locked(LOCK))
    assert chosen.startswith('Beta_two==2.0 ; python_version > "3"')


def test_torch_and_its_companions_come_pinned_from_outside_the_lock():
    resolved = {"alpha": "1.0", "torch": "2.13.0+cpu", "nvidia-cublas-cu12": "12.8"}
    _, apart = install.divide(resolved, install.locked(LOCK))
    assert apart == ["nvidia-cublas-cu12==12.8", "torch==2.13.0+cpu"]


def test_a_package_that_the_lock_does_not_know_stops_the_build():
    with pytest.raises(install.InstallError, match="gamma"):
        install.divide({"alpha": "1.0", "gamma": "3.0"}, install.locked(LOCK))


def test_resolving_takes_the_locks_versions_without_its_hashes():
    assert install.constraints(install.locked(LOCK)) == "alpha==1.0\nBeta_two==2.0\n"


def test_the_real_lock_is_read_whole():
    lock = (ROOT / "requirements.lock").read_text()
    entries = install.locked(lock)
    assert sum(entry.count("--hash=") for entry in entries.values()) == lock.count("--hash=")
    assert {"grpcio", "sympy", "tokenizers"} <= entries.keys()
