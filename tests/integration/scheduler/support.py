"""The scheduler in this process with real NATS, real workers' shells and gateways played by the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

import grpc
from prometheus_client import CollectorRegistry

from kit.bus import Bus
from kit.grpc import LANE_MESSAGE_BYTES, Server, channel
from services.scheduler.bootstrap import serve
from services.scheduler.config import SchedulerConfig
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tokenloom.api.worker.v1 import worker_pb2, worker_pb2_grpc

MODEL = "tiny@1"
FINISH = inference_pb2.FinishReason


class PlayedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """A worker whose every step is recorded and answered when the test lets it: row tokens count up."""

    def __init__(self, target: str, incarnation: str = "i1") -> None:
        self.target = target
        self.incarnation = incarnation
        self.state = worker_pb2.WORKER_STATE_READY
        self.last_epoch = 0
        self.plans: list[worker_pb2.StepPlan] = []
        self.open = asyncio.Event()
        self.open.set()
        self.holds_at: int | None = None  # closes `open` itself once it has so many plans
        self.streams = self.attempts = 0
        self.flaps = False
        self._server: Server | None = None
        self._known: dict[int, list[int]] = {}

    async def start(self) -> Self:
        self._server = Server(self.target, max_message_bytes=LANE_MESSAGE_BYTES)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server.aio)
        await self._server.start(["tokenloom.api.worker.v1.WorkerService"])
        return self

    async def die(self) -> None:
        if self._server is not None:
            await self._server.aio.stop(0)
            self._server = None

    def go_on(self) -> None:
        self.holds_at = None
        self.open.set()

    async def Describe(self, request, context):
        return worker_pb2.DescribeResponse(
            worker_id="w1",
            state=self.state,
            model_version=MODEL,
            runtime_revision="played",
            incarnation=self.incarnation,
            last_epoch=self.last_epoch,
            page_size=4,
            page_count=64,
            slot_count=16,
            max_step_tokens=64,
            context_length=128,
            vocab_size=1000,
            kv_bytes_per_token=1,
        )

    async def Run(self, request_iterator, context):
        self.attempts += 1
        if self.flaps:
            return
        self.streams += 1
        try:
            async for request in request_iterator:
                self.plans.append(request.plan)
                if len(self.plans) == self.holds_at:
                    self.open.clear()
                await self.open.wait()
                yield worker_pb2.RunResponse(result=self._answer(request.plan))
        finally:
            self.streams -= 1

    def _answer(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        result = worker_pb2.StepResult(epoch=plan.epoch, step=plan.step, forward_us=100)
        self.last_epoch = plan.epoch
        for added in plan.add:
            self._known[added.slot] = [len(added.token_ids), added.computed_len]
        for slot, count in zip(plan.slot, plan.token_count, strict=True):
            known = self._known[slot]
            known[1] += count
            if known[1] == known[0]:
                known[0] += 1
                result.slot.append(slot)
                result.token_id.append(known[0] % 1000)
        return result


@dataclass
class Seen:
    """What a gateway was told of one request."""

    accepted: scheduler_pb2.Accepted | None = None
    refused: scheduler_pb2.Refused | None = None
    attached: scheduler_pb2.Attached | None = None
    granted: scheduler_pb2.Granted | None = None
    settled: scheduler_pb2.Settle | None = None
    choices: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    choice_end: scheduler_pb2.ChoiceEnd | None = None
    request_end: scheduler_pb2.RequestEnd | None = None

    @property
    def tokens(self) -> list[int]:
        """Those of the first choice."""
        return self.choices[0]


class PlayedGateway:
    """A gateway's lane stream."""

    def __init__(self, target, gateway_id="gw"):
        self._channel = channel(target, max_message_bytes=LANE_MESSAGE_BYTES)
        self.stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)
        self.gateway_id = gateway_id
        self._writing = asyncio.Lock()
        self.seen: defaultdict[int, Seen] = defaultdict(Seen)
        self.welcome = None
        self.code: grpc.StatusCode | None = None
        self.steps = 0

    async def open(self, *, reading=True):
        self.call = self.stub.Lane(wait_for_ready=True)
        hello = scheduler_pb2.Hello(gateway_id=self.gateway_id)
        await self.call.write(scheduler_pb2.LaneRequest(hello=hello))
        self.welcome = (await self.call.read()).welcome
        self.reader = asyncio.create_task(self.read()) if reading else None
        return self

    async def close(self):
        self.call.cancel()
        if self.reader is not None:
            await self.reader
        await self._channel.close()

    async def send(self, **message):
        async with self._writing:
            await self.call.write(scheduler_pb2.LaneRequest(**message))

    async def submit(self, request_id, prompt=(1, 2, 3), output=4, **fields):
        submit = scheduler_pb2.Submit(
            request_id=request_id,
            tenant_id=fields.pop("tenant_id", "acme"),
            model_version=fields.pop("model_version", MODEL),
            tokenizer_version="tok",
            prompt_token_ids=prompt,
            max_output_tokens=output,
            n=fields.pop("n", 1),
            output=fields.pop("preset", ()),
            sampling=fields.pop("sampling", worker_pb2.Sampling(top_p=1.0)),
            **fields,
        )
        await self.send(submit=submit)

    async def settle(self, request_id, epoch=1, reason=FINISH.FINISH_REASON_LENGTH, output=0):
        await self.send(
            settle=scheduler_pb2.Settle(
                request_id=request_id, owner_epoch=epoch, finish_reason=reason, output_tokens=[output]
            )
        )

    async def attach(self, request_id, tenant_id="acme", epoch=0):
        await self.send(
            attach=scheduler_pb2.Attach(request_id=request_id, tenant_id=tenant_id, owner_epoch=epoch)
        )

    async def detach(self, request_id):
        await self.send(detach=scheduler_pb2.Detach(request_id=request_id))

    async def read(self):
        try:
            while (response := await self.call.read()) is not grpc.aio.EOF:
                self._note(response)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        self.code = await self.call.code()

    def _note(self, response):
        kind = response.WhichOneof("message")
        if kind == "step":
            self._note_step(response.step)
            return
        message = getattr(response, kind)
        seen = self.seen[message.request_id]
        setattr(seen, kind, message)
        if kind == "attached":
            seen.choices.clear()
            for choice, record in enumerate(message.record.choice):
                seen.choices[choice] = list(record.token_id)

    def _note_step(self, step):
        self.steps += 1
        rows = zip(step.request_id, step.choice, step.index, step.token_id, strict=True)
        for request_id, choice, index, token in rows:
            assert index == len(self.seen[request_id].choices[choice]), "a token is repeated or missing"
            self.seen[request_id].choices[choice].append(token)
        for end in step.choice_end:
            self.seen[end.request_id].choice_end = end
        for end in step.request_end:
            assert self.seen[end.request_id].request_end is None, "two terminal messages"
            self.seen[end.request_id].request_end = end


class House:
    """A scheduler, its NATS and its state directory."""

    def __init__(self, nats_url, directory):
        self.nats_url = nats_url
        self.directory = directory
        self.target = f"unix:{directory}/scheduler"
        self.bus: Bus | None = None
        self.stop = asyncio.Event()
        self.done: asyncio.Task | None = None
        self.gateways: list[PlayedGateway] = []
        self.workers: list[PlayedWorker] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, nats_url, directory):
        """With empty streams; at the end everything of it is gone."""
        house = cls(nats_url, directory)
        house.bus = await Bus.connect(nats_url, "test")
        for name, subject in (("DEPLOYMENT", "deployment.v1.>"), ("USAGE", "usage.v1.>")):
            await house.bus.ensure_stream(name, [subject], 3600)
            await house.bus.js.purge_stream(name)
        try:
            yield house
        finally:
            for gateway in house.gateways:
                await gateway.close()
            await house.end()
            for worker in house.workers:
                await worker.die()
            await house.bus.close()

    def start(self, **settings):
        self.stop = asyncio.Event()
        self.metrics = CollectorRegistry()
        config = SchedulerConfig(
            nats_url=self.nats_url,
            state_dir=self.directory / "state",
            scheduler_listen=self.target,
            **{"drain_grace_s": 0.3, "probe_s": 60.0, **settings},
        )
        self.done = asyncio.create_task(serve(config, self.stop, self.metrics))

    async def end(self):
        self.stop.set()
        if self.done is not None:
            await asyncio.wait_for(self.done, 20)

    async def gateway(self, gateway_id="gw", **options):
        gateway = await PlayedGateway(self.target, gateway_id).open(**options)
        self.gateways.append(gateway)
        return gateway

    async def worker(self, name="w1", incarnation="i1"):
        worker = await PlayedWorker(f"unix:{self.directory}/{name}", incarnation).start()
        self.workers.append(worker)
        return worker

    async def announce(self, worker, availability="READY", worker_id="w1"):
        change = events_pb2.WorkerChanged(
            worker_id=worker_id,
            target=worker.target,
            model_version=MODEL,
            availability=f"WORKER_AVAILABILITY_{availability}",
            incarnation=worker.incarnation,
        )
        await self.bus.publish(
            f"deployment.v1.worker.{worker_id}",
            change.SerializeToString(),
            msg_id=f"{worker_id}{worker.incarnation}{availability}{asyncio.get_running_loop().time()}",
        )

    async def lane(self):
        async with channel(self.target) as own:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(own)
            response = await stub.Inspect(scheduler_pb2.InspectRequest(), wait_for_ready=True)
        return response.lanes[0] if response.lanes else scheduler_pb2.LaneStatus()

    async def until_lane(self, condition, within_s=8.0):
        return await until(self.lane, condition, within_s)


async def until(ask, condition, within_s=8.0):
    """Ask again and again until the answer meets the condition, and return it."""
    async with asyncio.timeout(within_s):
        while not condition(answer := await ask()):  # noqa: ASYNC110 - what is watched has no event
            await asyncio.sleep(0.02)
    return answer
