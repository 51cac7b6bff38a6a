import asyncio
import hashlib
import math
import threading

import pytest

from kit.errors import Code, ServiceError
from kit.outbox import Outbox
from services.gateway.adapters import usage_journal
from services.gateway.adapters.keys import KeyRing
from services.gateway.adapters.lane_codec import decode_refusal, decode_tokens
from services.gateway.adapters.routes import RouteTable, parse_route
from services.gateway.adapters.tokenizers import TokenizerPool
from services.gateway.adapters.usage_journal import OutboxJournal
from services.gateway.adapters.verdict_codec import decode_reason
from services.gateway.app.ports import Route
from services.gateway.core.effects import UsageRecord
from services.gateway.core.limits import Priority
from services.gateway.core.outcome import Closed, FinishReason
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2


class View(dict):
    """A watched bucket that stands still."""

    stale_s = 0.0
    version = 0

    def staleness_s(self):
        return self.stale_s


def view_of(key="k", **record):
    digest = hashlib.sha256(key.encode()).hexdigest()
    return View({digest: events_pb2.KeyRecord(tenant_id="acme", **record)})


@pytest.mark.parametrize("header", ["Bearer k", "bearer k", "BEARER  k "])
def test_a_key_speaks_for_its_tenant(header):
    tenant = KeyRing(view_of(), staleness_s=60).authenticate(header)
    assert (tenant.tenant_id, tenant.priority) == ("acme", Priority.STANDARD)


NO_KEYS = [None, "", "k", "Bearer", "Bearer ", "Bearer K", "Basic k", "Bearer \udcff"]


@pytest.mark.parametrize("header", NO_KEYS)
def test_anything_else_is_no_key(header):
    with pytest.raises(ServiceError) as caught:
        KeyRing(view_of(), staleness_s=60).authenticate(header)
    assert caught.value.reason == "INVALID_API_KEY"


def test_a_digest_that_begins_like_a_keys_is_no_key():
    digest = hashlib.sha256(b"guess").hexdigest()
    view = view_of()
    for near in (digest[:8] + "0" * 56, digest[:-1] + chr(ord(digest[-1]) ^ 1)):
        view[near] = events_pb2.KeyRecord(tenant_id="globex")
    keys = KeyRing(view, staleness_s=60)
    with pytest.raises(ServiceError) as caught:
        keys.authenticate("Bearer guess")
    assert caught.value.reason == "INVALID_API_KEY"
    assert keys.authenticate("Bearer k").tenant_id == "acme"


def test_digests_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(one, other):
        compared.append({one, other})
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    with pytest.raises(ServiceError):
        KeyRing(view_of(), staleness_s=60).authenticate("Bearer k")
    assert compared == [{hashlib.sha256(b"k").hexdigest()}]


def test_a_key_that_comes_or_goes_later_counts_at_once():
    view = view_of()
    keys = KeyRing(view, staleness_s=60)
    keys.authenticate("Bearer k")
    view.update(view_of("new"))
    view.version += 1
    assert keys.authenticate("Bearer new").tenant_id == "acme"
    del view[hashlib.sha256(b"k").hexdigest()]
    with pytest.raises(ServiceError):
        keys.authenticate("Bearer k")


def test_keys_older_than_the_limit_fail_closed():
    view = view_of()
    keys = KeyRing(view, staleness_s=60)
    for stale_s, fails in ((59, False), (61, True), (math.inf, True)):
        view.stale_s = stale_s
        if fails:
            with pytest.raises(ServiceError) as caught:
                keys.authenticate("Bearer k")
            assert caught.value.code is Code.UNAVAILABLE
        else:
            keys.authenticate("Bearer k")


def test_a_name_or_its_current_version_is_found_and_nothing_else():
    route = Route("toy", "toy@1", "file:///x", 64, "llama")
    table = RouteTable(View(toy=route))
    assert table.find("toy") is table.find("toy@1") is route
    for unknown in ("toy@2", "toy@", "toy@1@1", "other", "", "@1"):
        with pytest.raises(ServiceError) as caught:
            table.find(unknown, "model")
        assert (caught.value.code, caught.value.field) == (Code.NOT_FOUND, "model")


def test_a_model_that_is_not_served_now_is_not_offered():
    kept = events_pb2.RouteRecord(name="toy", model_version="toy@1", unserved=True)
    table = RouteTable(View(toy=parse_route(kept.SerializeToString())))
    assert table.list() == []
    with pytest.raises(ServiceError, match="no such model"):
        table.find("toy")


def test_log_probabilities_find_their_rows():
    columns = worker_pb2.LogprobColumns(
        row=[0, 2], logprob=[-1, -2], top_count=[1, 2], top_token_id=[7, 8, 9], top_logprob=[-1, -2, -3]
    )
    tokens = decode_tokens([7, 5, 8], columns)
    assert [token.logprob for token in tokens] == [-1, None, -2]
    assert [[entry.token_id for entry in token.top] for token in tokens] == [[7], [], [8, 9]]


def test_a_retry_hint_is_never_rounded_to_nothing():
    refused = scheduler_pb2.Refused(reason="QUEUE_FULL", retry_after_us=1)
    assert decode_refusal(refused).retry_after_ms == 1
    assert decode_refusal(scheduler_pb2.Refused(reason="QUEUE_FULL")).retry_after_ms is None


def test_an_unknown_refusal_or_reason_is_still_an_answer():
    assert decode_refusal(scheduler_pb2.Refused(reason="NEW")).code is Code.UNAVAILABLE
    assert decode_refusal(scheduler_pb2.Refused(reason="NEW", field="n")).code is Code.INVALID_ARGUMENT
    assert decode_reason(99) is FinishReason.ERROR


async def test_the_tokenizer_pool_refuses_beyond_its_queue_and_recovers():
    pool = TokenizerPool(threads=1, queue=1)
    gate = threading.Event()
    busy = [asyncio.create_task(pool.run(gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceError) as caught:
        await pool.run(gate.wait)
    assert caught.value.reason == "QUEUE_FULL"
    busy[1].cancel()  # a caller that leaves does not free a thread that still works
    await asyncio.sleep(0)
    with pytest.raises(ServiceError):
        await pool.run(gate.wait)
    gate.set()
    await busy[0]
    await asyncio.sleep(0.05)
    assert await pool.run(lambda: 5) == 5
    pool.close()


async def test_a_damaged_tokenizer_is_no_capacity_and_is_tried_again(tmp_path):
    pool = TokenizerPool(threads=1, queue=1)
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            await pool.load(Route("toy", "toy@1", tmp_path.as_uri(), 64, "llama"))
        assert caught.value.reason == "NO_CAPACITY"
    pool.close()


RECORD = UsageRecord(7, 2, "acme", "toy@1", "t", "r", 1.5)
CLOSED = Closed(FinishReason.STOP, 3, 1, 4, 7, 0.5, 1.0, 2.0)


class Seen:
    """NATS, as far as the outbox knows it."""

    def __init__(self):
        self.events = []

    async def publish_all(self, events):
        self.events += [(event.subject, event.msg_id, event.payload) for event in events]
        return [None] * len(events)


async def test_an_events_id_comes_from_what_it_says_not_from_when_it_is_said(tmp_path):
    outbox = Outbox(tmp_path / "outbox")
    outbox.open()
    journal = OutboxJournal(outbox, 1 << 20)
    for _ in range(2):
        await journal.opened(RECORD)
        await journal.closed(RECORD, CLOSED)
    seen, stop = Seen(), asyncio.Event()
    stop.set()
    await outbox.drain(seen, stop)
    outbox.close()
    assert [(subject, msg_id) for subject, msg_id, _ in seen.events] == [
        ("usage.v1.opened.acme", "7-2-opened"),
        ("usage.v1.closed.acme", "7-2-closed"),
    ] * 2
    row = events_pb2.UsageClosed.FromString(seen.events[1][2])
    assert (row.input_tokens, row.output_tokens, row.billable_tokens) == (3, 4, 7)
    assert row.opened == events_pb2.UsageOpened.FromString(seen.events[0][2])


async def test_a_closed_event_waits_for_room_rather_than_be_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(usage_journal, "_RETRY_S", 0.01)
    outbox = Outbox(tmp_path / "outbox", max_bytes=300)
    outbox.open()
    journal = OutboxJournal(outbox, 300)
    await outbox.append("usage.v1.opened.x", "a", b"x" * 200)
    closing = asyncio.create_task(journal.closed(RECORD, CLOSED))
    await asyncio.sleep(0.05)
    assert not closing.done()
    with pytest.raises(ServiceError):
        await journal.opened(RECORD)
    seen, stop = Seen(), asyncio.Event()
    draining = asyncio.create_task(outbox.drain(seen, stop))
    await asyncio.wait_for(closing, 2)
    stop.set()
    await draining
    outbox.close()
    assert [msg_id for _, msg_id, _ in seen.events] == ["a", "7-2-closed"]


async def test_a_renewal_is_not_said_where_nobody_hears_it(tmp_path, monkeypatch):
    monkeypatch.setattr(usage_journal, "_BEHIND_S", 0.01)
    outbox = Outbox(tmp_path / "outbox")
    outbox.open()
    journal = OutboxJournal(outbox, 1 << 20)
    await journal.renewed([])
    assert outbox.pending == 0
    await journal.renewed([7])
    await asyncio.sleep(0.02)
    await journal.renewed([7])  # NATS is away: the first one still waits
    assert outbox.pending == 1
    outbox.close()
