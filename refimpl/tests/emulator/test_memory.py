"""Loads and stores out of bounds, masked lanes, and races between programs."""

from __future__ import annotations

import pytest
import torch

from refimpl.codegen.emulator import Options, OutOfBounds, Race
from refimpl.tests.emulator.kernels import ADD, make, normal


def test_a_load_past_the_end_names_program_lane_and_place() -> None:
    with pytest.raises(
        OutOfBounds, match=r"a load of x\[100\] by program \(3, 0, 0\), lane \(4,\) .*tl.load.*; 2 such lanes"
    ) as error:
        ADD.launch((4,), [torch.zeros(100), torch.zeros(102), 102], B=32)
    access = error.value.access
    assert (access.kernel, access.parameter, access.program) == ("add", "x", (3, 0, 0))
    assert (access.lane, access.place, access.extent) == ((4,), 100, 100)


def test_a_store_past_the_end_changes_nothing_outside() -> None:
    base = torch.zeros(110)
    with pytest.raises(OutOfBounds, match=r"a store of o\[100\]"):
        ADD.launch((4,), [torch.zeros(102), base[:100], 102], B=32)
    assert base[100:].count_nonzero() == 0


def test_a_negative_place_is_outside() -> None:
    kernel = make("before", "x:*fp32 o:*fp32", "i = tl.arange(0, 4)\ntl.store(o + i, tl.load(x + i - 1))")
    with pytest.raises(OutOfBounds, match=r"a load of x\[-1\] by program \(0, 0, 0\), lane \(0,\)"):
        kernel.launch((1,), [torch.zeros(8)[4:], torch.zeros(4)])


def test_an_empty_argument_has_no_element_to_load() -> None:
    with pytest.raises(OutOfBounds, match="the argument is empty"):
        ADD.launch((1,), [torch.zeros(0), torch.zeros(1), 1], B=16)
    ADD.launch((1,), [torch.zeros(0), torch.zeros(0), 0], B=16)  # all lanes masked


def test_an_atomic_past_the_end_is_found() -> None:
    kernel = make("count", "x:*i32 o:*i32", "i = tl.arange(0, 8)\ntl.atomic_add(o + tl.load(x + i), 1)")
    with pytest.raises(OutOfBounds, match=r"atomic_add of o\[5\]"):
        kernel.launch(
            (1,), [torch.tensor([0, 1, 2, 5, 0, 0, 0, 0], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)]
        )


def test_gaps_between_elements_of_a_view_may_be_read() -> None:
    x = torch.arange(12.0).reshape(3, 4)[:, :2]
    kernel = make("gaps", "x:*fp32 o:*fp32", "i = tl.arange(0, 8)\ntl.store(o + i, tl.load(x + i))")
    out = torch.zeros(8)
    kernel.launch((1,), [x, out])
    assert out.tolist() == list(range(8))


def test_programs_that_store_other_values_to_one_place_race() -> None:
    kernel = make("everyone", "o:*fp32", "tl.store(o, tl.program_id(0).to(tl.float32))")
    with pytest.raises(
        Race, match=r"two lanes store other values to o\[0\]: program \(0, 0, 0\), lane \(0,\) and program \(2, 0, 0\)"
    ):
        kernel.launch((3,), [torch.zeros(1)])
    kernel.launch((3,), [torch.zeros(1)], options=Options())  # not looked for by default


def test_programs_that_store_the_same_value_do_not_race() -> None:
    kernel = make("agreed", "o:*fp32", "tl.store(o, tl.num_programs(0).to(tl.float32))")
    kernel.launch((3,), [out := torch.zeros(1)])
    assert out.item() == 3


def test_a_later_instruction_that_overwrites_another_programs_value_races() -> None:
    kernel = make(
        "neighbour", "o:*fp32 n:i32",
        "p = tl.program_id(0)\ntl.store(o + p, 1.0)\ntl.store(o + (p + 1) % n, 2.0)",
    )  # fmt: skip
    with pytest.raises(Race, match="two programs store other values to o"):
        kernel.launch((4,), [torch.zeros(4), 4])


def test_reading_what_another_program_writes_races_in_place_only() -> None:
    kernel = make(
        "shifted", "x:*fp32 o:*fp32 n:i32 B:constexpr",
        "i = tl.program_id(0) * B + tl.arange(0, B)\nm = i < n - 1\nv = tl.load(x + i + 1, mask=m)\ntl.store(o + i, v, mask=m)",
    )  # fmt: skip
    x = normal(64)
    kernel.launch((4,), [x, torch.zeros(64), 64], B=16)
    with pytest.raises(Race, match="a store to an element that another program loads, o"):
        kernel.launch((4,), [x, x, 64], B=16)


def test_in_place_kernels_and_atomics_do_not_race() -> None:
    x = normal(64)
    expected = x + 1
    ADD.launch((4,), [x, x, 64], B=16)
    assert torch.equal(x, expected)
    kernel = make(
        "total",
        "x:*fp32 o:*fp32 B:constexpr",
        "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.atomic_add(o, tl.sum(tl.load(x + i)))",
    )
    kernel.launch((4,), [torch.ones(64), out := torch.zeros(1)], B=16)
    assert out.item() == 64


def test_races_are_seen_from_one_chunk_to_the_next() -> None:
    kernel = make(
        "everyone", "o:*fp32 B:constexpr", "tl.store(o + tl.program_id(0) * 0 + tl.arange(0, B), tl.program_id(0))"
    )
    with pytest.raises(Race):
        kernel.launch((3,), [torch.zeros(16)], options=Options(races=True, elements=16), B=16)
