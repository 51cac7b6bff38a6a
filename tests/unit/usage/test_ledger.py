from dataclasses import replace

from services.usage.core.ledger import AuditReason, Closing, Entry, RowState, merge, renew

WINDOW = 60_000_000
OPENED = Entry(
    request_id=7,
    owner_epoch=1,
    tenant_id="acme",
    model_version="chat@1",
    tokenizer_version="t1",
    adapter="",
    runtime_revision="r1",
    opened_us=1_000,
)
CLOSING = Closing(
    finish_reason=1,
    input_tokens=5,
    cached_tokens=0,
    output_tokens=87,
    billable_tokens=92,
    queue_ms=1.5,
    ttft_ms=20.0,
    total_ms=900.0,
    closed_us=901_000,
)
CLOSED = replace(OPENED, closing=CLOSING)


def closed_by(epoch: int, output_tokens: int) -> Entry:
    return replace(CLOSED, owner_epoch=epoch, closing=replace(CLOSING, output_tokens=output_tokens))


def test_closed_alone_makes_a_whole_row():
    row, audit = merge(None, CLOSED, 0, WINDOW)
    assert (row.entry, row.state(0), audit) == (CLOSED, RowState.CLOSED, None)


def test_opened_that_comes_after_closed_changes_nothing():
    row, _ = merge(None, CLOSED, 0, WINDOW)
    assert merge(row, replace(OPENED, owner_epoch=9), 1, WINDOW) == (row, None)


def test_the_same_event_twice_is_one_row_and_no_audit():
    row, _ = merge(None, CLOSED, 0, WINDOW)
    assert merge(row, CLOSED, 10, WINDOW) == (row, None)
    assert merge(row, CLOSED, 10 * WINDOW, WINDOW) == (row, None)


def test_the_highest_owner_epoch_wins_and_the_loser_is_audited():
    first, second = closed_by(1, 87), closed_by(2, 40)
    row, _ = merge(None, first, 0, WINDOW)
    row, audit = merge(row, second, 1, WINDOW)
    assert (row.entry, audit) == (second, (first, AuditReason.SUPERSEDED))
    row, audit = merge(row, first, 2, WINDOW)
    assert (row.entry, audit) == (second, (first, AuditReason.SUPERSEDED))


def test_a_final_row_never_changes_even_for_a_higher_epoch():
    row, _ = merge(None, closed_by(1, 87), 0, WINDOW)
    assert row.state(WINDOW - 1) is RowState.CLOSED
    assert row.state(WINDOW) is RowState.FINAL
    late = closed_by(2, 40)
    assert merge(row, late, WINDOW, WINDOW) == (row, (late, AuditReason.LATE))


def test_opened_without_closed_is_unresolved_once_the_window_is_past():
    row, _ = merge(None, OPENED, 0, WINDOW)
    assert row.state(WINDOW - 1) is RowState.OPEN
    assert row.state(WINDOW) is RowState.UNRESOLVED
    assert row.entry.closing is None


def test_a_closing_resolves_an_unresolved_row_however_late():
    row, _ = merge(None, OPENED, 0, WINDOW)
    row, audit = merge(row, CLOSED, 100 * WINDOW, WINDOW)
    assert (row.entry, audit) == (CLOSED, None)
    assert row.state(100 * WINDOW) is RowState.CLOSED


def test_a_row_whose_owner_is_heard_of_is_open_however_long_the_request_runs():
    row, _ = merge(None, OPENED, 0, WINDOW)
    for heard in range(WINDOW // 3, 20 * WINDOW, WINDOW // 3):
        row = renew(row, heard, WINDOW)
        assert row.state(heard + WINDOW - 1) is RowState.OPEN
    assert row.state(heard + WINDOW) is RowState.UNRESOLVED


def test_a_renewal_that_comes_late_or_again_shortens_and_lengthens_nothing():
    row, _ = merge(None, OPENED, 0, WINDOW)
    renewed = renew(row, 10, WINDOW)
    assert renew(renewed, 10, WINDOW) == renew(renewed, 5, WINDOW) == renewed


def test_a_renewal_does_not_keep_a_closed_row_from_being_final():
    row, _ = merge(None, CLOSED, 0, WINDOW)
    assert renew(row, WINDOW - 1, WINDOW) == row
