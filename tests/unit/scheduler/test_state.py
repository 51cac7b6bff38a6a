"""Epochs and configuration: what a scheduler starts from."""

import asyncio

import pytest

from kit.config import ConfigError, load
from kit.errors import ServiceError
from services.scheduler.adapters.epochs import EpochStore
from services.scheduler.config import SchedulerConfig


async def test_epochs_rise_over_restarts_and_above_what_a_worker_has_seen(tmp_path):
    store = EpochStore(tmp_path / "epoch")
    assert [await store.take(), await store.take(above=10), await store.take(above=3)] == [1, 11, 12]
    assert await EpochStore(tmp_path / "epoch").take() == 13


async def test_epochs_taken_at_once_differ(tmp_path):
    store = EpochStore(tmp_path / "epoch")
    assert sorted(await asyncio.gather(*(store.take() for _ in range(8)))) == list(range(1, 9))


async def test_a_corrupt_epoch_file_is_refused_and_not_counted_from_zero(tmp_path):
    (tmp_path / "epoch").write_text("garbage")
    with pytest.raises(ServiceError, match="epoch"):
        await EpochStore(tmp_path / "epoch").take()


@pytest.mark.parametrize(("name", "value"), [("PIPELINE_DEPTH", "3"), ("LEASE_S", "0"), ("PROBE_S", "x")])
def test_a_bad_setting_is_refused_by_its_name(monkeypatch, tmp_path, name, value):
    monkeypatch.setenv("TOKENLOOM_NATS_URL", "nats://x")
    monkeypatch.setenv("TOKENLOOM_STATE_DIR", str(tmp_path))
    monkeypatch.setenv(f"TOKENLOOM_{name}", value)
    with pytest.raises(ConfigError, match=f"TOKENLOOM_{name}"):
        load(SchedulerConfig)
