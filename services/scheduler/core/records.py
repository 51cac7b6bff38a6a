"""What is kept of every accepted request: its tokens, its ends and its owner's verdict."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.scheduler.core.messages import (
    ChoiceEnded,
    Effect,
    FinishReason,
    Logprobs,
    Output,
    RequestEnded,
    TokenCommitted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORD_BYTES = 512
TOKEN_BYTES = 4
LOGPROB_BYTES = 120
TOP_LOGPROB_BYTES = 100
WIRE_TOKEN_BYTES, WIRE_LOGPROB_BYTES = 5, 14
TOMBSTONES = 100_000


@dataclass(frozen=True, slots=True)
class Order:
    """What a request was accepted with, beside what its lane needs."""

    request_id: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    runtime_revision: str
    prompt_tokens: int
    spec: bytes  # opaque here: what another owner needs to carry on
    accepted_at: float  # monotonic seconds
    opened_time: float  # seconds since the epoch
    deadline: float | None = None  # monotonic seconds
    resume_lease_s: float = 0.0  # how long it lives on without an owner
    owner_epoch: int = 0  # highest epoch of an earlier ownership
    opened: bool = True  # callers were told of it, or may be without another word


@dataclass(slots=True)
class ChoiceLog:
    """The tokens of one choice; `logprobs` is empty or as long as `token_ids`."""

    token_ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[Logprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error_reason: str = ""

    def copy(self) -> ChoiceLog:
        """Return what it is now."""
        return ChoiceLog(self.token_ids[:], self.logprobs[:], self.finish_reason, self.error_reason)

    def keep(self, count: int) -> None:
        """Drop all tokens from number `count` on."""
        del self.token_ids[count:]
        del self.logprobs[count:]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the owner closed the request; times in microseconds, `ttft_us` 0 without a token."""

    owner_epoch: int
    finish_reason: FinishReason
    output_tokens: tuple[int, ...]
    input_tokens: int = 0
    cached_tokens: int = 0
    queue_us: int = 0
    ttft_us: int = 0
    total_us: int = 0
    error_reason: str = ""
    choice_reasons: tuple[FinishReason, ...] = ()


@dataclass(slots=True)
class Record:
    """One request's record."""

    order: Order
    choices: list[ChoiceLog]
    first_token_at: float | None = None
    end: RequestEnded | None = None
    verdict: Verdict | None = None
    opened: bool = True  # callers may have been told of it

    def copy(self) -> Record:
        """Return what it is now."""
        choices = [choice.copy() for choice in self.choices]
        return Record(self.order, choices, self.first_token_at, self.end, self.verdict, self.opened)

    def wire_bytes(self) -> int:
        """Return the most bytes that a message with this record takes."""
        size = RECORD_BYTES + 2 * len(self.order.spec)  # which holds the text spec: it is sent twice
        for choice in self.choices:
            size += WIRE_TOKEN_BYTES * len(choice.token_ids)
            size += sum(WIRE_LOGPROB_BYTES * (1 + len(entry.top)) for entry in choice.logprobs)
        return size

    def size_bytes(self) -> int:
        """Estimate the memory this record takes."""
        size = RECORD_BYTES + len(self.order.spec)
        for choice in self.choices:
            size += TOKEN_BYTES * len(choice.token_ids)
            size += sum(LOGPROB_BYTES + TOP_LOGPROB_BYTES * len(entry.top) for entry in choice.logprobs)
        return size


class Records:
    """All records: live ones until they are settled, settled ones for a retention under a byte cap."""

    def __init__(self, retention_s: float, max_bytes: int) -> None:
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._records: dict[int, Record] = {}
        self._settled: dict[int, tuple[float, int]] = {}  # request -> (settled at, bytes), oldest first
        self._settled_bytes = 0
        self._tombstones: dict[int, str] = {}  # request -> tenant, oldest first

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._records or request_id in self._tombstones

    def open(self, order: Order, output: Iterable[Output]) -> Record:
        """Begin the record of an accepted request with the output of each choice so far."""
        choices = [
            ChoiceLog(array("i", one.token_ids), list(one.logprobs), one.finish_reason, one.error_reason)
            for one in output
        ]
        record = Record(order, choices, opened=order.opened)
        if any(choice.token_ids for choice in choices):
            record.first_token_at = order.accepted_at
        self._records[order.request_id] = record
        return record

    def get(self, request_id: int) -> Record | None:
        """Return a record whosever it is; for the platform itself."""
        return self._records.get(request_id)

    def find(self, request_id: int, tenant_id: str) -> Record:
        """Return a tenant's record; others' requests do not exist, expired ones are said to be so."""
        record = self._records.get(request_id)
        if record is not None and record.order.tenant_id == tenant_id:
            return record
        if self._tombstones.get(request_id) == tenant_id:
            raise ServiceError(
                Code.FAILED_PRECONDITION, "RESULT_EXPIRED", f"results are kept for {self._retention_s:g} s"
            )
        raise not_found()

    def unsettled(self) -> list[Record]:
        """Return the records that still have an owner."""
        return [record for record in self._records.values() if record.verdict is None]

    def apply(self, effect: Effect, now: float) -> None:
        """Note what a lane did to a request."""
        record = self._records.get(effect.request_id)
        if record is None or record.verdict is not None:
            return
        if isinstance(effect, TokenCommitted):
            _, number, index, token_id, logprobs = effect
            choice = record.choices[number]
            choice.token_ids.append(token_id)
            if logprobs is not None and len(choice.logprobs) == index:
                choice.logprobs.append(logprobs)
            if record.first_token_at is None:
                record.first_token_at = now
        elif isinstance(effect, ChoiceEnded):
            choice = record.choices[effect.choice]
            choice.keep(effect.output_tokens)
            choice.finish_reason = effect.reason
            choice.error_reason = effect.error_reason
        else:
            record.end = effect

    def settle(self, request_id: int, verdict: Verdict, now: float) -> None:
        """Note how a request was closed and start its retention."""
        record = self._records[request_id]
        record.verdict = verdict
        for choice, kept in zip(record.choices, verdict.output_tokens, strict=False):
            choice.keep(kept)
        for choice, reason in zip(record.choices, verdict.choice_reasons, strict=False):
            choice.finish_reason = reason
        size = record.size_bytes()
        self._settled[request_id] = (now, size)
        self._settled_bytes += size
        self.expire(now)

    def expire(self, now: float) -> None:
        """Forget settled records past their retention, and the oldest ones beyond the byte cap."""
        while self._settled:
            request_id, (settled_at, size) = next(iter(self._settled.items()))
            if now - settled_at < self._retention_s and self._settled_bytes <= self._max_bytes:
                return
            del self._settled[request_id]
            self._settled_bytes -= size
            self._bury(self._records.pop(request_id))

    def _bury(self, record: Record) -> None:
        self._tombstones[record.order.request_id] = record.order.tenant_id
        if len(self._tombstones) > TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]


def not_found() -> ServiceError:
    """The refusal of an id that the tenant cannot know."""
    return ServiceError(Code.NOT_FOUND, "NOT_FOUND", "no such request")
