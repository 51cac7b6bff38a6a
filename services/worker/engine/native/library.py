"""The shared library's functions and structures, as services/worker/native declares them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

from services.worker.engine.native.build import NativeError, library

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_Ints = POINTER(c_int64)


class Format(IntEnum):
    """How numbers are kept; the last is of weights only."""

    FLOAT32, BFLOAT16, INT8, INT4 = range(4)


class MatrixKind(IntEnum):
    """A layer's packed weights; the head is one of the last layer's."""

    QKV, ATTENTION_OUT, GATE_UP, DOWN, HEAD = range(5)


class VectorKind(IntEnum):
    """A layer's norms and biases; the final norm is one of the last layer's."""

    (
        ATTENTION_NORM,
        QUERY_NORM,
        KEY_NORM,
        ATTENTION_OUT_NORM,
        MLP_NORM,
        MLP_OUT_NORM,
        QKV_BIAS,
        ATTENTION_OUT_BIAS,
        GATE_UP_BIAS,
        DOWN_BIAS,
        FINAL_NORM,
    ) = range(11)


class ModelShape(ctypes.Structure):
    """`ModelShape` of model.h."""

    _fields_ = (
        *(
            (name, c_int32)
            for name in (
                *("hidden", "heads", "kv_heads", "head_dim", "layers", "vocabulary", "page_size", "threads"),
                *("format", "activation", "embedding_stored"),
            )
        ),
        *(
            (name, c_float)
            for name in ("norm_epsilon", "embedding_scale", "attention_scale", "attention_cap", "logit_cap")
        ),
        ("embedding", c_void_p),
        ("pool", c_void_p),
        ("layer_bytes", c_int64),
    )


class StepInput(ctypes.Structure):
    """`StepInput` of step.h."""

    _fields_ = (
        *((name, c_int32) for name in ("tokens", "rows", "sampled", "table_width")),
        *((name, _Ints) for name in ("token_ids", "positions", "counts", "page_tables", "sampled_at")),
        *((name, c_void_p) for name in ("wanted", "logits", "likeliest", "finite")),
    )


class SampleInput(ctypes.Structure):
    """`SampleInput` of sampling.h."""

    _fields_ = (
        ("rows", c_int32),
        ("vocabulary", c_int32),
        *(
            (name, c_void_p)
            for name in ("logits", "temperature", "top_p", "min_p", "top_k", "keys", "finite", "token_ids")
        ),
    )


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "loom_create": (c_void_p, (POINTER(ModelShape),)),
    "loom_destroy": (None, (c_void_p,)),
    "loom_add_rope": (None, (c_void_p, c_void_p)),
    "loom_set_layer": (None, (c_void_p, c_int, c_int, c_int, c_int)),
    "loom_set_vector": (None, (c_void_p, c_int, c_int, c_void_p, c_int, c_int)),
    "loom_in_levels": (c_int, (c_void_p, c_void_p, c_int, c_int, c_int)),
    "loom_shape_matrix": (c_int, (c_void_p, c_int, c_int, c_int, c_int, c_int)),
    "loom_pack": (c_int, (c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_int, c_int, c_int)),
    "loom_sample": (c_int, (c_void_p, POINTER(SampleInput))),
    "loom_products": (c_int, (c_void_p, c_int)),
    "loom_step": (c_int, (c_void_p, POINTER(StepInput))),
}


@cache
def load() -> ctypes.CDLL:
    """Load the library for this processor, building it if need be; raises `NativeError`."""
    path = library()
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (returns, takes) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = returns, takes
    except (OSError, AttributeError) as error:
        raise NativeError(f"{path} cannot be loaded: {error}") from error
    return loaded


def pointer(values: npt.NDArray[np.int64]) -> ctypes._Pointer[c_int64]:
    """The numbers of a contiguous array, which must outlive the call they are for."""
    return values.ctypes.data_as(_Ints)
