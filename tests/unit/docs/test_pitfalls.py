"""Every test that the list of pitfalls names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_pitfall_names_tests_that_exist():
    defined = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    known = {name for path in ROOT.glob("tests/**/test_*.py") for name in defined.findall(path.read_text())}
    rows = [
        line for line in (ROOT / "docs/pitfalls.md").read_text().splitlines() if " #" in line and "|" in line
    ]
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert len(rows) > 30
    assert [row for row, names in zip(rows, named, strict=True) if not names] == []
    assert {name for names in named for name in names} - known == set()
