"""Ways in which a file can be other than it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    Edit = Callable[[bytes], bytes]

_PLACES = st.floats(0, 1, exclude_max=True)
_DEEP = 50_000


def damages() -> SearchStrategy[list[Edit]]:
    """Flips, cuts, gaps, insertions, repetitions and pieces moved elsewhere."""
    edit = st.one_of(
        st.builds(flip, _PLACES, st.integers(1, 255)),
        st.builds(_cut, _PLACES),
        st.builds(_gap, _PLACES, st.integers(1, 40)),
        st.builds(_insert, _PLACES, st.binary(min_size=1, max_size=12)),
        st.builds(
            _insert, _PLACES, st.sampled_from([b"[" * _DEEP, b'{"a":' * _DEEP, bytes(4096), b"9" * 5000])
        ),
        st.builds(
            _insert, _PLACES, st.sampled_from([b"1e999", b"NaN", b"-1", b"null", b"[]", b"{}", b'"', b"\xff"])
        ),
        st.builds(_move, _PLACES, _PLACES, st.integers(1, 200)),
    )
    return st.lists(edit, min_size=1, max_size=3)


def spoil(data: bytes, edits: list[Edit]) -> bytes:
    """Make all of the edits."""
    for edit in edits:
        data = edit(data)
    return data


def flip(place: float, bits: int) -> Edit:
    """Change one byte."""

    def edit(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[:at] + bytes(byte ^ bits for byte in data[at : at + 1]) + data[at + 1 :]

    return edit


def _cut(place: float) -> Edit:
    return lambda data: data[: int(place * len(data))]


def _gap(place: float, count: int) -> Edit:
    def edit(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[:at] + data[at + count :]

    return edit


def _insert(place: float, new: bytes) -> Edit:
    def edit(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[:at] + new + data[at:]

    return edit


def _move(source: float, target: float, count: int) -> Edit:
    def edit(data: bytes) -> bytes:
        start, at = int(source * len(data)), int(target * len(data))
        return data[:at] + data[start : start + count] + data[at + count :]

    return edit
