"""The forward of every family on a GPU: as `services.worker.engine.decoder`, with fused kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from services.worker.engine.blocks import BlockLoader
from services.worker.engine.gpu import operations
from services.worker.engine.gpu.attention import Heads, attend, prefill_tuning, tile_queries
from services.worker.engine.gpu.graphs import DecodeGraphs, sizes_up_to
from services.worker.engine.gpu.step import build_step
from services.worker.engine.linear import make_head
from services.worker.engine.rope import inverse_frequencies
from services.worker.engine.spec import Dense

if TYPE_CHECKING:
    from services.worker.engine.batch import Batch
    from services.worker.engine.blocks import Block
    from services.worker.engine.gpu.graphs import Capture
    from services.worker.engine.gpu.pool import GpuPool
    from services.worker.engine.gpu.step import Step
    from services.worker.engine.linear import Linear
    from services.worker.engine.spec import ModelSpec
    from services.worker.engine.weights import Checkpoint


class GpuDecoder:
    """A model over paged KV. The residual stream is float32; logits hold until the next call."""

    def __init__(self, spec: ModelSpec, weights: Checkpoint, pool: GpuPool) -> None:
        self._spec = spec
        self._pool = pool
        self._device = pool.data.device
        self._dtype = weights.dtype
        cap = spec.attention_cap or 0.0
        self._heads = Heads(spec.heads, spec.kv_heads, spec.head_dim, spec.attention_scale, cap)
        self._tile = tile_queries(self._heads, prefill_tuning(float32=self._dtype == torch.float32))
        self._frequencies = [
            inverse_frequencies(layer.rope, spec.head_dim).to(self._device) for layer in spec.layers
        ]
        shape = (spec.vocab_size, spec.hidden_size)
        self._embedding = weights.take("model.embed_tokens.weight", *shape)
        # The reference multiplies by a number of the weights' precision.
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=self._dtype).item()
        blocks = BlockLoader(spec, weights, operations.FusedGated)
        self._blocks = [blocks.load(index) for index in range(len(spec.layers))]
        self._norm = blocks.norm("model.norm", spec.hidden_size)
        head = self._embedding if spec.tied_head else weights.take("lm_head.weight", *shape)
        self._head = _head(head)
        self._graphs: DecodeGraphs | None = None

    def record(self, rows: int, capture: Capture) -> None:
        """Record decode steps of up to `rows` rows, which are then replayed: the host launches one thing.

        A model with routed experts is not recorded, since the host must know who was routed where.
        """
        spec = self._spec
        if all(isinstance(layer.feed_forward, Dense) for layer in spec.layers):
            self._graphs = DecodeGraphs(
                self.forward,
                sizes_up_to(rows),
                table_width=-(-spec.context_length // self._pool.page_size),
                vocabulary=spec.vocab_size,
                device=self._device,
                capture=capture,
            )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the sampled tokens: float32 [sampled, vocabulary]."""
        if self._graphs is not None and self._graphs.fits(batch):
            return self._graphs(batch)
        return self.forward(build_step(batch, self._device, self._tile))

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Run a step; everything is queued on the device, nothing waited for."""
        x = F.embedding(step.token_ids, self._embedding).float()
        x *= self._embedding_scale
        normed = x.new_empty(x.shape, dtype=self._dtype)
        addend: torch.Tensor | None = None
        addend_norm: torch.Tensor | None = None
        for index, block in enumerate(self._blocks):
            self._add_norm(x, block.attention_norm, normed, addend, addend_norm)
            out = self._attention(index, block, normed, step)
            self._add_norm(x, block.mlp_norm, normed, out, block.attention_out_norm)
            addend, addend_norm = block.mlp(normed), block.mlp_out_norm
        assert addend is not None
        if step.sampled is not None:
            x, addend = x.index_select(0, step.sampled), addend.index_select(0, step.sampled)
            normed = normed[: len(x)]
        if not len(x):
            return x.new_empty(0, self._spec.vocab_size)
        logits = self._head(self._add_norm(x, self._norm, normed, addend, addend_norm))
        cap = self._spec.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attention(self, index: int, block: Block, normed: torch.Tensor, step: Step) -> torch.Tensor:
        qkv, layer, heads = block.qkv(normed), self._pool.data[index], self._heads
        operations.rotate_and_write(
            qkv,
            layer,
            step,
            heads,
            self._frequencies[index],
            head_norm=block.head_norm,
            epsilon=self._spec.norm_eps,
        )
        window = self._spec.layers[index].window or 0
        return block.attention_out(attend(qkv, layer, step, heads, window))

    def _add_norm(
        self,
        stream: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        addend: torch.Tensor | None,
        addend_norm: torch.Tensor | None,
    ) -> torch.Tensor:
        epsilon = self._spec.norm_eps
        return operations.add_norm(stream, weight, out, epsilon, addend=addend, addend_norm=addend_norm)


def _head(weight: torch.Tensor) -> Linear:
    """As `make_head`; a GPU hands out the float32 sums of a bfloat16 product, so none is computed again."""
    if weight.device.type == "cpu" or weight.dtype == torch.float32:
        return make_head(weight)
    return lambda x: torch.mm(x, weight.t(), out_dtype=torch.float32)
