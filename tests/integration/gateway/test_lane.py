"""What the owner does when the scheduler, or the way to it, is lost."""

import asyncio

from tests.integration.gateway.conftest import inference
from tokenloom.api.inference.v1 import inference_pb2 as pb


async def generate(platform, **body):
    async with platform.http() as client:
        return await client.post("/v1/generations", json={"model": "toy", "prompt": "x", **body})


async def test_a_request_without_a_token_is_submitted_again_and_the_caller_sees_only_a_delay(platform):
    async def first(job):
        job.accept()
        platform.scheduler.hang_up()

    platform.scheduler.script = first
    answer = asyncio.create_task(generate(platform, deadlineMs=60_000))
    await platform.eventually(lambda: platform.scheduler.jobs)

    async def second(job):
        job.accept(owner_epoch=2)
        for token in [*platform.ids("hello"), 2]:
            job.step(token)
        job.end(1)

    platform.scheduler.script = second
    response = await answer
    assert response.json()["text"] == "hello"
    one, two = platform.scheduler.jobs
    assert one.id == two.id
    assert two.submit.deadline_us < one.submit.deadline_us
    row = (await platform.events()).row()
    assert (row.opened.owner_epoch, row.finish_reason) == (2, pb.FINISH_REASON_STOP)
    await platform.eventually(lambda: two.settled)
    assert two.settled.owner_epoch == 2


async def test_a_scheduler_that_is_back_before_its_workers_is_asked_until_they_are_there(platform):
    async def first(job):
        job.accept()
        platform.scheduler.hang_up()

    platform.scheduler.script = first
    answer = asyncio.create_task(generate(platform))
    await platform.eventually(lambda: platform.scheduler.jobs)

    async def vacant(job):
        if len(platform.scheduler.jobs) < 4:
            job.refuse("NO_CAPACITY", retry_after_us=2_000_000)
        else:
            await platform.says("hello")(job)

    platform.scheduler.script = vacant
    assert (await answer).json()["text"] == "hello"
    assert len({job.id for job in platform.scheduler.jobs}) == 1
    assert (await platform.events()).row().finish_reason == pb.FINISH_REASON_STOP


async def test_a_scheduler_that_stays_without_workers_is_not_asked_for_ever(launch):
    async with launch(resubmit_timeout_s=0.3) as platform:

        async def script(job):
            if len(platform.scheduler.jobs) == 1:
                job.accept()
                platform.scheduler.hang_up()
            else:
                job.refuse("NO_CAPACITY")

        platform.scheduler.script = script
        response = await generate(platform)
        assert response.status_code == 503
        # The latter when the scheduler may have heard that callers are told.
        assert response.json()["error"]["reason"] in {"NO_CAPACITY", "OWNERSHIP_LOST"}
        assert (await platform.events()).row().billable_tokens == 0
        asked = len(platform.scheduler.jobs)
        await platform.welcomed()
        assert (await generate(platform)).status_code == 503  # a new request is refused at once
        assert len(platform.scheduler.jobs) == asked + 1


async def test_a_request_with_tokens_ends_incomplete_and_the_scheduler_is_told(platform):
    async def script(job):
        job.accept()
        job.step(5, 6)
        await platform.told(job, "token")
        platform.scheduler.hang_up()

    platform.scheduler.script = script
    response = await generate(platform)
    body = response.json()
    assert (body["finishReason"], body["outputTokens"]) == ("incomplete", 2)
    row = (await platform.events()).row()
    assert (row.finish_reason, row.output_tokens) == (pb.FINISH_REASON_INCOMPLETE, 2)
    assert row.billable_tokens == 2 + len(platform.ids("x"))
    job = platform.scheduler.job
    await platform.eventually(lambda: job.settled)
    assert list(job.settled.output_tokens) == [2]
    assert len(platform.scheduler.jobs) == 1


async def test_without_a_scheduler_in_time_the_request_fails_and_bills_nothing(launch):
    async with launch(resubmit_timeout_s=0.3) as platform:

        async def script(job):
            job.accept()
            await platform.told(job)
            asyncio.get_running_loop().create_task(platform.scheduler.stop())

        platform.scheduler.script = script
        response = await generate(platform)
        assert response.status_code == 503
        assert response.json()["error"]["reason"] == "NO_CAPACITY"
        row = (await platform.events()).row()
        assert (row.finish_reason, row.billable_tokens) == (pb.FINISH_REASON_ERROR, 0)
        refused = await generate(platform)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        async with platform.http() as client:
            health = await client.get("/health")
        assert health.status_code == 503
        assert "scheduler" in health.json()["reason"]


async def test_the_lane_comes_back_by_itself(platform):
    platform.scheduler.script = platform.says("hello")
    await platform.scheduler.stop()
    await platform.eventually(lambda: platform.scheduler.hellos)
    await platform.scheduler.start()
    await platform.eventually(lambda: len(platform.scheduler.hellos) == 2)
    assert platform.scheduler.hellos == ["gateway-0"] * 2
    await platform.welcomed()
    assert (await generate(platform)).json()["text"] == "hello"


async def test_heartbeats_come_at_a_third_of_the_lease(launch):
    async with launch(lease_us=3_000_000) as platform:
        before = platform.scheduler.heartbeats
        for _ in range(4):
            await asyncio.sleep(1.0)  # one by one: what holds up the loop holds up its heartbeats too
        assert 3 <= platform.scheduler.heartbeats - before <= 5
        assert len(platform.scheduler.hellos) == 1


async def test_late_signals_of_a_closed_request_do_nothing(platform):
    platform.scheduler.script = platform.says("hello")
    await generate(platform)
    job = platform.scheduler.job
    await platform.eventually(lambda: job.settled)
    job.step(5)
    job.end(pb.FINISH_REASON_ERROR)
    job.accept()
    job.refuse("QUEUE_FULL")
    assert (await generate(platform)).json()["text"] == "hello"
    assert len((await platform.events(2)).closed) == 2


async def test_one_broken_token_ends_one_request_and_leaves_the_lane_alone(platform):
    started = asyncio.Event()

    async def neighbour(job):
        job.accept()
        await started.wait()
        for token in [*platform.ids("hello"), 2]:
            job.step(token)
        job.end(1)

    platform.scheduler.script = neighbour
    beside = asyncio.create_task(generate(platform))
    await platform.eventually(lambda: platform.scheduler.jobs)

    async def broken(job):
        job.accept()
        job.sent.append(0)
        job.step((1, 5))
        await asyncio.sleep(0.02)
        started.set()
        await job.until_cancelled()

    platform.scheduler.script = broken
    assert (await generate(platform)).status_code == 500
    assert (await beside).json()["text"] == "hello"
    assert len(platform.scheduler.hellos) == 1


async def test_a_deadline_ends_a_request_while_the_scheduler_is_away(launch):
    async with launch(resubmit_timeout_s=30) as platform, platform.grpc() as connection:

        async def script(job):
            job.accept()
            await platform.told(job)
            asyncio.get_running_loop().create_task(platform.scheduler.stop())

        platform.scheduler.script = script
        request = pb.GenerateRequest(model="toy", prompt="x", deadline_ms=2000)
        call = inference(connection).Generate(request, metadata=platform.metadata())
        responses = [response async for response in call]
        assert responses[-1].done.finish_reason == pb.FINISH_REASON_DEADLINE
        assert (await platform.events()).row().billable_tokens == 0


async def test_a_scheduler_that_has_just_come_is_not_believed_that_a_request_is_unknown(launch):
    unknown = "/v1/generations/gen-0000000000000001"
    async with launch(resubmit_timeout_s=1.0) as platform, platform.http() as client:
        assert (await client.get(unknown)).status_code == 404
        platform.scheduler.hang_up()
        async with asyncio.timeout(10):
            while (answer := await client.get(unknown)).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "NO_CAPACITY")
            assert int(answer.headers["Retry-After"]) >= 1
            while (answer := await client.get(unknown)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert answer.status_code == 404
