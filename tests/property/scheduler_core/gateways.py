"""Gateways, a desk and its worker in one place: each stream checks whatever it is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from services.scheduler.core.desk import Desk
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import (
    Capacity,
    ChoiceEnded,
    FinishReason,
    Output,
    Request,
    RequestEnded,
    Sampling,
    TokenCommitted,
    Worker,
)
from services.scheduler.core.notices import Attached, Granted, Notice, Sync
from services.scheduler.core.ownership import Ownership
from services.scheduler.core.records import Order, Records, Verdict
from tests.unit.scheduler_core.model_worker import ModelWorker, oracle

CAPACITY = Capacity(4, 24, 4, 16, 40, 12)
LEASE_S, RESUME_LEASE_S = 10.0, 15.0
MODEL = "toy@1"
WORDLESS = "c"  # a gateway that does not say what it has heard


@dataclass
class View:
    """What one stream knows of one request; `epoch` is 0 unless it was told that it owns it."""

    tokens: list[list[int]]
    ends: dict[int, FinishReason] = field(default_factory=dict)
    ended: bool = False
    settled: bool = False
    epoch: int = 0


class House:
    """One scheduler life after the other, and what must hold over all of them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.requests: dict[int, tuple[Request, float]] = {}
        self.views: dict[str, dict[int, View]] = {}
        self.current: dict[str, str] = {}  # gateway -> its open stream
        self.epochs: Counter[int] = Counter()  # request -> highest ownership granted so far
        self.closed: Counter[int] = Counter()
        self.granted: dict[tuple[int, int], str] = {}  # request and epoch -> the one stream that had it
        self.heard: dict[int, Counter[int]] = {}  # request -> tokens of each choice that an owner has heard
        self.asked: dict[str, int] = {}  # stream -> word that it has yet to give
        self._streams = self._epoch = self._made = 0
        self.begin()

    def begin(self) -> None:
        """Start a scheduler that knows nothing."""
        self.desk = Desk(
            Ownership(LEASE_S),
            Records(600, 1 << 20),
            lambda version: Lane(version, LaneLimits(chunk_tokens=6, max_queue_s=1e9, max_queue_pools=1e9)),
            vacant_s=20,
        )
        self.views, self.current, self.asked = {}, {}, {}
        self.attach_worker()

    def attach_worker(self) -> None:
        """(Re)start the worker: an earlier one is lost."""
        self._epoch += 1
        self.worker = ModelWorker(CAPACITY, self._epoch)
        if "w0" in self.desk.workers:
            self.desk.detach("w0", self.now)
        self.desk.attach(Worker("w0", MODEL, "rev", CAPACITY, self._epoch), self.now)

    def open(self, gateway: str) -> str:
        """Open a stream; the gateway's earlier one breaks."""
        self.close(gateway)
        self._streams += 1
        stream = self.current[gateway] = f"{gateway}/{self._streams}"
        self.views[stream] = {}
        self.desk.ownership.renew(stream, self.now)
        if gateway != WORDLESS:
            self.desk.relay.trust(stream)
        return stream

    def close(self, gateway: str) -> None:
        """Break a gateway's stream: what was not delivered is lost."""
        stream = self.current.pop(gateway, None)
        if stream is not None:
            self.asked.pop(stream, None)
            self.desk.disconnect(stream, self.now)

    def submit(self, stream: str, request: Request, lease_s: float, above: int = 0) -> None:
        """Submit a request, for the first time or with its output so far."""
        order = Order(
            request.request_id, request.tenant_id, MODEL, "tok", "rev", len(request.prompt), b"",
            self.now, 1e9, request.deadline, lease_s, above,
        )  # fmt: skip
        epoch = self.desk.submit(stream, request, order, self.now)
        self.requests[request.request_id] = (replace(request, output=()), lease_s)
        given = request.output or (Output(),) * request.n
        view = View([list(one.token_ids) for one in given])
        view.ends = {at: one.finish_reason for at, one in enumerate(given) if one.finish_reason}
        self.views[stream][request.request_id] = view
        self._grant(stream, request.request_id, epoch)

    def settle(self, stream: str, request_id: int, epoch: int) -> None:
        """Close a request as this stream sees it; only the present owner's word counts."""
        view, ownership = self.views[stream][request_id], self.desk.ownership
        right = self.desk.owns(stream, request_id) and ownership.epoch_of(request_id) == epoch
        reason = max(view.ends.values(), default=FinishReason.CANCELLED)
        verdict = Verdict(epoch, reason, tuple(map(len, view.tokens)))
        record = self.desk.records.get(request_id)
        before = record.verdict if record is not None else None
        self.desk.settle(stream, request_id, verdict, self.now)
        if record is not None:
            assert record.verdict == (verdict if right else before)
        self.closed[request_id] += right

    def step(self) -> None:
        """Let the worker answer one plan."""
        lane = self.desk.lanes[MODEL]
        plan = lane.plan("w0", self.now)
        if plan is not None:
            lane.commit("w0", self.worker.execute(plan), self.now)
        assert lane.check_integrity() == []

    def pass_time(self, seconds: float) -> None:
        """Let time pass; open streams send heartbeats."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for stream in self.current.values():
                self.desk.ownership.renew(stream, self.now)
            _, closings = self.desk.expire(self.now)
            for closing in closings:
                self._note_closing(closing.record.order.request_id, closing.verdict)

    def detach(self, stream: str, request_id: int) -> None:
        """Leave a request."""
        closing = self.desk.detach_stream(stream, request_id, self.now)
        self.views[stream].pop(request_id, None)
        if closing is not None:
            self._note_closing(request_id, closing.verdict)

    def deliver(self) -> None:
        """Bring every open stream what it is told; owners are told first, and hear last."""
        for stream, notices in reversed(self.desk.effects(self.now).items()):
            if stream in self.current.values():
                for notice in notices:
                    self._hear(stream, notice)

    def give_words(self) -> None:
        """Let every stream that was asked say that it has heard all."""
        asked, self.asked = self.asked, {}
        for stream, number in asked.items():
            self.desk.relay.heard(stream, number)

    def deliver_all(self) -> None:
        """Deliver until nobody waits for a word; then every stream knows what its requests' records say."""
        self.deliver()
        while self.asked:
            self.give_words()
            self.deliver()
        for stream in self.current.values():
            for request_id in self.requests:
                audience = self.desk.ownership.audience(request_id)
                if stream in audience and audience[0] in self.current.values():
                    view, record = self.views[stream][request_id], self.desk.records.get(request_id)
                    assert view.tokens == [list(choice.token_ids) for choice in record.choices]

    def _hear(self, stream: str, notice: Notice) -> None:
        if isinstance(notice, Sync):
            self.asked[stream] = notice.number
            return
        if isinstance(notice, Attached):
            self._hear_attached(stream, notice)
            self._check_order(stream, notice.record.order.request_id)
            return
        view = self.views[stream].get(notice.request_id)
        if view is None:
            return  # it left meanwhile
        assert not view.settled, "a message after the verdict"
        match notice:
            case TokenCommitted():
                assert notice.choice not in view.ends, "a token after the choice's end"
                assert notice.index == len(view.tokens[notice.choice]), "a token is repeated or missing"
                view.tokens[notice.choice].append(notice.token_id)
                self._check_tokens(notice.request_id, view)
                self._check_order(stream, notice.request_id)
            case ChoiceEnded():
                assert notice.choice not in view.ends, "two ends of a choice"
                view.ends[notice.choice] = notice.reason
            case RequestEnded():
                assert not view.ended, "two terminal messages"
                assert len(view.ends) == len(view.tokens)
                view.ended = True
            case Granted():
                self._grant(stream, notice.request_id, notice.owner_epoch)
            case _:
                view.settled = True

    def _hear_attached(self, stream: str, notice: Attached) -> None:
        record = notice.record
        request_id = record.order.request_id
        view = self.views[stream][request_id] = View([list(choice.token_ids) for choice in record.choices])
        view.ends = {
            at: choice.finish_reason for at, choice in enumerate(record.choices) if choice.finish_reason
        }
        view.ended, view.settled = record.end is not None, record.verdict is not None
        self._check_tokens(request_id, view)
        if notice.owner_epoch:
            assert not view.settled
            self._grant(stream, request_id, notice.owner_epoch)

    def _grant(self, stream: str, request_id: int, epoch: int) -> None:
        assert self.granted.setdefault((request_id, epoch), stream) == stream, "two owners of one epoch"
        self.views[stream][request_id].epoch = epoch
        self._check_order(stream, request_id)
        self.epochs[request_id] = max(self.epochs[request_id], epoch)

    def _note_closing(self, request_id: int, verdict: Verdict) -> None:
        assert verdict.owner_epoch > self.epochs[request_id], "closed under an epoch that was granted"
        self.closed[request_id] += 1

    def _check_order(self, stream: str, request_id: int) -> None:
        view, heard = self.views[stream][request_id], self.heard.setdefault(request_id, Counter())
        owners = {owner for (one, _), owner in self.granted.items() if one == request_id}
        for choice, tokens in enumerate(view.tokens):
            if stream in owners or view.settled or any(one.startswith(WORDLESS) for one in owners):
                heard[choice] = max(heard[choice], len(tokens))
            assert len(tokens) <= heard[choice], "a follower heard of a token before its owner"

    def _check_tokens(self, request_id: int, view: View) -> None:
        request, _ = self.requests[request_id]
        for choice, tokens in enumerate(view.tokens):
            assert tokens == oracle(request, choice, CAPACITY)[: len(tokens)]

    def check(self) -> None:
        """What holds at every moment."""
        assert all(count <= 1 for count in self.closed.values()), "closed twice"
        for request_id in self.requests:
            record = self.desk.records.get(request_id)
            if record is not None:
                assert (request_id in self.desk.ownership) == (record.verdict is None)
                audience = self.desk.ownership.audience(request_id)
                assert len(set(audience)) == len(audience)

    def make(self, prompt: int, output: int, n: int, resume: bool) -> Request:
        """Make a request whose tokens depend on its number alone."""
        self._made += 1
        number = self._made
        tokens = tuple((number * 5 + at) % CAPACITY.vocab_size for at in range(prompt))
        return Request(
            number, "acme", tokens, output, n=n, sampling=Sampling(seed=number),
            stop_token_ids=frozenset({number % 7}), resume=resume,
        )  # fmt: skip
