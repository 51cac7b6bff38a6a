"""Draws follow the exact distribution, and depend on nothing but (seed, choice, position)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from services.worker.engine import load_engine
from services.worker.engine.noise import gumbel, row_keys, uniform
from services.worker.engine.sampling import Draws, draw
from tests.unit.worker.engine_driver import TINY_CONFIG, Driver, draws_of, needs_native

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from services.worker.engine.runner import Runner
    from services.worker.engine.sampling import Sampler

ROWS = 20_000
# Chi-square quantile at 1 - 1e-6 for f degrees of freedom, by Wilson and Hilferty.
QUANTILE = 4.753


def draws(rows: int, *, first: int = 0, **fields: float) -> Draws:
    index = np.arange(first, first + rows)
    return draws_of(row_keys(np.full(rows, 5), np.zeros(rows, np.int64), index), **fields)


@pytest.fixture(params=["native", "torch"])
def sampler(request: pytest.FixtureRequest, tiny_artifact: Path) -> Sampler:
    if request.param == "torch":
        return draw
    needs_native()
    engine: Any = load_engine(tiny_artifact, replace(TINY_CONFIG, threads=2))
    return engine.forward.draw  # type: ignore[no-any-return]


def expected_shares(logits: torch.Tensor, **fields: float) -> npt.NDArray[np.float64]:
    """The definition, spelled out: temperature, then top-k, top-p of what that kept, min-p."""
    weights = (logits.double() / fields.get("temperature", 1.0)).softmax(-1).numpy()
    order = np.argsort(-weights)
    kept = order[: int(fields.get("top_k", 0)) or len(order)]
    shares = weights[kept] / weights[kept].sum()
    kept = kept[np.cumsum(shares) - shares < fields.get("top_p", 1.0)]
    kept = kept[weights[kept] >= fields.get("min_p", 0.0) * weights.max()]
    result = np.zeros(len(weights))
    result[kept] = weights[kept] / weights[kept].sum()
    return result


def check_distribution(token_ids: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]) -> None:
    """Chi-square over bins of tokens, likeliest first, that expect 20 draws or more each."""
    counts = np.bincount(token_ids, minlength=len(shares))
    assert counts[shares == 0].sum() == 0
    order = np.argsort(-shares)
    order = order[shares[order] > 0]
    cumulated = np.cumsum(shares[order]) * len(token_ids)
    bins = np.minimum(cumulated, len(token_ids) - 20).astype(int) // 20
    _, bins = np.unique(bins, return_inverse=True)
    observed = np.bincount(bins, counts[order])
    expected = np.bincount(bins, shares[order] * len(token_ids))
    freedom = len(expected) - 1
    assert freedom > 0
    statistic = ((observed - expected) ** 2 / expected).sum()
    limit = freedom * (1 - 2 / (9 * freedom) + QUANTILE * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


@pytest.mark.parametrize("vocabulary", [40, 300, 3000])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 5},
        {"top_k": 200},
        {"top_p": 0.6},
        {"top_p": 0.97, "temperature": 2.0},
        {"min_p": 0.2},
        {"min_p": 0.01, "temperature": 2.0},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
        {"top_k": 100, "top_p": 0.8},
    ],
    ids=str,
)
def test_draws_follow_the_exact_softmax(sampler: Sampler, vocabulary: int, fields: dict[str, float]) -> None:
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 1.5
    rows = ROWS if vocabulary < 3000 else 3000
    drawn = sampler(logits.expand(rows, -1), draws(rows, **fields))
    check_distribution(drawn.token_id, expected_shares(logits, **fields))


def test_temperature_zero_and_top_k_one_are_greedy(sampler: Sampler) -> None:
    logits = torch.randn(50, 1000)
    for fields in (
        {"temperature": 0.0},
        {"temperature": 1e-300},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"min_p": 1.0},
    ):
        assert sampler(logits, draws(50, **fields)).token_id.tolist() == logits.argmax(-1).tolist()


def test_noise_is_uniform_and_differs_by_every_part_of_its_key() -> None:
    ids = np.arange(1000)
    base = row_keys(np.array([3]), np.array([0]), np.array([9]))
    for other in ((4, 0, 9), (3, 1, 9), (3, 0, 10), (-3, 0, 9), (3 + (1 << 40), 0, 9)):
        keys = row_keys(*(np.array([part]) for part in other))
        assert abs(np.corrcoef(uniform(base, ids)[0], uniform(keys, ids)[0])[0, 1]) < 0.15
    many = uniform(row_keys(np.arange(200), np.zeros(200, np.int64), np.zeros(200, np.int64)), ids)
    assert np.abs(np.histogram(many, 20, (0, 1))[0] / many.size - 0.05).max() < 0.002
    assert np.isfinite(gumbel(base, ids)).all()


def test_noise_never_changes_between_releases() -> None:
    keys = row_keys(np.array([1, -1]), np.array([0, 2]), np.array([7, 1 << 20]))
    assert keys.tolist() == [16039768801272104445, 4735988951253279403]
    assert uniform(keys, np.array([0, 49151])).ravel().tolist() == [
        0.07766935418570281,
        0.6981603061733286,
        0.16810085439878447,
        0.9547044791841548,
    ]


def test_a_neighbour_without_a_seed_changes_no_seeded_output(tiny_engine: Runner) -> None:
    """Noise drawn from one shared generator makes a seeded row depend on who else is in the batch."""
    prompt = list(range(5, 25))
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 11, "top_p": 0.95}
    alone = Driver(tiny_engine)
    alone.add(prompt, 16, **sampling)
    (expected,) = alone.run()
    crowd = Driver(tiny_engine, seed=4)
    row = crowd.add(prompt, 16, **sampling)
    for index in range(12):
        crowd.add(prompt[index:], 16, temperature=1.0 + index, seed=index)
    crowd.run(8)
    assert row.output == expected


def test_a_seeded_output_survives_preemption(tiny_engine: Runner) -> None:
    prompt = list(range(5, 45))
    sampling: dict[str, Any] = {"temperature": 1.2, "seed": 2}
    alone = Driver(tiny_engine)
    alone.add(prompt, 16, **sampling)
    (expected,) = alone.run()
    driver = Driver(tiny_engine, seed=1)
    row = driver.add(prompt, 16, **sampling)
    for _ in range(7):
        driver.step()
    driver.drop(row)
    resumed = driver.add(row.tokens, 16, prompt_len=len(prompt), **sampling)
    driver.run(16)
    assert resumed.output == expected


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_marked_and_its_neighbours_are_drawn_as_ever(
    sampler: Sampler, bad: float
) -> None:
    logits = torch.randn(6, 500)
    fields = draws(6, temperature=0.9, top_logprobs=3)
    before = sampler(logits, fields)
    broken = logits.clone()
    broken[2, 77] = bad
    after = sampler(broken, fields)
    good = [0, 1, 3, 4, 5]
    assert after.finite.tolist() == [True, True, False, True, True, True]
    assert after.token_id[good].tolist() == before.token_id[good].tolist()
    assert np.array_equal(after.top_logprobs[good], before.top_logprobs[good])


def test_rows_of_every_kind_share_one_batch_and_draw_as_alone(sampler: Sampler) -> None:
    kinds = [
        {},
        {"temperature": 0.0},
        {"top_k": 3},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"top_k": 70, "top_p": 0.5},
    ]
    logits = torch.randn(len(kinds), 2000) * 2
    single = [draws(1, first=index, **fields) for index, fields in enumerate(kinds)]
    names = ("temperature", "top_k", "top_p", "min_p", "top_logprobs", "keys")
    together = Draws(**{name: np.concatenate([getattr(one, name) for one in single]) for name in names})
    alone = [sampler(logits[index : index + 1], one).token_id[0] for index, one in enumerate(single)]
    assert sampler(logits, together).token_id.tolist() == alone


def test_equal_logits_at_the_cut_are_kept_by_id(tiny_artifact: Path) -> None:
    """Torch leaves their order open; the native sampler must not, or a draw would depend on its machine."""
    needs_native()
    engine: Any = load_engine(tiny_artifact, replace(TINY_CONFIG, threads=2))
    drawn = engine.forward.draw(torch.zeros(400, 300), draws(400, top_k=7))
    assert set(drawn.token_id.tolist()) == set(range(7))
    drawn = engine.forward.draw(torch.zeros(400, 300), draws(400, top_p=0.0299))
    assert set(drawn.token_id.tolist()) == set(range(9))
