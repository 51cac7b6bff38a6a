"""Paged attention in Triton against torch, under the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from bench.gpu_cases import Case, heads_of, make_case
from services.worker.engine.gpu import attention
from services.worker.engine.gpu.attention import Tuning
from services.worker.engine.gpu.step import build_step

CPU = torch.device("cpu")
SMALL = Tuning(keys=32, lines=16, warps=4, stages=2)
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one head each": {"heads": 2, "kv_heads": 2},
    "three heads share": {"heads": 9, "kv_heads": 3},
    "one KV head": {"heads": 4, "kv_heads": 1, "head_dim": 32},
    "head of no power of two": {"head_dim": 24},
    "small head": {"head_dim": 8},
    "capped": {"attention_cap": 5.0, "attention_scale": 2.0},
    "small pages": {"page_size": 4},
    "large pages": {"page_size": 64},
    "odd pages": {"page_size": 12},
    "bfloat16": {"dtype": torch.bfloat16},
}
DECODING = [(1, 150), (1, 64), (1, 1)]
MIXED = [(1, 40), (11, 11), (9, 45)]


def attended(case: Case, window: int = 0, splits: int | None = None, tuning: Tuning = SMALL) -> torch.Tensor:
    heads = heads_of(case.spec)
    step = build_step(case.batch, CPU, attention.tile_queries(heads, tuning))
    out = case.qkv.new_full((len(case.qkv), heads.count * heads.dim), torch.nan)
    layer = case.pool.data[0]
    if step.singles:
        attention.decode(case.qkv, layer, step, heads, window=window, out=out, tuning=tuning, splits=splits)
    if step.tiles is not None:
        attention.prefill(case.qkv, layer, step, heads, window=window, out=out, tuning=tuning)
    return out


def check(case: Case, found: torch.Tensor, window: int | None = None) -> None:
    tolerance = 2e-2 if found.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(found, case.expected(window), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("splits", [1, 4])
def test_decoding_rows_attend_as_in_torch(shape: str, splits: int) -> None:
    case = make_case(DECODING, **SHAPES[shape])
    check(case, attended(case, splits=splits))


@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_beside_decoding_rows_attend_as_in_torch(shape: str) -> None:
    case = make_case(MIXED, **SHAPES[shape])
    check(case, attended(case))


@pytest.mark.parametrize("window", [1, 24, 100])
def test_a_window_is_cut_off_as_in_torch(window: int) -> None:
    case = make_case(MIXED)
    check(case, attended(case, window, splits=2), window)


def test_pages_before_a_window_are_not_read() -> None:
    case = make_case([(1, 150), (3, 150)])
    expected = case.expected(24)
    unseen = (150 - 3 - 24 + 1) // 16
    for row in case.batch.page_tables:
        case.pool.data[:, row[:unseen]] = torch.nan
    torch.testing.assert_close(attended(case, 24, splits=4), expected, atol=2e-6, rtol=2e-6)


def test_more_splits_than_blocks_change_nothing() -> None:
    case = make_case([(1, 40), (1, 3)])
    check(case, attended(case, splits=16))


def test_the_sizes_in_use_attend_as_in_torch() -> None:
    case = make_case([(1, 90), (12, 20)])
    tuning = attention.prefill_tuning(float32=True)
    step = build_step(case.batch, CPU, attention.tile_queries(heads_of(case.spec), tuning))
    check(case, attention.attend(case.qkv, case.pool.data[0], step, heads_of(case.spec), 0))


@pytest.mark.parametrize("splits", [1, 4])
def test_a_nan_in_a_row_reaches_its_own_output_and_no_other(splits: int) -> None:
    case = make_case(DECODING)
    case.pool.data[0, case.batch.page_tables[1, 0], 1, 3] = torch.nan
    found = attended(case, splits=splits)
    assert found[1].isnan().any()
    assert not found[[0, 2]].isnan().any()


@pytest.mark.parametrize(("rows", "kv_heads"), [(1, 8), (8, 8), (64, 8), (256, 1)])
def test_few_rows_are_split_into_more_parts(rows: int, kv_heads: int) -> None:
    splits = attention.splits_for(rows, kv_heads)
    assert splits == 64 or rows * kv_heads * splits >= 528 > rows * kv_heads * splits // 2
