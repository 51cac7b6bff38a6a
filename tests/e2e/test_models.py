"""Several models at once: every family, imported like any model, each with a lane and a worker of its own."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from services.registry.importing import import_model
from tests.e2e.conftest import StackOptions
from tests.e2e.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[1] / "data" / "engine"
FAMILIES = {
    "gemma3": "gemma3_text",
    "llama3-rope": "llama",
    "mistral-window": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3-moe": "qwen3_moe",
}

SMALL = {"TOKENLOOM_WORKER_THREADS": "1", "TOKENLOOM_PAGE_SIZE": "8", "TOKENLOOM_PAGE_COUNT": "32"}

pytestmark = pytest.mark.parametrize(
    "stack", [StackOptions(models=tuple(FAMILIES), env=SMALL)], indirect=True, ids=["six models"]
)


@pytest.fixture(scope="module")
def models_dir() -> Iterator[Path]:
    """The tiny models, and another one that nobody asked to serve."""
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-models-", dir="/tmp"))
    try:
        for name in FAMILIES:
            import_model(str(DATA / name), name, directory, lambda _: None)
        import_model(str(DATA / "qwen2"), "unserved", directory, lambda _: None)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cases_of(name):
    return json.loads((DATA / name / "expected.json").read_text())["cases"]


async def test_requests_to_every_model_at_once_each_get_their_own_models_tokens(stack):
    """More than the pools hold: some wait, some are preempted, none gets another's tokens."""
    wanted = [(name, case) for name in FAMILIES for case in cases_of(name)] * 2
    async with Driver(stack.http_url, stack.api_key) as driver:
        bodies = [
            {"promptTokenIds": case["prompt_token_ids"], "maxOutputTokens": 24, "ignoreEos": True}
            for _, case in wanted
        ]
        outcomes = await asyncio.gather(
            *(
                driver.stream(model=name, temperature=0, **body)
                for (name, _), body in zip(wanted, bodies, strict=True)
            )
        )
    for (name, case), outcome in zip(wanted, outcomes, strict=True):
        assert outcome.accepted["modelVersion"].startswith(f"{name}@")
        assert outcome.ids == case["greedy_token_ids"]
    assert await preemptions(stack) > 0


async def preemptions(stack):
    async with (
        aiohttp.ClientSession() as session,
        session.get(stack.service("scheduler")["metrics_url"]) as response,
    ):
        text = await response.text()
    by_model = re.findall(r"^tokenloom_scheduler_preemptions_total{.*} (.*)$", text, re.MULTILINE)
    assert len(by_model) == len(FAMILIES)
    return sum(map(float, by_model))


async def test_prompt_text_goes_through_each_models_own_tokenizer(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        for name in FAMILIES:
            outcome = await driver.stream(model=name, prompt="t5 t60 t200", maxOutputTokens=4, temperature=0)
            assert outcome.done["inputTokens"] >= 3
            assert all(word.startswith("t") for word in outcome.text.split())


async def test_models_are_listed_with_context_and_family(stack):
    async with (
        Driver(stack.http_url, stack.api_key) as driver,
        driver.session.get(f"{stack.http_url}/v1/models") as response,
    ):
        listed = {model["id"]: model for model in (await response.json())["data"]}
    assert {name: model["family"] for name, model in listed.items()} == FAMILIES
    assert {model["context_length"] for model in listed.values()} == {512}


async def test_a_model_that_is_not_served_is_not_found(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        body = {"prompt": "t5", "maxOutputTokens": 4}
        for model in ("unserved", "qwen", "qwen2@000000000000"):
            status, error = await driver.refused(body | {"model": model})
            assert (status, error["reason"]) == (404, "NOT_FOUND")
