"""The feed-forward part of a block: one gated product, or routed experts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.worker.engine.linear import Linear
    from services.worker.engine.spec import Experts

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class Gated:
    """x -> down(activation(gate(x)) * up(x)); gate and up are one product."""

    def __init__(self, gate_up: Linear, down: Linear, activation: str) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(ACTIVATIONS[self._activation](gate).mul_(up))


class Routed:
    """Experts of which a router picks some for each token; tokens are grouped by expert."""

    def __init__(self, spec: Experts, router: torch.Tensor, experts: Sequence[Gated]) -> None:
        self._spec = spec
        self._router = router
        self._experts = experts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> float32 [tokens, hidden]."""
        share, chosen = self._route(x)
        picks = chosen.flatten()
        order = picks.argsort()
        rows = x[order // self._spec.chosen]
        loads = torch.bincount(picks, minlength=self._spec.count).tolist()
        parts = torch.split_with_sizes(rows, loads)
        done = [expert(part) for expert, part in zip(self._experts, parts, strict=True) if len(part)]
        # Each token's parts are summed in the order of its choices, whatever the rest of the batch chose.
        out = torch.empty_like(rows).index_copy_(0, order, torch.cat(done))
        return (out.view(*chosen.shape, -1) * share[:, :, None]).sum(1)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Share and number of each token's experts, likeliest first: two [tokens, chosen]."""
        likely = F.linear(x.float(), self._router).softmax(-1)
        share, chosen = likely.topk(self._spec.chosen, dim=-1)
        if self._spec.normalised:
            share = share / share.sum(-1, keepdim=True)
        return share, chosen
