from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.usage.core.ledger import Closing, Entry, RowState, merge

WINDOW = 60_000_000
counts = st.integers(0, 3)


@st.composite
def entries(draw):
    """Events of one request: an owner emits `opened`, `closed` or both, and two may claim one epoch."""
    base = Entry(7, draw(st.integers(1, 3)), "acme", "chat@1", "t1", "", "r1", draw(st.integers(1, 3)))
    if draw(st.booleans()):
        return base
    reason, output = draw(st.integers(1, 6)), draw(counts)
    return replace(
        base, closing=Closing(reason, 5, 0, output, 5 + output, 1.0, 2.0, 3.0, draw(st.integers(4, 6)))
    )


@st.composite
def deliveries(draw):
    """The same events in two orders, each event any number of times, all within the window."""
    events = draw(st.lists(entries(), min_size=1, max_size=6))
    again = draw(st.lists(st.sampled_from(events), max_size=6))
    return draw(st.permutations(events + again)), draw(st.permutations(events + again))


def deliver(events, times):
    row, audited = None, set()
    for event, at in zip(events, times, strict=True):
        row, audit = merge(row, event, at, WINDOW)
        if audit:
            audited.add(audit)
    return row, audited


@given(deliveries(), st.data())
def test_any_order_and_any_repetition_gives_the_same_row_and_the_same_audit(orders, data):
    times = sorted(data.draw(st.integers(0, WINDOW - 1)) for _ in orders[0])
    (first, first_audit), (second, second_audit) = (deliver(order, times) for order in orders)
    assert first.entry == second.entry
    assert first_audit == second_audit


@given(deliveries())
def test_every_closing_is_either_the_row_or_in_the_audit(orders):
    row, audited = deliver(orders[0], [0] * len(orders[0]))
    closings = {event for event in orders[0] if event.closing}
    assert closings == {audit.entry for audit in audited} | ({row.entry} if row.entry.closing else set())
    if closings:
        assert row.entry.owner_epoch == max(event.owner_epoch for event in closings)


@given(st.lists(st.tuples(entries(), st.integers(0, 2 * WINDOW)), min_size=1, max_size=8))
def test_once_final_nothing_that_comes_changes_the_row(steps):
    row, now = None, 0
    for event, wait in steps:
        now += wait
        before = row
        row, _ = merge(row, event, now, WINDOW)
        if before is not None and before.state(now) is RowState.FINAL:
            assert row == before
