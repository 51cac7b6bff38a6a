"""Resident sequences as columns, one row per slot: tokens, progress, page tables, sampling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from services.worker.engine.noise import row_keys
from services.worker.engine.sampling import GREEDY_BELOW, Draws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.worker.engine.batch import Bools, Ints
    from tokenloom.api.worker.v1 import worker_pb2

MAX_TOP_LOGPROBS = 20


class SlotTable:
    """What the worker knows of its sequences. A slot out of range, or not live, is nobody's."""

    def __init__(
        self,
        *,
        slot_count: int,
        page_count: int,
        page_size: int,
        context_length: int,
        vocab_size: int,
        max_step_tokens: int,
    ) -> None:
        self.page_size = page_size
        self.page_count = page_count
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._max_step_tokens = max_step_tokens
        self.live = np.zeros(slot_count, bool)
        self.tokens = np.zeros((slot_count, context_length), np.int32)
        self.known = np.zeros(slot_count, np.int64)
        self.computed = np.zeros(slot_count, np.int64)
        self.pages = np.zeros((slot_count, -(-context_length // page_size)), np.int32)
        self.page_total = np.zeros(slot_count, np.int64)
        self._temperature = np.zeros(slot_count)
        self._top_k = np.zeros(slot_count, np.int64)
        self._top_p = np.zeros(slot_count)
        self._min_p = np.zeros(slot_count)
        self._seed = np.zeros(slot_count, np.int64)
        self._choice = np.zeros(slot_count, np.int64)
        self._top_logprobs = np.zeros(slot_count, np.int64)

    def drop(self, slots: Sequence[int]) -> None:
        """Release slots; one that is already free stays so."""
        for slot in slots:
            if 0 <= slot < len(self.live):
                self.live[slot] = False

    def add(self, sequence: worker_pb2.Sequence) -> str | None:
        """Make a sequence resident, or say why not."""
        slot = sequence.slot
        if not 0 <= slot < len(self.live):
            return "SLOT_OUT_OF_RANGE"
        if self.live[slot]:
            return "SLOT_IN_USE"
        tokens = np.array(sequence.token_ids, np.int64)
        pages = np.array(sequence.pages, np.int64)
        if reason := self._refusal(sequence, tokens, pages):
            return reason
        self.live[slot] = True
        self.tokens[slot, : len(tokens)] = tokens
        self.known[slot], self.computed[slot] = len(tokens), sequence.computed_len
        self.pages[slot, : len(pages)], self.page_total[slot] = pages, len(pages)
        self._set_sampling(slot, sequence)
        return None

    def _refusal(self, sequence: worker_pb2.Sequence, tokens: Ints, pages: Ints) -> str | None:
        if not 0 < len(tokens) <= self._context_length:
            return "LENGTH_OUT_OF_RANGE"
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            return "TOKEN_OUT_OF_RANGE"
        if len(pages) > self.pages.shape[1] or ((pages < 0) | (pages >= self.page_count)).any():
            return "PAGE_OUT_OF_RANGE"
        if (
            not 0 <= sequence.computed_len < len(tokens)
            or sequence.computed_len > len(pages) * self.page_size
        ):
            return "COMPUTED_OUT_OF_RANGE"
        return None if _samples_well(sequence.sampling) else "SAMPLING_OUT_OF_RANGE"

    def _set_sampling(self, slot: int, sequence: worker_pb2.Sequence) -> None:
        sampling = sequence.sampling
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p or 1.0
        self._min_p[slot] = sampling.min_p
        self._seed[slot] = sampling.seed
        self._choice[slot] = sequence.choice
        self._top_logprobs[slot] = sampling.top_logprobs if sampling.HasField("top_logprobs") else -1

    def grow(self, slot: int, page: int) -> str | None:
        """Append a page to a slot's table, or say why not."""
        if not (0 <= slot < len(self.live) and self.live[slot]):
            return "SLOT_EMPTY"
        position = self.page_total[slot]
        if not 0 <= page < self.page_count or position >= self.pages.shape[1]:
            return "PAGE_OUT_OF_RANGE"
        self.pages[slot, position] = page
        self.page_total[slot] += 1
        return None

    def refusals(self, slots: Ints, counts: Ints) -> dict[int, str]:
        """Say which rows cannot run, by position, and why."""
        inside = (slots >= 0) & (slots < len(self.live))
        safe = np.where(inside, slots, 0)
        end = self.computed[safe] + counts
        repeated = np.ones(len(slots), np.bool_)
        repeated[np.unique(slots, return_index=True)[1]] = False
        checks = {
            "SLOT_OUT_OF_RANGE": ~inside,
            "SLOT_EMPTY": ~self.live[safe],
            "SLOT_REPEATED": repeated,
            "COUNT_OUT_OF_RANGE": (counts < 1) | (end > self.known[safe]),
            "STEP_TOO_LARGE": np.cumsum(np.maximum(counts, 0)) > self._max_step_tokens,
            "PAGES_MISSING": end > self.page_total[safe] * self.page_size,
        }
        found: dict[int, str] = {}
        for reason, bad in checks.items():
            for row in np.flatnonzero(bad).tolist():
                found.setdefault(row, reason)
        return found

    def draws(self, slots: Ints) -> Draws:
        """How the next token of each slot is drawn."""
        return Draws(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            top_logprobs=self._top_logprobs[slots],
            keys=row_keys(self._seed[slots], self._choice[slots], self.known[slots]),
        )

    def wanted(self, slots: Ints) -> Bools:
        """Whether more than the likeliest token is asked of each slot's logits."""
        wanted: Bools = (self._temperature[slots] >= GREEDY_BELOW) | (self._top_logprobs[slots] >= 0)
        return wanted

    def append(self, slots: Ints, token_ids: Ints) -> None:
        """Make sampled tokens known; one beyond the context has no place and no successor."""
        fits = self.known[slots] < self._context_length
        slots, token_ids = slots[fits], token_ids[fits]
        self.tokens[slots, self.known[slots]] = token_ids
        self.known[slots] += 1


def _samples_well(sampling: worker_pb2.Sampling) -> bool:
    """Whether every field is in range; a missing top_p (0) keeps all."""
    return (
        math.isfinite(sampling.temperature)
        and sampling.temperature >= 0
        and sampling.top_k >= 0
        and 0 <= sampling.top_p <= 1
        and 0 <= sampling.min_p <= 1
        and 0 <= sampling.top_logprobs <= MAX_TOP_LOGPROBS
    )
