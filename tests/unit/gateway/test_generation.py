"""The owner of one request, with its neighbours played by the test."""

import asyncio
import time

import pytest

from kit.errors import Code, ServiceError
from services.gateway.app.generation import Generation
from services.gateway.app.ports import Order, Tenant
from services.gateway.app.reader import Reader
from services.gateway.core.choice import ChoiceAssembler, NewToken
from services.gateway.core.limits import Prepared, Priority
from services.gateway.core.outcome import FinishReason
from services.gateway.core.spec import GenerationSpec
from tests.unit.gateway_core.toy import toy

FULL = ServiceError(Code.UNAVAILABLE, "USAGE_BACKPRESSURE", "full")


class Diary:
    """Lane, journal and meter in one: everything the owner does, in order."""

    def __init__(self) -> None:
        self.did: list[tuple] = []
        self.opened_fails: ServiceError | None = None
        self.opening, self.closing = asyncio.Event(), asyncio.Event()
        self.opening.set()
        self.closing.set()
        self.closed_records = []

    def cancel(self, request_id, reason, *, choice=None, kept_tokens=None):
        self.did.append(("cancel", reason.label, choice, kept_tokens))

    def settle(self, request_id, owner_epoch, reason, output_tokens):
        self.did.append(("settle", owner_epoch, reason.label, tuple(output_tokens)))

    def forget(self, request_id):
        pass

    async def opened(self, record):
        await self.opening.wait()
        if self.opened_fails:
            raise self.opened_fails
        self.did.append(("opened", record.owner_epoch))

    async def closed(self, record, closed):
        await self.closing.wait()
        self.closed_records.append(closed)
        self.did.append(("closed", record.owner_epoch, closed.finish_reason.label, closed.output_tokens))

    def first_token(self, seconds):
        pass

    def next_token(self, seconds):
        pass

    def ended(self, closed):
        pass


@pytest.fixture
async def diary():
    return Diary()


@pytest.fixture
async def make(diary):
    tasks = []

    def build(*, n=1, stop=(), deadline=None, max_bytes=1 << 20):
        tokenizer = toy()
        spec = GenerationSpec(model="toy", prompt="x", n=n, stop=stop)
        order = Order(
            request_id=7,
            tenant=Tenant("acme", Priority.STANDARD),
            spec=spec,
            prepared=Prepared([5, 6, 7], 16, (2,)),
            tokenizer=tokenizer,
            seed=1,
            priority=Priority.STANDARD,
            received=time.monotonic(),
            deadline=deadline,
        )
        choices = [ChoiceAssembler(tokenizer.vocabulary, spec.stop, choice=i) for i in range(n)]
        reader = Reader(choices, timeout_s=30, max_bytes=max_bytes)
        generation = Generation(order, choices, reader, lane=diary, journal=diary, meter=diary)
        tasks.append(asyncio.create_task(generation.run()))
        return generation

    yield build
    for task in tasks:
        task.cancel()


def feed(generation, *token_ids, choice=0):
    for token_id in token_ids:
        index = generation.choices[choice].output_tokens
        generation.token(choice, index, NewToken(token_id), time.monotonic())


async def test_opened_is_durable_before_accepted_and_closed_before_done(make, diary):
    generation = make()
    generation.accepted(1, "r")
    await generation.opened()
    assert diary.did == [("opened", 1)]
    diary.closing.clear()
    feed(generation, 300, 2)
    generation.choice_ended(0, FinishReason.STOP, "")
    generation.request_ended(3, 0, 0.001)
    assert (await generation.reader.take())[0].count == 2
    waiting = asyncio.create_task(generation.reader.take())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert generation.closed is None
    diary.closing.set()
    assert await waiting == []
    assert diary.did[1:] == [("closed", 1, "stop", 2), ("settle", 1, "stop", (2,))]


async def test_an_opened_that_cannot_be_written_cancels_and_refuses(make, diary):
    diary.opened_fails = FULL
    generation = make()
    generation.accepted(1, "r")
    with pytest.raises(ServiceError) as caught:
        await generation.opened()
    assert caught.value.reason == "USAGE_BACKPRESSURE"
    assert diary.did == [("cancel", "cancelled", None, None), ("settle", 1, "cancelled", (0,))]


@pytest.mark.parametrize("end", ["lost", "abandon", "shut_down"])
async def test_whatever_happens_between_acceptance_and_opened_there_is_one_row_in_order(make, diary, end):
    diary.opening.clear()
    generation = make()
    generation.accepted(1, "r")
    await asyncio.sleep(0)
    getattr(generation, end)()
    if end == "lost":
        generation.accepted(2, "r")
        generation.choice_ended(0, FinishReason.STOP, "")
    generation.request_ended(0, 0, 0.0)
    await asyncio.sleep(0.01)
    assert [entry[0] for entry in diary.did if entry[0] != "cancel"] == []
    diary.opening.set()
    await generation.opened()
    closed = await generation.ended()
    assert closed.billable_tokens == 0
    assert [entry[0] for entry in diary.did if entry[0] != "cancel"] == ["opened", "closed", "settle"]
    reason = {"lost": "stop", "abandon": "cancelled", "shut_down": "error"}[end]
    assert diary.did[-2] == ("closed", 2 if end == "lost" else 1, reason, 0)


async def test_however_many_things_end_a_request_it_closes_once(make, diary):
    generation = make(n=2)
    generation.accepted(1, "r")
    await generation.opened()
    feed(generation, 300)
    generation.cancel()
    generation.abandon()
    generation.cancel()
    feed(generation, 301, 302)
    generation.choice_ended(0, FinishReason.LENGTH, "")
    generation.request_ended(3, 0, 0.0)
    generation.request_ended(3, 0, 0.0)
    generation.lost()
    generation.shut_down()
    closed = await generation.ended()
    assert (closed.finish_reason, closed.output_tokens) == (FinishReason.CANCELLED, 1)
    assert diary.did == [
        ("opened", 1),
        ("cancel", "cancelled", None, None),
        ("closed", 1, "cancelled", 1),
        ("settle", 1, "cancelled", (1, 0)),
    ]


@pytest.mark.parametrize("tokens", [(300,), (300, 2)])
async def test_an_owner_whose_lease_ran_out_tells_no_end_that_the_ledger_may_not_repeat(make, diary, tokens):
    generation = make()
    generation.accepted(1, "r")
    await generation.opened()
    feed(generation, *tokens)
    if len(tokens) > 1:
        generation.choice_ended(0, FinishReason.STOP, "")
    generation.disowned()
    assert not generation.lost()
    await generation.ended()
    assert diary.did[-2][0] == "closed"  # stands if nobody else closed
    assert (generation.error.code, generation.error.reason) == (Code.UNAVAILABLE, "OWNERSHIP_LOST")


async def test_a_request_without_tokens_is_owned_again_once_it_is_taken_again(make, diary):
    generation = make()
    generation.accepted(1, "r")
    await generation.opened()
    generation.disowned()
    assert generation.lost()
    generation.accepted(2, "r")
    feed(generation, 300)
    generation.choice_ended(0, FinishReason.LENGTH, "")
    generation.request_ended(3, 0, 0.0)
    assert (await generation.ended()).finish_reason is FinishReason.LENGTH
    assert (generation.owned, generation.error) == (True, None)


async def test_a_stop_string_on_the_last_allowed_token_is_a_stop(make, diary):
    generation = make(stop=("b",))
    generation.accepted(1, "r")
    await generation.opened()
    ids = toy().encode_prompt("ab")
    feed(generation, *ids)
    generation.choice_ended(0, FinishReason.LENGTH, "")
    generation.request_ended(3, 0, 0.0)
    assert (await generation.ended()).finish_reason is FinishReason.STOP


async def test_tokens_that_come_twice_or_out_of_order_are_not_counted(make, diary):
    generation = make()
    generation.accepted(1, "r")
    await generation.opened()
    for index in (0, 0, 2, 1, 1):
        generation.token(0, index, NewToken(300 + index), time.monotonic())
    assert generation.choices[0].token_ids == [300, 301]


async def test_a_cancel_while_the_scheduler_is_away_ends_at_once(make, diary):
    generation = make()
    generation.accepted(1, "r")
    await generation.opened()
    assert generation.lost()
    generation.cancel()
    closed = await asyncio.wait_for(generation.ended(), 1)
    assert (closed.finish_reason, closed.billable_tokens) == (FinishReason.CANCELLED, 0)


async def test_a_caller_that_leaves_while_the_scheduler_is_away_and_unanswered_leaves_nothing(make, diary):
    generation = make()
    assert generation.lost()
    generation.abandon()
    with pytest.raises(ServiceError, match="cancelled"):
        await asyncio.wait_for(generation.opened(), 1)
    assert [entry[0] for entry in diary.did] == ["cancel"]


async def test_without_a_terminal_message_the_owner_closes_by_itself(make, diary, monkeypatch):
    monkeypatch.setattr("services.gateway.app.generation.TERMINAL_WAIT_S", 0.05)
    generation = make()
    generation.accepted(1, "r")
    await generation.opened()
    feed(generation, 300)
    generation.cancel()
    closed = await asyncio.wait_for(generation.ended(), 1)
    assert (closed.finish_reason, closed.input_tokens, closed.output_tokens) == (FinishReason.CANCELLED, 3, 1)


async def test_leaving_at_the_deadline_is_a_deadline(make, diary):
    generation = make(deadline=time.monotonic() + 0.02)
    generation.accepted(1, "r")
    await generation.opened()
    generation.abandon()
    generation.request_ended(0, 0, 0.0)
    assert (await generation.ended()).finish_reason is FinishReason.DEADLINE


async def test_the_time_left_shrinks_with_each_submission(make):
    generation = make(deadline=time.monotonic() + 10)
    first = generation.submission().deadline_s
    await asyncio.sleep(0.02)
    assert generation.submission().deadline_s <= first - 0.02


async def test_a_reader_gets_all_that_waited_as_one_piece(make, diary):
    generation = make(n=2)
    generation.accepted(1, "r")
    await generation.opened()
    feed(generation, 300, 301)
    feed(generation, 300, choice=1)
    pieces = await generation.reader.take()
    assert [(piece.choice, piece.index, piece.count) for piece in pieces] == [(0, 0, 2), (1, 0, 1)]
    feed(generation, 302)
    assert [piece.index for piece in await generation.reader.take()] == [2]


async def test_only_what_is_unread_counts_against_a_reader(make, diary):
    generation = make(max_bytes=300)
    reader = generation.reader
    reader.turn_away = lambda task: None
    for _ in range(50):  # nobody reads yet: a caller that wants the whole is no slow reader
        feed(generation, 300)
    assert not reader.dismissed
    for _ in range(50):
        await reader.take()
        feed(generation, 300)
    assert not reader.dismissed
    assert not reader.stalled(time.monotonic() + 29)
    assert reader.stalled(time.monotonic() + 31)
    for _ in range(20):
        feed(generation, 300)
    assert reader.dismissed
    assert generation.choices[0].finish_reason is FinishReason.CANCELLED
