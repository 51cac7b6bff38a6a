"""Whatever comes over HTTP: the right status, the field's name, the same body, and no effect on others."""

import asyncio
import json

from tests.integration.gateway.conftest import KEY, REVOKED_KEY, bearer

GENERATE = {"model": "toy", "prompt": "x"}


async def raw_http(platform, request: bytes) -> tuple[int, dict[str, str], bytes]:
    host, port = platform.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    writer.close()
    return int(head[0].split()[1]), headers, body


def post(body: bytes, path="/v1/generations", content_type="application/json", extra="") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


FACES = ["/v1/generations", "/v1/completions", "/v1/chat/completions"]
NO_OBJECTS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b'{"model": "toy", "prompt": "\xff\xfe"}',
    b"\xff\xfe\x00",
    b'{"model": "toy", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    b"[" * 200_000,
]


async def test_a_body_that_is_no_json_object_is_refused_naming_the_body(platform):
    for path in FACES:
        for body in NO_OBJECTS:
            status, _, answer = await raw_http(platform, post(body, path))
            error = json.loads(answer)["error"]
            assert (status, error["reason"]) == (400, "INVALID_REQUEST"), body[:50]
            assert error.get("field", error.get("param")) == "body", body[:50]


BAD_FIELDS = [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"topP": 1e308}, "topP"),
    ({"maxOutputTokens": 1.5}, "maxOutputTokens"),
    ({"maxOutputTokens": 10**30}, "maxOutputTokens"),
    ({"maxOutputTokens": 10_000}, "maxOutputTokens"),
    ({"n": True}, "n"),
    ({"stop": "x" * 1000}, "stop"),
    ({"stop": ["y" * 1000] * 1000}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": "x " * 2000}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"promptTokenIds": [1]}, "prompt"),
    ({"temperature": float("nan")}, "temperature"),
    ({"minP": float("inf")}, "minP"),
    ({"deadlineMs": 0}, "deadlineMs"),
    ({"logitBias": {"1": 5}}, "logitBias"),
    ({"unheardOf": 1}, "unheardOf"),
    ({"model": ""}, "model"),
]


async def test_a_bad_field_is_refused_by_name(platform):
    for bad, field in BAD_FIELDS:
        status, _, answer = await raw_http(platform, post(json.dumps(GENERATE | bad).encode()))
        error = json.loads(answer)["error"]
        assert (status, error["field"], error["code"]) == (400, field, "INVALID_ARGUMENT"), bad
    assert not platform.scheduler.jobs


async def test_a_body_past_the_limit_is_refused_without_reading_it_all(platform):
    for body in (
        b'{"prompt": "' + b"x" * (1 << 20) + b'"}',
        json.dumps(GENERATE | {"stop": ["z" * (1 << 20)]}).encode(),
    ):
        status, _, answer = await raw_http(platform, post(body))
        assert status == 413
        assert json.loads(answer)["error"]["field"] == "body"


async def test_encodings_types_and_later_headers_are_refused_by_name(platform):
    good = json.dumps(GENERATE).encode()
    for request, field in [
        (post(good, content_type="text/plain"), "Content-Type"),
        (post(good, content_type="application/x-www-form-urlencoded"), "Content-Type"),
        (post(good, extra="Idempotency-Key: a b\r\n"), "Idempotency-Key"),
        (post(good, extra="Content-Encoding: gzip\r\n"), "body"),
        (post(good, path="/v1/generations?from=3"), "from"),
    ]:
        status, _, answer = await raw_http(platform, request)
        assert (status, json.loads(answer)["error"]["field"]) == (400, field)


STRAYS = [
    ("GET", "/", 404),
    ("GET", "/v1/nothing", 404),
    ("GET", "/v1/%ff%fe", 404),
    ("GET", "/v1/generations/none", 404),
    ("GET", "/v1/generations/gen-zzzz", 404),
    ("GET", "/v1/generations/gen-0000000000000001", 404),
    ("GET", "/v1/generations/gen-0000000000000001?from=2", 404),
    ("DELETE", "/v1/generations/key:abc", 404),
    ("PUT", "/v1/generations", 405),
    ("GET", "/v1/chat/completions", 405),
    ("GET", "/v1/models/none", 404),
]


async def test_unknown_paths_methods_ids_and_queries_have_the_same_error_body(platform):
    async with platform.http() as client:
        for method, path, status in STRAYS:
            response = await client.request(method, path)
            assert response.status_code == status, path
            assert set(response.json()["error"]) >= {"code", "reason", "message"}, path
            assert response.headers["x-request-id"].startswith("req-"), path
            if status == 405:
                assert "POST" in response.headers["allow"], path


BAD_QUERIES = [
    ("from=yesterday", "from"),
    ("to=", "to"),
    ("from=0001-01-01T00:00:00%2B10:00", "from"),
    ("to=9999-12-31T23:59:59-10:00", "to"),
    ("from=2026-01-02&to=2026-01-01", "to"),
    ("pageSize=0", "pageSize"),
    ("pageSize=1001", "pageSize"),
    ("pageSize=1e2", "pageSize"),
    ("pageSize=00010000", "pageSize"),
    ("pageSize=0001" + "0" * 5000, "pageSize"),
    ("pageToken=zzz", "pageToken"),
    ("requestId=5", "requestId"),
    ("requestId=", "requestId"),
    ("tenant=rival", "tenant"),
]


async def test_a_bad_query_of_the_ledger_is_refused_by_the_callers_name_of_its_field(platform):
    async with platform.http() as client:
        for query, field in BAD_QUERIES:
            response = await client.get(f"/v1/usage?{query}")
            error = response.json()["error"]
            assert (response.status_code, error.get("field")) == (400, field), query
            assert "_" not in error["message"], query


async def test_every_path_of_a_tenant_needs_a_key(platform):
    async with platform.http(None) as client:
        for header in ({}, {"Authorization": "Basic x"}, bearer("nobody"), bearer(REVOKED_KEY)):
            for path in ("/v1/models", "/v1/usage", "/v1/generations/gen-0000000000000001"):
                response = await client.get(path, headers=header)
                assert response.status_code == 401, path
                assert response.json()["error"]["reason"] == "INVALID_API_KEY", path
            for path in FACES:
                response = await client.post(path, json=GENERATE, headers=header)
                assert response.status_code == 401, path
                assert response.json()["error"]["reason"] == "INVALID_API_KEY", path


async def test_a_key_is_never_taken_from_elsewhere_and_never_repeated(platform):
    async with platform.http("s3cret-key") as client:
        response = await client.get("/v1/models", headers={"X-Tenant-Id": "acme"})
    assert response.status_code == 401
    assert "s3cret" not in response.text


async def test_what_is_no_http_is_refused_and_its_log_quotes_no_key_and_no_prompt(platform, caplog):
    for request in (
        b"GARBAGE attack at dawn\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nAuthor\0ization: Bearer {KEY}\r\n\r\n".encode(),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: attack at dawn\r\n\r\n",
    ):
        status, _, _ = await raw_http(platform, request)
        assert status == 400
    assert "request from" in caplog.text
    assert KEY not in caplog.text
    assert "attack" not in caplog.text


async def test_bad_input_has_no_effect_on_a_running_stream(platform):
    halfway = asyncio.Event()

    async def script(job):
        job.accept()
        ids = platform.ids("hello world")
        for token in ids[:2]:
            job.step(token)
        await halfway.wait()
        for token in [*ids[2:], 2]:
            job.step(token)
        job.end(1)

    platform.scheduler.script = script
    async with platform.http() as client:
        running = asyncio.create_task(client.post("/v1/generations", json=GENERATE))
        await platform.eventually(lambda: platform.scheduler.jobs)
        for bad in ({"n": -1}, {"stop": ["x" * 500_000]}, {"model": "none"}, {"prompt": None}):
            assert (await client.post("/v1/generations", json=GENERATE | bad)).status_code in {400, 404}
        halfway.set()
        assert (await running).json()["text"] == "hello world"
