"""PrefixCache: which page already holds the KV of which tokens, and for whom."""

import pytest

from services.scheduler.core.pages import PagePool
from services.scheduler.core.prefix import Chain, PrefixCache, root_of

SIZE = 4
ROOT = root_of("model@1", "", "tok", "page4", "tenant")
TOKENS = list(range(12))


def cache_with(tokens: list[int], chain: Chain) -> tuple[PrefixCache, PagePool, list[int]]:
    pool = PagePool(16)
    cache = PrefixCache(pool)
    pages = [pool.take() for _ in range(len(tokens) // SIZE)]
    for index, page in enumerate(pages):
        cache.commit(chain, tokens, index, page, generation=1)
    return cache, pool, pages


def test_the_longest_cached_run_from_the_start_is_found():
    cache, _, pages = cache_with(TOKENS, Chain(ROOT, SIZE))
    assert cache.match(Chain(ROOT, SIZE), TOKENS, 3) == pages
    assert cache.match(Chain(ROOT, SIZE), TOKENS, 2) == pages[:2]
    assert cache.match(Chain(ROOT, SIZE), [*TOKENS[:8], 99, 99, 99, 99], 3) == pages[:2]
    assert cache.match(Chain(ROOT, SIZE), [99, *TOKENS[1:]], 3) == []


def test_equal_tokens_behind_another_prefix_are_another_page():
    cache, _, _ = cache_with(TOKENS, Chain(ROOT, SIZE))
    assert cache.match(Chain(ROOT, SIZE), TOKENS[4:], 2) == []


@pytest.mark.parametrize("part", range(5))
def test_each_part_of_the_root_separates(part: int):
    parts = ["model@1", "", "tok", "page4", "tenant"]
    parts[part] = "other"
    cache, _, _ = cache_with(TOKENS, Chain(ROOT, SIZE))
    assert cache.match(Chain(root_of(*parts), SIZE), TOKENS, 3) == []


def test_parts_of_the_root_cannot_run_into_one_another():
    assert root_of("a", "bc", "", "", "") != root_of("ab", "c", "", "", "")


def test_token_ids_are_compared_when_digests_collide():
    def collide(_: bytes) -> bytes:
        return b"same"

    cache, _, _ = cache_with(TOKENS[:4], Chain(ROOT, SIZE, collide))
    assert cache.match(Chain(ROOT, SIZE, collide), TOKENS[:4], 1) != []
    assert cache.match(Chain(ROOT, SIZE, collide), [7, 7, 7, 7], 1) == []


def test_a_forgotten_page_is_never_found_again():
    cache, _, pages = cache_with(TOKENS, Chain(ROOT, SIZE))
    cache.forget(pages[1])
    cache.forget(pages[1])
    assert cache.match(Chain(ROOT, SIZE), TOKENS, 3) == pages[:1]
    assert cache.violations(set()) == []


def test_the_first_of_two_equal_pages_stays():
    chain = Chain(ROOT, SIZE)
    cache, pool, pages = cache_with(TOKENS, chain)
    cache.commit(chain, TOKENS, 0, pool.take(), generation=2)
    assert cache.match(Chain(ROOT, SIZE), TOKENS, 1) == pages[:1]


def test_a_promise_lasts_until_the_page_is_committed_or_withdrawn():
    cache, chain = PrefixCache(PagePool(4)), Chain(ROOT, SIZE)
    pool = cache._pool
    chain.extend(TOKENS, 2)
    cache.promise(chain, 0, 2, generation=5)
    assert cache.promised(chain, 0)
    cache.commit(chain, TOKENS, 0, pool.take(), generation=5)
    assert not cache.promised(chain, 0)
    assert cache.promised(chain, 1)
    cache.withdraw(chain, 0, generation=6)
    assert cache.promised(chain, 1)
    cache.withdraw(chain, 0, generation=5)
    assert not cache.promised(chain, 1)


def test_promises_of_the_departed_are_reported():
    cache, chain = PrefixCache(PagePool(4)), Chain(ROOT, SIZE)
    chain.extend(TOKENS, 1)
    cache.promise(chain, 0, 1, generation=5)
    assert cache.violations({5}) == []
    assert cache.violations({6}) == ["a sequence that is not resident promises pages"]
