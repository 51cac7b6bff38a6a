"""`python -m bench.plots`: the latest results of each bench as bars, in docs/plots."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.client import median
from bench.results import DIRECTORY

PLOTS = Path(__file__).parents[1] / "docs" / "plots"
_LABEL, _BARS, _VALUE, _LINE, _TOP = 330, 380, 110, 22, 48
_COLOURS = ("#4878a8", "#c8783c", "#5a9a5a", "#8a8a8a")


class Bar(NamedTuple):
    """One bar: what, how much, and which of the colours."""

    label: str
    value: float
    colour: int = 0


def svg(title: str, unit: str, bars: list[Bar]) -> str:
    """Horizontal bars from zero, each with its value."""
    most = max(bar.value for bar in bars)
    width, height = _LABEL + _BARS + _VALUE, _TOP + _LINE * len(bars) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="26" font-size="15" font-weight="bold">{escape(title)} ({escape(unit)})</text>',
    ]
    for number, bar in enumerate(bars):
        top, length = _TOP + number * _LINE, _BARS * bar.value / most
        colour = _COLOURS[bar.colour % len(_COLOURS)]
        lines += [
            f'<text x="{_LABEL - 8}" y="{top + 13}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_LINE - 6}" fill="{colour}"/>',
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 13}">{bar.value:,.4g}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def engine(result: dict[str, Any]) -> str:
    """The least time of decode steps, by precision."""
    bars = []
    for figure in result["figures"]["engine"]:
        dtype, _, name = figure["name"].partition(": decode step, ")
        if name.endswith(", least"):
            bars.append(Bar(f"{dtype}, {name.removesuffix(', least')}", figure["value"], dtype == "int8"))
    return svg("A decode step, the engine alone", "ms, the least of 20", bars)


def profile(result: dict[str, Any]) -> str:
    """CPU of a step by process."""
    bars = [
        Bar(f"{one['streams']} streams, {kind}", value, number)
        for one in result["profiles"]
        for number, (kind, value) in enumerate(one["cpu_ms_a_step"].items())
    ]
    return svg(f"CPU of a step, {result['dtype']}", "ms", bars)


def peers(result: dict[str, Any]) -> str:
    """Output tokens a second of every server, medians."""
    servers = list(result["figures"])
    workloads = list(result["figures"][servers[0]])
    bars = [
        Bar(f"{work}: {server}", median(result["figures"][server][work])["output_tok_s"], number)
        for work in workloads
        for number, server in enumerate(servers)
    ]
    return svg("Output tokens, whole path", "tok/s", bars)


_DRAWN = {"ours": ("engine", engine), "profile": ("profile", profile), "peers": ("peers", peers)}


def main() -> None:
    """Draw what there are results of."""
    PLOTS.mkdir(exist_ok=True)
    for bench, (name, draw) in _DRAWN.items():
        results = [json.loads(path.read_text()) for path in sorted(DIRECTORY.glob(f"{bench}-*.json"))]
        whole = [one for one in results if bench != "ours" or "engine" in one["figures"]]
        if whole:
            (PLOTS / f"{name}.svg").write_text(draw(whole[-1]))
            print(f"drew {name}.svg from the run of {whole[-1]['time']}")


if __name__ == "__main__":
    main()
