"""What must never be seen: canaries, and the search for them in all that a platform writes down.

    canaries = Canaries(prompt=[...], output=[...], key=[...], password=[...], tokens=[[1, 2, ...], ...])
    leaks = in_platform(data_dir, canaries) + await in_nats(url, canaries) + await in_postgres(url, canaries)
    assert not leaks

Any run of 36 bytes of a canary is found wherever it lies: as it is, escaped as in JSON, a Python literal or a
URL, in base64 or hexadecimal; token ids as a list or packed. A `Leak` names the canary, never its text.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import numpy as np
from nats.aio.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PIECE = 24
_STRIDE = 12
# Of a repeated letter or a page of zeros nobody can say whose it is.
_DISTINCT = 6
_BLOCK = 4 << 20
_RESTART_S = 30.0
_MIX = tuple(np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
# What a data directory keeps for its owner: readable by nobody else, and checked to be so.
PRIVATE = ("secrets.json", "dev.env", "nats/nats.conf")


@dataclass(frozen=True, order=True)
class Leak:
    """A canary, as `kind[number]`, and where it was seen."""

    where: str
    canary: str


class Canaries:
    """Texts by kind, and `tokens` for lists of token ids; ValueError for what chance would find."""

    def __init__(self, *, tokens: Iterable[Sequence[int]] = (), **texts: Iterable[str]) -> None:
        self._names: dict[bytes, str] = {}
        for kind, several in texts.items():
            for number, text in enumerate(several):
                self._add(f"{kind}[{number}]", _text_forms(text))
        for number, ids in enumerate(tokens):
            self._add(f"tokens[{number}]", _token_forms(ids))
        words = np.frombuffer(b"".join(self._names), dtype="<u8").reshape(-1, PIECE // 8)
        self._hashes = np.unique(_mix(*words.T)) if self._names else np.empty(0, np.uint64)
        bits = max(16, (16 * len(self._hashes)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._sieve = np.zeros(1 << bits, bool)
        self._sieve[self._hashes >> self._shift] = True

    def find(self, data: bytes, where: str) -> list[Leak]:
        """Every canary of which a part is in `data`, once."""
        found: set[str] = set()
        for start in range(0, max(1, len(data)), _BLOCK):
            block = data[start : start + _BLOCK + PIECE]
            pieces = (block[at : at + PIECE] for at in self._candidates(block))
            found |= {self._names[piece] for piece in pieces if piece in self._names}
        return [Leak(where, canary) for canary in sorted(found)]

    def _add(self, canary: str, forms: Iterable[bytes]) -> None:
        pieces = [piece for form in forms for piece in _pieces(form)]
        if not pieces:
            raise ValueError(f"{canary} is too short or too uniform to be told from chance")
        for piece in pieces:
            self._names.setdefault(piece, canary)

    def _candidates(self, block: bytes) -> list[int]:
        if len(block) < PIECE or not len(self._hashes):
            return []
        # The eight bytes from every offset on, as one number each.
        words = np.lib.stride_tricks.as_strided(np.frombuffer(block, "<u8", 1), (len(block) - 7,), (1,))
        hashes = _mix(words[:-16], words[8:-8], words[16:])
        # The sieve lets few through to the dearer search.
        offsets = np.flatnonzero(self._sieve[hashes >> self._shift])
        hashes = hashes[offsets]
        at = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
        hits: list[int] = offsets[self._hashes[at] == hashes].tolist()
        return hits


def searchable(text: str) -> bool:
    """Whether a text is long and varied enough for a canary."""
    return any(_pieces(text.encode()))


def in_platform(data_dir: Path, canaries: Canaries) -> list[Leak]:
    """Search a running `tokenloom up`: its files, its metrics and its processes' command lines."""
    services = json.loads((data_dir / "services.json").read_text())["services"]
    return [
        *in_files(data_dir, canaries),
        *in_metrics((row["metrics_url"] for row in services if row["metrics_url"]), canaries),
        *in_command_lines((row["pid"] for row in services), canaries),
    ]


def in_files(root: Path, canaries: Canaries, *, private: Sequence[str] = PRIVATE) -> list[Leak]:
    """Search every file below `root`: logs, outboxes, NATS' store, SQLite. Model artifacts are left out.

    `private` files may hold secrets, but not be readable by others: that is a leak of `anything`.
    """
    leaks = []
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
        name = str(path.relative_to(root))
        if name in private:
            leaks += [Leak(str(path), "anything")] if path.stat().st_mode & 0o077 else []
        elif not name.startswith("models/"):
            leaks += canaries.find(path.read_bytes(), str(path))
    return leaks


def in_metrics(urls: Iterable[str], canaries: Canaries) -> list[Leak]:
    """Search what Prometheus would scrape; a service that restarts is waited for."""
    return [leak for url in urls for leak in canaries.find(_scrape(url), url)]


def in_command_lines(pids: Iterable[int], canaries: Canaries) -> list[Leak]:
    """Search what every user of the host can read of a process."""
    paths = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    return [leak for path in paths if path.exists() for leak in canaries.find(path.read_bytes(), str(path))]


async def in_nats(url: str, canaries: Canaries) -> list[Leak]:
    """Search every stored event and KV entry; `url` is of a user who may read them all."""
    client = Client()
    await client.connect(url)
    leaks: set[Leak] = set()
    try:
        js = client.jetstream()
        for stream in await js.streams_info():
            subscription = await js.subscribe(">", stream=stream.config.name, ordered_consumer=True)
            for _ in range(stream.state.messages):
                message = await subscription.next_msg(timeout=10)
                text = f"{message.subject} {message.headers}".encode() + message.data
                leaks |= set(canaries.find(text, f"nats {stream.config.name} {message.subject}"))
            await subscription.unsubscribe()
    finally:
        await client.close()
    return sorted(leaks)


async def in_postgres(url: str, canaries: Canaries) -> list[Leak]:
    """Search every row of every table."""
    connection = await asyncpg.connect(url.replace("postgresql+asyncpg://", "postgresql://", 1))
    leaks: set[Leak] = set()
    try:
        tables = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
        for (table,) in await connection.fetch(tables):
            rows = await connection.fetch(f"SELECT t::text FROM {table} t")
            leaks |= set(canaries.find("\n".join(row[0] for row in rows).encode(), f"table {table}"))
    finally:
        await connection.close()
    return sorted(leaks)


def _scrape(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + _RESTART_S
    while True:
        try:
            with opener.open(url, timeout=10) as response:
                found: bytes = response.read()
                return found
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _pieces(form: bytes) -> Iterator[bytes]:
    for at in range(0, len(form) - PIECE + 1, _STRIDE):
        piece = form[at : at + PIECE]
        if len(set(piece)) >= _DISTINCT:
            yield piece


def _text_forms(text: str) -> set[bytes]:
    plain = text.encode()
    escaped = [json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)]
    quoted = [urllib.parse.quote(text), urllib.parse.quote_plus(text), plain.hex(), plain.hex().upper()]
    # Where the text begins within a group of three decides how base64 spells it.
    based = [base64.b64encode(bytes(before) + plain)[4:-4] for before in range(3)]
    return {
        plain,
        *(form.strip("\"'").encode() for form in escaped),
        *(form.encode() for form in quoted),
        *based,
    }


def _token_forms(ids: Sequence[int]) -> set[bytes]:
    listed = {between.join(map(str, ids)).encode() for between in (", ", ",", " ", "\n")}
    packed = {struct.pack(f"<{len(ids)}{size}", *ids) for size in "iq"}
    return {*listed, *packed, bytes(itertools.chain.from_iterable(map(_varint, ids)))}


def _varint(number: int) -> list[int]:
    septets = []
    while number > 0x7F:
        septets.append(number & 0x7F | 0x80)
        number >>= 7
    return [*septets, number]


def _mix(*words: np.ndarray) -> np.ndarray:
    first, second, third = (word * factor for word, factor in zip(words, _MIX, strict=True))
    mixed: np.ndarray = first + second + third
    return mixed
