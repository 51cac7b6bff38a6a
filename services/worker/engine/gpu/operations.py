"""How the small kernels around the products are launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.engine.feed_forward import Gated
from services.worker.engine.gpu.attention import power_of_two
from services.worker.engine.gpu.kernels import activation, norm, rope

if TYPE_CHECKING:
    import torch

    from services.worker.engine.gpu.attention import Heads
    from services.worker.engine.gpu.step import Step

_GATED_BLOCK = 1024


def add_norm(
    stream: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    epsilon: float,
    *,
    addend: torch.Tensor | None = None,
    addend_norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add to the float32 stream [tokens, hidden], in place, and return its norm in `out`'s precision.

    An `addend_norm` is the weight with which the addend is normed before.
    """
    width = stream.shape[1]
    norm.add_norm[(len(stream),)](
        stream,
        stream if addend is None else addend,
        weight if addend_norm is None else addend_norm,
        weight,
        out,
        epsilon,
        WIDTH=width,
        BLOCK=power_of_two(width),
        ADDS=addend is not None,
        NORMS_ADDEND=addend_norm is not None,
        num_warps=8 if width > 2048 else 4,
    )
    return out


def rotate_and_write(
    qkv: torch.Tensor,
    layer: torch.Tensor,
    step: Step,
    heads: Heads,
    frequencies: torch.Tensor,
    *,
    head_norm: torch.Tensor | None,
    epsilon: float,
) -> None:
    """Norm (where there is a norm) and turn queries in place, and keys into their pages beside the values."""
    rope.rotate_and_write[(len(qkv),)](
        qkv,
        step.positions,
        step.cells,
        frequencies,
        frequencies if head_norm is None else head_norm,
        layer,
        epsilon,
        HEADS=heads.count,
        KV_HEADS=heads.kv_count,
        PAGE=layer.shape[2],
        HEAD_DIM=heads.dim,
        BLOCK_H=power_of_two(heads.count + 2 * heads.kv_count),
        BLOCK_HALF=power_of_two(heads.dim // 2),
        NORMS=head_norm is not None,
        num_warps=8,
    )


def gated(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    """[tokens, 2 * inner] -> activation(gate) * up: [tokens, inner]."""
    tokens, inner = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, inner)
    block = min(_GATED_BLOCK, power_of_two(inner))
    grid = (tokens, -(-inner // block))
    activation.gated[grid](gate_up, out, INNER=inner, BLOCK=block, GELU=gelu)
    return out


class FusedGated(Gated):
    """A gated feed-forward part whose activation and product with `up` are one kernel."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        return self._down(gated(self._gate_up(x), gelu=self._activation != "silu"))
