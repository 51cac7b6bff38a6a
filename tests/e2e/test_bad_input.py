"""Every field can be wrong: the right code, the field's name, and running streams never notice."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.e2e.driver import Driver
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc

MODEL = "smollm2-135m-instruct"
GOOD = {"model": MODEL, "prompt": "Hello", "maxOutputTokens": 4}

HTTP_CASES = [
    ({**GOOD, "model": 7}, 400, "INVALID_REQUEST", "model"),
    ({**GOOD, "model": "no-such-model"}, 404, "", "model"),
    ({"prompt": "Hello"}, 400, "INVALID_REQUEST", "model"),
    ({"model": MODEL}, 400, "INVALID_REQUEST", "prompt"),
    ({**GOOD, "prompt": ""}, 400, "INVALID_REQUEST", "prompt"),
    ({**GOOD, "prompt": 12}, 400, "INVALID_REQUEST", "prompt"),
    ({**GOOD, "prompt": "\ud800"}, 400, "INVALID_REQUEST", "prompt"),
    ({"model": MODEL, "prompt": "a", "promptTokenIds": [1]}, 400, "INVALID_REQUEST", "prompt"),
    ({"model": MODEL, "promptTokenIds": []}, 400, "INVALID_REQUEST", "promptTokenIds"),
    ({"model": MODEL, "promptTokenIds": [1, 10**9]}, 400, "INVALID_REQUEST", "promptTokenIds[1]"),
    ({"model": MODEL, "promptTokenIds": [1, -1]}, 400, "INVALID_REQUEST", "promptTokenIds[1]"),
    ({"model": MODEL, "promptTokenIds": [1] * 9000}, 400, "CONTEXT_TOO_LONG", "promptTokenIds"),
    ({"model": MODEL, "messages": []}, 400, "INVALID_REQUEST", "messages"),
    (
        {"model": MODEL, "messages": [{"role": "king", "content": "x"}]},
        400,
        "INVALID_REQUEST",
        "messages[0].role",
    ),
    ({"model": MODEL, "messages": [{"role": "user"}]}, 400, "INVALID_REQUEST", "messages[0].content"),
    ({**GOOD, "maxOutputTokens": 0}, 400, "INVALID_REQUEST", "maxOutputTokens"),
    ({**GOOD, "maxOutputTokens": "7"}, 400, "INVALID_REQUEST", "maxOutputTokens"),
    ({**GOOD, "maxOutputTokens": 2**70}, 400, "INVALID_REQUEST", "maxOutputTokens"),
    ({**GOOD, "maxOutputTokens": True}, 400, "INVALID_REQUEST", "maxOutputTokens"),
    ({**GOOD, "deadlineMs": -5}, 400, "INVALID_REQUEST", "deadlineMs"),
    ({**GOOD, "temperature": -0.1}, 400, "INVALID_REQUEST", "temperature"),
    ({**GOOD, "temperature": float("nan")}, 400, "INVALID_REQUEST", "temperature"),
    ({**GOOD, "temperature": float("inf")}, 400, "INVALID_REQUEST", "temperature"),
    ({**GOOD, "topP": 0}, 400, "INVALID_REQUEST", "topP"),
    ({**GOOD, "topK": -3}, 400, "INVALID_REQUEST", "topK"),
    ({**GOOD, "topK": 1.5}, 400, "INVALID_REQUEST", "topK"),
    ({**GOOD, "minP": 1.1}, 400, "INVALID_REQUEST", "minP"),
    ({**GOOD, "seed": 2**64}, 400, "INVALID_REQUEST", "seed"),
    ({**GOOD, "stop": [""]}, 400, "INVALID_REQUEST", "stop[0]"),
    ({**GOOD, "stop": ["x" * 1_000_000]}, 400, "INVALID_REQUEST", "stop[0]"),
    ({**GOOD, "stop": ["x"] * 20_000}, 400, "INVALID_REQUEST", "stop"),
    ({**GOOD, "n": 0}, 400, "INVALID_REQUEST", "n"),
    ({**GOOD, "n": 10**6}, 400, "INVALID_REQUEST", "n"),
    ({**GOOD, "logprobs": 21}, 400, "INVALID_REQUEST", "logprobs"),
    ({**GOOD, "priority": "emperor"}, 400, "INVALID_REQUEST", "priority"),
    ({**GOOD, "presencePenalty": 0.5}, 400, "INVALID_REQUEST", "presencePenalty"),
    ({**GOOD, "logitBias": {"1": 2}}, 400, "INVALID_REQUEST", "logitBias"),
    ({**GOOD, "flavour": "sweet"}, 400, "INVALID_REQUEST", "flavour"),
    ([], 400, "INVALID_REQUEST", ""),
    (b"{", 400, "INVALID_REQUEST", ""),
    (b'{"model": "' + b"\xff\xfe" + b'"}', 400, "INVALID_REQUEST", ""),
    (b'{"prompt": "' + b"x" * 3_000_000 + b'"}', 400, "INVALID_REQUEST", ""),
]

GRPC_CASES = [
    ({"model": ""}, "model"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"deadline_ms": -1}, "deadline_ms"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": float("inf")}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": -0.5}, "min_p"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x" * 1_000_000]}, "stop[0]"),
    ({"n": 0}, "n"),
    ({"n": 2_000_000_000}, "n"),
    ({"logprobs": 99}, "logprobs"),
    ({"priority": 99}, "priority"),
    ({"prompt": ""}, "prompt"),
    ({"prompt_token_ids": pb.TokenIds(ids=[2_000_000_000])}, "prompt_token_ids[0]"),
    ({"prompt_token_ids": pb.TokenIds(ids=[])}, "prompt_token_ids"),
    ({"messages": pb.ChatMessages()}, "messages"),
]


@pytest.fixture
async def undisturbed(stack):
    """A long greedy stream that runs while bad input arrives, and must not change."""
    body = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "temperature": 0,
        "maxOutputTokens": 160,
        "ignoreEos": True,
    }
    async with Driver(stack.http_url, stack.api_key) as driver:
        expected = await driver.stream(**body)
        running = asyncio.create_task(driver.stream(**body))
        yield driver
        assert (await running).ids == expected.ids


async def test_http_refuses_each_bad_field_by_name(undisturbed):
    for body, status, reason, field in HTTP_CASES:
        seen, error = await undisturbed.refused(body)
        what = str(body)[:80]
        assert seen in ({status, 413} if isinstance(body, bytes) else {status}), (what, seen, error)
        assert error["reason"] == reason or not reason, (what, error)
        assert error.get("field", "") == field or not field, (what, error)
        assert error["message"]
        assert len(error["message"]) < 500


async def test_grpc_refuses_each_bad_field_by_name(stack, undisturbed):
    key = (("authorization", f"Bearer {stack.api_key}"),)
    async with grpc.aio.insecure_channel(stack.grpc_target) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        for change, field in GRPC_CASES:
            good = {"model": MODEL, "prompt": "Hello"}
            if change.keys() & {"prompt_token_ids", "messages"}:
                good.pop("prompt")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(pb.GenerateRequest(**{**good, **change}), metadata=key):
                    pass
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, (field, caught.value)
            status = rpc_status.from_call(caught.value)
            info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            assert any(detail.Unpack(info) for detail in status.details)
            assert any(detail.Unpack(bad) for detail in status.details)
            assert [violation.field for violation in bad.field_violations] == [field]


@pytest.mark.parametrize("key", [None, "", "wrong", "x" * 5000])
async def test_a_bad_key_is_unauthenticated_on_every_face(stack, key):
    async with Driver(stack.http_url, key or "") as driver:
        if key is None:
            driver.session.headers.pop("Authorization")
        for path, body in [
            ("/v1/generations", GOOD),
            ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}),
            ("/v1/completions", {"model": MODEL, "prompt": "x"}),
        ]:
            status, error = await driver.refused(body, path)
            assert (status, error.get("reason") or error["code"]) in {
                (401, "INVALID_API_KEY"),
                (401, "invalid_api_key"),
            }
    metadata = (("authorization", f"Bearer {key}"),) if key is not None else ()
    async with grpc.aio.insecure_channel(stack.grpc_target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pb_grpc.InferenceServiceStub(channel).ListModels(pb.ListModelsRequest(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_openai_errors_have_the_openai_body(stack):
    async with Driver(stack.http_url, stack.api_key) as driver:
        for body in ({"model": MODEL, "messages": [], "temperature": 9}, {"model": MODEL, "messages": "x"}):
            status, error = await driver.refused(body, "/v1/chat/completions")
            assert status == 400
            assert error["type"] == "invalid_request_error"
            assert error["param"] in {"messages", "temperature"}
