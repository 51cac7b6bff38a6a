"""gRPC as production code sees it, over the simulated network: calls, streams and their contexts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from kit.errors import ServiceError
from kit.grpc_errors import to_status
from tests.simulation.kernel import Process
from tests.simulation.network import KEEPALIVE_S, Network, Stream

READY_POLL_S = 0.2
Handler = Callable[[Any, Any], Awaitable[Any]]


def unavailable(details: str = "the peer is gone") -> grpc.aio.AioRpcError:
    """What a call raises when its connection is gone."""
    return _error(grpc.StatusCode.UNAVAILABLE, details)


def refusal(error: ServiceError) -> grpc.aio.AioRpcError:
    """What a call raises when its handler raised."""
    status = to_status(error)
    trailing = grpc.aio.Metadata(*((key, value) for key, value in status.trailing_metadata))
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), trailing, details=status.details)


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class End:
    """One end of a stream: what came waits until it is read; writing waits when the peer reads nothing."""

    def __init__(self, stream: Stream, process: Process, *, client: bool) -> None:
        self.stream = stream
        self._process, self._life = process, process.life
        self._in, self._out = (stream.down, stream.up) if client else (stream.up, stream.down)
        self._client = client
        self._inbox: deque[object] = deque()
        self._news: deque[asyncio.Future[None]] = deque()
        self.error: grpc.aio.AioRpcError | None = None
        self.ended = False
        self.on_end: Callable[[], object] = lambda: None
        self._in.receive = self._receive
        self._in.on_break = lambda: self._broke(unavailable())

    async def read(self) -> object:
        """The next message, EOF after the last; raises once the stream broke."""
        while not self._inbox:
            if self.error is not None:
                raise self.error
            if self.ended:
                return grpc.aio.EOF
            await self._wait()
        self._in.was_read()
        return self._inbox.popleft()

    async def write(self, message: object) -> None:
        """Send a message; raises once the stream is known to be broken."""
        while self.error is None and not self.ended and self._out.unread >= self.stream.window:
            self._out.on_room = lambda: self._process.deliver(0.001, self._wake)
            await self._wait()
        if self.error is not None or self.ended:
            raise self.error or unavailable()
        self._out.unread += 1
        self._out.send(message)

    def close(self) -> None:
        """End the stream from this side."""
        if not self.ended and self._process.life == self._life:
            self.ended = True
            self.stream.close(by_client=self._client)
            self._wake()

    def _receive(self, message: object) -> None:
        if message is None or isinstance(message, _Status):
            self._broke(message.error if message is not None else None)
            return
        self._inbox.append(message)
        self._wake()

    def _broke(self, error: grpc.aio.AioRpcError | None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
            self._wake()
            self.on_end()

    async def _wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._news.append(future)
        await future

    def _wake(self) -> None:
        news, self._news = self._news, deque()
        for future in news:
            if not future.done():
                future.set_result(None)


class _Status:
    """The last message down: how the handler ended."""

    def __init__(self, error: grpc.aio.AioRpcError | None) -> None:
        self.error = error


class Server(Process):
    """A process with handlers of calls; `streams` and `unaries` are set as it starts."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__(network.world, name)
        self.network = network
        self.streams: dict[str, Callable[[Stream], None]] = {}
        self.unaries: dict[str, Handler] = {}

    def on_crash(self) -> None:
        self.network.process_gone(self)

    def pause(self, for_s: float) -> None:
        """Stop; peers whose keepalives go unanswered hang up."""
        super().pause(for_s)
        life, pause = self.life, self._pauses
        self.world.after(KEEPALIVE_S, lambda: self._hang_up(life, pause))

    def _hang_up(self, life: int, pause: int) -> None:
        if self.paused and (life, pause) == (self.life, self._pauses):
            self.network.process_gone(self)

    def serve_stream(self, handler: Callable[[Context], Awaitable[None]]) -> Callable[[Stream], None]:
        """Run a coroutine for each stream that comes; its end is the stream's."""

        def accept(stream: Stream) -> None:
            end = End(stream, self, client=False)
            task = self.loop.create_task(self._handle(handler, end))
            end.on_end = task.cancel

        return accept

    async def _handle(self, handler: Callable[[Context], Awaitable[None]], end: End) -> None:
        error: grpc.aio.AioRpcError | None = None
        try:
            await handler(Context(end))
        except ServiceError as failure:
            error = refusal(failure)
        except asyncio.CancelledError:
            error = unavailable()
        except Exception as fault:  # production would answer INTERNAL
            self.failed(fault)
        if not end.ended:
            end.stream.down.send(_Status(error))
            end.close()


class Context:
    """What a streaming handler sees of its call."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.read, self.write = end.read, end.write


class Call:
    """What the client of a stream sees of it."""

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Server,
        method: str,
        *,
        patient: bool = False,
        window: int = 64,
    ) -> None:
        self._network, self._client, self._server = network, client, server
        self._method, self._patient, self._window = method, patient, window
        self._end: End | None = None
        self._opening = asyncio.get_running_loop().create_task(self._open())
        self._pump: asyncio.Task[None] | None = None

    async def write(self, message: object) -> None:
        """Send; waits for the connection."""
        await (await self._opened()).write(message)

    async def read(self) -> object:
        """Receive; EOF after the last."""
        return await (await self._opened()).read()

    def cancel(self) -> None:
        """Give the call up."""
        if self._client.world.running is not self._client:
            return  # the remains of an earlier life
        self._opening.cancel()
        if self._pump is not None:
            self._pump.cancel()
        if self._end is not None:
            self._end.close()

    def send_all(self, messages: AsyncIterator[object]) -> None:
        """Send what an iterator gives, then nothing more."""

        async def pump() -> None:
            end = await self._opened()
            async for message in messages:
                await end.write(message)
            end.stream.up.send(None)

        self._pump = asyncio.get_running_loop().create_task(_quiet(pump()))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def _opened(self) -> End:
        return await asyncio.shield(self._opening)

    async def _open(self) -> End:
        network, client, server = self._network, self._client, self._server
        while not self._listening() or network.silent(client, server):
            if self._listening():
                await asyncio.sleep(READY_POLL_S)  # nobody answers, nobody refuses
                continue
            await asyncio.sleep(network.latency())
            if not self._patient:
                raise unavailable("connection refused")
            await asyncio.sleep(client.world.rng.uniform(0.05, READY_POLL_S))
        stream = Stream(network, client, server, self._method, self._window)
        accept = server.streams[self._method]
        stream.up.receive = lambda _: accept(stream)
        self._end = End(stream, client, client=True)
        stream.up.send(None)
        return self._end

    def _listening(self) -> bool:
        return self._server.up and self._method in self._server.streams


async def _quiet(work: Awaitable[None]) -> None:
    try:
        await work
    except grpc.aio.AioRpcError:
        return


async def ask(
    network: Network,
    client: Process,
    server: Server,
    method: str,
    request: object,
    timeout: float,  # noqa: ASYNC109
) -> Any:
    """Make a unary call."""
    done = asyncio.get_running_loop().create_future()

    def answer(result: object) -> None:
        if done.done():
            return
        if isinstance(result, BaseException):
            done.set_exception(result)
        else:
            done.set_result(result)

    async def handle() -> None:
        try:
            result: object = await server.unaries[method](request, None)
        except ServiceError as error:
            result = refusal(error)
        if not network.silent(client, server):
            client.deliver(network.latency(), lambda: answer(result))

    if not server.up:
        client.deliver(network.latency(), lambda: answer(unavailable("connection refused")))
    elif not network.silent(client, server):
        server.deliver(network.latency(), lambda: server.loop.create_task(handle()))
    try:
        async with asyncio.timeout(timeout):
            return await done
    except TimeoutError:
        raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
