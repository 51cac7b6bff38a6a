"""The HTTP faces of a running platform against their own document."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.fuzz.bodies import KEYS, LIVELY, MODEL
from tests.fuzz.platform import Watch
from tests.fuzz.runner import HANG_S
from tests.support.openapi import EVENTS, Contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy

    from tests.e2e.conftest import Stack
    from tests.fuzz.runner import Fuzzer

load_all_checks()
CHECKED: list[Any] = CHECKS.get_by_names(
    [
        *("status_code_conformance", "content_type_conformance", "response_headers_conformance"),
        *("response_schema_conformance", "negative_data_rejection", "unsupported_method"),
        "allow_header_conformance",
    ]
)
OPEN_PATHS = ("/health", "/metrics", "/openapi.json")
GENERATION = "/v1/generations/{id}"
_ACCEPTS = st.sampled_from(["application/json", "*/*", EVENTS, f"text/html, {EVENTS};q=0.5"])
_HEADERS = st.fixed_dictionaries({"Accept": _ACCEPTS})
# Rarely a key: most keys are taken by another body.
_MAYBE_KEYED = st.builds(
    lambda accept, roll, key: {"Accept": accept} | ({"Idempotency-Key": key} if roll == 5 else {}),
    _ACCEPTS,
    st.integers(0, 9),
    KEYS,
)
_STARTS = st.sampled_from([{}, {"from": "0"}, {"from": "2"}, {"from": "1,0"}, {"from": "9" * 10}])


class Faces:
    """Sends cases and holds the answers against the document, strictly."""

    def __init__(self, stack: Stack, session: requests.Session) -> None:
        self.url, self.session = stack.http_url, session
        session.headers["Authorization"] = f"Bearer {stack.api_key}"
        document = session.get(f"{self.url}/openapi.json", timeout=10).json()
        self.contract = Contract(document)
        config = schemathesis.Config()
        config.projects.default.generation.update(with_security_parameters=False)
        self.schema = schemathesis.openapi.from_dict(document, config=config)
        self.recent: deque[str] = deque(["gen-0000000000000001"], maxlen=8)

    def generated(self) -> SearchStrategy[schemathesis.Case[Any]]:
        """Cases of every operation that fit the document, and cases that do not."""
        found = []
        for method, path in sorted(self.contract.operations):
            operation = self.schema[path][method]
            modes = [GenerationMode.POSITIVE] if path in OPEN_PATHS else list(GenerationMode)
            found += [operation.as_strategy(mode) for mode in modes]
        return st.one_of(found)

    def lively(self) -> SearchStrategy[schemathesis.Case[Any]]:
        """Generations that can be served, and reading and cancelling of recent ones."""
        made = [self._made(path, bodies()) for path, bodies in LIVELY.items()]
        named = [self._named(method) for method in ("GET", "DELETE")]
        return st.one_of(*made, *made, *made, *named)

    def send(self, case: schemathesis.Case[Any]) -> None:
        """Call, then check what came."""
        response = case.call_and_validate(
            base_url=self.url, session=self.session, checks=CHECKED, timeout=HANG_S
        )
        in_time = not (isinstance(case.body, dict) and {"deadlineMs", "deadline_ms"} & case.body.keys())
        assert response.status_code < 500 or (response.status_code == 504 and not in_time), response.text
        kind = response.headers["content-type"][0]
        self.contract.check(case.method, case.path, response.status_code, kind, response.content)
        if case.method == "POST" and response.status_code == 200:
            self.recent.append(response.headers["x-request-id"][0])

    def _made(
        self, path: str, bodies: SearchStrategy[dict[str, Any]]
    ) -> SearchStrategy[schemathesis.Case[Any]]:
        operation = self.schema[path]["POST"]
        return st.builds(
            lambda body, headers: operation.Case(
                body=body, media_type="application/json", headers=dict(headers)
            ),
            bodies,
            _MAYBE_KEYED,
        )

    def _named(self, method: str) -> SearchStrategy[schemathesis.Case[Any]]:
        operation = self.schema[GENERATION][method]
        recent = st.integers(0, 7).map(lambda place: self.recent[place % len(self.recent)])
        return st.builds(
            lambda name, query, headers: operation.Case(
                path_parameters={"id": name}, query=dict(query), headers=dict(headers)
            ),
            recent | KEYS.map("key:{}".format),
            _STARTS if method == "GET" else st.just({}),
            _HEADERS,
        )


@pytest.fixture
def faces(stack: Stack) -> Iterator[Faces]:
    with requests.Session() as session:
        yield Faces(stack, session)


def test_bad_input_gets_no_500_and_every_answer_is_as_the_document_says(
    stack: Stack, faces: Faces, fuzz: Fuzzer
) -> None:
    with Watch(stack, MODEL) as watch:
        fuzz(faces.generated(), faces.send, cases=40)
        fuzz(faces.lively(), faces.send, cases=120)
    fuzz.tally.past = watch.past_validation
    assert fuzz.tally.past >= 0.3 * fuzz.tally.cases


HEAD = (
    b"POST /v1/generations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
)
BODY = json.dumps({"model": MODEL, "prompt": "x", "maxOutputTokens": 1}).encode()
edits = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=4)


def test_bytes_that_are_no_http_get_an_answer_or_a_closed_connection(stack: Stack, fuzz: Fuzzer) -> None:
    place = urlsplit(stack.http_url)
    good = HEAD % (stack.api_key.encode(), len(BODY), BODY)

    def send(changes: list[tuple[float, bytes, int]]) -> None:
        data = good
        for where, new, dropped in changes:
            at = int(where * len(data))
            data = data[:at] + new + data[at + dropped :]
        with socket.create_connection((place.hostname, place.port), timeout=HANG_S) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert not answer or answer.startswith(b"HTTP/"), answer[:80]
        assert b" 50" not in answer[:13], answer[:200]

    with Watch(stack, MODEL) as watch:
        fuzz(edits, send, cases=20)
    fuzz.tally.past = watch.past_validation
