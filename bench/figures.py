"""What a bench finds: named figures, some with a goal, and the table of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Figure:
    """A value in `unit`; its `goal` is the most it should be, or the least where `more` is better."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    more: bool = False

    @property
    def verdict(self) -> str:
        """Whether the goal is met; empty without one."""
        if self.goal is None:
            return ""
        return "met" if (self.value >= self.goal if self.more else self.value <= self.goal) else "missed"


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """How times lie: milliseconds, to a hundredth."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    shown = {"mean": statistics.fmean(seconds), "p50": cuts[49], "p99": cuts[98], "most": max(seconds)}
    return {f"{name}_ms": round(value * 1e3, 2) for name, value in shown.items()}


def table(figures: Sequence[Figure]) -> str:
    """One line a figure, goals beside."""
    width = max(len(figure.name) for figure in figures)
    return "\n".join(f"{figure.name:{width}} {_value(figure)}" for figure in figures)


def _value(figure: Figure) -> str:
    shown = f"{_rounded(figure.value):>10} {figure.unit:9}"
    if figure.goal is None:
        return shown.rstrip()
    return f"{shown} goal {'>=' if figure.more else '<='} {_rounded(figure.goal)}: {figure.verdict}"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
