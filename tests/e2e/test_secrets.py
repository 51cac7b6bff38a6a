"""Nothing that callers say, hear or prove themselves with is written down, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
from safetensors.numpy import save_file

from kit import artifacts
from tests.e2e.conftest import StackOptions
from tests.e2e.driver import Driver, Outcome
from tests.support.leaks import Canaries, in_files, in_platform, searchable
from tokenloom.api.inference.v1 import inference_pb2 as pb
from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from pathlib import Path

MODEL, BROKEN = "smollm2-135m-instruct", "broken"
OPTIONS = StackOptions(models=(MODEL, BROKEN), gateways=2, env={"TOKENLOOM_LOG_LEVEL": "DEBUG"})
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("stack", [OPTIONS], indirect=True),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def models_dir(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2, and a small model that computes nothing but NaN."""
    directory = tmp_path_factory.mktemp("models")
    (directory / MODEL).symlink_to(models_dir / MODEL)
    (whole,) = artifacts.versions(models_dir)
    config = json.loads((whole / artifacts.CONFIG).read_text())
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= sizes | {"head_dim": 8, "intermediate_size": 48, "tie_word_embeddings": True}
    meta = artifacts.load_manifest(whole).model_copy(update={"name": BROKEN, "source": "test"})
    with artifacts.staging(directory) as staged:
        (staged / artifacts.CONFIG).write_text(json.dumps(config))
        for name in (artifacts.TOKENIZER, artifacts.CHAT_TEMPLATE):
            shutil.copyfile(whole / name, staged / name)
        save_file(_not_a_number(config["vocab_size"]), staged / artifacts.WEIGHTS)
        fields = meta.model_dump(include=set(artifacts.ManifestMeta.model_fields))
        artifacts.publish(staged, directory, artifacts.ManifestMeta(**fields))
    return directory


def _not_a_number(vocabulary: int) -> dict[str, np.ndarray]:
    shapes = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    layer = {f"self_attn.{name}": shape for name, shape in shapes.items()}
    layer |= {"mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
    layer |= {"input_layernorm": (32,), "post_attention_layernorm": (32,)}
    all_shapes = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    all_shapes |= {"model.embed_tokens.weight": (vocabulary, 32), "model.norm.weight": (32,)}
    return {name: np.full(shape, np.nan, np.float32) for name, shape in all_shapes.items()}


class Said:
    """All that must not be found: every prompt, output, token and key of this test."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.outputs: list[str] = []
        self.tokens: list[list[int]] = []
        self.keys: list[str] = []
        self.labels: list[str] = []

    def prompt(self, begin: str = "The password of the vault is") -> str:
        """A prompt like no other."""
        self.prompts.append(f'{begin} "{secrets.token_hex(24)}",\nand nobody else may know — ünless')
        return self.prompts[-1]

    def key(self) -> str:
        """A key that nobody has."""
        self.keys.append(f"tl-{secrets.token_hex(20)}")
        return self.keys[-1]

    def label(self) -> str:
        """An idempotency key: callers put into it what they like."""
        self.labels.append(f"order-of-mrs.{secrets.token_hex(12)}@example.com")
        return self.labels[-1]

    def heard(self, text: str, ids: list[int] | None = None) -> None:
        """Add an output that is long enough to be told from chance."""
        if searchable(text):
            self.outputs.append(text)
        if ids and len(set(ids)) >= 16:
            self.tokens.append(ids)


async def good_requests(stack, said):
    async with Driver(stack.http_url, stack.api_key) as driver:
        for options in ({"temperature": 0}, {"n": 2, "logprobs": 2, "seed": 7}, {"stop": [" the"]}):
            outcome = await driver.stream(model=MODEL, prompt=said.prompt(), maxOutputTokens=40, **options)
            said.heard(outcome.text, outcome.ids)
        headers = {"Idempotency-Key": said.label()}
        body = {"model": MODEL, "prompt": said.prompt(), "maxOutputTokens": 40, "resume": True}
        for _ in range(2):
            async with driver.session.post(
                f"{stack.http_url}/v1/generations", json=body, headers=headers
            ) as response:
                assert response.status == 200, await response.text()
                said.heard((await response.json())["text"])
        for path in ("/v1/completions", "/v1/chat/completions"):
            asked = {"prompt": said.prompt()} if path == "/v1/completions" else chat(said)
            body = {"model": MODEL, "max_tokens": 40, **asked}
            async with driver.session.post(f"{stack.http_url}{path}", json=body) as response:
                (choice,) = (await response.json())["choices"]
            said.heard(choice["text"] if "text" in choice else choice["message"]["content"])
    async with grpc.aio.insecure_channel(stack.grpc_targets[1]) as channel:
        request = pb.GenerateRequest(model=MODEL, prompt=said.prompt(), max_output_tokens=40, temperature=0)
        call = pb_grpc.InferenceServiceStub(channel).Generate(request, metadata=bearer(stack.api_key))
        said.heard("".join([response.tokens.text async for response in call]))


def chat(said):
    return {"messages": [{"role": "user", "content": said.prompt()}]}


def bearer(key):
    return (("authorization", f"Bearer {key}"),)


async def bad_requests(stack, said):
    good = {"model": MODEL, "maxOutputTokens": 4}
    bodies = [
        {**good, "prompt": said.prompt(), "temperature": said.prompt()},
        {**good, "prompt": [said.prompt()], "stop": said.prompt()},
        {**good, "prompt": said.prompt(), said.prompt(): 1},
        {**good, "prompt": said.prompt() * 400},
        {**good, "prompt": said.prompt(), "model": said.prompt()},
        {**good, "prompt": said.prompt(), "stop": [said.prompt(), ""]},
        {**good, "messages": [{"role": said.prompt(), "content": said.prompt()}]},
        {**good, "prompt": said.prompt() + "\ud800"},
        (json.dumps({"prompt": said.prompt()})[:-1]).encode(),
        f'{{"model": "{MODEL}", "prompt": "{said.prompt()}'.encode() + b'\xff"}',
        b'{"prompt": "' + said.prompt().encode() * 40_000 + b'"}',
    ]
    async with Driver(stack.http_url, stack.api_key) as driver:
        for path in ("/v1/generations", "/v1/chat/completions", "/v1/completions"):
            for body in bodies:
                status, _ = await driver.refused(body, path)
                assert 400 <= status < 500, str(body)[:60]
        for label, status in ((said.labels[0], 409), (f"{said.label()} and more", 400)):
            body = good | {"prompt": said.prompt()}
            headers = {"Idempotency-Key": label}
            async with driver.session.post(
                f"{stack.http_url}/v1/generations", json=body, headers=headers
            ) as response:
                assert response.status == status
        kept = f"{stack.http_url}/v1/generations/key:{said.labels[0]}?from=0"
        async with driver.session.get(kept) as response:
            assert response.status == 200
        for path in (f"/v1/usage?from={said.prompt()}", f"/v1/generations/{said.prompt()}"):
            async with driver.session.get(stack.http_url + path) as response:
                assert 400 <= response.status < 500


async def strangers(stack, said):
    for path, body in (
        ("/v1/generations", {"model": MODEL, "maxOutputTokens": 4, "prompt": said.prompt()}),
        ("/v1/chat/completions", chat(said)),
    ):
        async with Driver(stack.http_url, said.key()) as stranger:
            assert (await stranger.refused(body, path))[0] == 401


async def bad_rpcs(stack, said):
    async with grpc.aio.insecure_channel(stack.grpc_target) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        for key, request in (
            (said.key(), pb.GenerateRequest(model=MODEL, prompt=said.prompt())),
            (stack.api_key, pb.GenerateRequest(model=said.prompt(), prompt=said.prompt())),
            (
                stack.api_key,
                pb.GenerateRequest(model=MODEL, prompt=said.prompt(), stop=[said.prompt()], n=-1),
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(stub.Generate(request, metadata=bearer(key))))
        raw = channel.unary_stream("/tokenloom.api.inference.v1.InferenceService/Generate")
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(aiter(raw(b"\xff\xff" + said.prompt().encode(), metadata=bearer(stack.api_key))))


async def no_http_at_all(stack, said):
    """What the HTTP library itself must refuse."""
    address = urlsplit(stack.http_url)
    head = f"POST /v1/generations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.api_key}\r\n"
    for request in (
        head + f"Content-Length: seven\r\n\r\n{said.prompt()}",
        head + f"{said.prompt()}\r\n\r\n",
        head + f"X-Note: {secrets.token_hex(20_000)}\r\n\r\n",
        head + f"Transfer-Encoding: chunked\r\n\r\nzz\r\n{said.prompt()}\r\n",
        head + f"Content-Length: 900\r\n\r\n{said.prompt()}",
        f"{said.prompt()} / HTTP/9\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(request.encode())
        await writer.drain()
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(reader.read(), 1)
        writer.close()


async def failing_requests(stack, said):
    """A model that cannot compute, a caller that leaves, and services that die."""
    async with Driver(stack.http_url, stack.api_key) as driver:
        outcome = await driver.stream(model=BROKEN, prompt=said.prompt(), maxOutputTokens=8)
        assert outcome.error is not None
        long = {"model": MODEL, "maxOutputTokens": 600, "ignoreEos": True}
        left = Outcome()
        leaving = asyncio.create_task(driver.stream(left, prompt=said.prompt(), **long))
        await left.reached(24)
        leaving.cancel()
        said.heard(left.text, left.ids)
        for service in ("worker", "scheduler"):
            outcome = Outcome()
            stream = asyncio.create_task(driver.stream(outcome, prompt=said.prompt(), **long))
            await outcome.reached(24)
            os.kill(stack.service(service)["pid"], signal.SIGKILL)
            await stream
            said.heard(outcome.text, outcome.ids)
            await served_again(driver, said)
        for service in ("usage", "nats"):
            os.kill(stack.service(service)["pid"], signal.SIGKILL)
        async with driver.session.get(f"{stack.http_url}/v1/usage") as response:
            assert response.status in {200, 503}
        await served_again(driver, said)


async def served_again(driver, said):
    until = time.monotonic() + 60
    while True:
        try:
            await driver.stream(model=MODEL, prompt=said.prompt(), maxOutputTokens=2)
            return
        except (AssertionError, OSError):
            assert time.monotonic() < until
            await asyncio.sleep(0.25)


async def test_nothing_secret_is_written_down(stack):
    said = Said()
    await good_requests(stack, said)
    await bad_requests(stack, said)
    await strangers(stack, said)
    await bad_rpcs(stack, said)
    await no_http_at_all(stack, said)
    await failing_requests(stack, said)
    assert len(said.outputs) >= 6
    assert len(said.tokens) >= 3
    known = json.loads((stack.data_dir / "secrets.json").read_text())
    canaries = Canaries(
        prompt=said.prompts,
        output=said.outputs,
        key=[stack.api_key, *said.keys],
        label=said.labels,
        password=known["nats"].values(),
        tokens=said.tokens,
    )
    assert in_platform(stack.data_dir, canaries) == []
    stack.process.send_signal(signal.SIGINT)
    await asyncio.to_thread(stack.process.wait, 120)
    assert in_files(stack.data_dir, canaries) == []
    # The net holds: where secrets are kept, they are found.
    kept = {leak.canary for leak in in_files(stack.data_dir, canaries, private=("nats/nats.conf",))}
    assert kept == {"key[0]", *(f"password[{number}]" for number in range(len(known["nats"])))}
