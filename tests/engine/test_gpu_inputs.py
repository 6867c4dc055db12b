"""A step's inputs on their way to the device: what arrives, where, and that nothing is overwritten on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gpu.device import Event, HostDevice
from engine.gpu.inputs import NO_SLOT, DecodeInputs, MixedInputs, Staging
from engine.step_input import StepInput, slots_of

POISON = 0x5A


class LateDevice(HostDevice):
    """Comes past its events only when somebody waits for them, and counts how often that is."""

    def __init__(self) -> None:
        self.waits = 0

    def event(self) -> Event:
        return _LateEvent(self)


class _LateEvent:
    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._passed = True

    def record(self) -> None:
        self._passed = False

    def query(self) -> bool:
        return self._passed

    def synchronize(self) -> None:
        self._device.waits += 1
        self._passed = True


def test_a_buffer_is_written_again_only_after_its_copy() -> None:
    device = LateDevice()
    staging = Staging(device, 64)
    turns = []
    for step, waits in enumerate((0, 0, 1, 2)):
        turns.append(staging.take())
        assert device.waits == waits, "two steps may be under way, no third"
        staging.on_host[turns[-1]][:] = step
        staging.send(64)
        assert staging.on_device.unique().tolist() == [step]
    assert turns == [1, 0, 1, 0]
    # Where the device has kept up nobody waits.
    staging = Staging(HostDevice(), 64)
    assert [staging.take() for _ in range(3)] == [1, 0, 1]


@st.composite
def decode_steps(draw: st.DrawFn) -> tuple[StepInput, int]:
    """A step of single tokens, and its block size."""
    block_size = draw(st.sampled_from([8, 16, 64]))
    contexts = np.array(draw(st.lists(st.integers(1, 128), min_size=1, max_size=8)), dtype=np.int64)
    count = len(contexts)
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    tables = generator.integers(1, 1000, (count, -(-contexts.max() // block_size))).astype(np.int32)
    step = StepInput(generator.integers(0, 999, count), contexts - 1, np.arange(count + 1), contexts, tables,
                     np.arange(count))
    return step, block_size


@settings(deadline=None)
@given(decode_steps(), st.integers(0, 3), st.integers(0, 2))
def test_a_decode_step_arrives_padded_and_at_fixed_addresses(case: tuple[StepInput, int], padding: int, before: int
                                                             ) -> None:
    step, block_size = case
    count, size = len(step.context_lens), len(step.context_lens) + padding
    inputs = DecodeInputs(HostDevice(), 12, -(-128 // block_size), block_size)
    tensors = (inputs.token_ids, inputs.positions, inputs.slots, inputs.context_lens, inputs.block_tables)
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert all(address % 16 == inputs.staging.on_device.data_ptr() % 16 for address in addresses)
    for _ in range(before):
        inputs.fill(None, 12)
    for memory in (*inputs.staging.on_host, inputs.staging.on_device.numpy()):
        memory[:] = POISON
    inputs.fill(step, size)
    tensors = (inputs.token_ids, inputs.positions, inputs.slots, inputs.context_lens, inputs.block_tables)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert inputs.token_ids[:count].tolist() == step.token_ids.tolist()
    assert inputs.positions[:count].tolist() == step.positions.tolist()
    assert inputs.slots[:count].tolist() == slots_of(step, block_size).tolist()
    assert inputs.context_lens[:size].tolist() == [*step.context_lens.tolist(), *[0] * padding]
    assert inputs.slots[count:size].tolist() == [NO_SLOT] * padding
    assert inputs.token_ids[count:size].tolist() == inputs.positions[count:size].tolist() == [0] * padding
    for row, context in enumerate(step.context_lens):
        blocks = -(-context // block_size)
        assert inputs.block_tables[row, :blocks].tolist() == step.block_tables[row, :blocks].tolist()
    tail = inputs.block_tables[size:].contiguous().view(torch.uint8)
    assert bool((tail == POISON).all()), "no more is copied than the step needs"


@settings(deadline=None)
@given(decode_steps(), st.integers(0, 3), st.sampled_from(["comes", "another comes", "an empty batch between"]))
def test_a_step_that_was_written_ahead_arrives_like_any_other(case: tuple[StepInput, int], padding: int, what: str
                                                              ) -> None:
    step, block_size = case
    size = len(step.context_lens) + padding
    inputs, plain = (DecodeInputs(HostDevice(), 12, -(-128 // block_size), block_size) for _ in range(2))
    for one in (inputs, plain):
        one.fill(None, 12)
    # Neither the tokens nor the blocks that they begin are known ahead.
    known = replace(step, token_ids=np.full_like(step.token_ids, 77), block_tables=step.block_tables.copy())
    begins = np.flatnonzero(step.positions % block_size == 0)
    known.block_tables[begins, step.positions[begins] // block_size] = 77
    inputs.fill_ahead(known)
    assert inputs.context_lens.tolist() == [0] * 12, "nothing is sent ahead"
    known.token_ids[:], known.block_tables[:] = step.token_ids, step.block_tables
    if what == "an empty batch between":
        inputs.fill(None, 12)
    inputs.fill(known if what != "another comes" else step, size)
    plain.fill(step, size)
    for name in ("token_ids", "positions", "slots", "context_lens"):
        assert torch.equal(getattr(inputs, name)[:size], getattr(plain, name)[:size]), name
    for row, context in enumerate(step.context_lens):
        blocks = -(-context // block_size)
        assert torch.equal(inputs.block_tables[row, :blocks], plain.block_tables[row, :blocks])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([np.int32, np.int64]), st.integers(0, 5000)), min_size=1, max_size=6),
       st.integers(1, 4))
def test_any_other_step_arrives_whole(arrays: list[tuple[type, int]], steps: int) -> None:
    inputs = MixedInputs(HostDevice())
    for step in range(steps):
        sent = [np.arange(length, dtype=kind) * (step + 1) for kind, length in arrays]
        sent.append(np.arange(12, dtype=np.int32).reshape(3, 4) + step)
        found = inputs.send(*sent)
        for array, tensor in zip(sent, found, strict=True):
            assert tensor.shape == array.shape
            assert tensor.dtype == torch.from_numpy(array).dtype
            assert (tensor.storage_offset() * tensor.itemsize) % 16 == 0
            assert np.array_equal(tensor.numpy(), array)


def test_slots_are_where_the_block_table_says() -> None:
    step = StepInput(np.zeros(5, np.int64), np.array([7, 8, 9, 0, 1]), np.array([0, 3, 5]), np.array([10, 2]),
                     np.array([[4, 9], [2, 0]], np.int32), np.array([2, 4]))
    assert slots_of(step, 8).tolist() == [4 * 8 + 7, 9 * 8, 9 * 8 + 1, 2 * 8, 2 * 8 + 1]
