"""A user: asks, reads, comes back after a loss, and checks every token and letter that it is given."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from kit.errors import Code, ServiceError
from kit.grpc_errors import service_error
from services.gateway.app.reading import Acceptance
from services.gateway.core.choice import Piece
from services.gateway.core.outcome import Closed, FinishReason
from tests.simulation import tokens
from tests.simulation.messages import Attach, Delete, Start
from tests.simulation.rpc import Call, Server, unavailable

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec
    from tests.simulation.gateway import Gateway
    from tests.simulation.network import Network

WINDOW = 2
MOST_TRIES = 40
RETRY_S = (0.1, 0.8)
# A record that is not there may still come: its gateway submits it to a new scheduler.
MOST_UNKNOWN = 8
_LAST_WORDS = frozenset({"IDEMPOTENCY_CONFLICT", "RESULT_EXPIRED", "DEADLINE_INFEASIBLE"})
_LAST_CODES = frozenset({Code.INTERNAL, Code.DEADLINE_EXCEEDED, Code.CANCELLED})
_PASSING = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.NOT_FOUND})


class Phase(enum.Enum):
    """How far a user is."""

    AWAY = enum.auto()
    ASKING = enum.auto()
    READING = enum.auto()
    OVER = enum.auto()


@dataclass(slots=True)
class Wish:
    """What a user wants and how it behaves."""

    spec: GenerationSpec
    tenant_id: str = "acme"
    key: str | None = None
    deadline_s: float | None = None
    start_s: float = 0.0
    read_s: float = 0.0  # seconds between two reads
    follows: User | None = None  # attaches to what another one started
    contested: bool = False  # somebody uses its key for another body


@dataclass(slots=True)
class Choice:
    """What came of one choice."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ended: FinishReason | None = None
    skipped: int = 0  # tokens before these that it did not ask for

    @property
    def had(self) -> int:
        """Tokens that it has, those included that it did not ask for."""
        return self.skipped + len(self.tokens)


class User(Server):
    """One caller with its own clock; it may vanish and come back."""

    def __init__(self, network: Network, name: str, wish: Wish, gateways: list[Gateway]) -> None:
        super().__init__(network, name)
        self.wish, self._gateways = wish, gateways
        self.phase = Phase.AWAY
        self.outcome = ""
        self.request_id = 0
        self.acceptance: Acceptance | None = None
        self.choices = [Choice() for _ in range(wish.spec.n)]
        self.closed: Closed | None = None
        self.error: ServiceError | None = None
        self.returns = False
        self.rest_s = 0.0  # before it tries again, beside the usual
        self.requests: list[int] = []  # every generation it was told of
        self._tries = self._unknown = 0
        self._started = False

    @property
    def over(self) -> bool:
        """Whether it asks for nothing more."""
        return self.phase is Phase.OVER

    @property
    def asks(self) -> bool:
        """Whether it waits to hear its request's id."""
        return not self.request_id and self.phase is Phase.ASKING

    @property
    def lasting(self) -> bool:
        """Whether what it asked for outlives its connection."""
        return self.wish.key is not None or self.wish.spec.resume

    def on_start(self) -> None:
        self.loop.create_task(self._live())

    def on_crash(self) -> None:
        super().on_crash()
        if self.phase is not Phase.OVER:
            self.phase = Phase.AWAY
        if not self.returns:
            self.end("vanished")

    def end(self, outcome: str) -> None:
        """Want nothing more."""
        if self.phase is not Phase.OVER:
            self.phase, self.outcome = Phase.OVER, outcome
            self.world.note(self.name, "is done:", outcome)

    async def _live(self) -> None:
        if not self._started:
            await asyncio.sleep(self.wish.start_s)
            self._started = True
        while self.wish.follows is not None and not self.request_id:
            self.request_id = self.wish.follows.request_id
            if self.wish.follows.phase is Phase.OVER and not self.request_id:
                self.end("nothing to follow")
                return
            await asyncio.sleep(0.05)
        while not self.over:
            self._tries += 1
            if self._tries > MOST_TRIES:
                self.end("gave up")
                return
            gateway = self.world.rng.choice(self._gateways)
            try:
                await self._converse(gateway)
            except grpc.aio.AioRpcError as error:
                self._judge(service_error(error))
            if not self.over:
                self.phase = Phase.AWAY
                await asyncio.sleep(self.world.rng.uniform(*RETRY_S) + self.rest_s)

    async def _converse(self, gateway: Gateway) -> None:
        call = Call(self.network, self, gateway, "Generate", window=WINDOW)
        self.phase = Phase.ASKING
        try:
            question = self._question()
            self.world.note(self.name, "asks", gateway.name, question.told)
            await call.write(question)
            while (message := await call.read()) is not grpc.aio.EOF:
                self._take(message)
                if self.phase is Phase.OVER:
                    return
                if self.wish.read_s:
                    await asyncio.sleep(self.wish.read_s)
            raise unavailable("the stream ended early")
        finally:
            call.cancel()

    def _question(self) -> Start | Attach:
        wish = self.wish
        if self.request_id and (self.acceptance is not None or wish.follows is not None):
            indices = tuple(choice.had for choice in self.choices)
            by_key = wish.key is not None and self.world.chance(0.5)
            return Attach(wish.tenant_id, self.request_id, wish.key if by_key else None, indices)
        return Start(wish.tenant_id, wish.spec, wish.key, wish.deadline_s)

    def _take(self, message: Any) -> None:
        match message:
            case Acceptance():
                self._accepted(message)
            case Piece():
                self._piece(message)
            case Closed():
                self._done(message)

    def _accepted(self, acceptance: Acceptance) -> None:
        self.world.note(self.name, "accepted", acceptance.request_id)
        if self.acceptance is not None and acceptance != self.acceptance:
            same = acceptance.request_id == self.acceptance.request_id
            if not same or acceptance.sampling != self.acceptance.sampling:
                self.world.fail(f"{self.name} came back to another generation")
        self.acceptance, self.request_id = acceptance, acceptance.request_id
        if self.request_id not in self.requests:
            self.requests.append(self.request_id)
        self.phase = Phase.READING

    def _piece(self, piece: Piece) -> None:
        choice, world = self.choices[piece.choice], self.world
        at = choice.had
        if piece.index != at:
            world.fail(f"{self.name} has {at} tokens of choice {piece.choice} and got number {piece.index}")
        if at == choice.skipped or piece.finish_reason is not None:
            world.note(self.name, "gets", piece.choice, at, piece.count, piece.finish_reason)
        if choice.ended is not None:
            same = piece.finish_reason in {None, choice.ended} and choice.text.endswith(piece.text)
            if piece.count or not same:
                world.fail(f"{self.name} has the end of choice {piece.choice} and got {piece}")
            return
        choice.tokens += [record.token_id for record in piece.tokens]
        if not choice.skipped and piece.text_offset != len(choice.text):
            world.fail(f"{self.name} has {len(choice.text)} letters and got number {piece.text_offset}")
        choice.text += piece.text
        expected = self.truth().whole[piece.choice][choice.skipped : choice.had]
        if tuple(choice.tokens) != expected:
            world.fail(f"{self.name} got {choice.tokens} of choice {piece.choice}, not {list(expected)}")
        choice.ended = piece.finish_reason

    def truth(self) -> tokens.Truth:
        """What it must get a beginning of."""
        assert self.acceptance is not None
        return tokens.truth(self.wish.spec, self.acceptance.sampling.seed)

    def _done(self, closed: Closed) -> None:
        self.closed = closed
        if self.acceptance is None or self.acceptance.request_id != self.request_id:
            self.world.fail(f"{self.name} got an end before a beginning")
        had = sum(choice.had for choice in self.choices)
        if closed.output_tokens != had:
            self.world.fail(f"{self.name} was told of {closed.output_tokens} tokens and had {had}")
        for number, choice in enumerate(self.choices):
            text = self._text(number, choice)
            same = text.endswith(choice.text) if choice.skipped else text == choice.text
            if choice.ended is None or not same:
                self.world.fail(
                    f"{self.name} has {choice.text!r} at the end of choice {number}, not {text!r}"
                )
        self.end(f"done {closed.finish_reason.label} {closed.output_tokens}")

    def _text(self, number: int, choice: Choice) -> str:
        """All that a choice must have written: a stop string is left out where it ended the choice."""
        truth = self.truth()
        if choice.ended is FinishReason.STOP and choice.had == len(truth.tokens[number]):
            return truth.texts[number]
        return tokens.text_of(truth.whole[number][: choice.had])

    def _judge(self, error: ServiceError) -> None:
        self.world.note(self.name, "hears", error.code.name, error.reason)
        known = self.acceptance is not None or self.wish.follows is not None
        if error.code is Code.INVALID_ARGUMENT:
            self.world.fail(f"{self.name} was refused: {error}")
        if error.reason == "IDEMPOTENCY_CONFLICT" and not self.wish.contested:
            self.world.fail(f"{self.name} asked for the same and was told of a conflict")
        self._unknown += error.reason == "NOT_FOUND"
        if error.reason in _LAST_WORDS or error.code in _LAST_CODES or self._unknown > MOST_UNKNOWN:
            self.error = error
            self.end(f"{'failed' if error.code is Code.INTERNAL else 'told'} {error.reason}")
        elif known and not self.lasting and self.wish.follows is None:
            self.end(f"cut off {error.reason}")
        elif error.code not in _PASSING:
            self.world.fail(f"{self.name} did not expect {error}")


class Canceller(Server):
    """Deletes a generation through any gateway."""

    def __init__(
        self, network: Network, name: str, user: User, request_id: int, gateways: list[Gateway]
    ) -> None:
        super().__init__(network, name)
        self._delete_it = Delete(user.wish.tenant_id, request_id)
        self._gateways = gateways

    def on_start(self) -> None:
        self.loop.create_task(self._delete())

    async def _delete(self) -> None:
        call = Call(self.network, self, self.world.rng.choice(self._gateways), "Generate")
        try:
            await call.write(self._delete_it)
            await call.read()
        except grpc.aio.AioRpcError:
            return
