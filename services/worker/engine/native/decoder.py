"""The forward in C++: weights are packed once, and a step is one call."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from services.worker.engine import rope
from services.worker.engine.blocks import BlockLoader
from services.worker.engine.errors import EngineError
from services.worker.engine.native import library
from services.worker.engine.native.build import NativeError
from services.worker.engine.native.library import (
    Format,
    MatrixKind,
    ModelShape,
    SampleInput,
    StepInput,
    VectorKind,
)
from services.worker.engine.native.pool import LANES
from services.worker.engine.sampling import GREEDY_BELOW, Drawn, logprobs_of
from services.worker.engine.spec import Dense

if TYPE_CHECKING:
    import numpy.typing as npt

    from services.worker.engine.batch import Batch
    from services.worker.engine.native.pool import NativePool
    from services.worker.engine.sampling import Draws
    from services.worker.engine.spec import ModelSpec
    from services.worker.engine.weights import Checkpoint

FORMATS = {"float32": Format.FLOAT32, "bfloat16": Format.BFLOAT16, "int8": Format.INT8}
_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
_STORED = {torch.float32: 0, torch.bfloat16: 1}
_GATED_UNIT, _BLOCK, _MOST_HEAD_DIM = 64, 32, 512


def check(spec: ModelSpec, page_size: int) -> None:
    """Raise `NativeError` for a model that the kernels do not cover."""
    if any(not isinstance(layer.feed_forward, Dense) for layer in spec.layers):
        raise NativeError("routed experts are computed by torch")
    if spec.hidden_size % LANES or spec.head_dim % LANES or spec.head_dim > _MOST_HEAD_DIM:
        raise NativeError(
            f"sizes {spec.hidden_size} and {spec.head_dim} are no multiples of {LANES} in range"
        )
    if page_size % LANES:
        raise NativeError(f"a page size of {page_size} is no multiple of {LANES}")


class Part(NamedTuple):
    """A weight within a packed matrix: its channels come in runs of 16, from `first` on every `spread`."""

    weight: torch.Tensor
    first: int
    spread: int


class _Scores(NamedTuple):
    """Rows of logits with each one's likeliest token, and whether all of its logits are finite."""

    logits: torch.Tensor
    likeliest: npt.NDArray[np.int64]
    finite: npt.NDArray[np.bool_]


class NativeDecoder:
    """A model over paged KV, as `Decoder`; the logits that a call returns hold until the next."""

    def __init__(
        self, spec: ModelSpec, weights: Checkpoint, pool: NativePool, *, dtype: str, threads: int
    ) -> None:
        self._library = library.load()
        self._spec = spec
        self._weights = weights
        self._pool = pool
        self._blocks = BlockLoader(spec, weights)
        self._format = FORMATS[dtype]
        self._embedding = weights.stored("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        self._space = torch.empty(0)
        self._last = _Scores(self._space, np.zeros(0, np.int64), np.zeros(0, np.bool_))
        self._model: int | None = self._library.loom_create(ctypes.byref(self._shape(dtype, threads)))
        if self._model is None:
            raise EngineError("no memory for the model")
        self._set_layers()
        for index in range(len(spec.layers)):
            self._load_layer(index)
        self._load_head()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.loom_destroy(self._model)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the sampled tokens, [sampled, vocabulary]; rows not wanted hold none."""
        count = len(batch.sampled)
        if len(self._space) < count:
            self._space = torch.empty(count, self._spec.vocab_size)
        last = self._last = _Scores(self._space[:count], np.zeros(count, np.int64), np.zeros(count, np.bool_))
        tables = np.ascontiguousarray(batch.page_tables)
        step = StepInput(
            tokens=len(batch.token_ids),
            rows=len(batch.counts),
            sampled=count,
            table_width=tables.shape[1],
            token_ids=library.pointer(batch.token_ids),
            positions=library.pointer(batch.positions),
            counts=library.pointer(batch.counts),
            page_tables=library.pointer(tables),
            sampled_at=library.pointer(batch.sampled),
            wanted=None if batch.wanted is None else batch.wanted.ctypes.data,
            logits=last.logits.data_ptr(),
            likeliest=last.likeliest.ctypes.data,
            finite=last.finite.ctypes.data,
        )
        self._must(self._library.loom_step(self._model, ctypes.byref(step)))
        return last.logits

    def products(self, rows: int) -> None:
        """Compute a step's products of so many rows and nothing else, to learn what they cost alone."""
        self._must(self._library.loom_products(self._model, rows))

    def draw(self, logits: torch.Tensor, draws: Draws) -> Drawn:
        """As `sampling.draw`, of the same distributions; the tokens of a seed are others.

        Of the very tensor that the last call returned the likeliest are known, so greedy rows need not have
        been wanted; of any other logits they are looked for.
        """
        known = self._last if logits is self._last.logits else _looked_through(logits.contiguous())
        logits, token_id, finite = known.logits, known.likeliest.copy(), known.finite
        if (draws.temperature >= GREEDY_BELOW).any():
            asked = (draws.temperature, draws.top_p, draws.min_p, draws.top_k, draws.keys, finite, token_id)
            columns = [np.ascontiguousarray(column) for column in asked]
            sample = SampleInput(
                len(logits), logits.shape[1], logits.data_ptr(), *(column.ctypes.data for column in columns)
            )
            self._must(self._library.loom_sample(self._model, ctypes.byref(sample)))
        return Drawn(finite, token_id, *logprobs_of(logits, token_id, draws.top_logprobs))

    def _shape(self, dtype: str, threads: int) -> ModelShape:
        spec, pool = self._spec, self._pool
        precision = torch.float32 if dtype == "float32" else torch.bfloat16
        return ModelShape(
            hidden=spec.hidden_size,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            layers=len(spec.layers),
            vocabulary=spec.vocab_size,
            page_size=pool.page_size,
            threads=threads,
            format=self._format,
            activation=_ACTIVATIONS[spec.activation],
            embedding_stored=_STORED[self._embedding.dtype],
            norm_epsilon=spec.norm_eps,
            # The reference multiplies by a number of the weights' precision.
            embedding_scale=torch.tensor(spec.embedding_scale, dtype=precision).item(),
            attention_scale=spec.attention_scale,
            attention_cap=spec.attention_cap or 0,
            logit_cap=spec.logit_cap or 0,
            embedding=self._embedding.data_ptr(),
            pool=pool.data.data_ptr(),
            layer_bytes=pool.data[0].nbytes,
        )

    def _set_layers(self) -> None:
        ropes = list(dict.fromkeys(layer.rope for layer in self._spec.layers))
        for each in ropes:
            frequencies = rope.inverse_frequencies(each, self._spec.head_dim).contiguous()
            self._library.loom_add_rope(self._model, frequencies.data_ptr())
        for index, layer in enumerate(self._spec.layers):
            inner: Any = layer.feed_forward
            self._library.loom_set_layer(
                self._model, index, inner.inner, ropes.index(layer.rope), layer.window or 0
            )

    def _load_layer(self, index: int) -> None:
        spec, prefix = self._spec, f"model.layers.{index}"
        heads, kv, hidden = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.hidden_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        inner = spec.layers[index].feed_forward.inner
        self._join(index, MatrixKind.QKV, attention, {"q": heads, "k": kv, "v": kv}, hidden)
        self._join(index, MatrixKind.ATTENTION_OUT, attention, {"o": hidden}, heads)
        self._interleave(index, mlp, inner)
        self._join(index, MatrixKind.DOWN, mlp, {"down": hidden}, inner)
        self._load_biases(index, attention, mlp)
        for kind, norm in self._blocks.norms(index).items():
            self._vector(index, VectorKind[kind], norm)

    def _load_biases(self, index: int, attention: str, mlp: str) -> None:
        spec, inner = self._spec, self._spec.layers[index].feed_forward.inner
        heads, kv, hidden = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.hidden_size
        if spec.qkv_bias:
            parts = [self._bias(attention, name, size) for name, size in (("q", heads), ("k", kv), ("v", kv))]
            self._vector(index, VectorKind.QKV_BIAS, torch.cat(parts))
        if spec.attention_out_bias:
            self._vector(index, VectorKind.ATTENTION_OUT_BIAS, self._bias(attention, "o", hidden))
        if spec.mlp_bias:
            gate, up = (_padded(self._bias(mlp, name, inner), _GATED_UNIT) for name in ("gate", "up"))
            both = torch.stack((gate.view(-1, LANES), up.view(-1, LANES)), 1)
            self._vector(index, VectorKind.GATE_UP_BIAS, both.view(-1))
            self._vector(index, VectorKind.DOWN_BIAS, self._bias(mlp, "down", hidden))

    def _load_head(self) -> None:
        spec, last = self._spec, len(self._spec.layers) - 1
        self._vector(last, VectorKind.FINAL_NORM, self._blocks.norm("model.norm", spec.hidden_size))
        shape = (spec.vocab_size, spec.hidden_size)
        head = self._embedding if spec.tied_head else self._weights.stored("lm_head.weight", *shape)
        self._pack(last, MatrixKind.HEAD, spec.vocab_size, [Part(head, 0, LANES)])

    def _join(self, layer: int, kind: MatrixKind, module: str, parts: dict[str, int], width: int) -> None:
        """One after the other."""
        placed, first = [], 0
        for name, rows in parts.items():
            weight = self._weights.stored(f"{module}.{name}_proj.weight", rows, width)
            placed.append(Part(weight, first, LANES))
            first += rows
        self._pack(layer, kind, first, placed)

    def _interleave(self, layer: int, module: str, inner: int) -> None:
        """Gate and up channels alternate in runs of 16."""
        shape = (inner, self._spec.hidden_size)
        parts = [
            Part(self._weights.stored(f"{module}.{name}_proj.weight", *shape), first, 2 * LANES)
            for first, name in ((0, "gate"), (LANES, "up"))
        ]
        self._pack(layer, MatrixKind.GATE_UP, 2 * -(-inner // _GATED_UNIT) * _GATED_UNIT, parts)

    def _pack(self, layer: int, kind: MatrixKind, channels: int, parts: list[Part]) -> None:
        inputs = parts[0].weight.shape[1]
        held = self._format
        if held is Format.INT8 and all(self.in_levels(part.weight) for part in parts):
            held = Format.INT4  # the source had no more
        self._must(self._library.loom_shape_matrix(self._model, layer, kind, held, channels, inputs))
        for weight, first, spread in parts:
            self._must(self._library.loom_pack(self._model, layer, kind, *_source(weight), first, spread))

    def in_levels(self, weight: torch.Tensor) -> bool:
        """Whether four bits hold a weight as well as bfloat16 does, in blocks of 32 each with two numbers."""
        return bool(self._library.loom_in_levels(self._model, *_source(weight)))

    def _bias(self, module: str, name: str, size: int) -> torch.Tensor:
        return self._weights.take(f"{module}.{name}_proj.bias", size, dtype=torch.float32)

    def _vector(self, layer: int, kind: VectorKind, values: torch.Tensor) -> None:
        values = _padded(values.contiguous(), _BLOCK)
        self._library.loom_set_vector(self._model, layer, kind, values.data_ptr(), len(values), len(values))

    def _must(self, failed: int) -> None:
        if failed:
            raise MemoryError("the native engine has no memory")


def _looked_through(logits: torch.Tensor) -> _Scores:
    return _Scores(logits, logits.argmax(-1).numpy(), logits.isfinite().all(-1).numpy())


def _source(weight: torch.Tensor) -> tuple[int, int, int, int]:
    return weight.data_ptr(), _STORED[weight.dtype], *weight.shape


def _padded(values: torch.Tensor, multiple: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % multiple))
