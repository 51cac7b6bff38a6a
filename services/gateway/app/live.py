"""The requests of this gateway that have not ended, and what their owners ask for: journal and callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kit import lifecycle, log
from kit.errors import ServiceError
from services.gateway.app.reading import Reading, Turn
from services.gateway.core.effects import AppendClosed, AppendOpened, Ended, Fault, Opened, Refuse, TurnAway
from services.gateway.core.ids import format_id

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from services.gateway.app.ports import Lane, Ticket, UsageJournal
    from services.gateway.core.effects import Effect, UsageRecord
    from services.gateway.core.outcome import Closed, Verdict
    from services.gateway.core.owner import Owner
    from services.gateway.core.reader import Reader

_log = log.get("generations")
_RECENT = 4096


class Live:
    """One request: its owner, and what callers wait for."""

    def __init__(self, owner: Owner, ticket: Ticket | None) -> None:
        self.owner, self.ticket = owner, ticket
        self.ended = asyncio.Event()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def model_version(self) -> str:
        """`name@version`, fixed for the request's life."""
        return self.owner.order.model_version

    @property
    def started(self) -> bool:
        """Whether any token has come."""
        return self.owner.output.started


class LiveTable:
    """Carries out what owners ask for."""

    def __init__(self, lane: Lane, journal: UsageJournal) -> None:
        self._lane, self._journal = lane, journal
        self._live: dict[int, Live] = {}
        self._readings: dict[Reader, Reading] = {}
        self._turn = Turn()
        self._recent: OrderedDict[int, Verdict] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        lane.listen(self._carry_out)

    def add(self, owner: Owner, ticket: Ticket | None = None) -> Live:
        """A request begins."""
        self._live[owner.request_id] = live = Live(owner, ticket)
        return live

    def find(self, request_id: int, tenant_id: str) -> Live | None:
        """A tenant's request, unless it has ended."""
        live = self._live.get(request_id)
        return live if live is not None and live.owner.tenant_id == tenant_id else None

    def owned(self) -> list[Live]:
        """The requests that are ours to end."""
        return [live for live in self._live.values() if live.owner.owning]

    def recent(self, request_id: int) -> Verdict | None:
        """How this gateway closed a request, if that was not long ago."""
        return self._recent.get(request_id)

    async def join(self, live: Live, reader: Reader) -> Reading:
        """Let one more read; returns once it may see `accepted`, or raises the refusal."""
        reading = Reading(live.owner, reader, self._lane, live.ended, self._turn)
        self._readings[reader] = reading
        self._lane.tell(live.owner.join, reader)
        try:
            await asyncio.shield(live.opened)
        except BaseException:  # a cancelled caller leaves no reader behind either
            reading.leave()
            raise
        return reading

    def check_readers(self) -> None:
        """Turn those away who do not read, even what has ended."""
        self._readings = {reader: one for reader, one in self._readings.items() if not reader.left}
        for owner in {id(one.owner): one.owner for one in self._readings.values()}.values():
            self._lane.tell(owner.check_readers)

    def shut_down(self) -> None:
        """End or hand over everything."""
        for live in list(self._live.values()):
            self._lane.tell(live.owner.shut_down)

    async def emptied(self) -> None:
        """Return once what is live now has ended."""
        await asyncio.gather(*(live.ended.wait() for live in self._live.values()))

    def _carry_out(self, owner: Owner, effect: Effect) -> None:
        if isinstance(effect, TurnAway):
            if (reading := self._readings.pop(effect.reader, None)) is not None:
                reading.turn_away()
            return
        live = self._live[owner.request_id]
        match effect:
            case AppendOpened(usage):
                self._spawn(self._append_opened(live, usage))
            case AppendClosed(usage, closed):
                self._spawn(self._append_closed(owner, usage, closed))
            case Opened():
                live.opened.set_result(None)
            case Refuse(error):
                live.opened.set_exception(error)
                live.opened.exception()  # the caller may be gone
                self._ended(live)
            case Ended():
                self._ended(live)
            case Fault(kind):
                _log.error("request given up", request=format_id(owner.request_id), fault=kind)

    async def _append_opened(self, live: Live, usage: UsageRecord) -> None:
        try:
            if live.ticket is not None:
                await live.ticket.confirm()
            await self._journal.opened(usage)
        except ServiceError as error:
            self._lane.tell(live.owner.opened_failed, error)
        else:
            self._lane.tell(live.owner.opened_done)

    async def _append_closed(self, owner: Owner, usage: UsageRecord, closed: Closed) -> None:
        await self._journal.closed(usage, closed)
        self._lane.tell(owner.closed_done)

    def _ended(self, live: Live) -> None:
        owner = live.owner
        del self._live[owner.request_id]
        live.ended.set()
        if (verdict := owner.certain_verdict) is not None:
            if owner.owning:
                _log.info("closed", **_summary(owner, verdict.closed))
            self._recent[owner.request_id] = verdict
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="journal")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        lifecycle.guard(task)


def _summary(owner: Owner, closed: Closed) -> dict[str, object]:
    return {
        "request": format_id(owner.request_id),
        "tenant": owner.tenant_id,
        "model_version": owner.order.model_version,
        "reason": closed.finish_reason.label,
        "input_tokens": closed.input_tokens,
        "output_tokens": closed.output_tokens,
        "ttft_ms": closed.ttft_ms,
        "total_ms": closed.total_ms,
    }
