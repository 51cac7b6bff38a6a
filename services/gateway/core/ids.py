"""How callers name a generation: the server's id, `gen-` and the 16 hexadecimal digits of a positive 63-bit
number, or `key:` and the idempotency key it was asked for with.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from kit.errors import Code, ServiceError, invalid

MAX_REQUEST_ID = 2**63 - 1
MAX_KEY_CHARS = 255
KEY_ALLOWED = f"1 to {MAX_KEY_CHARS} visible ASCII characters"
_PUBLIC = re.compile(r"gen-[0-9a-f]{16}", re.ASCII)
_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_CHARS}}}", re.ASCII)
_KEY_PREFIX = "key:"


class Key(NamedTuple):
    """A caller's own name for a generation, within its tenant."""

    text: str


Reference: TypeAlias = int | Key


def format_id(request_id: int) -> str:
    """The public form of a request id."""
    if not 0 < request_id <= MAX_REQUEST_ID:
        raise ValueError(f"request id {request_id} is not a positive 63-bit number")
    return f"gen-{request_id:016x}"


def parse_id(text: str) -> int:
    """The number of a public id; anything malformed is NOT_FOUND, as an unknown id is."""
    number = int(text[4:], 16) if _PUBLIC.fullmatch(text) else 0
    if not 0 < number <= MAX_REQUEST_ID:
        raise generation_not_found()
    return number


def parse_key(text: str, field: str) -> Key:
    """An idempotency key; raises the refusal that names `field`."""
    if not _KEY.fullmatch(text):
        raise invalid(field, f"{field} must be {KEY_ALLOWED}")
    return Key(text)


def parse_reference(text: str) -> Reference:
    """A public id, or `key:` and an idempotency key; anything malformed is NOT_FOUND."""
    if not text.startswith(_KEY_PREFIX):
        return parse_id(text)
    if not _KEY.fullmatch(key := text.removeprefix(_KEY_PREFIX)):
        raise generation_not_found()
    return Key(key)


def generation_not_found() -> ServiceError:
    """The one answer for an id that is malformed, unknown or another tenant's."""
    return ServiceError(Code.NOT_FOUND, "NOT_FOUND", "there is no such generation")
