"""The gRPC faces of a running platform: generated messages, and bytes that are none."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from services.gateway.servicer import InferenceServicer
from tests.fuzz.bodies import KEYS, MODEL, generations
from tests.fuzz.messages import messages
from tests.fuzz.platform import Watch
from tests.fuzz.runner import HANG_S
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.usage.v1 import usage_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor import MethodDescriptor
    from hypothesis.strategies import SearchStrategy

    from tests.e2e.conftest import Stack
    from tests.fuzz.runner import Fuzzer

INFERENCE = pb.DESCRIPTOR.services_by_name["InferenceService"]
USAGE = usage_pb2.DESCRIPTOR.services_by_name["UsageService"]
SERVED = [method for method in INFERENCE.methods if method.name in vars(InferenceServicer)]
CALLERS_FAULT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # the deadline cannot be met
}
Call = tuple["MethodDescriptor", bytes]


class Faces:
    """Sends raw bytes to any method of the two services."""

    def __init__(self, stack: Stack, channels: dict[str, grpc.Channel]) -> None:
        self.channels = channels
        self.metadata = (("authorization", f"Bearer {stack.api_key}"),)
        self.recent: deque[str] = deque(["gen-0000000000000001"], maxlen=8)

    def send(self, call: Call) -> None:
        """Call and read to the end; whatever was sent, the caller is told what is wrong with it."""
        method, payload = call
        invoke = self._kind(method)(f"/{method.containing_service.full_name}/{method.name}")
        try:
            answer = invoke(payload, metadata=self.metadata, timeout=HANG_S)
            answers = list(answer) if method.server_streaming else [answer]
        except grpc.RpcError as error:
            if error.code() not in CALLERS_FAULT:
                raise
            return
        if method.name == "Generate":
            self.recent.append(pb.GenerateResponse.FromString(answers[0]).accepted.request_id)
            kinds = [pb.GenerateResponse.FromString(one).WhichOneof("event") for one in answers]
            assert kinds == ["accepted", *["tokens"] * (len(kinds) - 2), "done"]

    def ids(self) -> SearchStrategy[str]:
        """Ids of generations that were there a moment ago."""
        return st.integers(0, 7).map(lambda place: self.recent[place % len(self.recent)])

    def _kind(self, method: MethodDescriptor) -> Any:
        channel = self.channels[method.containing_service.name]
        return channel.unary_stream if method.server_streaming else channel.unary_unary


@pytest.fixture
def faces(stack: Stack) -> Iterator[Faces]:
    target = stack.service("usage")["target"]
    with grpc.insecure_channel(stack.grpc_target) as gateway, grpc.insecure_channel(target) as usage:
        yield Faces(stack, {"InferenceService": gateway, "UsageService": usage})


def calls(methods: Sequence[MethodDescriptor], **overrides: SearchStrategy[Any]) -> SearchStrategy[Call]:
    """Any message to any of the methods."""
    return st.one_of([_call(method, overrides) for method in methods])


def _call(method: MethodDescriptor, overrides: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Call]:
    made = messages(GetMessageClass(method.input_type), overrides)
    return st.tuples(st.just(method), made.map(lambda message: message.SerializeToString()))


def lively() -> SearchStrategy[Call]:
    """Generations that can be served."""
    method = INFERENCE.methods_by_name["Generate"]
    return generations().map(lambda body: (method, _request(body).SerializeToString()))


def _request(body: dict[str, Any]) -> pb.GenerateRequest:
    fields = {name: value for name, value in body.items() if value is not None}
    if ids := fields.pop("prompt_token_ids", None):
        fields["prompt_token_ids"] = pb.TokenIds(ids=ids)
    if turns := fields.pop("messages", None):
        fields["messages"] = pb.ChatMessages(messages=[pb.ChatMessage(**turn) for turn in turns])
    if priority := fields.pop("priority", None):
        fields["priority"] = pb.Priority.Value(f"PRIORITY_{priority.upper()}")
    return pb.GenerateRequest(**fields)


def garbage() -> SearchStrategy[Call]:
    """Bytes of no message: random ones, and messages cut or overwritten."""
    methods = [*SERVED, *USAGE.methods]
    whole = _request({"model": MODEL, "prompt": "hello", "max_output_tokens": 2}).SerializeToString()
    cut = st.tuples(st.integers(0, len(whole)), st.binary(max_size=8)).map(lambda e: whole[: e[0]] + e[1])
    return st.tuples(st.sampled_from(methods), st.binary(max_size=60) | cut)


def test_any_message_and_any_bytes_are_served_or_refused_by_the_callers_fault(
    stack: Stack, faces: Faces, fuzz: Fuzzer
) -> None:
    named = {
        "request_id": faces.ids() | KEYS.map("key:{}".format) | st.text(max_size=20),
        "from_index": st.integers(-1, 5),
        "idempotency_key": KEYS,
        "model": st.just(MODEL) | st.text(max_size=9),
    }
    with Watch(stack, MODEL) as watch:
        fuzz(calls(SERVED, **named), faces.send, cases=40)
        fuzz(calls(USAGE.methods, tenant_id=st.sampled_from(["dev", ""])), faces.send, cases=20)
        fuzz(garbage(), faces.send, cases=20)
        fuzz(lively(), faces.send, cases=80)
    fuzz.tally.past = watch.past_validation
    assert fuzz.tally.past >= 0.3 * fuzz.tally.cases
