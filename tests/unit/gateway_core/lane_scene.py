"""A lane book on a clock that the test turns, with the scheduler and the journal played by it."""

from __future__ import annotations

from services.gateway.core.choice import NewToken
from services.gateway.core.effects import AppendClosed, AppendOpened
from services.gateway.core.lane_book import LaneBook
from services.gateway.core.lane_messages import (
    Accepted,
    Attached,
    ChoiceEnd,
    ChoiceRecord,
    Granted,
    Heartbeat,
    HeartbeatAck,
    Open,
    RequestEnd,
    Step,
    Submit,
    Welcome,
)
from services.gateway.core.order import Order
from services.gateway.core.outcome import Closed, FinishReason, Verdict
from services.gateway.core.reader import Reader
from tests.unit.gateway_core.toy import toy

PROMPT = (5, 6, 7)
LEASE_S = 10.0


def order(**fields):
    return Order(
        request_id=7,
        tenant_id="acme",
        model_version="toy@1",
        tokenizer_version="tok",
        prompt_token_ids=PROMPT,
        max_output_tokens=16,
        received=100.0,
        **fields,
    )


class Scene:
    """`did` lists what the gateway asked of its surroundings and said on the lane, in order."""

    def __init__(self, *, journal=True, resubmit_s=5.0):
        self.now = 100.0
        self.book = LaneBook("g", resubmit_s=resubmit_s)
        self.said, self.effects, self.opens = [], [], []
        self.opening = True  # the scheduler answers `open` at once
        self.journal = journal  # answers at once
        self.owner = None
        self.reader = None
        self.book.hello(self.now)
        self.welcome(1)

    # The shell

    def pump(self):
        """Write and carry out what is asked for, until nothing is."""
        while True:
            effects = self.book.take_effects()
            message = self.book.next_message(self.now)
            self.write(message)
            for owner, effect in effects:
                self.effects.append(effect)
                if self.journal and isinstance(effect, AppendOpened):
                    owner.opened_done(self.now)
                if self.journal and isinstance(effect, AppendClosed):
                    owner.closed_done(self.now)
            if not effects and message is None:
                return

    def write(self, message):
        """Keep what is said; `open` is heard at once."""
        if isinstance(message, Open):
            self.opens.append(message)
        elif isinstance(message, Heartbeat) and self.opens and self.opening:
            self.book.hear(HeartbeatAck(message.sequence), self.now)
            self.opens.clear()
        elif message is not None and not isinstance(message, Heartbeat):
            self.said.append(message)

    def wait(self, seconds, *, heard=True):
        """Time passes, with heartbeats that are heard or are not."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, max(self.now, self.book.next_timer()))
            self.book.tick(self.now)
            while message := self.book.next_message(self.now):
                self.write(message)
                if isinstance(message, Heartbeat) and heard:
                    self.book.hear(HeartbeatAck(message.sequence), self.now)
            self.pump()

    # What it does

    def submit(self, **fields):
        asked = order(**fields)
        self.owner = self.book.submit(asked, toy().vocabulary, self.now)
        self.reader = self.read()
        self.pump()
        return self.owner

    def attach(self):
        self.owner = self.book.attach(7, "acme", toy().vocabulary, self.now)
        self.reader = self.read()
        self.pump()
        return self.owner

    def read(self, *from_index, **limits):
        reader = Reader(from_index, **limits)
        self.owner.join(reader, self.now)
        return reader

    def do(self, name, *arguments):
        getattr(self.owner, name)(*arguments, self.now)
        self.pump()

    # What the scheduler says

    def hear(self, message):
        self.book.hear(message, self.now)
        self.pump()

    def accept(self, epoch=1):
        self.hear(Accepted(7, epoch, "r", 1000.0))

    def token(self, *token_ids, choice=0, index=None):
        start = self.owner.choices[choice].output_tokens if index is None else index
        count = len(token_ids)
        self.hear(
            Step([7] * count, [choice] * count, range(start, start + count), [NewToken(t) for t in token_ids])
        )

    def end_choice(self, reason=FinishReason.STOP, choice=0, count=None):
        count = self.owner.choices[choice].output_tokens if count is None else count
        self.hear(Step(choice_ends=[ChoiceEnd(7, choice, reason, count)]))

    def end(self, reason=FinishReason.STOP, input_tokens=3):
        for choice in range(len(self.owner.choices)):
            self.end_choice(reason, choice)
        self.hear(Step(request_ends=[RequestEnd(7, input_tokens, 0, 0.001)]))

    def grant(self, epoch=2):
        self.hear(Granted(7, epoch))

    def attached(self, *tokens, epoch=0, reason=None, verdict=None, end=None, **fields):
        """Answer `Attach`: one choice with `tokens`."""
        record = ChoiceRecord([NewToken(t) for t in tokens], reason)
        submit = Submit(order(**fields), None)
        first_token_s = 0.5 if tokens else None
        self.hear(Attached(7, epoch, submit, [record], end, verdict, "r", 1000.0, 1.0, first_token_s))

    def cut(self):
        self.book.disconnect(self.now)
        self.pump()

    def welcome(self, scheduler_epoch):
        self.book.hello(self.now)
        self.book.welcome(Welcome(scheduler_epoch, LEASE_S), self.now)
        self.pump()

    # What there is to see

    def kinds(self):
        return [type(message).__name__ for message in self.said]

    def last(self, kind):
        return next(m for m in [*reversed(self.said), *reversed(self.effects)] if isinstance(m, kind))

    def closings(self):
        return [effect for effect in self.effects if isinstance(effect, AppendClosed)]

    def ids(self, text):
        return toy().encode_prompt(text)


def verdict(*output, reason=FinishReason.STOP, error_reason=""):
    """How a request of so many tokens a choice was closed."""
    closed = Closed(reason, 3, 1, sum(output), 3 + sum(output), 1.5, 20.25, 300.125)
    return Verdict(closed, output, (reason,) * len(output), error_reason)


def attached(epoch, choices, deadline_s=None):
    """The answer to `Attach` with these tokens of each choice."""
    submit = Submit(order(n=len(choices), stop=("b",)), deadline_s)
    records = [ChoiceRecord(tokens) for tokens in choices]
    return Attached(7, epoch, submit, records, None, None, "r", 1000.0, 1.0, 0.5)
