"""`python -m bench.plots`: the latest results of each bench as bars, in docs/plots."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.client import median
from bench.peers.workloads import WORKLOADS
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


def rates(result: dict[str, Any]) -> str:
    """Output tokens a second of every server, medians over rounds."""
    return svg("Output tokens, whole path", "tok/s", _medians(result, "output_tok_s", 1.0))


def first_tokens(result: dict[str, Any]) -> str:
    """How long every server's first token takes, medians over rounds of the median request."""
    return svg("First token, whole path", "s", _medians(result, "ttft_p50_ms", 1e-3))


def _medians(result: dict[str, Any], figure: str, scale: float) -> list[Bar]:
    servers = result["figures"]
    return [
        Bar(f"{work}: {server}", median(rounds)[figure] * scale, number)
        for work in next(iter(servers.values()))
        for number, server in enumerate(servers)
        if (rounds := servers[server][work])
    ]


_DRAWN = {
    "engine": ("ours", engine),
    "profile": ("profile", profile),
    "peers": ("peers", rates),
    "peers-first-token": ("peers", first_tokens),
}


def drawable(bench: str, result: dict[str, Any]) -> bool:
    """Whether a result has what its plots show, all of it."""
    if bench == "ours":
        return "engine" in result["figures"]
    return bench != "peers" or {work.name for work in WORKLOADS} <= set(
        next(iter(result["figures"].values()))
    )


def main() -> None:
    """Draw what there are results of: the latest whole run of each bench."""
    PLOTS.mkdir(exist_ok=True)
    for name, (bench, draw) in _DRAWN.items():
        results = [json.loads(path.read_text()) for path in sorted(DIRECTORY.glob(f"{bench}-*.json"))]
        if whole := [one for one in results if drawable(bench, one)]:
            (PLOTS / f"{name}.svg").write_text(draw(whole[-1]))
            print(f"drew {name}.svg from the run of {whole[-1]['time']}")
        else:
            print(f"no {name}.svg: no whole run of {bench} is kept")


if __name__ == "__main__":
    main()
