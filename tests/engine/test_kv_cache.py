"""Block hashes, and what a request finds, needs and gives back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import KVCacheManager, hash_blocks, salt_root
from engine.request import Request
from engine.trace.events import Cached
from tests.engine.scheduler_driver import make_request

tokens = st.lists(st.integers(0, 3), max_size=40)


def serve(cache: KVCacheManager, request: Request) -> int:
    """Look up and allocate everything; returns the tokens that came from the cache."""
    hits = cache.lookup(request)
    cache.allocate(request, request.num_tokens, hits)
    return len(hits) * cache.block_size


class TestHashes:
    @given(tokens, tokens, st.integers(1, 5))
    def test_equal_hashes_mean_equal_prefixes(self, a: list[int], b: list[int], size: int) -> None:
        for index, (x, y) in enumerate(zip(hash_blocks(b"", a, size), hash_blocks(b"", b, size), strict=False)):
            assert (x == y) == (a[:(index + 1) * size] == b[:(index + 1) * size])

    @given(tokens, st.integers(1, 5), st.integers(0, 8))
    def test_a_chain_can_be_continued(self, a: list[int], size: int, cut: int) -> None:
        whole = hash_blocks(b"", a, size)
        assert len(whole) == len(a) // size
        first = hash_blocks(b"", a[:cut * size], size)
        assert first + hash_blocks(first[-1] if first else b"", a[cut * size:], size) == whole

    def test_salts_and_token_values_matter(self) -> None:
        chains = [hash_blocks(salt_root(salt), [1, 2, 3, 4], 2) for salt in (None, "a", "b")]
        assert len({h for chain in chains for h in chain}) == 6
        assert salt_root("") == salt_root(None)
        assert hash_blocks(b"", [1, 256], 2) != hash_blocks(b"", [257, 0], 2)
        assert len({hash_blocks(b"", [token], 1)[0] for token in (0, 2**8, 2**16, 2**24, 2**32 - 1)}) == 5


class TestLookup:
    def test_at_least_one_token_is_left_to_compute(self) -> None:
        cache = KVCacheManager(32, 4)
        serve(cache, make_request("a", range(12)))
        assert [serve(cache, make_request(f"b{n}", range(n))) for n in (1, 4, 5, 8, 9, 11, 12, 13)] == [
            0, 0, 4, 4, 8, 8, 8, 12]

    def test_a_run_ends_at_the_first_block_that_is_not_there(self) -> None:
        cache = KVCacheManager(32, 4)
        serve(cache, make_request("a", range(16)))
        other = [*range(8), 99, *range(9, 16), 1]
        assert serve(cache, make_request("b", other)) == 8

    def test_nothing_is_found_or_entered_while_caching_is_off(self) -> None:
        cache = KVCacheManager(32, 4)
        a = make_request("a", range(9))
        serve(cache, a)
        cache.enable_caching = False
        b = make_request("b", range(9))
        assert serve(cache, b) == 0
        cache.pool.take_events()
        cache.enable_caching = True
        cache.allocate(b, 9)
        assert [type(e) for e in cache.pool.take_events()] == [Cached]  # both its blocks, late but right
        assert b.num_cached_blocks == 2
        cache.pool.check([a.block_ids, b.block_ids])


class TestAllocation:
    def test_hits_that_nobody_holds_count_against_the_free_blocks(self) -> None:
        cache = KVCacheManager(8, 4)
        a = make_request("a", range(9))
        serve(cache, a)
        b = make_request("b", range(9))
        hits = cache.lookup(b)
        assert cache.blocks_needed(b, 9, hits) == 1
        cache.free(a)
        assert cache.blocks_needed(b, 9, hits) == 3

    def test_tables_grow_by_what_is_missing(self) -> None:
        cache = KVCacheManager(8, 4)
        request = make_request("a", range(9))
        cache.allocate(request, 5)
        assert request.block_ids == [1, 2]
        assert request.num_cached_blocks == 1
        assert cache.blocks_needed(request, 8) == 0
        cache.allocate(request, 8)
        assert request.block_ids == [1, 2]
        assert request.num_cached_blocks == 2
        assert cache.blocks_needed(request, 9) == 1

    def test_free_gives_everything_back_once(self) -> None:
        cache = KVCacheManager(8, 4)
        request = make_request("a", range(9))
        serve(cache, request)
        table = request.block_ids
        assert cache.free(request) == 3
        assert table == [1, 2, 3]
        assert (request.block_ids, request.num_cached_blocks) == ([], 0)
        assert cache.free(request) == 0
        assert cache.pool.num_free_blocks == 7

    def test_hashes_are_computed_once_and_only_when_a_block_fills(self) -> None:
        cache = KVCacheManager(8, 4)
        request = make_request("a", range(7))
        serve(cache, request)
        assert len(request.block_hashes) == 1
        request.token_ids.append(7)
        first = request.block_hashes[0]
        cache.allocate(request, 8)
        assert request.block_hashes == hash_blocks(b"", list(range(8)), 4)
        assert request.block_hashes[0] is first
