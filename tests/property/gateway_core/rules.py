"""The rules that the code must obey, in their plainest form."""

from __future__ import annotations


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """Cut at the stop that ends first, and of several that end there before the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        return text, False
    end, negative_length = min(ends)
    return text[: end + negative_length], True
