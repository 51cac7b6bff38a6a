"""What an artifact's seal promises."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from kit import artifacts

if TYPE_CHECKING:
    from pathlib import Path

META = artifacts.ManifestMeta(
    name="tiny",
    family="llama",
    context_length=64,
    source="test",
    licence="mit",
    eos_token_ids=(2,),
    bos_token_id=1,
)
CONTENT = {"config.json": b"{}", "model.safetensors": b"\0" * 4096, "tokenizer.json": b"{}"}


def publish(models_dir: Path, content: dict[str, bytes] = CONTENT) -> Path:
    with artifacts.staging(models_dir) as staged:
        for name, data in content.items():
            (staged / name).write_bytes(data)
        manifest = artifacts.publish(staged, models_dir, META)
    return artifacts.locate(models_dir, manifest.model_version)


@pytest.mark.parametrize("file", sorted(CONTENT))
def test_a_flipped_byte_is_refused_by_file_name(tmp_path: Path, file: str) -> None:
    artifact = publish(tmp_path)
    data = bytearray((artifact / file).read_bytes())
    data[-1] ^= 1
    (artifact / file).write_bytes(data)
    with pytest.raises(artifacts.ArtifactError, match=f"{re.escape(file)}: was altered"):
        artifacts.verify(artifact)


def test_a_truncated_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    artifact = publish(tmp_path)
    (artifact / "model.safetensors").write_bytes(b"\0" * 4095)
    with pytest.raises(artifacts.ArtifactError, match=r"model\.safetensors: has 4095 bytes.* 4096"):
        artifacts.verify(artifact, ["model.safetensors"])


def test_a_manifest_that_is_nested_beyond_reason_is_refused_by_name(tmp_path: Path) -> None:
    directory = publish(tmp_path)
    (directory / artifacts.MANIFEST).write_text("[" * 100_000)
    with pytest.raises(artifacts.ArtifactError, match=r"manifest\.json: .*nested too deeply"):
        artifacts.load_manifest(directory)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    artifact = publish(tmp_path)
    (artifact / "tokenizer.json").unlink()
    with pytest.raises(artifacts.ArtifactError, match=r"tokenizer\.json: cannot be read"):
        artifacts.verify(artifact)


def test_a_file_that_was_slipped_in_is_refused(tmp_path: Path) -> None:
    artifact = publish(tmp_path)
    (artifact / artifacts.CHAT_TEMPLATE).write_text("{{ evil }}")
    with pytest.raises(artifacts.ArtifactError, match=r"chat_template\.jinja: is not in the manifest"):
        artifacts.verify(artifact)
    with pytest.raises(artifacts.ArtifactError, match="is not in the manifest"):
        artifacts.verify(artifact, [artifacts.CHAT_TEMPLATE])


def test_a_manifest_edited_to_match_altered_files_no_longer_carries_its_version(tmp_path: Path) -> None:
    artifact = publish(tmp_path)
    document = json.loads((artifact / artifacts.MANIFEST).read_text())
    document["eos_token_ids"] = [3]
    (artifact / artifacts.MANIFEST).write_text(json.dumps(document))
    with pytest.raises(artifacts.ArtifactError, match=r"manifest\.json: was altered"):
        artifacts.load_manifest(artifact)


def test_publishing_the_same_bytes_twice_is_one_version_left_untouched(tmp_path: Path) -> None:
    first = publish(tmp_path)
    inode = (first / "config.json").stat().st_ino
    assert publish(tmp_path) == first
    assert (first / "config.json").stat().st_ino == inode
    assert artifacts.versions(tmp_path) == [first]


def test_other_bytes_are_another_version_listed_after_the_older(tmp_path: Path) -> None:
    first = publish(tmp_path)
    second = publish(tmp_path, CONTENT | {"config.json": b"{ }"})
    assert artifacts.versions(tmp_path) == [first, second]


def test_a_version_does_not_depend_on_its_name(tmp_path: Path) -> None:
    shutil.copytree(publish(tmp_path / "a"), tmp_path / "copy")
    (tmp_path / "copy" / artifacts.MANIFEST).unlink()
    other = artifacts.write_manifest(tmp_path / "copy", META.model_copy(update={"name": "other"}))
    assert other.version == artifacts.versions(tmp_path / "a")[0].name


def test_an_import_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(artifacts.ArtifactError, match=r"model\.safetensors: is missing"):
        publish(tmp_path, {"config.json": b"{}", "tokenizer.json": b"{}"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        "../x@0123456789ab",
        "x@..",
        "x",
        "x@0123456789AB",
        ".x@0123456789ab",
        "x@0123456789ab/",
        "x.@0123456789ab",
        "a..b@0123456789ab",
    ],
)
def test_a_version_string_cannot_reach_outside_the_models_directory(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ValueError, match="is not `name@version`"):
        artifacts.locate(tmp_path, bad)
