"""`tokenloom models`: what was imported, and how, is what a data directory holds."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from kit import artifacts
from tokenloom.cli import main

SOURCE = str(Path(__file__).parents[2] / "data" / "engine" / "qwen2")


def test_rope_frequencies_reach_the_imported_version(tmp_path):
    command = ["models", "import", SOURCE, "--name", "tiny", "--data-dir", str(tmp_path)]
    assert CliRunner().invoke(main, [*command, "--rope-frequencies", "bfloat16"]).exit_code == 0
    (version,) = artifacts.versions(tmp_path / "models")
    assert json.loads((version / artifacts.CONFIG).read_text())["rope_frequencies"] == "bfloat16"


def test_unknown_rope_frequencies_are_refused_by_name(tmp_path):
    command = ["models", "import", SOURCE, "--name", "tiny", "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(main, [*command, "--rope-frequencies", "float16"])
    assert result.exit_code == 2
    assert "Invalid value for '--rope-frequencies': 'float16' is not one of" in result.output
    assert not any(tmp_path.iterdir())
