"""A generation seen from outside: its text and numbers made again from the scheduler's record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.gateway.app.ports import State, Verdict
from services.gateway.core.choice import ChoiceAssembler, rebuild
from services.gateway.core.outcome import Closed, Timings, close

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.app.ports import ChoiceRecord, KeptRecord
    from services.gateway.core.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class OwnVerdict:
    """How this gateway closed a request, with the times that only it knows."""

    output_tokens: Sequence[int]
    closed: Closed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State, output so far and, once an owner closed it, the terminal record."""

    state: State
    model_version: str
    choices: Sequence[ChoiceAssembler]
    closed: Closed | None
    vocabulary: Vocabulary


def snapshot_of(record: KeptRecord, vocabulary: Vocabulary, own: OwnVerdict | None = None) -> Snapshot:
    """Text is a pure function of the tokens that the owner kept."""
    verdict = record.verdict
    if own is not None:
        verdict = Verdict(own.closed.finish_reason, own.output_tokens)
    choices = [
        _choice(choice, number, record.stop, verdict, vocabulary)
        for number, choice in enumerate(record.choices)
    ]
    if verdict is None:
        state = State.RUNNING if record.state is State.FINISHED else record.state
        return Snapshot(state, record.model_version, choices, None, vocabulary)
    closed = own.closed if own is not None else _closed(record, verdict)
    return Snapshot(State.FINISHED, record.model_version, choices, closed, vocabulary)


def _choice(
    kept: ChoiceRecord, number: int, stop: tuple[str, ...], verdict: Verdict | None, vocabulary: Vocabulary
) -> ChoiceAssembler:
    tokens, reason = kept.tokens, kept.reason
    if verdict is not None:
        tokens, reason = tokens[: verdict.output_tokens[number]], reason or verdict.reason
    return rebuild(vocabulary, stop, tokens, reason, choice=number)


def _closed(record: KeptRecord, verdict: Verdict) -> Closed:
    return close(
        [verdict.reason],
        verdict.output_tokens,
        Timings(received=0.0, ended=0.0, queue_s=record.queue_s),
        input_tokens=record.input_tokens,
        cached_tokens=record.cached_tokens,
    )
