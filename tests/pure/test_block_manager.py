from __future__ import annotations

import pytest

from engine.batch import Request
from engine.block_manager import BlockManager, BlockTable, CacheGroup
from engine.block_pool import BlockPool
from engine.prefix_cache import ROOT, block_digest, encode_keys, request_keys
from engine.sampling_params import SamplingParams

NO_KEYS = encode_keys({})


def fill(manager: BlockManager, tokens: list[int], keys: bytes = NO_KEYS) -> tuple[BlockTable, int]:
    """A request whose tokens are all computed, and how many of them it found cached."""
    table = manager.new_table(keys)
    cached = manager.find_cached(table, tokens)
    assert manager.admit(table, tokens, cached)
    manager.register(table, tokens, len(tokens))
    return table, cached


def test_blocks_follow_the_real_length():
    manager = BlockManager(8, 16)
    table, _ = fill(manager, list(range(33)))
    assert len(table.blocks[0]) == 3
    assert manager.held(table) == 48
    assert manager.usage == pytest.approx(3 / 8)
    assert manager.capacity == 128
    manager.release(table)
    assert manager.usage == 0 and manager.free_blocks == 8


def test_allocation_is_all_or_nothing():
    manager = BlockManager(4, 4)
    first, _ = fill(manager, list(range(12)))
    second = manager.new_table(NO_KEYS)
    assert not manager.admit(second, list(range(100, 108)), 0)
    assert second.blocks == ([],) and manager.free_blocks == 1
    assert not manager.extend(first, 20)
    assert len(first.blocks[0]) == 3 and manager.free_blocks == 1
    assert manager.extend(first, 16)
    assert manager.extend(first, 3), "a table never shrinks"
    assert len(first.blocks[0]) == 4


def test_spare_blocks_stay_free():
    manager = BlockManager(4, 4)
    assert not manager.admit(manager.new_table(NO_KEYS), [1] * 12, 0, spare=2)
    assert manager.admit(manager.new_table(NO_KEYS), [1] * 12, 0, spare=1)


@pytest.mark.parametrize("length", [16, 32, 48])
def test_H_SCH_04_last_prompt_token_is_always_computed(length):
    manager = BlockManager(16, 16)
    tokens = list(range(length))
    first, cached = fill(manager, tokens)
    assert cached == 0
    second, cached = fill(manager, tokens)
    assert cached == length - 16
    assert second.blocks[0][:-1] == first.blocks[0][:-1]
    assert second.blocks[0][-1] != first.blocks[0][-1], "a shared block would be written again"


def test_shared_blocks_outlive_their_first_holder():
    manager = BlockManager(8, 4)
    tokens = list(range(9))
    first, _ = fill(manager, tokens)
    second, cached = fill(manager, tokens)
    assert cached == 8 and second.blocks[0][:2] == first.blocks[0][:2]
    assert manager.free_blocks == 4
    manager.release(first)
    assert manager.free_blocks == 5
    manager.release(second)
    assert manager.free_blocks == 8


def test_only_computed_full_blocks_are_found():
    manager = BlockManager(8, 4)
    tokens = list(range(9))
    table = manager.new_table(NO_KEYS)
    assert manager.admit(table, tokens, 0)
    for computed, found in ((0, 0), (3, 0), (4, 4), (7, 4), (9, 8)):
        manager.register(table, tokens, computed)
        assert manager.find_cached(manager.new_table(NO_KEYS), tokens) == found


def test_a_block_is_found_only_behind_its_own_prefix():
    manager = BlockManager(8, 2)
    fill(manager, [1, 2, 3, 4, 5])
    assert manager.find_cached(manager.new_table(NO_KEYS), [9, 2, 3, 4, 5]) == 0
    assert manager.find_cached(manager.new_table(NO_KEYS), [1, 2, 9, 4, 5]) == 2
    assert manager.find_cached(manager.new_table(NO_KEYS), [3, 4, 5]) == 0


def test_idle_blocks_without_content_are_reused_first_then_the_least_recent():
    manager = BlockManager(5, 2)
    old, _ = fill(manager, [1, 2, 3, 4])
    new, _ = fill(manager, [5, 6, 7])
    old_blocks = old.blocks[0].copy()
    manager.release(old)
    manager.release(new)
    taken = manager.new_table(NO_KEYS)
    assert manager.admit(taken, [10, 11, 12, 13], 0)
    assert manager.find_cached(manager.new_table(NO_KEYS), [1, 2, 3, 4, 0]) == 4
    assert manager.find_cached(manager.new_table(NO_KEYS), [5, 6, 0]) == 2
    assert manager.extend(taken, 6)
    assert taken.blocks[0][-1] == old_blocks[1], "of a released prefix the end goes first"
    assert manager.find_cached(manager.new_table(NO_KEYS), [1, 2, 3, 4, 0]) == 2
    assert manager.find_cached(manager.new_table(NO_KEYS), [5, 6, 0]) == 2


def test_admission_counts_idle_hits_as_taken():
    manager = BlockManager(3, 2)
    table, _ = fill(manager, [1, 2, 3, 4])
    manager.release(table)
    again = manager.new_table(NO_KEYS)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    cached = manager.find_cached(again, tokens)
    assert cached == 4
    assert not manager.admit(again, tokens, cached)
    assert manager.free_blocks == 3 and manager.find_cached(again, tokens) == 4
    assert manager.admit(again, tokens[:6], cached)


def test_equal_content_computed_twice_is_registered_once():
    manager = BlockManager(4, 2)
    tables = []
    for _ in range(2):
        tables.append(manager.new_table(NO_KEYS))
        assert manager.admit(tables[-1], [1, 2], 0)
    for table in tables:
        manager.register(table, [1, 2], 2)
    kept = tables[0].blocks[0][0]
    third, cached = fill(manager, [1, 2, 3])
    assert cached == 2 and third.blocks[0][0] == kept
    for table in (*tables, third):
        manager.release(table)
    assert manager.free_blocks == 4


def test_prefix_caching_off():
    manager = BlockManager(8, 2, enable_prefix_caching=False)
    fill(manager, [1, 2, 3])
    assert fill(manager, [1, 2, 3])[1] == 0


def test_lookup_counters_are_tokens():
    manager = BlockManager(8, 2)
    manager.count_lookup(7, 4)
    manager.count_lookup(3, 0)
    assert (manager.queries, manager.hits) == (10, 4)


def test_groups_have_their_own_tables_and_pools():
    manager = BlockManager(0, 0, groups=(CacheGroup(8, 2), CacheGroup(4, 3)))
    assert manager.capacity == 12
    tokens = list(range(10))
    table, _ = fill(manager, tokens)
    assert [len(blocks) for blocks in table.blocks] == [5, 4]
    assert manager.free_blocks == 0 and manager.usage == pytest.approx(9 / 12)
    assert not manager.admit(manager.new_table(NO_KEYS), [50], 0), "one group without blocks refuses"
    manager.release(table)
    assert manager.find_cached(manager.new_table(NO_KEYS), tokens) == 6, "a multiple of both block sizes"
    assert BlockManager(8, 2, groups=2).groups == (CacheGroup(8, 2), CacheGroup(8, 2))


def test_H_SCH_05_keys_of_different_meaning_never_collide():
    different = [
        {},
        {"salt": "x"},
        {"adapter": "x"},
        {"salt": ""},
        {"salt": "x", "adapter": "x"},
        {"salt": "xadapterx"},
        {"salt": "ab", "adapter": "c"},
        {"salt": "a", "adapter": "bc"},
        {"salt": "\ud800"},
    ]
    assert len({block_digest(ROOT, [1, 2], encode_keys(parts)) for parts in different}) == len(different)
    assert encode_keys({"salt": "x", "adapter": "y"}) == encode_keys({"adapter": "y", "salt": "x"})


def test_H_SCH_05_blocks_are_not_shared_across_keys():
    manager = BlockManager(16, 2)
    fill(manager, [1, 2, 3], encode_keys({"adapter": "x"}))
    assert fill(manager, [1, 2, 3], encode_keys({"salt": "x"}))[1] == 0
    assert fill(manager, [1, 2, 3])[1] == 0
    assert fill(manager, [1, 2, 3], encode_keys({"adapter": "x"}))[1] == 2


def test_request_keys_carry_the_salt():
    def keys(salt: str | None) -> bytes:
        return request_keys(Request("r", [1], SamplingParams(), 0.0, cache_salt=salt))

    assert keys(None) == NO_KEYS
    assert keys("x") == encode_keys({"salt": "x"}) != keys("") != keys(None)


def test_digest_depends_on_parent_and_on_where_a_token_ends():
    one = block_digest(ROOT, [1, 2], NO_KEYS)
    assert one == block_digest(ROOT, [1, 2], NO_KEYS) and len(one) == 32
    others = {block_digest(one, [1, 2], NO_KEYS), *(block_digest(ROOT, ids, NO_KEYS) for ids in ([2, 1], [12]))}
    assert len(others | {one}) == 4


def test_pool_reuse_forgets_the_old_content():
    pool = BlockPool(1)
    block = pool.take()
    pool.register(block, b"a")
    pool.give_back(block)
    assert pool.find(b"a") == block and pool.idle == 1
    assert pool.take() == block
    assert pool.find(b"a") is None
    pool.register(block, b"b")
    pool.share(block)
    pool.give_back(block)
    assert pool.idle == 0
    pool.give_back(block)
    assert pool.idle == 1 and pool.find(b"b") == block
