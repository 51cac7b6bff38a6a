"""One generation for one idempotency key, whichever gateways are asked and in whatever order.

A key's entry in the shared bucket says which generation it stands for. Whoever creates the entry runs the
generation, and marks it accepted before a caller may see so; everybody else follows. Every write names the
revision that was read, so that of several writers one wins.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kit.errors import Code, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.gateway.core.spec import GenerationSpec

# A repeated request may leave another deadline than the first one did.
_NO_CONTENT = {"deadline_ms"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25


def content_digest(spec: GenerationSpec) -> bytes:
    """SHA-256 over what is asked for: equal for equal content, however it was spelled or sent."""
    fields = spec.model_dump(mode="json", exclude=_NO_CONTENT)
    # -0.0 and 0 ask for the same.
    plain = {name: value + 0.0 if isinstance(value, float) else value for name, value in fields.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).digest()


def entry_name(tenant_id: str, key: str) -> str:
    """The entry's name in the bucket: no two pairs of tenant and key share one."""
    tenant = tenant_id.encode()
    return hashlib.sha256(len(tenant).to_bytes(8, "big") + tenant + key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """What a key stands for. `created` is in seconds since 1970, by the clock of who created it."""

    request_id: int
    content: bytes
    accepted: bool
    created: float


@dataclass(frozen=True, slots=True)
class Found:
    """An entry as read, None where there is none, and the revision that a write has to name."""

    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait for a claim to be accepted, and for the requests of a lost scheduler to come back."""

    claim_s: float = 10.0
    resubmit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Read:
    """Read the entry after a pause; answer with `found`."""

    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Write:
    """Store the entry, None deletes it, at this revision; answer with `written` or `beaten`."""

    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Attach to the generation; answer with `attached`, `missing` or `given_up`."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Run:
    """Submit the generation; answer with `admitted` when the scheduler has accepted it, or with `refused`."""

    request_id: int


class End(enum.Enum):
    """The last step."""

    CONFIRMED = enum.auto()  # the caller may see `accepted`
    REFUSED = enum.auto()  # the key is free again: tell the refusal
    LOST = enum.auto()  # another generation has the key: give this one up, then go on with `found`


Step: TypeAlias = Read | Write | Follow | Run | End


class _Phase(enum.Enum):
    CLAIMING = enum.auto()
    RUNNING = enum.auto()
    CONFIRMING = enum.auto()
    RELEASING = enum.auto()
    FOLLOWING = enum.auto()


class Claim:
    """One request's way to its key's generation: every method takes what happened and returns the next step.

    Starts with `begin`. `now` is in seconds since 1970. Raises IDEMPOTENCY_CONFLICT and RESULT_EXPIRED.
    """

    def __init__(self, content: bytes, new_id: Callable[[], int], patience: Patience) -> None:
        self._content = content
        self._new_id = new_id
        self._patience = patience
        self._phase = _Phase.CLAIMING
        self._own: Entry | None = None
        self._followed = 0
        self._found = Found(None, 0)
        self._seen_since = 0.0
        self._missing_since: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def begin(self, now: float) -> Step:
        """Most keys are new: the first step creates the entry without a look at it."""
        return self._claim(now)

    def found(self, entry: Entry | None, revision: int, now: float) -> Step:
        """The entry as it is now."""
        if revision != self._found.revision:
            self._seen_since = now
        self._found = Found(entry, revision)
        if self._phase is _Phase.CONFIRMING:
            return self._confirm_again()
        if self._phase is _Phase.RELEASING:
            mine = entry is not None and self._own is not None and entry.request_id == self._own.request_id
            return Write(None, revision) if mine else End.REFUSED
        if entry is None:
            return self._claim(now)
        if entry.content != self._content:
            message = "the idempotency key was used for a request with another content"
            raise ServiceError(Code.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT", message)
        if self._phase is _Phase.FOLLOWING and entry.request_id == self._followed:
            return self.attached()
        self._phase = _Phase.CLAIMING
        return Follow(entry.request_id)

    def written(self, revision: int) -> Step:
        """The last write was stored."""
        self._found = Found(self._found.entry, revision)
        match self._phase:
            case _Phase.CLAIMING:
                assert self._own is not None
                self._found = Found(self._own, revision)
                self._phase = _Phase.RUNNING
                return Run(self._own.request_id)
            case _Phase.RELEASING:
                return End.REFUSED
            case _:
                return End.CONFIRMED

    def beaten(self) -> Step:
        """The entry was not at the revision that the last write named."""
        return Read()

    def admitted(self) -> Step:
        """The scheduler has accepted our generation: nobody may run another one from now on."""
        self._phase = _Phase.CONFIRMING
        assert self._own is not None
        return Write(_accepted(self._own), self._found.revision)

    def refused(self) -> Step:
        """Our generation will not run."""
        self._phase = _Phase.RELEASING
        return Write(None, self._found.revision)

    def attached(self) -> Step:
        """The entry's generation is there; who ran it may be gone before it could say that it is accepted."""
        entry = self._found.entry
        assert entry is not None
        self._phase, self._followed = _Phase.FOLLOWING, entry.request_id
        return End.CONFIRMED if entry.accepted else Write(_accepted(entry), self._found.revision)

    def missing(self, now: float) -> Step:
        """The scheduler does not know the entry's generation: not yet, or not any more."""
        entry = self._found.entry
        assert entry is not None
        if self._missing_since is None:
            self._missing_since = now
        if entry.accepted:
            if now - self._missing_since >= self._patience.resubmit_s:
                raise expired()
        # Clocks of gateways may differ: then what counts is how long the claim was seen here.
        elif max(now - entry.created, now - self._seen_since) >= self._patience.claim_s:
            return self._claim(now)
        pause = self._pause_s
        self._pause_s = min(2 * pause, _LONGEST_PAUSE_S)
        return Read(pause)

    def given_up(self, now: float) -> Step:
        """The entry's generation ended since its key could not be held: nobody is billed, the key is free."""
        return self._claim(now)

    def _claim(self, now: float) -> Write:
        self._phase = _Phase.CLAIMING
        self._own = Entry(self._new_id(), self._content, accepted=False, created=now)
        return Write(self._own, self._found.revision)

    def _confirm_again(self) -> Step:
        found, own = self._found.entry, self._own
        assert own is not None
        if found is not None and found.request_id != own.request_id:
            self._phase = _Phase.CLAIMING
            return End.LOST
        if found is not None and found.accepted:
            return End.CONFIRMED
        return Write(_accepted(own), self._found.revision)


def _accepted(entry: Entry) -> Entry:
    return Entry(entry.request_id, entry.content, accepted=True, created=entry.created)


def expired() -> ServiceError:
    """The refusal of a key whose generation is no longer kept."""
    return ServiceError(Code.FAILED_PRECONDITION, "RESULT_EXPIRED", "the result is no longer kept")
