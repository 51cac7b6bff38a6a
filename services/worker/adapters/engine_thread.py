"""The one thread that owns the engine: plans in, results out, in order."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kit import log
from kit.artifacts import ArtifactError
from services.worker.core.errors import MalformedPlanError, NotLoadedError, PlanError
from services.worker.core.liveness import Liveness
from services.worker.core.steps import Replay, StepLog
from services.worker.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.worker.adapters.metrics import WorkerMetrics
    from services.worker.core.ports import Engine
    from tokenloom.api.worker.v1 import worker_pb2

INBOX = 16
T = TypeVar("T")
_log = log.get("engine")


class _Job(NamedTuple):
    plan: worker_pb2.StepPlan
    arrived: float
    done: asyncio.Future[worker_pb2.StepResult]


class EngineThread:
    """Loads an engine and runs its steps away from the event loop.

    An exception out of a step means that the engine's state is unknown: the thread ends, `ended` carries
    the exception, and the process must be restarted.
    """

    def __init__(self, load: Callable[[], Engine], metrics: WorkerMetrics, *, hang_s: float) -> None:
        self._load = load
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.Queue[_Job | None] = queue.Queue(INBOX)
        self._steps: StepLog[worker_pb2.StepResult] = StepLog()
        self._liveness = Liveness(hang_s)
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.loaded: asyncio.Future[Engine] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def last_epoch(self) -> int:
        """The highest epoch that ran a step here."""
        return self._steps.epoch

    @property
    def alive(self) -> bool:
        """Whether steps go on, or would: the thread lives and no step hangs."""
        return not self.ended.done() and not self._liveness.hung(time.monotonic())

    def start(self) -> None:
        """Begin loading."""
        self._thread.start()

    def submit(self, plan: worker_pb2.StepPlan) -> asyncio.Future[worker_pb2.StepResult]:
        """Queue a plan; the future gives its result, or the `PlanError` that refuses it."""
        if self.ended.done() or not self.loaded.done():
            raise NotLoadedError("the engine is not loaded")
        job = _Job(plan, time.monotonic(), self._loop.create_future())
        try:
            self._inbox.put_nowait(job)
        except queue.Full:
            raise NotLoadedError(f"{INBOX} plans wait already") from None
        return job.done

    async def settled(self) -> None:
        """Return once loading has ended, one way or the other."""
        await first_of(self.loaded, self.ended)

    async def stop(self, grace_s: float) -> None:
        """End the thread after the plans it has; one that hangs is left behind."""
        if self._thread.is_alive() and self.loaded.done():
            self._inbox.put_nowait(None)
            await asyncio.wait({self.ended}, timeout=grace_s)

    def _main(self) -> None:
        try:
            started = time.monotonic()
            engine = self._load()
            self._metrics.loaded(engine, time.monotonic() - started)
            self._post(self.loaded, engine)
            while (job := self._inbox.get()) is not None:
                self._run(engine, job)
            self._post(self.ended, None)
        except (ArtifactError, EngineError) as refusal:
            _log.error("the model cannot be loaded", reason=str(refusal))
            self._post_error(self.ended, refusal)
        except Exception as error:
            _log.exception("engine thread died")
            self._post_error(self.ended, error)

    def _run(self, engine: Engine, job: _Job) -> None:
        try:
            admitted = self._steps.admit(job.plan.epoch, job.plan.step)
            _check_columns(job.plan)
        except PlanError as error:
            self._post_error(job.done, error)
            return
        if isinstance(admitted, Replay):
            self._post(job.done, admitted.result)
            return
        result = self._execute(engine, job, reset=admitted.reset)
        self._steps.record(job.plan.epoch, job.plan.step, result)
        self._metrics.observe(result, len(job.plan.slot))
        self._post(job.done, result)

    def _execute(self, engine: Engine, job: _Job, *, reset: bool) -> worker_pb2.StepResult:
        started = time.monotonic()
        self._liveness.started(started)
        if reset:
            _log.info("attached", epoch=job.plan.epoch)
            engine.reset()
        result = engine.execute(job.plan)
        self._liveness.finished()
        result.epoch, result.step = job.plan.epoch, job.plan.step
        result.queue_us = int((started - job.arrived) * 1e6)
        return result

    def _post(self, future: asyncio.Future[T], value: T) -> None:
        self._loop.call_soon_threadsafe(_resolve, future, value)

    def _post_error(self, future: asyncio.Future[T], error: Exception) -> None:
        self._loop.call_soon_threadsafe(_reject, future, error)


def _check_columns(plan: worker_pb2.StepPlan) -> None:
    if len(plan.slot) != len(plan.token_count):
        raise MalformedPlanError("slot", "token_count")
    if len(plan.page_slot) != len(plan.page):
        raise MalformedPlanError("page_slot", "page")


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Return once one of these is done, whatever its result."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
