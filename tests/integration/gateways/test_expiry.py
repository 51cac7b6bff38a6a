"""What a key and a resumable generation come to when time runs out, or what was kept of them is gone."""

from __future__ import annotations

import asyncio
import time

from tests.integration.gateways.conftest import started
from tests.integration.gateways.test_idempotency import leave_entry, post
from tests.integration.gateways.test_resume import begin, follow, sse, tokens
from tokenloom.api.inference.v1 import inference_pb2 as pb


async def test_the_resume_lease_ends_what_nobody_reads(nats_url, toy_artifact, tmp_path):
    async with started(nats_url, toy_artifact, tmp_path, gateway={"resume_lease_s": 0.5}) as pair:
        pair.worker.pace_s = 0.02
        request_id = await begin(pair, pair.first, maxOutputTokens=200, resume=True)
        row = await pair.row()
        assert row.finish_reason == pb.FINISH_REASON_CANCELLED
        assert 1 <= row.output_tokens < 200
        events = sse((await follow(pair.second, request_id)).text)
        assert (len(tokens(events)), events[-1][1]["finishReason"]) == (row.output_tokens, "cancelled")


async def test_after_the_retention_a_key_is_expired_and_never_run_again(nats_url, toy_artifact, tmp_path):
    quick = {"resubmit_timeout_s": 0.3}
    async with started(
        nats_url, toy_artifact, tmp_path, gateway=quick, scheduler={"retention_s": 0.5}
    ) as pair:
        first = (await post(pair.first)).json()
        async with asyncio.timeout(20):
            while (answer := await post(pair.second)).status_code == 200:
                assert answer.json()["requestId"] == first["requestId"]
                await asyncio.sleep(0.1)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (410, "RESULT_EXPIRED")
        await check_gone(pair)
        await pair.row()


async def test_an_accepted_key_whose_record_the_scheduler_lost_is_expired(nats_url, toy_artifact, tmp_path):
    async with started(nats_url, toy_artifact, tmp_path, gateway={"resubmit_timeout_s": 0.3}) as pair:
        await leave_entry(pair, accepted=True, created=time.time())
        answer = await post(pair.first)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (410, "RESULT_EXPIRED")
        await check_gone(pair)
        assert not (await pair.events(closed=0)).opened


async def check_gone(pair):
    async with pair.second.http() as client:
        for path in ("key:k", "key:k?from=0"):
            gone = await client.get(f"/v1/generations/{path}")
            assert (gone.status_code, gone.json()["error"]["reason"]) == (410, "RESULT_EXPIRED")
        assert (await client.delete("/v1/generations/key:k")).status_code == 410
