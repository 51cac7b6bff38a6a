"""One choice of a request: its token records, from which text, ids and log-probabilities all derive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from services.gateway.core.detokenize import Detokenizer
from services.gateway.core.outcome import FinishReason
from services.gateway.core.stops import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.gateway.core.vocabulary import Vocabulary


class Alternative(NamedTuple):
    """A likely token at a position."""

    token_id: int
    logprob: float


class NewToken(NamedTuple):
    """A committed token as the scheduler reports it; `logprob` is None when none were asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(slots=True)
class TokenRecord:
    """One output token and the text that became certain with it."""

    token_id: int
    text: str
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What a reader gets at once: tokens `index` .. `index + count - 1` of a choice and their text.

    The last piece of a choice carries its finish reason; it has no tokens when only text that was held
    back, or only the end, was left to say. `text_offset` counts the characters delivered before it.
    """

    choice: int
    index: int
    text: str
    text_offset: int
    tokens: tuple[TokenRecord, ...]
    finish_reason: FinishReason | None

    @property
    def count(self) -> int:
        """Tokens carried."""
        return len(self.tokens)


class ChoiceAssembler:
    """Turns a choice's tokens into text and pieces.

    The owner calls `feed` for every committed token and `end` once; the writer calls `take` whenever its
    reader can take more, and gets everything that waits as one piece. Nothing is queued twice: what
    waits is the tail of `records`.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = (), *, choice: int = 0) -> None:
        self.choice = choice
        self.records: list[TokenRecord] = []
        self.finish_reason: FinishReason | None = None
        self.error_reason = ""
        self._detokenizer = Detokenizer(vocabulary)
        self._matcher = StopMatcher(stop)
        self._tail = ""
        self._taken = 0
        self._taken_chars = 0
        self._said_end = False

    def feed(self, tokens: Iterable[NewToken]) -> bool:
        """Take committed tokens in order; True when one of them completed a stop string.

        The choice has then ended with STOP: `output_tokens` are kept, those beyond are discarded, and
        the scheduler is to be told. Tokens of an ended choice are ignored.
        """
        for token in tokens:
            if self.finish_reason is not None:
                return False
            scan = self._matcher.feed(self._detokenizer.feed(token.token_id))
            self.records.append(TokenRecord(token.token_id, scan.text, token.logprob, token.top))
            if scan.stopped:
                self.finish_reason = FinishReason.STOP
                return True
        return False

    def end(self, reason: FinishReason, error_reason: str = "") -> None:
        """End the choice and release the text held back; the first end wins, later ones do nothing."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        self.error_reason = error_reason
        scan = self._matcher.feed(self._detokenizer.flush())
        self._tail = scan.text + self._matcher.flush()

    def take(self) -> Piece | None:
        """Everything not yet taken, as one piece; None when there is nothing to say."""
        if not self.waiting:
            return None
        tokens = tuple(self.records[self._taken :])
        text = "".join([record.text for record in tokens])
        if self.finish_reason is not None:
            text += self._tail
            self._said_end = True
        piece = Piece(self.choice, self._taken, text, self._taken_chars, tokens, self.finish_reason)
        self._taken += len(tokens)
        self._taken_chars += len(text)
        return piece

    @property
    def waiting(self) -> bool:
        """Whether `take` would return a piece."""
        if self.finish_reason is not None:
            return not self._said_end
        return self._taken < len(self.records)

    @property
    def output_tokens(self) -> int:
        """Tokens kept."""
        return len(self.records)

    @property
    def token_ids(self) -> list[int]:
        """Ids of the tokens kept."""
        return [record.token_id for record in self.records]

    @property
    def text(self) -> str:
        """All text that is certain."""
        return "".join([record.text for record in self.records]) + self._tail


def rebuild(
    vocabulary: Vocabulary,
    stop: Sequence[str],
    tokens: Iterable[NewToken],
    reason: FinishReason | None,
    *,
    choice: int = 0,
) -> ChoiceAssembler:
    """A choice from its kept tokens: equal to the one that was streamed. `reason` None: still running."""
    assembler = ChoiceAssembler(vocabulary, stop, choice=choice)
    assembler.feed(tokens)
    if reason is not None:
        assembler.end(reason)
    return assembler
