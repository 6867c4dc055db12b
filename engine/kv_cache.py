"""Block tables: what a request finds in the prefix cache, what it needs besides, and giving it back.

A block's hash chains over its parent's hash and its tokens, so that equal hashes mean equal prefixes:

    tokens   [ 0 .. 15 ][ 16 .. 31 ][ 32 .. 40     ]       block size 16
    hashes      h0 ------> h1          none: not full
    h0 = H(root of the salt, tokens 0..15)      h1 = H(h0, tokens 16..31)

Allocation checks first and changes something only when it is sure to succeed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from engine.block_pool import BlockPool, KVBlock
from engine.request import Request

HASH_BYTES = 16
_EMPTY_HASH = blake2b(digest_size=HASH_BYTES)  # copied for every hash, which is quicker than beginning anew


def salt_root(salt: str | None) -> bytes:
    """The parent of a request's first block: requests share blocks only when their salts are the same."""
    return blake2b(salt.encode(), digest_size=HASH_BYTES).digest() if salt else b""


def hash_blocks(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the whole blocks in ``token_ids``, chained after ``parent``; a rest that fills no block is ignored.

    Token ids lie between 0 and 2**32 - 1; OverflowError otherwise.
    """
    data = array("I", token_ids).tobytes()
    width = 4 * block_size
    hashes = []
    for start in range(0, len(data) - width + 1, width):
        block = _EMPTY_HASH.copy()
        block.update(parent + data[start:start + width])
        parent = block.digest()
        hashes.append(parent)
    return hashes


class KVCacheManager:
    """Keeps the block tables of requests (``request.block_ids``) and the hashes of their whole blocks.

    ``enable_caching`` may be switched at any time: while it is off nothing is looked up and no block gets a hash, but
    hashes given before stay, and may serve again.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool = True) -> None:
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.pool = BlockPool(num_blocks)
        self.max_tokens = self.pool.num_usable_blocks * block_size
        """Tokens that the whole pool can hold."""

    def lookup(self, request: Request) -> list[KVBlock]:
        """The longest run of cached blocks that starts the request, leaving at least one token to compute."""
        if not self.enable_caching:
            return []
        limit = (len(request.token_ids) - 1) // self.block_size
        hashes = self._hashes(request, limit)
        find = self.pool.find
        found: list[KVBlock] = []
        for index in range(limit):
            block = find(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def blocks_needed(self, request: Request, num_tokens: int, hits: Sequence[KVBlock] = ()) -> int:
        """How many free blocks it takes to bring the request's table to ``num_tokens`` tokens.

        ``hits`` are put into the table first. Those that nobody holds lie in the free queue, so they count.
        """
        needed = -(-num_tokens // self.block_size) - len(request.block_ids)
        for block in hits:
            if block.ref_count:
                needed -= 1
        return needed

    def allocate(self, request: Request, num_tokens: int, hits: Sequence[KVBlock] = ()) -> None:
        """Bring the table to ``num_tokens`` tokens and cache the blocks that they fill.

        The caller has checked :meth:`blocks_needed` against the free blocks.
        """
        table = request.block_ids
        if hits:
            self.pool.hit(request.request_id, hits)
            table.extend([block.block_id for block in hits])
            request.num_cached_blocks = len(hits)
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing > 0:
            table.extend(self.pool.allocate(request.request_id, missing))
        self.cache_full_blocks(request, num_tokens)

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Give hashes to the blocks that the request's first ``num_tokens`` tokens fill and that have none yet."""
        full = num_tokens // self.block_size
        start = request.num_cached_blocks
        if full <= start or not self.enable_caching:
            return
        hashes = request.block_hashes
        if len(hashes) < full:
            self._hashes(request, full)
        if full - start == 1:
            self.pool.cache_one(request.request_id, request.block_ids[start], hashes[start])
        else:
            self.pool.cache(request.request_id, request.block_ids[start:full], hashes[start:full])
        request.num_cached_blocks = full

    def free(self, request: Request) -> int:
        """Give the whole table back; returns how many blocks that were."""
        count = len(request.block_ids)
        if count:
            self.pool.free(request.request_id, request.block_ids)
            request.block_ids = []
            request.num_cached_blocks = 0
        return count

    def _hashes(self, request: Request, count: int) -> list[bytes]:
        """The request's block hashes, at least the first ``count``; only those not known yet are computed."""
        hashes = request.block_hashes
        known = len(hashes)
        size = self.block_size
        if known and known == count - 1:  # as decoding does, one block after the other
            block = _EMPTY_HASH.copy()
            block.update(hashes[-1] + array("I", request.token_ids[known * size:count * size]).tobytes())
            hashes.append(block.digest())
        elif known < count:
            parent = hashes[-1] if known else salt_root(request.salt)
            hashes += hash_blocks(parent, request.token_ids[known * size:count * size], size)
        return hashes
