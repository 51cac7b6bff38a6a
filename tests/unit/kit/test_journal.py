import os

import pytest

from kit.journal import COMPACT_BYTES, Journal


def bodies(journal: Journal) -> list[bytes]:
    try:
        return [body for _, body in journal.open()]
    finally:
        journal.close()


def written(path, *records: bytes) -> bytes:
    journal = Journal(path)
    journal.open()
    for record in records:
        journal.append([record])
    journal.close()
    return path.read_bytes()


def test_a_tail_torn_at_any_byte_loses_only_the_last_record(tmp_path):
    path = tmp_path / "log"
    two = written(path, b"first", b"second")
    three = written(path, b"third, whose write was cut off")
    for cut in range(len(two), len(three)):
        path.write_bytes(three[:cut])
        assert bodies(Journal(path)) == [b"first", b"second"], cut
        assert path.stat().st_size == len(two)


def test_after_a_torn_tail_new_records_follow_the_good_ones(tmp_path):
    path = tmp_path / "log"
    content = written(path, b"first", b"second")
    path.write_bytes(content[:-1])
    written(path, b"third")
    assert bodies(Journal(path)) == [b"first", b"third"]


def test_a_damaged_or_zero_filled_tail_is_discarded(tmp_path):
    path = tmp_path / "log"
    content = written(path, b"first", b"second")
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert bodies(Journal(path)) == [b"first"]
    path.write_bytes(content + bytes(4096))
    assert bodies(Journal(path)) == [b"first", b"second"]


def test_a_damaged_record_takes_none_of_the_later_ones_with_it(tmp_path):
    path = tmp_path / "log"
    content = written(path, b"first", b"second", b"third")
    for at in range(content.index(b"second") - 8, content.index(b"third") - 8):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        assert bodies(Journal(path)) == [b"first", b"third"], at
        written(path, b"fourth")
        assert bodies(Journal(path)) == [b"first", b"third", b"fourth"], at


def test_a_foreign_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"something else of some length")
    with pytest.raises(ValueError, match="not an outbox"):
        Journal(path).open()
    assert path.read_bytes() == b"something else of some length"


def test_what_the_cursor_passed_does_not_come_again(tmp_path):
    path = tmp_path / "log"
    journal = Journal(path)
    journal.open()
    first, _ = journal.append([b"first", b"second"])
    journal.advance(first)
    journal.close()
    assert bodies(Journal(path)) == [b"second"]


@pytest.mark.parametrize("cursor", [b"", b"\x01", b"\xff" * 12])
def test_a_lost_or_damaged_cursor_repeats_records_and_skips_none(tmp_path, cursor):
    path = tmp_path / "log"
    journal = Journal(path)
    journal.open()
    journal.advance(journal.append([b"first", b"second"])[0])
    journal.close()
    (tmp_path / "log.cursor").write_bytes(cursor)
    assert bodies(Journal(path)) == [b"first", b"second"]


def test_compaction_bounds_the_file_and_keeps_what_is_pending(tmp_path):
    path = tmp_path / "log"
    journal = Journal(path)
    journal.open()
    for i in range(40):
        end, _ = journal.append([bytes([i]) * (COMPACT_BYTES // 8), b"pending %d" % i])
        journal.advance(end)
        assert path.stat().st_size < 2 * COMPACT_BYTES
    journal.close()
    assert bodies(Journal(path)) == [b"pending 39"]


def test_a_cursor_older_than_the_last_compaction_skips_nothing(tmp_path):
    path = tmp_path / "log"
    journal = Journal(path)
    journal.open()
    journal.advance(journal.append([b"old"])[0])
    stale = (tmp_path / "log.cursor").read_bytes()
    end, _ = journal.append([bytes([1]) * 2 * COMPACT_BYTES, b"pending"])
    journal.advance(end)
    journal.close()
    (tmp_path / "log.cursor").write_bytes(stale)
    assert bodies(Journal(path)) == [b"pending"]


def test_two_processes_cannot_share_a_path(tmp_path):
    journal = Journal(tmp_path / "log")
    journal.open()
    with pytest.raises(BlockingIOError):
        Journal(tmp_path / "log").open()
    journal.close()


def test_a_write_that_fails_appends_nothing(tmp_path, monkeypatch):
    path = tmp_path / "log"
    journal = Journal(path)
    journal.open()
    journal.append([b"first"])
    with monkeypatch.context() as broken:
        broken.setattr(
            os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space"):
            journal.append([b"refused"])
    journal.append([b"second"])
    journal.close()
    assert bodies(Journal(path)) == [b"first", b"second"]


def test_a_compaction_that_fails_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "log"
    journal = Journal(path)
    journal.open()
    end, _ = journal.append([bytes([1]) * 2 * COMPACT_BYTES, b"pending"])
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            journal.advance(end)
    journal.append([b"later"])
    journal.close()
    assert bodies(Journal(path)) == [b"pending", b"later"]
