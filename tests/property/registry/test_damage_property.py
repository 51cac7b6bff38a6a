"""Whatever happens to a GGUF file's header, it is read or refused by name; nothing else comes out."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.registry.importers.gguf_model import open_gguf
from services.registry.importers.source import SourceError
from tests.unit.registry.foreign import FAMILIES, GgufSpec

if TYPE_CHECKING:
    from pathlib import Path

places = st.floats(0, 1, exclude_max=True)
damage = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_damaged_header_is_read_or_refused(tmp_path: Path, family: str) -> None:
    path = GgufSpec(family).write(tmp_path / "tiny.gguf")
    sound = path.read_bytes()
    header_bytes = sound.rindex(b"blk.")

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(damage, st.one_of(st.just(1.0), places))
    def damaged(changes: list[tuple[float, int]], kept: float) -> None:
        data = bytearray(sound)
        for place, byte in changes:
            data[int(place * header_bytes)] = byte
        path.write_bytes(data[: int(len(data) * kept)])
        with contextlib.suppress(SourceError):
            for tensor in open_gguf(path, "gguf:tiny.gguf").tensors:
                assert sum(map(len, tensor.chunks())) == tensor.size_bytes

    damaged()
