"""Matrix products with weights laid out once, at load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from collections.abc import Callable

    Linear = Callable[[torch.Tensor], torch.Tensor]

# More than the alternatives that a caller may ask for.
_REFINED = 32


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return x -> x @ weight.T + bias, packed for oneDNN where this machine has it for that precision."""
    if weight.device.type == "cpu" and _packs(weight.dtype):
        return _packed(weight, bias)
    return lambda x: F.linear(x, weight, bias)


def make_head(weight: torch.Tensor) -> Linear:
    """Return x -> float32 logits [rows, vocabulary] of an output head [vocabulary, hidden].

    A bfloat16 product rounds a logit of 20 by up to 0.06, so the likeliest are computed again in float32.
    """
    product = make_linear(weight)
    if weight.dtype == torch.float32:
        return product

    def logits(x: torch.Tensor) -> torch.Tensor:
        rough = product(x).float()
        ids = rough.topk(min(_REFINED, rough.shape[1]), dim=-1, sorted=False).indices
        refined = torch.bmm(F.embedding(ids, weight).float(), x.float()[:, :, None])
        return rough.scatter_(1, ids, refined[:, :, 0])

    return logits


def _packs(dtype: torch.dtype) -> bool:
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    operation: Any = torch.ops.mkldnn._linear_pointwise.default
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    no_scalars: list[float] = []
    return lambda x: operation(x, packed, bias, "none", no_scalars, "")
