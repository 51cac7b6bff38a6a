"""The output of one request at one gateway: its choices, and everybody who reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway.core.choice import ChoiceAssembler
from services.gateway.core.lane_messages import ChoiceRecord
from services.gateway.core.outcome import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.core.choice import NewToken, TokenRecord
    from services.gateway.core.effects import Meter
    from services.gateway.core.outcome import Verdict
    from services.gateway.core.reader import Reader
    from services.gateway.core.vocabulary import Vocabulary


class Output:
    """Choices and readers, moved together. Times are monotonic seconds."""

    def __init__(self, meter: Meter) -> None:
        self.choices: list[ChoiceAssembler] = []
        self.readers: list[Reader] = []
        self.first_token: float | None = None
        self._meter = meter
        self._last_token: list[float] = []

    def open(self, vocabulary: Vocabulary, stop: Sequence[str], n: int) -> None:
        """Begin `n` choices; readers that came before get them now."""
        self.choices.extend(ChoiceAssembler(vocabulary, stop, choice=number) for number in range(n))
        self._last_token = [0.0] * n
        for reader in self.readers:
            reader.bind(self.choices)

    def join(self, reader: Reader) -> None:
        """Let one more read."""
        self.readers.append(reader)
        reader.bind(self.choices)

    def leave(self, reader: Reader) -> bool:
        """Let one go; True when it was the last."""
        if reader not in self.readers:
            return False
        self.readers.remove(reader)
        return not self.readers

    @property
    def running(self) -> bool:
        """Whether a choice has yet to end."""
        return any(choice.finish_reason is None for choice in self.choices)

    @property
    def started(self) -> bool:
        """Whether any token has come."""
        return any(choice.records for choice in self.choices)

    def feed(self, choice: int, index: int, token: NewToken) -> TokenRecord | None:
        """Take a token; None for one that is had already or that comes after the choice's end."""
        assembler = self.choices[choice]
        if assembler.finish_reason is not None or index != len(assembler.records):
            return None
        assembler.feed((token,))
        return assembler.records[-1]

    def measure(self, choice: int, now: float, received: float, *, ours: bool) -> None:
        """Note when a token came; only its owner meters it."""
        first, last = self.first_token is None, self._last_token[choice]
        if first:
            self.first_token = now
        if ours and first:
            self._meter.first_token(now - received)
        elif ours and last:
            self._meter.next_token(now - last)
        self._last_token[choice] = now

    def offer(self, record: TokenRecord, now: float) -> list[Reader]:
        """Tell the readers of a token; those who have left too much unread."""
        return [reader for reader in self.readers if not reader.offer(record, now)]

    def end(self, reason: FinishReason, error_reason: str = "", *, choice: int | None = None) -> None:
        """End one choice or all; the first end of each stands."""
        for assembler in self.choices if choice is None else [self.choices[choice]]:
            assembler.end(reason, error_reason)
        self.wake()

    def end_in_silence(self, reason: FinishReason) -> None:
        """End what runs, for reasons of our own: readers hear of it once nobody can say otherwise."""
        for assembler in self.choices:
            if assembler.finish_reason is None:
                assembler.end(reason)
                assembler.silent = True

    def speak(self) -> None:
        """Let readers hear of every end."""
        for assembler in self.choices:
            assembler.silent = False
        self.wake()

    def adopt(self, verdict: Verdict) -> None:
        """End every choice as its owner closed it."""
        for choice, kept, reason in zip(self.choices, verdict.output_tokens, verdict.reasons, strict=False):
            choice.cut(kept, reason, verdict.error_reason if reason is FinishReason.ERROR else "")
        self.end(verdict.closed.finish_reason, verdict.error_reason)

    def agrees(self, verdict: Verdict) -> bool:
        """Whether every choice has the tokens that it was closed with."""
        pairs = zip(self.choices, verdict.output_tokens, strict=False)
        return all(choice.output_tokens == kept for choice, kept in pairs)

    def close(self, now: float) -> None:
        """Nothing more will come."""
        for reader in self.readers:
            reader.close(now)

    def wake(self) -> None:
        """Tell the readers of an end."""
        for reader in self.readers:
            reader.wake()

    def records(self) -> tuple[ChoiceRecord, ...]:
        """All there is, for a scheduler to go on from."""
        return tuple(ChoiceRecord(choice.tokens, choice.finish_reason) for choice in self.choices)
