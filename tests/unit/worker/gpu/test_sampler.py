"""Draws on the device against those of the reference, under the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from services.worker.engine.gpu import sampler
from services.worker.engine.gpu.sampler import GpuSampler
from services.worker.engine.noise import gumbel, row_keys
from services.worker.engine.sampling import Draws, draw
from tests.unit.worker.engine_driver import draws_of

ROWS, VOCABULARY = 24, 5000
draw_on_device = GpuSampler()


def draws(rows: int = ROWS, **fields: float) -> Draws:
    index = np.arange(rows)
    return draws_of(row_keys(np.full(rows, 5), index % 3, index), **fields)


def logits_of(rows: int = ROWS, vocabulary: int = VOCABULARY, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * spread


def check(logits: torch.Tensor, asked: Draws) -> None:
    found, expected = draw_on_device(logits, asked), draw(logits, asked)
    assert found.finite.tolist() == expected.finite.tolist()
    assert found.token_id[found.finite].tolist() == expected.token_id[found.finite].tolist()
    assert found.logprob == pytest.approx(expected.logprob)
    assert found.top_ids.tolist() == expected.top_ids.tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"top_k": 40},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 100, "top_p": 0.9, "min_p": 0.02, "temperature": 1.4, "top_logprobs": 3},
        {"top_k": 1},
        {"top_p": 1e-9, "temperature": 4.0},
    ],
    ids=str,
)
def test_limited_rows_draw_the_token_of_the_reference(fields: dict[str, float]) -> None:
    check(logits_of(), draws(**fields))


@pytest.mark.parametrize("vocabulary", [37, 2048, 2049])
def test_any_vocabulary_is_covered(vocabulary: int) -> None:
    check(logits_of(8, vocabulary), draws(8, top_p=0.95))


@pytest.mark.parametrize("fields", [{"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 2}], ids=str)
def test_what_is_kept_ends_where_it_does_in_the_reference(fields: dict[str, float]) -> None:
    check(logits_of(64, 8, spread=1.0), draws(64, **fields))


@pytest.mark.parametrize("fields", [{"top_p": 0.999}, {"top_k": 3000}], ids=str)
def test_rows_that_keep_more_than_the_candidates_draw_as_the_reference(fields: dict[str, float]) -> None:
    logits = logits_of(8, spread=0.1)
    assert not sampler._draw(logits, draws(8, **fields))[1].any()
    check(logits, draws(8, **fields))


def test_rows_that_keep_everything_add_each_token_its_own_noise() -> None:
    logits, asked = logits_of(), draws(temperature=1.3)
    noisy = logits.double().numpy() / 1.3 + gumbel(asked.keys, np.arange(VOCABULARY))
    assert draw_on_device(logits, asked).token_id.tolist() == noisy.argmax(-1).tolist()


def test_a_draw_depends_on_nothing_else_in_the_batch() -> None:
    logits = logits_of()
    asked = Draws(
        temperature=np.linspace(0, 2, ROWS),
        top_k=np.arange(ROWS) % 3 * 20,
        top_p=np.where(np.arange(ROWS) % 4, 1.0, 0.9),
        min_p=np.zeros(ROWS),
        top_logprobs=np.full(ROWS, -1),
        keys=draws().keys,
    )
    together = draw_on_device(logits, asked).token_id
    alone = [
        draw_on_device(logits[[row]], asked.at(np.array([row]))).token_id[0] for row in range(0, ROWS, 7)
    ]
    assert together[::7].tolist() == alone


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_finite_logits_is_said_to_be_one(value: float, temperature: float) -> None:
    logits = logits_of(3)
    logits[1, 4321] = value
    found = draw_on_device(logits, draws(3, temperature=temperature, top_k=5))
    assert found.finite.tolist() == [True, False, True]
