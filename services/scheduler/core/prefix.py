"""The prefix cache: which page already holds the KV of which tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.scheduler.core.pages import PagePool

Digest = Callable[[bytes], bytes]


def digest_sha256(data: bytes) -> bytes:
    """Hash so that nobody can choose two prefixes that collide."""
    return sha256(data).digest()


def root_of(
    model_version: str, adapter: str, tokenizer_version: str, kv_layout: str, isolation_domain: str
) -> bytes:
    """Return the start of a chain: equal tokens under another root never meet."""
    parts = (model_version, adapter, tokenizer_version, kv_layout, isolation_domain)
    return digest_sha256(repr(parts).encode())


class Chain:
    """The token ids and digests of one sequence's full pages, extended as its tokens become known."""

    __slots__ = ("_digest", "blocks", "digests", "page_size", "root")

    def __init__(self, root: bytes, page_size: int, digest: Digest = digest_sha256) -> None:
        self.root = root
        self.page_size = page_size
        self.blocks: list[bytes] = []
        self.digests: list[bytes] = []
        self._digest = digest

    def copy(self) -> Chain:
        """Return the chain of another sequence with the same tokens so far."""
        other = Chain(self.root, self.page_size, self._digest)
        other.blocks, other.digests = self.blocks.copy(), self.digests.copy()
        return other

    def extend(self, tokens: Sequence[int], pages: int) -> None:
        """Make sure the first `pages` digests exist."""
        size, digests = self.page_size, self.digests
        for index in range(len(digests), pages):
            block = array("i", tokens[index * size : (index + 1) * size]).tobytes()
            parent = digests[-1] if digests else self.root
            self.blocks.append(block)
            digests.append(self._digest(parent + block))

    def parent(self, index: int) -> bytes:
        """Return the digest that page `index` continues."""
        return self.digests[index - 1] if index else self.root


class PrefixCache:
    """Committed full pages by the digest of their chain, and the pages being computed just now."""

    __slots__ = ("_entries", "_pages", "_pool", "_promises")

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: dict[bytes, int] = {}
        self._entries: dict[int, tuple[bytes, bytes, bytes]] = {}  # page -> digest, parent, token ids
        self._promises: dict[bytes, int] = {}  # digest -> generation that computes it

    def match(self, chain: Chain, tokens: Sequence[int], limit: int) -> list[int]:
        """Return the longest run of cached pages from the start, at most `limit`; token ids must agree."""
        chain.extend(tokens, limit)
        pages: list[int] = []
        for index in range(limit):
            digest = chain.digests[index]
            page = self._pages.get(digest)
            if page is None or self._entries[page] != (digest, chain.parent(index), chain.blocks[index]):
                break
            pages.append(page)
        return pages

    def promised(self, chain: Chain, index: int) -> bool:
        """Say whether another sequence is computing page `index` of this chain."""
        return chain.digests[index] in self._promises

    def promise(self, chain: Chain, first: int, last: int, generation: int) -> None:
        """Announce that a sequence will compute pages `first` to `last - 1`."""
        for digest in chain.digests[first:last]:
            self._promises.setdefault(digest, generation)

    def withdraw(self, chain: Chain, first: int, generation: int) -> None:
        """Take back what a sequence announced and did not compute."""
        for digest in chain.digests[first:]:
            if self._promises.get(digest) == generation:
                del self._promises[digest]

    def commit(self, chain: Chain, tokens: Sequence[int], index: int, page: int, generation: int) -> None:
        """Remember a held page whose step's result is committed; an equal page already kept stays."""
        chain.extend(tokens, index + 1)
        digest = chain.digests[index]
        if self._promises.get(digest) == generation:
            del self._promises[digest]
        if digest not in self._pages:
            self._pages[digest] = page
            self._entries[page] = (digest, chain.parent(index), chain.blocks[index])
            self._pool.remember(page)

    def forget(self, page: int) -> None:
        """Drop a page that is given out anew."""
        entry = self._entries.pop(page, None)
        if entry is not None:
            del self._pages[entry[0]]

    def violations(self, generations: set[int]) -> list[str]:
        """Check that both maps agree and that only resident sequences promise pages."""
        found = []
        if {entry[0]: page for page, entry in self._entries.items()} != self._pages:
            found.append("the prefix cache's maps disagree")
        if len(self._entries) > self._pool.count:
            found.append("the prefix cache holds more pages than there are")
        if not set(self._promises.values()) <= generations:
            found.append("a sequence that is not resident promises pages")
        return found
