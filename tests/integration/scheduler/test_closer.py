"""Closing for vanished owners through a real outbox that is full for a while."""

import asyncio
from array import array

import pytest

from kit.errors import ServiceError
from kit.outbox import Outbox
from services.scheduler.adapters.closer import Closer, closed_event
from services.scheduler.core.closing import Closing, verdict_on
from services.scheduler.core.desk import Desk
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import FinishReason, RequestEnded
from services.scheduler.core.ownership import Ownership
from services.scheduler.core.records import ChoiceLog, Order, Record
from services.scheduler.core.records import Records as AllRecords


class Published:
    """Where the outbox publishes: remembers ids."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def publish_all(self, events):
        self.ids += [f"{event.subject} {event.msg_id}" for event in events]
        return [None] * len(events)


def closing(request_id, reason=FinishReason.CANCELLED):
    order = Order(request_id, "acme", "m@1", "tok", "rev", 5, b"", accepted_at=10.0, opened_time=1e9)
    log = ChoiceLog(array("i", range(7)), [], reason)
    record = Record(order, [log], first_token_at=10.5, end=RequestEnded(request_id, 5, 2, 0.25))
    return Closing(record, verdict_on(record, 2, now=14.0))


def test_the_event_alone_makes_a_whole_row():
    event = closed_event(closing(3))
    assert (event.input_tokens, event.cached_tokens, event.output_tokens, event.billable_tokens) == (
        5,
        2,
        7,
        12,
    )
    assert (event.queue_ms, event.ttft_ms, event.total_ms) == (250, 500, 4000)
    assert event.closed_time.seconds - event.opened.opened_time.seconds == 4
    assert event.opened.runtime_revision == "rev"


def test_a_failed_request_bills_nothing():
    assert closed_event(closing(3, FinishReason.ERROR)).billable_tokens == 0


async def test_a_full_outbox_refuses_new_work_until_every_closing_is_durable(tmp_path, eventually):
    desk = Desk(Ownership(10), AllRecords(60, 1000), lambda m: Lane(m, LaneLimits()), vacant_s=1)
    outbox = Outbox(tmp_path / "outbox", max_bytes=250)
    outbox.open()
    closer = Closer(outbox, desk)
    running = asyncio.create_task(closer.run())
    for request_id in (1, 2, 3):
        closer.close(closing(request_id))
    await eventually(lambda: desk.backpressure)
    assert isinstance(desk.backpressure, ServiceError)
    assert desk.backpressure.reason == "USAGE_BACKPRESSURE"
    published, stop = Published(), asyncio.Event()
    draining = asyncio.create_task(outbox.drain(published, stop))
    await asyncio.wait_for(closer.flushed(), 5)
    assert desk.backpressure is None
    stop.set()
    await draining
    assert sorted(published.ids) == [f"usage.v1.closed.acme {n}-2-closed" for n in (1, 2, 3)]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    outbox.close()
