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


@dataclass(slots=True)
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
    """Turns a choice's tokens into text: `feed` for every committed token, `end` once.

    Nothing is queued: what a reader has yet to get is the tail of `records` beyond its `Cursor`.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = (), *, choice: int = 0) -> None:
        self.choice = choice
        self.records: list[TokenRecord] = []
        self.finish_reason: FinishReason | None = None
        self.error_reason = ""
        self.silent = False  # that it ended, and with which token, is nobody's to hear yet
        self.tail = ""  # text beyond the last token's, known at the end
        self._vocabulary, self._stop = vocabulary, stop
        self._stopped = False  # by a stop string that was found here
        self._detokenizer = Detokenizer(vocabulary)
        self._matcher = StopMatcher(stop)

    def feed(self, tokens: Iterable[NewToken]) -> bool:
        """Take committed tokens in order; True when one of them completed a stop string.

        The choice has then ended with STOP, in silence until another `knows`: whoever closed it in our place
        would bill what comes beyond, which is discarded here. Tokens of an ended choice are ignored.
        """
        for token in tokens:
            if self.finish_reason is not None:
                return False
            scan = self._matcher.feed(self._detokenizer.feed(token.token_id))
            self.records.append(TokenRecord(token.token_id, scan.text, token.logprob, token.top))
            if scan.stopped:
                self.finish_reason = FinishReason.STOP
                self._stopped = self.silent = True
                return True
        return False

    @property
    def unheard_of(self) -> bool:
        """Whether it ended with a stop string that is not known to the scheduler yet."""
        return self._stopped and self.silent

    def knows(self, reason: FinishReason, count: int) -> None:
        """Another has ended the choice for this reason after `count` tokens."""
        if self._stopped and reason is FinishReason.STOP and count == len(self.records):
            self.silent = False

    def end(self, reason: FinishReason, error_reason: str = "") -> None:
        """End the choice and release the text held back; the first end wins, later ones do nothing."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        self.error_reason = error_reason
        scan = self._matcher.feed(self._detokenizer.flush())
        self.tail = scan.text + self._matcher.flush()

    def cut(self, count: int, reason: FinishReason, error_reason: str = "") -> None:
        """End as another decided: after `count` tokens at most, whatever was fed beyond or found in them."""
        self._start_again(self.tokens[:count], reason)
        self.end(reason, error_reason)

    def keep(self, tokens: Sequence[NewToken], reason: FinishReason) -> None:
        """End with exactly these tokens: whoever closed the request billed them, stop strings or not."""
        self._start_again(tokens, reason)
        self.end(reason)

    def _start_again(self, tokens: Sequence[NewToken], reason: FinishReason) -> None:
        as_found = not self._stopped or reason is FinishReason.STOP
        if len(self.records) == len(tokens) and as_found:
            return
        self.records.clear()
        self.finish_reason, self.tail, self._stopped = None, "", False
        self._detokenizer = Detokenizer(self._vocabulary)
        self._matcher = StopMatcher(self._stop, passing=True)
        self.feed(tokens)

    @property
    def tokens(self) -> list[NewToken]:
        """The tokens kept, as they were fed."""
        return [NewToken(record.token_id, record.logprob, record.top) for record in self.records]

    @property
    def output_tokens(self) -> int:
        """Tokens kept."""
        return len(self.records)

    @property
    def audible(self) -> int:
        """Tokens that readers may have."""
        return len(self.records) - self.unheard_of

    @property
    def token_ids(self) -> list[int]:
        """Ids of the tokens kept."""
        return [record.token_id for record in self.records]

    @property
    def text(self) -> str:
        """All text that is certain."""
        return "".join([record.text for record in self.records]) + self.tail


class Cursor:
    """One reader's place in one choice."""

    __slots__ = ("_chars", "_choice", "_said_end", "_taken")

    def __init__(self, choice: ChoiceAssembler, from_index: int = 0) -> None:
        """`from_index` is the first token wanted; those before it may still be to come."""
        self._choice = choice
        self._taken = from_index
        self._chars: int | None = None
        self._said_end = False

    @property
    def waiting(self) -> bool:
        """Whether `take` would return a piece."""
        choice = self._choice
        if choice.finish_reason is not None and not choice.silent:
            return not self._said_end
        return self._taken < choice.audible

    @property
    def _end(self) -> FinishReason | None:
        return None if self._choice.silent else self._choice.finish_reason

    def take(self) -> Piece | None:
        """Everything not yet taken, as one piece; None when there is nothing to say."""
        if not self.waiting:
            return None
        choice, start, end = self._choice, self._taken, self._end
        if self._chars is None:
            self._chars = sum([len(record.text) for record in choice.records[:start]])
        tokens = tuple(choice.records[start : choice.audible])
        text = "".join([record.text for record in tokens])
        if end is not None:
            # Whoever is beyond the end has more text than there is.
            text += choice.tail if start <= len(choice.records) else ""
            self._said_end = True
        piece = Piece(choice.choice, start, text, self._chars, tokens, end)
        self._taken = start + len(tokens)
        self._chars += len(text)
        return piece


def rebuild(
    vocabulary: Vocabulary,
    stop: Sequence[str],
    tokens: Sequence[NewToken],
    reason: FinishReason | None,
    *,
    choice: int = 0,
    closed: bool = False,
) -> ChoiceAssembler:
    """A choice from its kept tokens: equal to the one that was streamed. `reason` None: still running.

    Once its request is `closed`, every kept token is output; until then a stop string counts once it is kept.
    """
    assembler = ChoiceAssembler(vocabulary, stop, choice=choice)
    if assembler.feed(tokens) and reason is None:
        return rebuild(vocabulary, stop, assembler.tokens[:-1], None, choice=choice)
    if reason is not None and closed:
        assembler.keep(tokens, reason)
    elif reason is not None:
        assembler.end(reason)
    return assembler
