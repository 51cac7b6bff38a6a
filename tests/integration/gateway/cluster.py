"""Gateways on a real scheduler, without their faces; their journals are kept in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit.grpc import LANE_MESSAGE_BYTES, channel
from services.gateway.adapters.lane import LaneClient
from services.gateway.adapters.records import SchedulerRecords
from services.gateway.app.generations import Arrival, Generations, Ports, Settings
from services.gateway.app.ports import Route, Tenant
from services.gateway.core.effects import NoMeter
from services.gateway.core.limits import Priority
from services.gateway.core.spec import GenerationSpec
from services.gateway.core.tokenizing import ModelTokenizer
from tests.integration.scheduler.support import MODEL, House, PlayedWorker
from tests.unit.gateway_core.toy import CHATML, byte_level_json, manifest
from tokenloom.api.scheduler.v1 import scheduler_pb2_grpc

if TYPE_CHECKING:
    from services.gateway.app.reading import Reading
    from services.gateway.core.choice import Piece
    from services.gateway.core.outcome import Closed

ACME, RIVAL = Tenant("acme", Priority.STANDARD), Tenant("rival", Priority.STANDARD)
PROMPT = (5, 6, 7)
NAME, VERSION = MODEL.split("@")
TOKENIZER = ModelTokenizer(
    manifest(128).model_copy(update={"name": NAME, "version": VERSION}), byte_level_json(), CHATML
)
STEP_S = 0.02


class PacedWorker(PlayedWorker):
    """A worker that takes its time: the n-th token of a sequence, counted with its prompt, is n."""

    pace_s = STEP_S

    async def Run(self, request_iterator, context):
        async for response in super().Run(request_iterator, context):
            await asyncio.sleep(self.pace_s)
            yield response


@dataclass
class Journal:
    """Usage events in the order in which they became durable."""

    opened_rows: list[Any] = field(default_factory=list)
    closed_rows: list[tuple[Any, Closed]] = field(default_factory=list)

    def check_room(self) -> None:
        pass

    async def opened(self, record):
        self.opened_rows.append(record)

    async def closed(self, record, closed):
        self.closed_rows.append((record, closed))

    async def renewed(self, request_ids):
        pass


class _Neighbours:
    """Routes, tokenizers and meters in one."""

    def find(self, model, field="model"):
        return Route(NAME, MODEL, "", 128, "toy")

    def list(self):
        return [self.find(NAME)]

    async def load(self, route):
        return TOKENIZER

    def loaded(self, model_version):
        return TOKENIZER

    async def run(self, work, *args, **kwargs):
        return work(*args, **kwargs)

    def of(self, model_version, tenant_id):
        return NoMeter()


class Gateway:
    """One gateway process, as far as ownership goes."""

    def __init__(self, house: House, name: str, journal: Journal, *, resume_lease_s: float = 30.0) -> None:
        self.journal = journal
        self._house = house
        self._channel = channel(house.target, max_message_bytes=LANE_MESSAGE_BYTES)
        self._calls: list[Any] = []
        stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)
        self.lane = LaneClient(lambda: self._open(stub), name, resubmit_s=30.0)
        around = _Neighbours()
        self.generations = Generations(
            Ports(around, around, self.lane, SchedulerRecords(stub), journal, around),
            Settings(16, 30.0, 1 << 20, resume_lease_s),
        )
        self._task = asyncio.create_task(self.lane.run())

    def _open(self, stub):
        self._calls.append(stub.Lane(wait_for_ready=True))
        return self._calls[-1]

    def cut(self) -> None:
        """Break the lane's connection."""
        self._calls[-1].cancel()

    def freeze(self) -> None:
        """Neither hear nor say anything, as a process that is stopped; the clocks go on."""
        self._task.cancel()

    async def thaw(self) -> None:
        """Go on."""
        await asyncio.wait({self._task})
        self._task = asyncio.create_task(self.lane.run())

    async def vanish(self) -> None:
        """Be gone without a word, and do nothing any more that its owners ask for."""
        self.lane.listen(lambda owner, effect: None)
        self._task.cancel()
        await asyncio.wait({self._task})
        with contextlib.suppress(asyncio.CancelledError):
            await self._channel.close()

    async def start(self, **fields) -> Reading:
        spec = GenerationSpec(model=NAME, prompt_token_ids=PROMPT, ignore_eos=True, temperature=0.0, **fields)
        return await self.generations.start(ACME, spec, Arrival(time.monotonic()))

    async def attach(self, reading: Reading, *from_index: int, tenant: Tenant = ACME) -> Reading:
        request_id = reading.accepted.request_id
        return await self.generations.attach(tenant, request_id, from_index, Arrival(time.monotonic()))


class Client:
    """Takes all that a reading gives, as it comes; an index that is repeated or missing is an error."""

    def __init__(self, reading: Reading, start: int = 0) -> None:
        self.reading = reading
        self.ids: dict[int, list[int]] = {}
        self.texts: dict[int, str] = {}
        self._start = start
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> Closed:
        try:
            while pieces := await self.reading.take():
                for piece in pieces:
                    self._note(piece)
            return await self.reading.ended()
        finally:
            self.reading.leave()

    def _note(self, piece: Piece) -> None:
        ids = self.ids.setdefault(piece.choice, [])
        assert piece.index == self._start + len(ids), "a token is repeated or missing"
        ids.extend(record.token_id for record in piece.tokens)
        self.texts[piece.choice] = self.texts.get(piece.choice, "") + piece.text

    def count(self, choice: int = 0) -> int:
        return len(self.ids.get(choice, []))
