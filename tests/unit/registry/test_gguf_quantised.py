"""Quantised GGUF weights become the nearest bfloat16 of what their blocks mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from kit import artifacts
from services.registry.importers.source import SourceError
from services.registry.importing import import_model
from tests.unit.registry import ggml_reference
from tests.unit.registry.foreign import HIDDEN, INNER, GgufSpec, gguf_weights, read_weights, weights
from tests.unit.registry.test_gguf_import import import_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Kind = gguf.GGMLQuantizationType
DOWN, GGUF_DOWN = "model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"


def with_down(rows: NDArray[Any], kind: gguf.GGMLQuantizationType) -> GgufSpec:
    tensors = gguf_weights(weights())
    del tensors[GGUF_DOWN]
    return GgufSpec(tensors=tensors, raw={GGUF_DOWN: (rows, kind)})


def assert_nearest(imported: NDArray[np.float32], exact: NDArray[Any]) -> None:
    np.testing.assert_array_equal(imported == 0, exact == 0)
    imported, exact = imported[imported != 0], exact[exact != 0]
    for step in (-0x10000, 0x10000):
        neighbour = (imported.view(np.int32) + step).view(np.float32)
        slack = np.abs(exact) * 1e-6
        assert np.all(np.abs(imported - exact) <= np.abs(neighbour - exact) + slack)


@pytest.mark.parametrize("kind", ggml_reference.FORMATS, ids=lambda kind: kind.name)
def test_a_block_means_what_its_documentation_says(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    rows = ggml_reference.random_rows(kind, HIDDEN, INNER)
    dtype, imported = read_weights(import_gguf(tmp_path, with_down(rows, kind)) / artifacts.WEIGHTS)[DOWN]
    assert dtype == "BF16"
    assert_nearest(imported, ggml_reference.dequantised(rows, kind))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3_text"])
def test_every_matrix_of_a_quantised_model_is_rounded_once(
    tmp_path: Path, family: str, kind: gguf.GGMLQuantizationType
) -> None:
    imported = read_weights(import_gguf(tmp_path, GgufSpec(family, kind=kind)) / artifacts.WEIGHTS)
    for name, values in weights(family).items():
        if values.ndim == 1:
            np.testing.assert_array_equal(imported[name][1], values, err_msg=name)
            continue
        exact = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert imported[name][0] == "BF16"
        assert_nearest(imported[name][1], exact)


def test_rows_that_do_not_fit_the_type_are_refused_by_tensor(tmp_path: Path) -> None:
    path = with_down(ggml_reference.random_rows(Kind.Q4_K, HIDDEN, INNER), Kind.Q4_K).write(
        tmp_path / "tiny.gguf"
    )
    data = path.read_bytes()
    entry = data.index(GGUF_DOWN.encode()) + len(GGUF_DOWN) + 4
    path.write_bytes(data[:entry] + (INNER + 32).to_bytes(8, "little") + data[entry + 8 :])
    with pytest.raises(SourceError, match=rf"tensor {GGUF_DOWN}: rows of 288 values do not fit type Q4_K"):
        import_model(str(path), "tiny", tmp_path / "models", lambda _: None)
