"""The previous release, played back: a gateway and a worker that know no newer protos than the baseline's.

The streams in tests/data/streams were recorded between the services of that release: frames of (direction,
length, message), direction 0 towards the server.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kit.grpc import LANE_MESSAGE_BYTES, Server, channel
from tokenloom.api.scheduler.v1 import scheduler_pb2

ROOT = Path(__file__).parents[3]
STREAMS = ROOT / "tests" / "data" / "streams"
UP, DOWN = 0, 1
_FRAME = struct.Struct("<BI")
# A release that does not know these has no use for them, and reads an empty message.
IGNORED = {"heartbeat_ack"}


def _previous() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    image = descriptor_pb2.FileDescriptorSet.FromString((ROOT / "protos" / "baseline.binpb").read_bytes())
    for file in image.file:
        pool.Add(file)
    return pool


_POOL = _previous()


def previous(name: str) -> Any:
    """A message class as the previous release has it."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"tokenloom.api.{name}"))


def frames(name: str) -> list[tuple[int, bytes]]:
    """A recorded stream."""
    data, found, place = (STREAMS / f"{name}.rec").read_bytes(), [], 0
    while place < len(data):
        direction, length = _FRAME.unpack_from(data, place)
        place += _FRAME.size
        found.append((direction, data[place : place + length]))
        place += length
    return found


def rows(step: Any) -> dict[tuple[int, int], list[int]]:
    """A lane step's tokens by request and choice."""
    tokens = defaultdict(list)
    for request_id, choice, token in zip(step.request_id, step.choice, step.token_id, strict=True):
        tokens[request_id, choice].append(token)
    return tokens


def recorded_tokens() -> dict[tuple[int, int], list[int]]:
    """All that the recorded gateway was told, by request and choice."""
    tokens = defaultdict(list)
    for direction, message in frames("lane"):
        if direction == DOWN:
            for key, more in rows(previous("scheduler.v1.LaneResponse").FromString(message).step).items():
                tokens[key] += more
    return tokens


class RecordedGateway:
    """Says what the recorded gateway said, each message once it has heard as much as that one had."""

    def __init__(self, target: str) -> None:
        self._channel = channel(target, max_message_bytes=LANE_MESSAGE_BYTES)
        self.kinds: list[str] = []
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.ended: set[int] = set()
        self.expected: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._news = asyncio.Event()

    async def replay(self) -> None:
        """The whole recording, to its last settle; what was heard last may still be on its way."""
        call = self._channel.stream_stream("/tokenloom.api.scheduler.v1.SchedulerService/Lane")()
        reading = asyncio.create_task(self._read(call))
        due: set[int] = set()
        for direction, message in frames("lane"):
            if direction == UP:
                await self._heard(due)
                await call.write(message)
            else:
                step = previous("scheduler.v1.LaneResponse").FromString(message).step
                for key, tokens in rows(step).items():
                    self.expected[key] += tokens
                due |= {end.request_id for end in step.request_end}
        await call.done_writing()
        reading.cancel()
        await self._channel.close()

    async def _heard(self, ended: set[int]) -> None:
        while self.ended < ended or any(
            len(self.tokens[key]) < len(tokens) for key, tokens in self.expected.items()
        ):
            self._news.clear()
            await self._news.wait()

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            response = previous("scheduler.v1.LaneResponse").FromString(message)
            kind = response.WhichOneof("message")
            if kind is None:
                kind = scheduler_pb2.LaneResponse.FromString(message).WhichOneof("message")
                assert kind in IGNORED, kind
            self.kinds.append(kind)
            for key, tokens in rows(response.step).items():
                self.tokens[key] += tokens
            self.ended |= {end.request_id for end in response.step.request_end}
            self._news.set()


class RecordedWorker:
    """Answers plans of its release as the recorded worker did, in whatever batches they come."""

    def __init__(self, target: str) -> None:
        self.target = target
        (described,) = [message for _, message in frames("describe")]
        self.described = previous("worker.v1.DescribeResponse").FromString(described)
        self._answers = _answers()
        self._slots: dict[int, list[Any]] = {}

    async def start(self) -> None:
        self._server = Server(self.target, max_message_bytes=LANE_MESSAGE_BYTES)
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "Run": grpc.stream_stream_rpc_method_handler(self._run),
        }
        name = "tokenloom.api.worker.v1.WorkerService"
        self._server.aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        await self._server.start([name])

    async def die(self) -> None:
        await self._server.aio.stop(0)

    async def _describe(self, request: bytes, context: Any) -> bytes:
        return self.described.SerializeToString()

    async def _run(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            plan = previous("worker.v1.RunRequest").FromString(request).plan
            response = previous("worker.v1.RunResponse")()
            response.result.epoch, response.result.step = plan.epoch, plan.step
            self._execute(plan, response.result)
            yield response.SerializeToString()

    def _execute(self, plan: Any, result: Any) -> None:
        for sequence, known in _walk(plan, self._slots):
            answers, index = self._answers[_key(sequence)], known - sequence.prompt_len
            result.slot.append(sequence.slot)
            # A stop or a cancel may come a step later than it came then.
            result.token_id.append(answers[index] if index < len(answers) else 0)


def _key(sequence: Any) -> tuple[Any, ...]:
    sampling = sequence.sampling
    prompt = tuple(sequence.token_ids[: sequence.prompt_len])
    return prompt, sequence.choice, sampling.temperature, sampling.seed if sampling.temperature else 0


def _walk(plan: Any, slots: dict[int, list[Any]]) -> list[tuple[Any, int]]:
    """Take a plan in as a worker does; the sequences that sample, each with its length before that."""
    for slot in plan.drop:
        slots.pop(slot, None)
    for added in plan.add:
        slots[added.slot] = [added, len(added.token_ids), added.computed_len]
    sampling = []
    for slot, count in zip(plan.slot, plan.token_count, strict=True):
        state = slots[slot]
        state[2] += count
        if state[2] == state[1]:
            sampling.append((state[0], state[1]))
            state[1] += 1
    return sampling


def _answers() -> dict[tuple[Any, ...], list[int]]:
    """Every token of the recording, by what it was drawn for."""
    answers: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    slots: dict[int, list[Any]] = {}
    due: dict[tuple[int, int], list[Any]] = {}
    for direction, message in frames("run"):
        if direction == UP:
            plan = previous("worker.v1.RunRequest").FromString(message).plan
            due[plan.epoch, plan.step] = [sequence for sequence, _ in _walk(plan, slots)]
        else:
            result = previous("worker.v1.RunResponse").FromString(message).result
            by_slot = dict(zip(result.slot, result.token_id, strict=True))
            for sequence in due[result.epoch, result.step]:
                answers[_key(sequence)].append(by_slot[sequence.slot])
    return answers
