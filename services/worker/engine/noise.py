"""Sampling noise: a pure function of (seed, choice, position, token), whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(state: Keys) -> Keys:
    """SplitMix64's output function (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)."""
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


def row_keys(
    seed: npt.NDArray[np.int64], choice: npt.NDArray[np.int64], position: npt.NDArray[np.int64]
) -> Keys:
    """One key per row: [rows]."""
    key = _mix(seed.astype(np.uint64) + _GOLDEN)
    for part in (choice, position):
        key = _mix((key ^ part.astype(np.uint64)) + _GOLDEN)
    return key


def uniform(keys: Keys, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """A number in (0, 1) for each candidate: keys [rows], token ids [rows, candidates] or [candidates]."""
    bits = _mix(keys[:, None] + (token_ids.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gumbel(keys: Keys, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Gumbel noise of each candidate, as `uniform`."""
    return -np.log(-np.log(uniform(keys, token_ids)))


def second_keys(keys: Keys) -> Keys:
    """Keys for an independent second draw of the same rows."""
    return _mix(~keys)
