"""Callers of the stack, who remember what they were told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.compose.stack import MODEL
from tokenloom.client import Accepted, Client, Done, FinishReason, TokenloomError, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compose.stack import Gateway

RETRY_S = 0.5
# What the contract lets a replaced service answer before it accepts; the caller tries again.
RETRIABLE = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})


@dataclass
class Outcome:
    """All that one call was told."""

    request_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    done: Done | None = None
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    _grown: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def number(self) -> int:
        """The request's number in the ledger."""
        return int(self.request_id.removeprefix("gen-"), 16)

    @property
    def ended(self) -> str:
        """The finish reason's name."""
        return FinishReason.Name(self.done.finish_reason) if self.done else "none"

    async def reached(self, tokens: int) -> None:
        """Return once so many tokens have come."""
        while len(self.token_ids) < tokens:
            self._grown.clear()
            await self._grown.wait()

    def take_tokens(self, event: Tokens) -> None:
        """Add tokens; one repeated or missing is an error."""
        assert event.index == len(self.token_ids), f"token {event.index} after {len(self.token_ids)} tokens"
        self.token_ids.extend(event.token_ids)
        self.text += event.text
        self._grown.set()


async def generate(
    gateway: Gateway, key: str, prompt: str, tokens: int, outcome: Outcome | None = None
) -> Outcome:
    """One call over gRPC to its end; raises `TokenloomError` when it was refused or broke."""
    outcome = outcome or Outcome()
    async with Client(gateway.grpc_target, key) as client:
        call = client.generate(
            MODEL, prompt, max_output_tokens=tokens, temperature=0.0, ignore_eos=True, deadline_s=120.0
        )
        async for event in call:
            match event:
                case Accepted():
                    outcome.request_id = event.request_id
                    outcome.accepted.set()
                case Tokens():
                    outcome.take_tokens(event)
                case Done():
                    outcome.done = event
    return outcome


@dataclass
class Load:
    """Callers that generate again and again until told to stop; when refused they ask the next gateway."""

    gateways: Callable[[], list[Gateway]]
    key: str
    tokens: int = 24
    outcomes: list[Outcome] = field(default_factory=list)
    refusals: list[TokenloomError] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _callers: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, callers: int) -> None:
        """Begin calling."""
        self._callers = [asyncio.create_task(self._call(number)) for number in range(callers)]

    async def served(self, more: int) -> None:
        """Return once so many further calls have ended well."""
        wanted = len(self.outcomes) + more
        while len(self.outcomes) < wanted:
            await asyncio.sleep(RETRY_S / 10)
            for caller in self._callers:
                if caller.done():
                    caller.result()

    async def stop(self) -> None:
        """Let every call end."""
        self._stop.set()
        await asyncio.gather(*self._callers)

    async def _call(self, caller: int) -> None:
        turn, story = caller, 0
        while not self._stop.is_set():
            if not (gateways := await asyncio.to_thread(self.gateways)):
                await asyncio.sleep(RETRY_S)
                continue
            story += 1
            outcome = Outcome()
            gateway = gateways[turn % len(gateways)]
            try:
                await generate(gateway, self.key, f"Caller {caller}, story {story}:", self.tokens, outcome)
                self.outcomes.append(outcome)
            except TokenloomError as error:
                self._note(error, outcome)
                turn += 1
                await asyncio.sleep(error.retry_after or RETRY_S)

    def _note(self, error: TokenloomError, outcome: Outcome) -> None:
        if outcome.accepted.is_set() or error.code not in RETRIABLE:
            self.broken.append(f"{outcome.request_id or 'not accepted'}: {error.code} {error}")
        else:
            self.refusals.append(error)
