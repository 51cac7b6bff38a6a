from pathlib import Path

import pytest

from tests.mutants.__main__ import PATCHES, ROOT, apply


def test_there_are_at_least_eight() -> None:
    assert len(PATCHES) >= 8


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_the_patch_still_applies(patch: Path) -> None:
    assert apply(patch, ROOT, "--check") == ""
