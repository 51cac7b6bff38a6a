import asyncio

import grpc
import pytest

from kit.grpc import service_error
from tests.integration.gateway.conftest import REVOKED_KEY, RIVAL_KEY, inference
from tests.integration.gateway.peers import CANCELLED, LENGTH, STOP
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.scheduler.v1 import scheduler_pb2


@pytest.fixture
async def stub(platform):
    async with platform.grpc() as connection:
        yield inference(connection)


def request(**fields) -> pb.GenerateRequest:
    return pb.GenerateRequest(model="toy", **({"prompt": "the quick"} | fields))


async def collect(call) -> list[pb.GenerateResponse]:
    return [response async for response in call]


async def refusal(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value, service_error(caught.value)


async def test_a_stream_is_accepted_tokens_done_and_one_ledger_row(platform, stub):
    platform.scheduler.script = platform.says("naïve 🚀")
    responses = await collect(stub.Generate(request(logprobs=0), metadata=platform.metadata()))
    accepted, done = responses[0].accepted, responses[-1].done
    tokens = [response.tokens for response in responses[1:-1]]
    assert accepted.request_id == f"gen-{platform.scheduler.job.id:016x}"
    assert "".join(token.text for token in tokens) == "naïve 🚀"
    assert [i for token in tokens for i in token.token_ids] == [*platform.ids("naïve 🚀"), 2]
    assert tokens[-1].finish_reason == done.finish_reason == STOP
    row = (await platform.events()).row()
    assert row.output_tokens == done.output_tokens == len(platform.ids("naïve 🚀")) + 1
    assert row.input_tokens == done.input_tokens


async def test_ids_conversations_and_every_field_reach_the_scheduler(platform, stub):
    platform.scheduler.script = platform.says("a")
    ids = pb.TokenIds(ids=[5, 6, 7])
    generate = pb.GenerateRequest(
        model=platform.model_version,
        prompt_token_ids=ids,
        seed=0,
        temperature=0,
        n=2,
        ignore_eos=True,
        priority=pb.PRIORITY_BATCH,
        stop=["zz"],
    )
    await collect(stub.Generate(generate, metadata=platform.metadata()))
    submit = platform.scheduler.job.submit
    assert list(submit.prompt_token_ids) == [5, 6, 7]
    assert (submit.sampling.seed, submit.sampling.temperature, submit.n) == (0, 0.0, 2)
    assert list(submit.stop_token_ids) == []
    assert submit.priority == pb.PRIORITY_BATCH
    turns = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hi")])
    await collect(
        stub.Generate(pb.GenerateRequest(model="toy", messages=turns), metadata=platform.metadata())
    )
    counted = await stub.CountTokens(
        pb.CountTokensRequest(model="toy", messages=turns), metadata=platform.metadata()
    )
    assert list(counted.token_ids) == list(platform.scheduler.job.submit.prompt_token_ids)
    assert counted.count == len(counted.token_ids)


@pytest.mark.parametrize("key", ["", "nobody", REVOKED_KEY])
async def test_a_missing_unknown_or_revoked_key_is_refused(platform, stub, key):
    metadata = platform.metadata(key) if key else ()
    for call in (
        stub.ListModels(pb.ListModelsRequest(), metadata=metadata),
        collect(stub.Generate(request(), metadata=metadata)),
        stub.Get(pb.GetRequest(request_id="gen-" + "1" * 16), metadata=metadata),
        stub.Cancel(pb.CancelRequest(request_id="gen-" + "1" * 16), metadata=metadata),
        stub.CountTokens(pb.CountTokensRequest(model="toy", prompt="a"), metadata=metadata),
    ):
        raw, error = await refusal(call)
        assert raw.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error.reason == "INVALID_API_KEY"
    assert not platform.scheduler.jobs


async def test_models_are_listed(platform, stub):
    (model,) = (await stub.ListModels(pb.ListModelsRequest(), metadata=platform.metadata())).models
    assert (model.name, model.version, model.context_length) == ("toy", platform.model_version, 256)


@pytest.mark.parametrize(
    ("reason", "code", "field"),
    [
        ("QUEUE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ("KV_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ("DEADLINE_INFEASIBLE", grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ("NO_CAPACITY", grpc.StatusCode.UNAVAILABLE, ""),
        ("DRAINING", grpc.StatusCode.UNAVAILABLE, ""),
        ("CONTEXT_TOO_LONG", grpc.StatusCode.INVALID_ARGUMENT, "max_output_tokens"),
    ],
)
async def test_the_schedulers_refusals_keep_their_reason_and_hint(platform, stub, reason, code, field):
    async def script(job):
        job.refuse(reason, "why", field, 1_234_000)

    platform.scheduler.script = script
    raw, error = await refusal(collect(stub.Generate(request(), metadata=platform.metadata())))
    assert raw.code() is code
    assert (error.reason, error.message, error.field, error.retry_after_ms) == (reason, "why", field, 1234)
    assert platform.metric("tokenloom_gateway_refusals_total", reason=reason) == 1
    assert (await platform.bus.js.stream_info("USAGE")).state.messages == 0


async def test_bad_fields_are_refused_by_name(platform, stub):
    for bad, field in [
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": -1.0}, "top_p"),
        ({"n": 99}, "n"),
        ({"stop": ["x" * 5000]}, "stop[0]"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"priority": 77}, "priority"),
        ({"logprobs": 21}, "logprobs"),
    ]:
        raw, error = await refusal(collect(stub.Generate(request(**bad), metadata=platform.metadata())))
        assert raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.field == field
    raw, error = await refusal(
        collect(stub.Generate(pb.GenerateRequest(model="none", prompt="a"), metadata=platform.metadata()))
    )
    assert (raw.code(), error.field) == (grpc.StatusCode.NOT_FOUND, "model")
    assert not platform.scheduler.jobs


async def test_a_message_that_is_no_proto_is_invalid_not_internal(platform):
    async with platform.grpc() as connection:
        raw_call = connection.unary_stream("/tokenloom.api.inference.v1.InferenceService/Generate")
        for garbage in (b"\xff\xff\xff", b"\x0a\x02\xc3\x28"):  # no message; a model that is not UTF-8
            raw, error = await refusal(collect(raw_call(garbage, metadata=platform.metadata())))
            assert raw.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.reason == "INVALID_REQUEST"


async def test_a_failed_request_ends_in_a_status_and_bills_nothing(platform, stub):
    async def script(job):
        job.accept()
        job.step(5)
        job.end(pb.FINISH_REASON_ERROR, error_reason="NAN_LOGITS")

    platform.scheduler.script = script
    call = stub.Generate(request(), metadata=platform.metadata())
    raw, error = await refusal(collect(call))
    assert (raw.code(), error.reason) == (grpc.StatusCode.INTERNAL, "NAN_LOGITS")
    row = (await platform.events()).row()
    assert (row.finish_reason, row.billable_tokens) == (pb.FINISH_REASON_ERROR, 0)


async def test_a_client_that_leaves_is_cancelled_upstream_and_billed_once(platform, stub):
    async def script(job):
        job.accept()
        job.step(5, 6)
        await job.until_cancelled()

    platform.scheduler.script = script
    call = stub.Generate(request(), metadata=platform.metadata())
    assert (await call.read()).HasField("accepted")
    assert (await call.read()).tokens.count == 2
    call.cancel()
    row = (await platform.events()).row()
    assert (row.finish_reason, row.output_tokens) == (CANCELLED, 2)
    assert len(platform.scheduler.job.cancels) == 1
    await platform.eventually(lambda: platform.scheduler.job.settled)
    assert platform.scheduler.job.settled.finish_reason == CANCELLED


async def test_cancel_ends_the_callers_own_request_and_nobody_elses(platform, stub):
    async def script(job):
        job.accept()
        job.step(5)
        await job.until_cancelled()

    platform.scheduler.script = script
    call = stub.Generate(request(), metadata=platform.metadata())
    name = pb.CancelRequest(request_id=(await call.read()).accepted.request_id)
    await call.read()
    raw, _ = await refusal(stub.Cancel(name, metadata=platform.metadata(RIVAL_KEY)))
    assert raw.code() is grpc.StatusCode.NOT_FOUND
    assert not platform.scheduler.job.cancels
    state = (await stub.Cancel(name, metadata=platform.metadata())).state
    assert state == pb.GENERATION_STATE_RUNNING
    last = None
    while isinstance(response := await call.read(), pb.GenerateResponse):
        last = response
    done = last.done
    assert (done.finish_reason, done.output_tokens) == (CANCELLED, 1)


async def test_a_grpc_deadline_reaches_the_scheduler_and_ends_as_deadline_in_the_ledger(platform, stub):
    async def script(job):
        job.accept()
        job.step(5)
        await job.until_cancelled()

    platform.scheduler.script = script
    raw, _ = await refusal(
        collect(stub.Generate(request(deadline_ms=60_000), metadata=platform.metadata(), timeout=2))
    )
    assert raw.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # gRPC rounds a deadline up when it writes it.
    assert 0 < platform.scheduler.job.submit.deadline_us <= 2_010_000
    row = (await platform.events()).row()
    assert (row.finish_reason, row.output_tokens) == (pb.FINISH_REASON_DEADLINE, 1)


async def test_grpc_rounds_a_deadline_up_by_less_than_a_hundredth(platform, stub):
    """What tells a caller past its deadline from one that just left."""
    platform.scheduler.script = platform.says("a")
    for given_s in (1.501, 12.34, 20, 123.4, 1234.5, 40000.3):
        await collect(stub.Generate(request(), metadata=platform.metadata(), timeout=given_s))
        assert platform.scheduler.job.submit.deadline_us / 1e6 < 1.01 * given_s


async def test_the_nearer_of_two_deadlines_wins_and_ends_in_done(platform, stub):
    async def script(job):
        job.accept()
        await asyncio.sleep(job.submit.deadline_us / 1e6)
        job.end(pb.FINISH_REASON_DEADLINE)

    platform.scheduler.script = script
    call = stub.Generate(request(deadline_ms=1500), metadata=platform.metadata(), timeout=10)
    responses = await collect(call)
    assert platform.scheduler.job.submit.deadline_us <= 1_500_000
    assert responses[-1].done.finish_reason == pb.FINISH_REASON_DEADLINE


async def test_a_deadline_ends_a_request_that_the_scheduler_forgot(platform, stub):
    async def script(job):
        job.accept()
        job.step(5)
        await job.until_cancelled()

    platform.scheduler.script = script
    responses = await collect(stub.Generate(request(deadline_ms=1500), metadata=platform.metadata()))
    assert responses[-1].done.finish_reason == pb.FINISH_REASON_DEADLINE


async def test_get_makes_the_text_again_from_the_record(platform, stub):
    ids = platform.ids("one END two")
    record = scheduler_pb2.GetGenerationResponse(
        state=pb.GENERATION_STATE_FINISHED,
        model_version=platform.model_version,
        text_spec=b'{"stop": ["END"]}',
        choice=[scheduler_pb2.ChoiceRecord(token_id=ids, finish_reason=LENGTH)],
        end=scheduler_pb2.RequestEnd(input_tokens=3, cached_tokens=1, queue_us=2000),
        settled=scheduler_pb2.Settle(
            finish_reason=STOP, output_tokens=[len(ids) - len(platform.ids(" two"))]
        ),
    )
    platform.scheduler.records[9, "acme"] = record
    name = pb.GetRequest(request_id="gen-0000000000000009")
    found = await stub.Get(name, metadata=platform.metadata())
    assert found.state == pb.GENERATION_STATE_FINISHED
    assert found.choices[0].text == "one "
    assert found.choices[0].finish_reason == found.done.finish_reason == STOP
    assert (found.done.input_tokens, found.done.cached_tokens, found.done.queue_ms) == (3, 1, 2.0)
    raw, _ = await refusal(stub.Get(name, metadata=platform.metadata(RIVAL_KEY)))
    assert raw.code() is grpc.StatusCode.NOT_FOUND


async def test_a_result_outlives_the_route_of_its_model_version(platform, stub):
    routes = await platform.bus.kv("routes")
    before = (await routes.get("toy")).value
    for version, name in ((platform.model_version, 9), ("toy@000000000000", 10)):
        platform.scheduler.records[name, "acme"] = scheduler_pb2.GetGenerationResponse(
            state=pb.GENERATION_STATE_FINISHED,
            model_version=version,
            text_spec=b'{"stop": []}',
            choice=[scheduler_pb2.ChoiceRecord(token_id=platform.ids("one"), finish_reason=LENGTH)],
            settled=scheduler_pb2.Settle(finish_reason=LENGTH, output_tokens=[len(platform.ids("one"))]),
        )
    await routes.delete("toy")
    try:
        async with platform.http() as client:
            while (await client.get("/v1/models")).json()["data"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        found = await stub.Get(pb.GetRequest(request_id="gen-0000000000000009"), metadata=platform.metadata())
        assert found.choices[0].text == "one"
        gone = stub.Get(pb.GetRequest(request_id="gen-000000000000000a"), metadata=platform.metadata())
        raw, error = await refusal(gone)
        assert (raw.code(), error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "RESULT_EXPIRED")
    finally:
        await routes.put("toy", before)
