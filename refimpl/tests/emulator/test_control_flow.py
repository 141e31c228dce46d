"""Programs that take different branches, loops with bounds of their own, and how many programs run together."""

from __future__ import annotations

import pytest
import torch

from refimpl.codegen.emulator import Options, WouldNotCompile
from refimpl.tests.emulator.kernels import ADD, make, normal


def test_programs_part_ways_and_memory_goes_back_first() -> None:
    kernel = make(
        "parting", "o:*i32 c:*i32",
        """
        p = tl.program_id(0)
        tl.atomic_add(c, 1)
        if p % 3 == 0:
            v = p * 10
        else:
            v = p
            k = p
            while k > 1:
                v += 100
                k -= 1
        tl.store(o + p, v)
        """,
    )  # fmt: skip
    out, count = torch.zeros(7, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernel.launch((7,), [out, count])
    assert out.tolist() == [0, 1, 102, 30, 304, 405, 60]
    assert count.item() == 7  # once for each program, however often groups started again


def test_a_loop_with_bounds_of_its_own_for_each_program() -> None:
    kernel = make(
        "ragged", "x:*fp32 starts:*i32 o:*fp32",
        """
        p = tl.program_id(0)
        total = 0.0
        for k in range(tl.load(starts + p), tl.load(starts + p + 1)):
            total += tl.load(x + k)
        tl.store(o + p, total)
        """,
    )  # fmt: skip
    out = torch.zeros(4)
    kernel.launch((4,), [torch.arange(10.0), torch.tensor([0, 3, 3, 8, 10], dtype=torch.int32), out])
    assert out.tolist() == [3.0, 0.0, 25.0, 17.0]


def test_a_lock_is_held_by_one_program_at_a_time() -> None:
    kernel = make(
        "locked", "lock:*i32 o:*i32",
        """
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(o, tl.load(o) + 1)
        tl.atomic_xchg(lock, 0)
        """,
    )  # fmt: skip
    out = torch.zeros(1, dtype=torch.int32)
    kernel.launch((5,), [torch.zeros(1, dtype=torch.int32), out], options=Options())
    assert out.item() == 5


def test_a_number_is_no_block_to_broadcast() -> None:
    kernel = make("spread", "o:*i64", "tl.store(o + tl.arange(0, 4), tl.broadcast_to(3, [4]))")
    with pytest.raises(WouldNotCompile, match=r"3 broadcast to \[4\].*full"):
        kernel.launch((1,), [torch.zeros(4, dtype=torch.int64)])


def test_a_block_as_a_condition_is_rejected() -> None:
    kernel = make("blockwise", "o:*fp32", "v = tl.load(o + tl.arange(0, 8))\nif v > 0:\n    tl.store(o, 1.0)")
    with pytest.raises(WouldNotCompile, match=r"a block of shape \[8\] where one value is needed.*if v > 0"):
        kernel.launch((1,), [torch.zeros(8)])


@pytest.mark.parametrize("elements", [1, 64, 1 << 22])
def test_chunks_of_any_size_give_the_same(elements: int) -> None:
    x, out = normal(1000), torch.zeros(1000)
    ADD.launch((16,), [x, out, 1000], options=Options(elements=elements), B=64)
    assert torch.equal(out, x + 1)
