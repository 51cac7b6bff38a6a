"""What a running platform must still be when the fuzzing is over."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import requests

from tokenloom.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

if TYPE_CHECKING:
    from tests.e2e.conftest import Stack

# What a caller left ends soon, and so does the probe of an idle worker.
REST_S = 10.0
KINDS = ("gateway", "scheduler", "worker", "usage", "registry")
CANARY: dict[str, Any] = {
    "prompt": "Once upon a time",
    "temperature": 0,
    "maxOutputTokens": 24,
    "ignoreEos": True,
}


class Watch:
    """Streams one greedy answer over and over beside the fuzzing; it must never change."""

    def __init__(self, stack: Stack, model: str) -> None:
        self._stack, self._body = stack, CANARY | {"model": model}
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {stack.api_key}"
        self._pids = self._processes()
        self._stop = threading.Event()
        self._answers: list[Any] = []
        self.past_validation = 0  # of the fuzzing's requests, those that the scheduler accepted
        self._thread = threading.Thread(target=self._stream)

    def __enter__(self) -> Watch:
        self._expected = self._ask()
        self._accepted = self.accepted()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._stop.set()
        self._thread.join()
        self.past_validation = self.accepted() - self._accepted - len(self._answers)
        if kind is None:
            self._check()

    def accepted(self) -> int:
        """Requests that the scheduler has ever accepted, by the gateway's metrics."""
        text = requests.get(f"{self._stack.http_url}/metrics", timeout=10).text
        values = re.findall(r"^tokenloom_gateway_requests_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
        return sum(int(float(value)) for value in values)

    def _stream(self) -> None:
        while not self._stop.is_set():
            self._answers.append(self._ask())
            self._stop.wait(0.25)

    def _ask(self) -> list[int]:
        response = self._session.post(f"{self._stack.http_url}/v1/generations", json=self._body, timeout=30)
        assert response.status_code == 200, response.text
        return list(response.json()["tokenIds"])

    def _check(self) -> None:
        assert self._answers
        assert all(answer == self._expected for answer in self._answers), "a neighbour was disturbed"
        assert self._processes() == self._pids, "a service died"
        assert requests.get(f"{self._stack.http_url}/health", timeout=10).status_code == 200
        assert "Traceback" not in self._stack.log
        assert "handler failed" not in self._stack.log
        with grpc.insecure_channel(self._stack.service("scheduler")["target"]) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            until = time.monotonic() + REST_S
            while True:
                (lane,) = stub.Inspect(scheduler_pb2.InspectRequest(), timeout=10).lanes
                assert not lane.violations
                held = (lane.running, lane.waiting, lane.owned_pages)
                if held == (0, 0, 0):
                    break
                assert time.monotonic() < until, held
                time.sleep(0.05)

    def _processes(self) -> list[int]:
        return sorted(row["pid"] for kind in KINDS for row in self._stack.services(kind))
