"""The KV pages of one worker: who holds them, and which one is given out next."""

from __future__ import annotations

from operator import and_, not_


class OutOfPages(Exception):  # noqa: N818 - says what happened
    """Nothing is left to give out; callers look at `available` first."""


class PagePool:
    """Fixed pages with reference counts.

    Pages that nobody holds form one circular list: empty ones in front, then remembered ones (still
    in the prefix cache) from the least to the most recently released. Every operation is O(1).
    """

    __slots__ = ("_next", "_prev", "_remembered", "available", "cached", "count", "holders")

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders = [0] * count
        self.available = count
        self.cached = 0  # remembered pages among the available ones
        self._remembered = bytearray(count)
        # Position `count` is the list's sentinel.
        self._next: list[int] = [*range(1, count + 1), 0]
        self._prev: list[int] = [count, *range(count)]

    @property
    def free(self) -> int:
        """Pages that hold nothing."""
        return self.available - self.cached

    @property
    def owned(self) -> int:
        """Pages that sequences hold."""
        return self.count - self.available

    def take(self) -> int:
        """Give out the page that is needed least; the cache must forget what it held."""
        page = self._next[self.count]
        if page == self.count:
            raise OutOfPages
        self._unlink(page)
        self._remembered[page] = 0
        self.holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page."""
        if not self.holders[page]:
            self._unlink(page)
        self.holders[page] += 1

    def release(self, page: int) -> None:
        """Take a holder away; a page without one is available again."""
        holders = self.holders
        assert holders[page] > 0, f"page {page} released twice"
        holders[page] -= 1
        if not holders[page]:
            self._link(page)

    def remember(self, page: int) -> None:
        """Note that the prefix cache refers to a held page."""
        assert self.holders[page] > 0, f"page {page} cached while nobody holds it"
        self._remembered[page] = 1

    def _unlink(self, page: int) -> None:
        before, after = self._prev[page], self._next[page]
        self._next[before] = after
        self._prev[after] = before
        self.available -= 1
        self.cached -= self._remembered[page]

    def _link(self, page: int) -> None:
        sentinel = self.count
        before = self._prev[sentinel] if self._remembered[page] else sentinel
        after = self._next[before]
        self._next[before] = self._prev[after] = page
        self._prev[page] = before
        self._next[page] = after
        self.available += 1
        self.cached += self._remembered[page]

    def violations(self, expected_holders: list[int]) -> list[str]:
        """Compare the accounts with what the sequences say they hold."""
        found = []
        if self.holders != expected_holders:
            found = [
                f"page {page} has {counted} holders, {expected} sequences hold it"
                for page, (counted, expected) in enumerate(zip(self.holders, expected_holders, strict=True))
                if counted != expected
            ]
        listed = bytearray(self.count)
        page, length = self._next[self.count], 0
        while page != self.count and length <= self.count:
            listed[page] = 1
            length += 1
            page = self._next[page]
        idle = bytes(map(not_, self.holders))
        if listed != idle:
            found.append("the free list is not the pages without a holder")
        cached = sum(map(and_, idle, self._remembered))
        if not length == sum(idle) == self.available or cached != self.cached:
            found.append("free + cached + owned pages are not the total")
        return found
