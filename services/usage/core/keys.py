"""API keys: never kept, only their digests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDARD = 2


@dataclass(frozen=True, slots=True)
class Key:
    """What a key's digest authenticates; `priority` is numbered as in the inference proto."""

    tenant_id: str
    priority: int = STANDARD
    revoked: bool = False


def digest(api_key: str) -> str:
    """Hexadecimal SHA-256 of the key."""
    return hashlib.sha256(api_key.encode()).hexdigest()


def changes(wanted: Mapping[str, Key], published: Mapping[str, Key]) -> dict[str, Key | None]:
    """What to publish so that `published` becomes `wanted`; None takes a digest away."""
    new: dict[str, Key | None] = {k: key for k, key in wanted.items() if published.get(k) != key}
    return new | dict.fromkeys(published.keys() - wanted.keys())
