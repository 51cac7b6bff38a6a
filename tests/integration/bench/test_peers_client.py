"""The load generator believes no server: what is not the whole answer to the prompt sent has failed."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from bench.peers.client import LoadClient, random_prompts
from bench.peers.servers import Endpoint


class Completions:
    """Answers as it is told to, and keeps over which connections it was asked."""

    def __init__(self):
        self.extra_prompt_tokens = self.missing_output_tokens = 0
        self.text = "word "
        self.connections = set()

    async def answer(self, request):
        self.connections.add(request.transport.get_extra_info("peername"))
        asked = await request.json()
        count = asked["max_tokens"] - self.missing_output_tokens
        usage = {
            "prompt_tokens": len(asked["prompt"]) + self.extra_prompt_tokens,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        chunks = [{"choices": [{"text": self.text}]}] * count + [{"choices": [], "usage": usage}]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return web.Response(text=f"{body}data: [DONE]\n\n", content_type="text/event-stream")


@pytest.fixture
def server():
    return Completions()


@pytest.fixture
async def client(server):
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with LoadClient(Endpoint(url, "none", "m")) as client:
        yield client
    await runner.cleanup()


async def test_every_request_has_a_connection_of_its_own_for_servers_close_kept_ones(client, server):
    streams, _ = await client.run(random_prompts(6, 5, 4, seed=1), streams=2)
    assert [stream.failure for stream in streams] == [""] * 6
    assert [(stream.output_tokens, stream.cached_tokens) for stream in streams] == [(4, 3)] * 6
    assert len(server.connections) == 6


@pytest.mark.parametrize(
    ("fault", "value", "reason"),
    [
        ("extra_prompt_tokens", 1, "6 prompt tokens instead of 5"),
        ("missing_output_tokens", 1, "3 tokens of output instead of 4, or no text"),
        ("text", " ", "4 tokens of output instead of 4, or no text"),
    ],
)
async def test_what_is_not_the_whole_answer_to_the_prompt_has_failed(client, server, fault, value, reason):
    setattr(server, fault, value)
    (prompt,) = random_prompts(1, 5, 4, seed=1)
    assert (await client.stream(prompt)).failure == reason


async def test_a_server_that_is_gone_is_a_failure_with_a_reason():
    async with LoadClient(Endpoint("http://127.0.0.1:1", "none", "m")) as client:
        (prompt,) = random_prompts(1, 5, 4, seed=1)
        assert "Cannot connect" in (await client.stream(prompt)).failure
