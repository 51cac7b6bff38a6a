"""PagePool: who holds which page, and which one is given out next."""

import pytest

from services.scheduler.core.pages import OutOfPages, PagePool


def test_every_page_is_given_out_once_and_then_none():
    pool = PagePool(4)
    assert sorted(pool.take() for _ in range(4)) == [0, 1, 2, 3]
    assert (pool.available, pool.owned) == (0, 4)
    with pytest.raises(OutOfPages):
        pool.take()


def test_a_page_is_available_again_after_its_last_holder():
    pool = PagePool(1)
    page = pool.take()
    pool.hold(page)
    pool.release(page)
    assert pool.available == 0
    pool.release(page)
    assert pool.available == 1


def test_empty_pages_are_given_out_before_remembered_ones():
    pool = PagePool(3)
    remembered, empty = pool.take(), pool.take()
    pool.remember(remembered)
    pool.release(remembered)
    pool.release(empty)
    assert pool.take() == empty
    assert (pool.free, pool.cached) == (1, 1)
    assert [pool.take(), pool.take()] == [2, remembered]


def test_remembered_pages_are_given_out_from_the_least_recently_released():
    pool = PagePool(3)
    pages = [pool.take() for _ in range(3)]
    for page in pages:
        pool.remember(page)
    for page in (pages[1], pages[0], pages[2]):
        pool.release(page)
    assert [pool.take() for _ in range(3)] == [pages[1], pages[0], pages[2]]


def test_holding_a_remembered_page_keeps_it_from_being_given_out():
    pool = PagePool(2)
    page = pool.take()
    pool.remember(page)
    pool.release(page)
    pool.hold(page)
    assert (pool.available, pool.cached) == (1, 0)
    assert pool.take() != page


def test_a_page_given_out_anew_is_no_longer_remembered():
    pool = PagePool(1)
    page = pool.take()
    pool.remember(page)
    pool.release(page)
    assert pool.take() == page
    pool.release(page)
    assert (pool.free, pool.cached) == (1, 0)


def test_releasing_a_page_nobody_holds_is_a_fault():
    pool = PagePool(1)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(0)


def test_the_accounts_report_a_lost_and_a_doubly_owned_page():
    pool = PagePool(3)
    pool.take()
    assert pool.violations([1, 0, 0]) == []
    assert pool.violations([0, 0, 0]) == ["page 0 has 1 holders, 0 sequences hold it"]
    assert pool.violations([2, 0, 0]) == ["page 0 has 1 holders, 2 sequences hold it"]
    pool.available += 1
    assert pool.violations([1, 0, 0]) == ["free + cached + owned pages are not the total"]
