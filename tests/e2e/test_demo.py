"""The newcomer's first command: an answer, its bill, and nothing left behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tokenloom.up.layout import environment


def test_demo_streams_an_answer_shows_its_ledger_row_and_stops_everything(tmp_path, models_dir):
    (tmp_path / "models").symlink_to(models_dir)
    command = [sys.executable, "-m", "tokenloom.cli", "demo", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    request_id, inputs, outputs = re.search(
        r"; (\d+) in.*, (\d+) out;.*(gen-[0-9a-f]{16})\]", done.stderr
    ).group(3, 1, 2)
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith(request_id)]
    assert row[2:5] == [inputs, "0", outputs]
    assert row[5] == str(int(inputs) + int(outputs))
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mentions(path, tmp_path)]
    assert {path.name for path in tmp_path.iterdir()}.isdisjoint({"dev.env", "services.json", "run"})


def mentions(environ: Path, data_dir: Path) -> bool:
    try:
        return str(data_dir).encode() in environ.read_bytes()
    except OSError:
        return False
