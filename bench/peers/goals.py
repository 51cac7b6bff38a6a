"""What the figures of a run should come to, and whether they do."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

Figures = dict[str, dict[str, list[dict[str, float]]]]  # server -> workload -> one summary a round
OURS = "tokenloom "
_BEST, _EACH = "best precision", "each precision"
_RATE, _TTFT, _VLLM, _PEERS = "output_tok_s", "ttft_p50_ms", "vllm", "best peer"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of ours on one workload, over a peer's or the best peer's unless `beside` is empty.

    `ours` is a precision, the best of them, or each. More is better for a rate, less for all else.
    """

    work: str
    ours: str
    figure: str
    beside: str
    limit: float

    def judge(self, figures: Figures) -> list[Figure]:
        """The median over rounds for each server of ours that it is about; none of what was not measured."""
        ours = [name for name in figures if name.startswith(OURS)]
        if self.ours == _EACH:
            groups = {name.removeprefix(OURS): [name] for name in ours}
        else:
            groups = {self.ours: [name for name in ours if self.ours in {_BEST, name.removeprefix(OURS)}]}
        judged = {whose: self._rounds(figures, group) for whose, group in groups.items()}
        unit = f"x {self.beside}" if self.beside else ""
        return [
            Figure(
                f"{self.work}: {whose}, {self.figure}", statistics.median(found), unit, self.limit, self._more
            )
            for whose, found in judged.items()
            if found
        ]

    @property
    def _more(self) -> bool:
        return self.figure == _RATE

    def _rounds(self, figures: Figures, ours: Sequence[str]) -> list[float]:
        own = self._best(figures, ours)
        if not self.beside:
            return [value for value in own if value is not None]
        peers = [name for name in figures if not name.startswith(OURS)]
        beside = self._best(figures, [name for name in peers if self.beside in {_PEERS, name.split()[0]}])
        return [one / other for one, other in zip(own, beside, strict=False) if one is not None and other]

    def _best(self, figures: Figures, servers: Sequence[str]) -> list[float | None]:
        """The best of these servers, round by round; None where none has the figure."""
        series = [figures[server].get(self.work, []) for server in servers]
        pick = max if self._more else min
        best: list[float | None] = []
        for number in range(max(map(len, series), default=0)):
            values = [rounds[number].get(self.figure) for rounds in series if number < len(rounds)]
            best.append(pick((value for value in values if value is not None), default=None))
        return best


GOALS = (
    Goal("128/128, 1", _BEST, _RATE, _PEERS, 1.2),
    Goal("128/128, 8", "bfloat16", _RATE, _VLLM, 2.0),
    Goal("128/128, 8", _BEST, _RATE, _PEERS, 3.0),
    Goal("128/128, 32", "bfloat16", _RATE, _VLLM, 2.0),
    Goal("128/128, 32", _BEST, _RATE, _PEERS, 3.0),
    Goal("512/64, 8", "bfloat16", _RATE, _PEERS, 1.5),
    Goal("512/64, 8", _BEST, _RATE, _PEERS, 2.0),
    Goal("512/64, 8", _EACH, _TTFT, _PEERS, 0.5),
    Goal("shared 480, 8", _BEST, _RATE, _VLLM, 3.0),
    Goal("shared 480, 8", _EACH, _TTFT, "", 300.0),
    Goal("1480 among 8", _EACH, "gap_of_allowed", "", 1.0),
    Goal("1480 among 8", _EACH, "long_ttft_ms", _VLLM, 1.3),
)


def judge(figures: Figures) -> tuple[list[Figure], list[str]]:
    """The goals of the workloads that were run, and in words those that could not be judged."""
    run = {work for of in figures.values() for work in of}
    verdicts: list[Figure] = []
    unjudged: list[str] = []
    for goal in GOALS:
        if goal.work in run:
            found = goal.judge(figures)
            verdicts += found
            if not found:
                unjudged.append(f"{goal.work}: {goal.ours}, {goal.figure} x {goal.beside}: not measured")
    return verdicts, unjudged
