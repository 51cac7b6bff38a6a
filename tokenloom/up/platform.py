"""The whole platform: started together, watched, drained in order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

import grpc

from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.up import files, nats
from tokenloom.up.importing import ensure_model
from tokenloom.up.keeper import Keeper
from tokenloom.up.layout import DRAIN_ORDER, Layout, environment
from tokenloom.up.options import Options, Policy
from tokenloom.up.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import TracebackType

    from tokenloom.up.child import Spec
    from tokenloom.up.console import Console
    from tokenloom.up.files import Endpoint

_POLL_S = 0.1
_PATIENCE_S = 3.0


class Platform:
    """An async context: inside it every service serves; leaving it drains them all, whatever happened."""

    def __init__(self, options: Options, console: Console, policy: Policy | None = None) -> None:
        self._options = options
        self._console = console
        self._policy = policy or Policy()
        self._secrets = files.load_secrets(options.data_dir)
        trust = Trust.renewed(options.data_dir.resolve() / "certs") if options.tls else Trust()
        sockets = files.make_sockets(options.data_dir)
        self._layout = Layout(options, self._secrets, sockets, trust)
        self._keepers: list[Keeper] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Where the gateways listen, the first one first."""
        return self._layout.endpoints

    @property
    def api_key(self) -> str:
        """The development tenant's key."""
        return self._secrets.api_key

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._drain()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drain()

    async def wait_failed(self) -> None:
        """Return only by raising what made a keeper give up."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _start(self) -> None:
        # Before anything slow: a port in use is said at once.
        at = nats.Addresses(self._layout.ports.pick(), self._layout.ports.pick())
        specs = self._layout.specs(at.port)
        for name in self._options.served:
            await ensure_model(self._options.models, name)
        if self._options.nats_url is None:
            await self._serve([self._nats(at)])
        await self._serve(specs)
        await self._race(self._await_workers())
        files.write_dev_env(self._options.data_dir, self.endpoints, self.api_key, self._layout.trust.ca)

    def _nats(self, at: nats.Addresses) -> Spec:
        directory = self._options.data_dir.resolve() / "nats"
        config = directory / "nats.conf"
        trust = self._layout.trust
        store = directory / "jetstream"
        files.write_private(config, nats.config(at, store, self._secrets.nats, trust.nats_settings()))
        return nats.spec(config, at, environment(), trust.nats_context())

    async def _serve(self, specs: Sequence[Spec]) -> None:
        keepers = [Keeper(spec, self._console, self._policy, self._write_services) for spec in specs]
        self._keepers += keepers
        self._tasks += [asyncio.create_task(keeper.run(), name=keeper.spec.name) for keeper in keepers]
        waiting = asyncio.create_task(self._say_who_is_awaited(keepers))
        try:
            for keeper in keepers:
                await self._race(keeper.serving.wait())
        finally:
            waiting.cancel()

    async def _say_who_is_awaited(self, keepers: Sequence[Keeper]) -> None:
        while True:
            await asyncio.sleep(_PATIENCE_S)
            names = [keeper.spec.name for keeper in keepers if not keeper.serving.is_set()]
            self._console.event(f"waiting for {', '.join(names)}")

    async def _race(self, work: Coroutine[Any, Any, object]) -> None:
        """Await `work`, unless a service gives up first."""
        wanted, failed = asyncio.ensure_future(work), asyncio.ensure_future(self.wait_failed())
        try:
            await asyncio.wait({wanted, failed}, return_when=asyncio.FIRST_COMPLETED)
            await (failed if failed.done() else wanted)
        finally:
            wanted.cancel()
            failed.cancel()
            await asyncio.gather(wanted, failed, return_exceptions=True)

    async def _await_workers(self) -> None:
        """Serving means little before the scheduler has attached to every worker."""
        async with self._layout.trust.channel(self._layout.socket("scheduler"), "scheduler") as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            attached = 0
            while attached < len(self._options.worker_models):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    response = await stub.Inspect(
                        scheduler_pb2.InspectRequest(), timeout=self._policy.answer_s
                    )
                    attached = sum(lane.workers for lane in response.lanes)
                await asyncio.sleep(_POLL_S)

    def _write_services(self) -> None:
        rows = [
            {
                "name": keeper.spec.name,
                "service": keeper.spec.service,
                "pid": keeper.child.pid,
                "target": keeper.spec.target,
                "metrics_url": keeper.spec.metrics_url,
            }
            for keeper in self._keepers
            if keeper.child
        ]
        files.write_services(self._options.data_dir, rows)

    async def _drain(self) -> None:
        files.forget_running(self._options.data_dir)
        if self._keepers:
            self._console.event("draining")
        for service in DRAIN_ORDER:
            stage = [keeper for keeper in self._keepers if keeper.spec.service == service]
            await asyncio.gather(*(keeper.stop() for keeper in stage))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        files.remove_sockets(self._options.data_dir)
