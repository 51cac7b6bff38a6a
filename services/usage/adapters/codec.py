"""Usage events: protos <-> ledger entries. What cannot be stored is refused here and blocks nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from google.protobuf.message import DecodeError

from services.usage.core.ledger import Closing, Entry, Renewal
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.inference.v1 import inference_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

_OPENED, _CLOSED, _RENEWED = "usage.v1.opened.", "usage.v1.closed.", "usage.v1.renewed"
_MAX_TEXT = 256
_MAX_SECONDS = 253_402_300_800  # the year 10000
_TEXTS = ("tenant_id", "model_version", "tokenizer_version", "runtime_revision")
_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "billable_tokens")
_DURATIONS = ("queue_ms", "ttft_ms", "total_ms")

_REASONS = frozenset(inference_pb2.FinishReason.values()) - {0}


class UnreadableEvent(Exception):  # noqa: N818
    """The event makes no ledger row; the message names what is wrong and quotes nothing."""


def decode(subject: str, payload: bytes, stored_us: int) -> Entry | Renewal:
    """Read the event that was published on `subject` and stored at `stored_us`."""
    try:
        if subject.startswith(_OPENED):
            return _entry(events_pb2.UsageOpened.FromString(payload), None)
        if subject.startswith(_CLOSED):
            closed = events_pb2.UsageClosed.FromString(payload)
            return _entry(closed.opened, _closing(closed))
        if subject == _RENEWED:
            return Renewal(frozenset(events_pb2.UsageRenewed.FromString(payload).request_id), stored_us)
    except DecodeError:
        raise UnreadableEvent("not a usage event") from None
    raise UnreadableEvent("unknown kind of usage event")


def encode(entry: Entry) -> bytes:
    """The event of an entry: UsageClosed with a closing, UsageOpened without."""
    opened = events_pb2.UsageOpened(
        request_id=entry.request_id,
        owner_epoch=entry.owner_epoch,
        tenant_id=entry.tenant_id,
        model_version=entry.model_version,
        tokenizer_version=entry.tokenizer_version,
        runtime_revision=entry.runtime_revision,
    )
    opened.opened_time.FromMicroseconds(entry.opened_us)
    if entry.closing is None:
        return opened.SerializeToString(deterministic=True)
    closed = events_pb2.UsageClosed(opened=opened)
    closed.finish_reason = cast("inference_pb2.FinishReason", entry.closing.finish_reason)
    for name in (*_COUNTS, *_DURATIONS):
        setattr(closed, name, getattr(entry.closing, name))
    closed.closed_time.FromMicroseconds(entry.closing.closed_us)
    return closed.SerializeToString(deterministic=True)


def _entry(opened: events_pb2.UsageOpened, closing: Closing | None) -> Entry:
    _check(opened.request_id > 0, "request_id")
    _check(opened.owner_epoch >= 0, "owner_epoch")
    _check(bool(opened.tenant_id), "tenant_id")
    for name in _TEXTS:
        text: str = getattr(opened, name)
        # PostgreSQL stores no NUL.
        _check(len(text) <= _MAX_TEXT and "\0" not in text, name)
    return Entry(
        request_id=opened.request_id,
        owner_epoch=opened.owner_epoch,
        tenant_id=opened.tenant_id,
        model_version=opened.model_version,
        tokenizer_version=opened.tokenizer_version,
        adapter="",
        runtime_revision=opened.runtime_revision,
        opened_us=_microseconds(opened.opened_time, "opened_time"),
        closing=closing,
    )


def _closing(closed: events_pb2.UsageClosed) -> Closing:
    _check(closed.finish_reason in _REASONS, "finish_reason")
    for name in _COUNTS:
        _check(getattr(closed, name) >= 0, name)
    for name in _DURATIONS:
        _check(0 <= getattr(closed, name) < math.inf, name)
    return Closing(
        finish_reason=closed.finish_reason,
        **{name: getattr(closed, name) for name in (*_COUNTS, *_DURATIONS)},
        closed_us=_microseconds(closed.closed_time, "closed_time"),
    )


def _microseconds(time: Timestamp, name: str) -> int:
    _check(0 < time.seconds < _MAX_SECONDS and 0 <= time.nanos < 10**9, name)
    return time.ToMicroseconds()


def _check(fine: bool, name: str) -> None:
    if not fine:
        raise UnreadableEvent(f"{name} is missing or out of range")
