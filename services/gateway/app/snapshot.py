"""A generation seen from outside: its text and numbers made again from the scheduler's record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.gateway.app.ports import State
from services.gateway.core.choice import ChoiceAssembler, rebuild

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.app.ports import KeptRecord
    from services.gateway.core.lane_messages import ChoiceRecord
    from services.gateway.core.outcome import Closed, Verdict
    from services.gateway.core.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State, output so far and, once an owner closed it, the terminal record."""

    state: State
    model_version: str
    choices: Sequence[ChoiceAssembler]
    closed: Closed | None
    vocabulary: Vocabulary


def snapshot_of(record: KeptRecord, vocabulary: Vocabulary, own: Verdict | None = None) -> Snapshot:
    """Text is a pure function of the tokens that the owner kept; `own` is this gateway's own verdict."""
    verdict = own or record.verdict
    choices = [
        _choice(choice, number, record.stop, verdict, vocabulary)
        for number, choice in enumerate(record.choices)
    ]
    state = record.state
    if verdict is not None:
        state = State.FINISHED
    elif state is State.FINISHED:
        state = State.RUNNING
    closed = None if verdict is None else verdict.closed
    return Snapshot(state, record.model_version, choices, closed, vocabulary)


def _choice(
    kept: ChoiceRecord, number: int, stop: tuple[str, ...], verdict: Verdict | None, vocabulary: Vocabulary
) -> ChoiceAssembler:
    tokens, reason = kept.tokens, kept.reason
    if verdict is not None:
        tokens = tokens[: verdict.output_tokens[number]]
        alone = len(verdict.output_tokens) == 1
        reasons = verdict.reasons or ((verdict.closed.finish_reason,) if alone else ())
        reason = reasons[number] if reasons else reason or verdict.closed.finish_reason
    return rebuild(vocabulary, stop, tokens, reason, choice=number, closed=verdict is not None)
