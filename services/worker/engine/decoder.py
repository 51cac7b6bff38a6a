"""The forward of every family: blocks that differ by what their `ModelSpec` says, over paged KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from services.worker.engine.attention import Group, attend, plan_groups
from services.worker.engine.blocks import BlockLoader
from services.worker.engine.linear import make_head
from services.worker.engine.rope import inverse_frequencies, rotate_, rotation

if TYPE_CHECKING:
    from services.worker.engine.batch import Batch, Ints
    from services.worker.engine.blocks import Block
    from services.worker.engine.kv import PagePool
    from services.worker.engine.rope import RopeSpec
    from services.worker.engine.spec import ModelSpec
    from services.worker.engine.weights import Checkpoint


@dataclass(frozen=True, slots=True)
class View:
    """How the layers of one kind see a step: their rotation, and the pages inside their window."""

    cos: torch.Tensor
    sin: torch.Tensor
    groups: list[Group]


class Decoder:
    """A model over paged KV. The residual stream is float32, products are in the engine's precision."""

    def __init__(self, spec: ModelSpec, weights: Checkpoint, pool: PagePool) -> None:
        self._spec = spec
        self._pool = pool
        self._dtype = weights.dtype
        kinds = dict.fromkeys((layer.rope, layer.window) for layer in spec.layers)
        self._kinds = [(self._frequencies(rope, weights.device), window) for rope, window in kinds]
        self._kind_of = [list(kinds).index((layer.rope, layer.window)) for layer in spec.layers]
        shape = (spec.vocab_size, spec.hidden_size)
        self._embedding = weights.take("model.embed_tokens.weight", *shape)
        # The reference multiplies by a number of the weights' precision.
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=self._dtype).item()
        blocks = BlockLoader(spec, weights)
        self._blocks = [blocks.load(index) for index in range(len(spec.layers))]
        self._norm = blocks.norm("model.norm", spec.hidden_size)
        head = self._embedding if spec.tied_head else weights.take("lm_head.weight", *shape)
        self._head = make_head(head)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the sampled tokens: [sampled, vocabulary]."""
        written = self._pool.vector_index(batch.cells)
        views = self._views(batch)
        x = F.embedding(self._on_device(batch.token_ids), self._embedding).float()
        x *= self._embedding_scale
        for index, block in enumerate(self._blocks):
            normed = self._normed(x, block.attention_norm)
            out = self._attention(index, block, normed, views[self._kind_of[index]], written)
            x += self._out_normed(out, block.attention_out_norm)
            out = block.mlp(self._normed(x, block.mlp_norm))
            x += self._out_normed(out, block.mlp_out_norm)
        logits = self._head(self._normed(x[self._on_device(batch.sampled)], self._norm))
        cap = self._spec.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _views(self, batch: Batch) -> list[View]:
        positions, shared = self._on_device(batch.positions), self._spec.heads // self._spec.kv_heads
        return [
            View(
                *rotation(positions, frequencies, self._dtype),
                groups=plan_groups(batch, self._pool, shared, window),
            )
            for frequencies, window in self._kinds
        ]

    def _attention(
        self, index: int, block: Block, x: torch.Tensor, view: View, written: torch.Tensor
    ) -> torch.Tensor:
        spec = self._spec
        heads = block.qkv(x).view(len(x), -1, spec.head_dim)
        turned = heads[:, : spec.heads + spec.kv_heads]
        if block.head_norm is not None:
            turned.copy_(self._rms(turned.float()) * block.head_norm)
        rotate_(turned, view.cos, view.sin)
        self._pool.write(index, written, heads[:, spec.heads :])
        queries, scale, cap = heads[:, : spec.heads], spec.attention_scale, spec.attention_cap
        return block.attention_out(attend(queries, self._pool, index, view.groups, scale=scale, cap=cap))

    def _rms(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self._spec.norm_eps)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._rms(x, weight).to(self._dtype)

    def _out_normed(self, out: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return out if weight is None else self._rms(out.float(), weight)

    def _frequencies(self, rope: RopeSpec, device: str) -> torch.Tensor:
        return inverse_frequencies(rope, self._spec.head_dim).to(device)

    def _on_device(self, values: Ints) -> torch.Tensor:
        return torch.from_numpy(values).to(self._embedding.device)
