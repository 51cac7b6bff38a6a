"""Public request ids: `gen-` and the 16 hexadecimal digits of a positive 63-bit number."""

from __future__ import annotations

import re

from kit.errors import Code, ServiceError

MAX_REQUEST_ID = 2**63 - 1
_PUBLIC = re.compile(r"gen-[0-9a-f]{16}", re.ASCII)


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


def generation_not_found() -> ServiceError:
    """The one answer for an id that is malformed, unknown or another tenant's."""
    return ServiceError(Code.NOT_FOUND, "NOT_FOUND", "there is no such generation")
