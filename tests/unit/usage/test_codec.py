import math

import pytest

from services.usage.adapters.codec import UnreadableEvent, decode, encode
from tests.support.usage import closed, opened

SUBJECTS = {"UsageOpened": "usage.v1.opened.acme", "UsageClosed": "usage.v1.closed.acme"}


def read(event):
    return decode(SUBJECTS[type(event).__name__], event.SerializeToString(), 0)


@pytest.mark.parametrize("event", [opened(7), closed(7, epoch=2, output=3)])
def test_an_event_survives_the_round_trip(event):
    entry = read(event)
    kind = "closed" if entry.closing else "opened"
    assert decode(f"usage.v1.{kind}.acme", encode(entry), 0) == entry


def changed(event, path, value):
    *parents, name = path.split(".")
    target = event
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)
    return event


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("opened.request_id", 0),
        ("opened.request_id", -1),
        ("opened.owner_epoch", -1),
        ("opened.tenant_id", ""),
        ("opened.tenant_id", "a\0b"),
        ("opened.model_version", "x" * 10_000),
        ("opened.opened_time.seconds", -5),
        ("opened.opened_time.seconds", 2**62),
        ("opened.opened_time.nanos", -1),
        ("closed_time.seconds", 0),
        ("finish_reason", 0),
        ("finish_reason", 99),
        ("input_tokens", -1),
        ("cached_tokens", -1),
        ("output_tokens", -1),
        ("billable_tokens", -1),
        ("queue_ms", math.nan),
        ("ttft_ms", math.inf),
        ("total_ms", -1.0),
    ],
)
def test_what_a_database_could_not_store_is_unreadable_and_named(path, value):
    with pytest.raises(UnreadableEvent, match=path.split(".")[1 if path.startswith("opened.") else 0]):
        read(changed(closed(7), path, value))


@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        ("usage.v1.opened.acme", b"\xff\xff\xff"),
        ("usage.v1.closed.acme", b""),
        ("usage.v1.other.acme", opened(7).SerializeToString()),
    ],
)
def test_garbage_is_unreadable(subject, payload):
    with pytest.raises(UnreadableEvent):
        decode(subject, payload, 0)
