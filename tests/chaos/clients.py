"""Callers of every kind: they read, cancel, vanish, ask twice, come back, and note all they are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.wire import WAIT, Broken, Refused, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from tests.chaos.journal import Journal
    from tests.chaos.wire import Event

MODEL = "smollm2-135m-instruct"
PROMPTS = (
    "The lighthouse keeper climbed the stairs and",
    "Once upon a time, in a small village by the sea,",
    "The recipe for a large loaf needs flour, sugar and",
    "Water boils at a lower temperature when",
)
# Words of the contract that a caller may be refused with, and no others.
REFUSALS = WAIT | {"DEADLINE_EXCEEDED"}
# Ends of a stream that say nothing of how the request ended.
CUTS = frozenset({"OWNERSHIP_LOST", "DRAINING"})
# What a caller who comes back may find once a scheduler was lost, and its records with it.
GONE = frozenset({"NOT_FOUND", "RESULT_EXPIRED"})
_COME_BACK_S = 60.0
_PAUSE_S = 0.25
_OUTPUTS = 100


@dataclass
class Call:
    """One caller's view of one request."""

    number: int
    scenario: str
    body: dict[str, Any]
    key: str | None = None
    request_id: str = ""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: str = ""
    ended: bool = False
    cut: bool = False

    @property
    def next_index(self) -> int:
        """The first token of a single choice that is not here yet."""
        return len(self.tokens.get(0, ()))


class Crowd:
    """Callers that go on until told to stop."""

    def __init__(
        self, wires: list[Wire], journal: Journal, seed: int, lengths: Sequence[int] = (8, 16, 24, 40)
    ) -> None:
        self.refusals: Counter[str] = Counter()
        self.streaming = 0
        self.outputs: list[Call] = []  # some that ended
        self._wires = wires
        self._journal = journal
        self._lengths = lengths
        self._seed, self._random = seed, random.Random(seed)
        self._numbers = itertools.count()
        self._stop = asyncio.Event()
        scenarios: dict[Callable[[Call], Coroutine[Any, Any, None]], int] = {
            self._plain: 6, self._cancel: 2, self._vanish: 2, self._duplicate: 3, self._come_back: 3,
            self._resume: 4, self._deadline: 2, self._choices: 2,
        }  # fmt: skip
        self._deck = [one for one, weight in scenarios.items() for _ in range(weight)]

    async def run(self, callers: int) -> None:
        """Keep so many callers busy until `stop`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._caller())

    def stop(self) -> None:
        """Begin nothing new."""
        self._stop.set()

    async def _caller(self) -> None:
        while not self._stop.is_set():
            scenario = self._random.choice(self._deck)
            call = self._call(scenario.__name__.removeprefix("_"))
            await self._journal.write(
                call.number, "asked", scenario=call.scenario, key=call.key, body=call.body
            )
            try:
                await scenario(call)
            except Broken as broken:
                await self._journal.write(call.number, "broken", cause=str(broken))
                await asyncio.sleep(_PAUSE_S)
            except Refused as refused:
                await self._refused(call, refused)

    def _call(self, scenario: str) -> Call:
        tokens = self._random.choice(self._lengths)
        body: dict[str, Any] = {
            "model": MODEL, "prompt": self._random.choice(PROMPTS), "maxOutputTokens": tokens,
            "temperature": self._random.choice((0.0, 0.8)), "seed": self._random.randrange(1 << 31),
            "ignoreEos": True,
        }  # fmt: skip
        body |= self._extra(scenario)
        number = next(self._numbers)
        key = f"chaos-{self._seed}-{number}" if scenario in {"duplicate", "come_back"} else None
        return Call(number, scenario, body, key)

    def _extra(self, scenario: str) -> dict[str, Any]:
        match scenario:
            case "cancel" | "vanish":
                return {"maxOutputTokens": 64}
            case "deadline":
                return {"maxOutputTokens": 64, "deadlineMs": self._random.randrange(200, 3000)}
            case "choices":
                return {"n": 2, "stop": [" the ", "."], "temperature": 0.8}
            case "resume":
                return {"resume": True}
        return {}

    def _wire(self) -> Wire:
        return self._random.choice(self._wires)

    def _open(self, call: Call, wire: Wire | None = None) -> AsyncIterator[Event]:
        wire = wire or self._wire()
        face = wire.http if self._random.random() < 0.6 else wire.grpc
        return face(call.body, call.key)

    # What callers do.

    async def _plain(self, call: Call) -> None:
        await self._read(call, self._open(call))

    async def _cancel(self, call: Call) -> None:
        async def hang_up() -> None:
            with contextlib.suppress(Broken):
                status = await self._wire().cancel(call.request_id)
                await self._journal.write(call.number, "cancelled", status=status)

        await self._read(call, self._open(call), at=self._random.randrange(1, 12), then=hang_up)

    async def _vanish(self, call: Call) -> None:
        await self._read(call, self._open(call), leave_at=self._random.randrange(1, 12))

    async def _deadline(self, call: Call) -> None:
        await self._read(call, self._open(call))

    async def _choices(self, call: Call) -> None:
        await self._read(call, self._open(call))

    async def _duplicate(self, call: Call) -> None:
        twin = Call(next(self._numbers), call.scenario, call.body, call.key)
        await self._journal.write(twin.number, "asked", scenario=twin.scenario, key=twin.key, body=twin.body)
        first, second = self._wires
        async with asyncio.TaskGroup() as group:
            group.create_task(self._persist(call, self._open(call, first)))
            group.create_task(self._persist(twin, self._open(twin, second)))

    async def _come_back(self, call: Call) -> None:
        leave_at = self._random.randrange(1, call.body["maxOutputTokens"])
        await self._persist(call, self._open(call), leave_at=leave_at)

    async def _resume(self, call: Call) -> None:
        await self._persist(call, self._open(call))

    async def _persist(self, call: Call, events: AsyncIterator[Event], leave_at: int | None = None) -> None:
        """Read to the end, coming back through any gateway from the next token on."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _COME_BACK_S
        while True:
            call.cut = False
            try:
                await self._read(call, events, leave_at=leave_at)
            except Broken as broken:
                await self._journal.write(call.number, "broken", cause=str(broken))
            except Refused as refused:
                await self._refused(call, refused)
                if refused.reason not in REFUSALS:
                    return
            if call.ended or loop.time() > give_up:
                return
            leave_at = None
            await asyncio.sleep(_PAUSE_S)
            if call.request_id:
                events = self._wire().attach(call.request_id, call.next_index)
            elif call.key:
                events = self._open(call)
            else:
                return

    # What callers are told.

    async def _read(
        self,
        call: Call,
        events: AsyncIterator[Event],
        *,
        at: int | None = None,
        then: Callable[[], Coroutine[Any, Any, None]] | None = None,
        leave_at: int | None = None,
    ) -> None:
        """Note every event; `then` once token `at` is here; leave at token `leave_at`."""
        acting: asyncio.Task[None] | None = None
        streaming = False
        async with contextlib.aclosing(events) as stream:  # type: ignore[type-var]
            try:
                async for event, data in stream:
                    await self._take(call, event, data)
                    if event == "token" and not streaming:
                        streaming = True
                        self.streaming += 1
                    if call.ended or call.cut:
                        return
                    seen = sum(map(len, call.tokens.values()))
                    if at is not None and then is not None and acting is None and seen >= at:
                        acting = asyncio.create_task(then())
                    if leave_at is not None and seen >= leave_at:
                        await self._journal.write(call.number, "left")
                        return
                raise Broken("no last word")
            finally:
                self.streaming -= streaming
                if acting is not None:
                    await acting

    async def _take(self, call: Call, event: str, data: dict[str, Any]) -> None:
        number = call.number
        match event:
            case "accepted":
                if call.request_id not in {"", data["requestId"]}:
                    await self._journal.write(number, "violation", what="another request id", data=data)
                call.request_id = data["requestId"]
                await self._journal.write(number, "accepted", request_id=call.request_id)
            case "token":
                ids = call.tokens.setdefault(data["choice"], [])
                await self._journal.write(
                    number, "tokens", choice=data["choice"], index=data["index"], ids=data["tokenIds"]
                )
                if data["index"] != len(ids) or data["count"] != len(data["tokenIds"]):
                    what = f"token {data['index']} after {len(ids)}"
                    await self._journal.write(number, "violation", what=what)
                ids.extend(data["tokenIds"])
                call.text += data["text"]
            case "done":
                call.ended = True
                if len(self.outputs) < _OUTPUTS:
                    self.outputs.append(call)
                await self._journal.write(number, "done", **data)
            case "error" if data["reason"] in CUTS:
                call.cut = True
                await self._journal.write(number, "cut", reason=data["reason"])
            case "error" if data["reason"] in GONE:
                call.ended = True
                await self._journal.write(number, "gone", reason=data["reason"])
            case _:
                call.ended = True
                await self._journal.write(number, "failed", reason=data["reason"])

    async def _refused(self, call: Call, refused: Refused) -> None:
        self.refusals[refused.reason] += 1
        await self._journal.write(call.number, "refused", reason=refused.reason)
        await asyncio.sleep(min(refused.retry_after_s or _PAUSE_S, 1.0))
