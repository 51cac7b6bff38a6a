"""Files that are not what was written: read right, or refused by name."""

from __future__ import annotations

import resource
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from kit import artifacts
from kit.artifacts import ArtifactError
from kit.journal import Journal
from services.gateway.core.tokenizing import ModelTokenizer
from services.registry.importers.gguf_model import open_gguf
from services.registry.importing import import_model
from services.worker.engine import EngineConfig
from services.worker.engine.errors import EngineError
from tests.fuzz.damage import damages, flip, spoil
from tests.unit.registry.foreign import FAMILIES, GgufSpec
from tests.unit.worker.engine_driver import TINY, seal

# After the driver, which sets torch's threads up.
from services.worker.engine.loader import load  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fuzz.damage import Edit
    from tests.fuzz.runner import Fuzzer

RECORDS = [bytes([65 + number]) * (5 + number * 7) for number in range(12)]
CONFIG = EngineConfig(dtype="float32", page_count=4, slot_count=1, threads=1)
BLOW_UP_KB = 400 << 10
places = st.floats(0, 1, exclude_max=True)


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < BLOW_UP_KB


def opened(path: Path) -> list[bytes]:
    journal = Journal(path)
    try:
        return [body for _, body in journal.open()]
    finally:
        journal.close()


def write_journal(path: Path) -> bytes:
    journal = Journal(path)
    journal.open()
    for start in range(0, len(RECORDS), 3):
        journal.append(RECORDS[start : start + 3])
    journal.close()
    return path.read_bytes()


def test_a_damaged_outbox_gives_records_that_were_written_and_takes_new_ones(
    tmp_path: Path, fuzz: Fuzzer
) -> None:
    path = tmp_path / "log"
    sound = write_journal(path)

    def check(edits: list[Edit]) -> None:
        path.write_bytes(spoil(sound, edits))
        try:
            found = opened(path)
        except ValueError as error:
            if str(path) not in str(error):
                raise
            return
        assert set(found) <= set(RECORDS)
        journal = Journal(path)
        journal.open()
        journal.append([b"new"])
        journal.close()
        assert opened(path) == [*found, b"new"]

    fuzz(damages(), check, cases=20)


def test_one_damaged_record_of_an_outbox_takes_no_other_with_it(tmp_path: Path, fuzz: Fuzzer) -> None:
    path = tmp_path / "log"
    sound = write_journal(path)
    header = sound.index(RECORDS[0]) - 8

    def check(change: tuple[float, int]) -> None:
        path.write_bytes(sound[:header] + flip(*change)(sound[header:]))
        assert len(opened(path)) == len(RECORDS) - 1

    fuzz(st.tuples(places, st.integers(1, 255)), check, cases=20)


def test_a_damaged_artifact_is_used_as_sealed_or_refused(tmp_path: Path, fuzz: Fuzzer) -> None:
    artifact = seal(TINY, tmp_path / "artifact")
    sound = {path.name: path.read_bytes() for path in artifact.iterdir()}
    expected = ModelTokenizer.load(artifact).encode_prompt("Hello")

    def check(case: tuple[str, list[Edit]]) -> None:
        name, edits = case
        path = artifact / name
        path.write_bytes(spoil(sound[name], edits))
        same = path.read_bytes() == sound[name]
        try:
            assert ModelTokenizer.load(artifact).encode_prompt("Hello") == expected
            load(artifact, CONFIG)
            assert same or name == artifacts.MANIFEST
        except (ArtifactError, EngineError):
            assert not same
        finally:
            path.write_bytes(sound[name])

    fuzz(st.tuples(st.sampled_from(sorted(sound)), damages()), check, cases=20)


def test_a_damaged_checkpoint_is_imported_or_refused_and_what_is_imported_can_be_read(
    tmp_path: Path, fuzz: Fuzzer
) -> None:
    source, models = tmp_path / "source", tmp_path / "models"
    shutil.copytree(TINY, source)
    (source / "expected.json").unlink()
    names = [artifacts.CONFIG, artifacts.TOKENIZER, artifacts.WEIGHTS]
    sound = {name: (source / name).read_bytes() for name in names}

    def check(case: tuple[str, list[Edit]]) -> None:
        name, edits = case
        (source / name).write_bytes(spoil(sound[name], edits))
        try:
            manifest = import_model(str(source), "tiny", models, lambda _: None)
            directory = artifacts.locate(models, manifest.model_version)
            ModelTokenizer.load(directory).encode_prompt("Hello")
            load(directory, CONFIG)
        except (ArtifactError, EngineError):
            pass
        finally:
            (source / name).write_bytes(sound[name])
            shutil.rmtree(models, ignore_errors=True)

    fuzz(st.tuples(st.sampled_from(names), damages()), check, cases=20)


def test_a_damaged_gguf_is_read_or_refused(tmp_path: Path, fuzz: Fuzzer) -> None:
    path = tmp_path / "tiny.gguf"
    sound = {family: GgufSpec(family).write(path).read_bytes() for family in FAMILIES}

    def check(case: tuple[str, list[Edit], bool]) -> None:
        family, edits, header = case
        data = sound[family]
        end = data.rindex(b"blk.") if header else len(data)
        path.write_bytes(spoil(data[:end], edits) + data[end:])
        try:
            for tensor in open_gguf(path, "gguf:tiny.gguf").tensors:
                assert sum(map(len, tensor.chunks())) == tensor.size_bytes
        except ArtifactError as error:
            if error.file != path:
                raise

    fuzz(st.tuples(st.sampled_from(sorted(sound)), damages(), st.booleans()), check, cases=20)
