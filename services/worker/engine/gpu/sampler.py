"""How tokens are drawn on the device: one transfer there, a few kernels, one transfer back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from services.worker.engine.gpu.attention import power_of_two
from services.worker.engine.gpu.kernels import sampling as kernels
from services.worker.engine.sampling import GREEDY_BELOW, Drawn, draw, logprobs_of

if TYPE_CHECKING:
    from services.worker.engine.batch import Ints
    from services.worker.engine.sampling import Bools, Draws

_BLOCK = 2048
# Candidates of a row that limits what is kept; one that keeps more is drawn by the reference.
_WIDTH = 1024


class GpuSampler:
    """Draws as `services.worker.engine.sampling.draw` does: the same token, where a row limits what is kept.

    A row that keeps every token gives each its own noise, with no stand-in for the less likely: the same
    distribution, other tokens.
    """

    def __call__(self, logits: torch.Tensor, draws: Draws) -> Drawn:
        """Return what each row of float32 [rows, vocabulary] drew; waits for the device once."""
        token_id, settled, finite = _draw(logits, draws)
        rows = np.flatnonzero(finite & ~settled)
        if len(rows):
            picked = logits[torch.from_numpy(rows).to(logits.device)]
            token_id[rows] = draw(picked, draws.at(rows)).token_id
        return Drawn(finite, token_id, *logprobs_of(logits, token_id, draws.top_logprobs))


def _draw(logits: torch.Tensor, draws: Draws) -> tuple[Ints, Bools, Bools]:
    """Token, whether it is settled, and whether all logits are finite: three [rows]."""
    rows, vocabulary = logits.shape
    device = logits.device
    kinds = _kinds(draws)
    asked = _send(draws, kinds, device)
    whole = asked.view(torch.int64)
    temperature, top_p, min_p, kind, top_k, keys = *asked[:3], *whole[3:]
    block = min(_BLOCK, power_of_two(vocabulary))
    blocks = -(-vocabulary // block)
    most, mass = torch.empty(2, rows, blocks, dtype=torch.float32, device=device)
    likeliest, drawn = torch.empty(2, rows, blocks, dtype=torch.int32, device=device)
    score = torch.empty(rows, blocks, dtype=torch.float64, device=device)
    parts = (most, likeliest, mass, score, drawn)
    kernels.scan[(rows, blocks)](
        logits, kind, temperature, keys, *parts, VOCABULARY=vocabulary, BLOCK=block, num_warps=8
    )
    width = min(_WIDTH, vocabulary)
    # Rows that need no candidates read none.
    candidates, candidate_ids = logits, likeliest
    if (kinds == kernels.LIMITED.value).any():
        candidates, candidate_ids = logits.topk(width, dim=-1)
    result = torch.empty(3, rows, dtype=torch.int64, device=device)
    kernels.choose[(rows,)](
        kind,
        temperature,
        top_k,
        top_p,
        min_p,
        keys,
        *parts,
        candidates,
        candidate_ids,
        *result,
        blocks,
        BLOCKS=power_of_two(blocks),
        VOCABULARY=vocabulary,
        WIDTH=width,
        BLOCK_W=power_of_two(width),
    )
    token_id, settled, finite = result.cpu().numpy()
    return token_id, settled.astype(bool), finite.astype(bool)


def _kinds(draws: Draws) -> Ints:
    greedy = draws.temperature < GREEDY_BELOW
    kept = np.where(draws.whole, kernels.WHOLE.value, kernels.LIMITED.value)
    kinds: Ints = np.where(greedy, kernels.GREEDY.value, kept)
    return kinds


def _send(draws: Draws, kinds: Ints, device: torch.device) -> torch.Tensor:
    """All columns in one transfer: three of float64, then the bits of three of int64."""
    whole = np.stack((kinds, draws.top_k, draws.keys.view(np.int64)))
    columns = np.stack((draws.temperature, draws.top_p, draws.min_p, *whole.view(np.float64)))
    tensor = torch.from_numpy(columns)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
