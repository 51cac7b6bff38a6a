"""`make mutants`: apply each planted bug to a copy of the tree, and see that it is caught."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
SEEDS = "160"
_SUITE = re.compile(r"^Suite: (.+)$", re.MULTILINE)


class Verdict(NamedTuple):
    """What came of one planted bug."""

    name: str
    caught_by: list[str]
    seconds: float


def copy_tree(target: Path) -> None:
    """Copy what git knows of, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def apply(patch: Path, tree: Path, *options: str) -> str:
    """Apply a patch; returns what git has against it."""
    command = ["git", "apply", *options, str(patch)]
    return subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True).stderr


def plant(patch: Path) -> Verdict:
    """Plant one bug and say what catches it."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if complaint := apply(patch, tree):
            raise SystemExit(f"{patch.name} does not apply any more:\n{complaint}")
        said = [_simulation(tree), *(_suite(tree, one.split()) for one in _SUITE.findall(patch.read_text()))]
    return Verdict(patch.stem, [one for one in said if one], time.perf_counter() - started)


def _simulation(tree: Path) -> str:
    command = ["-m", "tests.simulation", "--seeds", SEEDS, "--fail-fast"]
    output = _python(tree, command).stdout
    found = re.search(r"^seed \d+ BROKEN: .*$", output, re.MULTILINE)
    return f"simulation: {found[0]}" if found else ""


def _suite(tree: Path, paths: list[str]) -> str:
    """What fails first; a suite that cannot run catches nothing."""
    run = _python(tree, ["-m", "pytest", "-x", "-q", "--no-header", *paths])
    found = re.search(r"^FAILED (\S+)", run.stdout, re.MULTILINE)
    return f"test: {found[1]}" if run.returncode == 1 and found else ""


def _python(tree: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=tree, check=False, capture_output=True, text=True)


def main() -> int:
    """Plant every bug, or those that are named; 1 when one is not caught."""
    parser = argparse.ArgumentParser(prog="make mutants ARGS=...", description=__doc__)
    parser.add_argument("names", nargs="*", help="patches without .patch; all by default")
    names = parser.parse_args().names
    missed = []
    for patch in PATCHES:
        if names and patch.stem not in names:
            continue
        verdict = plant(patch)
        sys.stdout.write(f"{verdict.name} ({verdict.seconds:.0f} s)\n")
        for caught in verdict.caught_by or ["NOT CAUGHT"]:
            sys.stdout.write(f"    {caught[:200]}\n")
        sys.stdout.flush()
        missed += [] if verdict.caught_by else [verdict.name]
    sys.stdout.write(f"not caught: {', '.join(missed)}\n" if missed else "every planted bug is caught\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
