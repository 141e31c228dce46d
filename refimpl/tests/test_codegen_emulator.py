"""What the emulator finds wrong, how it splits programs, and where it follows the device."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from refimpl.codegen.emulator import EmulatorLevel
from refimpl.codegen.kernel import Kernel, KernelError
from refimpl.codegen.level_errors import NotEmulated, OutOfBounds, Race, WouldNotCompile
from refimpl.tests.codegen_kernels import floats, make_kernel, normal


def _launch(
    kernel: Kernel, grid: tuple[int, ...], arguments: list[Any], *, level: EmulatorLevel | None = None, **constants: Any
) -> None:
    (level or EmulatorLevel(races=True)).launch(kernel, grid, arguments, constants)


ADD = make_kernel(
    "add", "x:*fp32 o:*fp32 n:i32 B:constexpr",
    "i = tl.program_id(0) * B + tl.arange(0, B)\nm = i < n\ntl.store(o + i, tl.load(x + i, mask=m) + 1, mask=m)",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ bounds


def test_a_load_past_the_end_names_program_lane_and_place() -> None:
    with pytest.raises(
        OutOfBounds, match=r"a load of x\[100\] by program \(3, 0, 0\), lane \(4,\) .*tl.load.*; 2 such lanes"
    ) as error:
        _launch(ADD, (4,), [torch.zeros(100), torch.zeros(102), 102], B=32)
    access = error.value.access
    assert (access.kernel, access.parameter, access.program) == ("add", "x", (3, 0, 0))
    assert (access.lane, access.place, access.extent) == ((4,), 100, 100)


def test_a_store_past_the_end_changes_nothing_outside() -> None:
    base = torch.zeros(110)
    with pytest.raises(OutOfBounds, match=r"a store of o\[100\]"):
        _launch(ADD, (4,), [torch.zeros(102), base[:100], 102], B=32)
    assert base[100:].count_nonzero() == 0


def test_a_negative_place_is_outside() -> None:
    kernel = make_kernel("before", "x:*fp32 o:*fp32", "i = tl.arange(0, 4)\ntl.store(o + i, tl.load(x + i - 1))")
    with pytest.raises(OutOfBounds, match=r"a load of x\[-1\] by program \(0, 0, 0\), lane \(0,\)"):
        _launch(kernel, (1,), [torch.zeros(8)[4:], torch.zeros(4)])


def test_an_empty_argument_has_no_element_to_load() -> None:
    with pytest.raises(OutOfBounds, match="the argument is empty"):
        _launch(ADD, (1,), [torch.zeros(0), torch.zeros(1), 1], B=16)
    _launch(ADD, (1,), [torch.zeros(0), torch.zeros(0), 0], B=16)  # all lanes masked


def test_an_atomic_past_the_end_is_found() -> None:
    kernel = make_kernel("count", "x:*i32 o:*i32", "i = tl.arange(0, 8)\ntl.atomic_add(o + tl.load(x + i), 1)")
    with pytest.raises(OutOfBounds, match=r"atomic_add of o\[5\]"):
        _launch(
            kernel, (1,), [torch.tensor([0, 1, 2, 5, 0, 0, 0, 0], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)]
        )


def test_gaps_between_elements_of_a_view_may_be_read() -> None:
    x = torch.arange(12.0).reshape(3, 4)[:, :2]
    kernel = make_kernel("gaps", "x:*fp32 o:*fp32", "i = tl.arange(0, 8)\ntl.store(o + i, tl.load(x + i))")
    out = torch.zeros(8)
    _launch(kernel, (1,), [x, out])
    assert out.tolist() == list(range(8))


# ------------------------------------------------------------------------------------------------------------------- races


def test_programs_that_store_other_values_to_one_place_race() -> None:
    kernel = make_kernel("everyone", "o:*fp32", "tl.store(o, tl.program_id(0).to(tl.float32))")
    with pytest.raises(
        Race, match=r"two lanes store other values to o\[0\]: program \(0, 0, 0\), lane \(0,\) and program \(2, 0, 0\)"
    ):
        _launch(kernel, (3,), [torch.zeros(1)])
    _launch(kernel, (3,), [torch.zeros(1)], level=EmulatorLevel())  # not looked for by default


def test_programs_that_store_the_same_value_do_not_race() -> None:
    kernel = make_kernel("agreed", "o:*fp32", "tl.store(o, tl.num_programs(0).to(tl.float32))")
    _launch(kernel, (3,), [out := torch.zeros(1)])
    assert out.item() == 3


def test_a_later_instruction_that_overwrites_another_programs_value_races() -> None:
    kernel = make_kernel(
        "neighbour", "o:*fp32 n:i32",
        "p = tl.program_id(0)\ntl.store(o + p, 1.0)\ntl.store(o + (p + 1) % n, 2.0)",
    )  # fmt: skip
    with pytest.raises(Race, match="two programs store other values to o"):
        _launch(kernel, (4,), [torch.zeros(4), 4])


def test_reading_what_another_program_writes_races_in_place_only() -> None:
    kernel = make_kernel(
        "shifted", "x:*fp32 o:*fp32 n:i32 B:constexpr",
        "i = tl.program_id(0) * B + tl.arange(0, B)\nm = i < n - 1\nv = tl.load(x + i + 1, mask=m)\ntl.store(o + i, v, mask=m)",
    )  # fmt: skip
    x = normal(64)
    _launch(kernel, (4,), [x, torch.zeros(64), 64], B=16)
    with pytest.raises(Race, match="a store to an element that another program loads, o"):
        _launch(kernel, (4,), [x, x, 64], B=16)


def test_in_place_kernels_and_atomics_do_not_race() -> None:
    x = normal(64)
    expected = x + 1
    _launch(ADD, (4,), [x, x, 64], B=16)
    assert torch.equal(x, expected)
    kernel = make_kernel(
        "total",
        "x:*fp32 o:*fp32 B:constexpr",
        "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.atomic_add(o, tl.sum(tl.load(x + i)))",
    )
    _launch(kernel, (4,), [torch.ones(64), out := torch.zeros(1)], B=16)
    assert out.item() == 64


def test_races_are_seen_from_one_chunk_to_the_next() -> None:
    kernel = make_kernel(
        "everyone", "o:*fp32 B:constexpr", "tl.store(o + tl.program_id(0) * 0 + tl.arange(0, B), tl.program_id(0))"
    )
    with pytest.raises(Race):
        _launch(kernel, (3,), [torch.zeros(16)], level=EmulatorLevel(races=True, elements=16), B=16)


# ------------------------------------------------------------------------------------------------------------ control flow


def test_programs_part_ways_and_memory_goes_back_first() -> None:
    kernel = make_kernel(
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
    _launch(kernel, (7,), [out, count])
    assert out.tolist() == [0, 1, 102, 30, 304, 405, 60]
    assert count.item() == 7  # once for each program, however often groups started again


def test_a_loop_with_bounds_of_its_own_for_each_program() -> None:
    kernel = make_kernel(
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
    _launch(kernel, (4,), [torch.arange(10.0), torch.tensor([0, 3, 3, 8, 10], dtype=torch.int32), out])
    assert out.tolist() == [3.0, 0.0, 25.0, 17.0]


def test_a_lock_is_held_by_one_program_at_a_time() -> None:
    kernel = make_kernel(
        "locked", "lock:*i32 o:*i32",
        """
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(o, tl.load(o) + 1)
        tl.atomic_xchg(lock, 0)
        """,
    )  # fmt: skip
    out = torch.zeros(1, dtype=torch.int32)
    _launch(kernel, (5,), [torch.zeros(1, dtype=torch.int32), out], level=EmulatorLevel())
    assert out.item() == 5


def test_a_number_is_no_block_to_broadcast() -> None:
    kernel = make_kernel("spread", "o:*i64", "tl.store(o + tl.arange(0, 4), tl.broadcast_to(3, [4]))")
    with pytest.raises(WouldNotCompile, match=r"3 broadcast to \[4\].*full"):
        _launch(kernel, (1,), [torch.zeros(4, dtype=torch.int64)])


def test_a_block_as_a_condition_is_rejected() -> None:
    kernel = make_kernel("blockwise", "o:*fp32", "v = tl.load(o + tl.arange(0, 8))\nif v > 0:\n    tl.store(o, 1.0)")
    with pytest.raises(WouldNotCompile, match=r"a block of shape \[8\] where one value is needed.*if v > 0"):
        _launch(kernel, (1,), [torch.zeros(8)])


@pytest.mark.parametrize("elements", [1, 64, 1 << 22])
def test_chunks_of_any_size_give_the_same(elements: int) -> None:
    x, out = normal(1000), torch.zeros(1000)
    _launch(ADD, (16,), [x, out, 1000], level=EmulatorLevel(elements=elements), B=64)
    assert torch.equal(out, x + 1)


# --------------------------------------------------------------------------------------------- as on the device


def _one(expression: str, x: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    kinds = {
        torch.float32: "fp32",
        torch.int32: "i32",
        torch.int64: "i64",
        torch.uint8: "u8",
        torch.int8: "i8",
        torch.bfloat16: "bf16",
    }
    kernel = make_kernel(
        "one", f"x:*{kinds[x.dtype]} o:*{kinds[out]} B:constexpr",
        f"i = tl.arange(0, B)\na = tl.load(x + i)\ntl.store(o + i, {expression})",
    )  # fmt: skip
    result = torch.zeros(x.numel(), dtype=out)
    _launch(kernel, (1,), [x, result], B=x.numel())
    return result


def test_floats_to_integers_saturate_and_nan_is_zero() -> None:
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 3e9, -3e9, 2.9, -2.9, 1e30])
    assert _one("a.to(tl.int32)", x, torch.int32).tolist() == [
        0,
        2**31 - 1,
        -(2**31),
        2**31 - 1,
        -(2**31),
        2,
        -2,
        2**31 - 1,
    ]
    high, low = 2**63 - 1, -(2**63)
    assert _one("a.to(tl.int64)", x, torch.int64).tolist() == [0, high, low, 3 * 10**9, -3 * 10**9, 2, -2, high]
    small = torch.tensor([300.0, -1.0, 255.9, 0.0])
    assert _one("a.to(tl.int16).to(tl.int32)", x, torch.int32).tolist() == [
        0,
        32767,
        -32768,
        32767,
        -32768,
        2,
        -2,
        32767,
    ]
    assert _one("a.to(tl.int8).to(tl.int32)", x, torch.int32).tolist() == [
        0,
        -1,
        0,
        -1,
        0,
        2,
        -2,
        -1,
    ]  # of 16 bits, the low 8
    assert _one("a.to(tl.uint32).to(tl.int64)", small, torch.int64).tolist() == [300, 0, 255, 0]


def test_maximum_gives_the_number_beside_a_nan() -> None:
    x = torch.tensor([float("nan"), 1.0, -1.0, 5.0])
    assert _one("tl.maximum(a, 2.0)", x, torch.float32).tolist() == [2.0, 2.0, 2.0, 5.0]
    assert _one("tl.max(a, axis=0) + a * 0", x, torch.float32)[1:].tolist() == [5.0] * 3
    assert _one("tl.maximum(a, 2.0, propagate_nan=tl.PropagateNan.ALL)", x, torch.float32).isnan().tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_fma_rounds_once() -> None:
    a = 1.0 + 2.0**-12
    x = torch.full((2,), a)
    exact = a * a - (1.0 + 2.0**-11)
    assert exact == 2.0**-24
    assert _one("tl.fma(a, a, -(1.0 + 0.00048828125))", x, torch.float32).tolist() == [exact, exact]
    assert _one("a * a - (1.0 + 0.00048828125)", x, torch.float32).tolist() == [0.0, 0.0]


def test_bfloat16_is_rounded_after_each_operation() -> None:
    x = floats(64, torch.bfloat16)
    torch.testing.assert_close(_one("a * a + a", x, torch.bfloat16), x * x + x, rtol=0, atol=0, equal_nan=True)
    ones = torch.full((512,), 1.0, dtype=torch.bfloat16)
    kernel = make_kernel(
        "loop", "x:*bf16 o:*bf16", "s = tl.load(x) * 0\nfor k in range(512):\n    s += tl.load(x + k)\ntl.store(o, s)"
    )
    _launch(kernel, (1,), [ones, out := torch.zeros(1, dtype=torch.bfloat16)])
    assert out.item() == 256.0  # 257 is no bfloat16


def test_integers_wrap_and_divide_towards_zero() -> None:
    x = torch.tensor([2**31 - 1, -7, 7, -(2**31)], dtype=torch.int32)
    assert _one("a + 1", x, torch.int32).tolist() == [-(2**31), -6, 8, -(2**31) + 1]
    assert _one("a // 2", x, torch.int32).tolist() == [2**30 - 1, -3, 3, -(2**30)]
    assert _one("a % 4", x, torch.int32).tolist() == [3, -3, 3, 0]
    assert _one("(a * 0 + a) // (a * 0 - 1)", x, torch.int32).tolist() == [-(2**31) + 1, 7, -7, -(2**31)]


def test_masked_lanes_without_other_are_poison() -> None:
    kernel = make_kernel(
        "unset", "x:*fp32 o:*fp32 n:i32", "i = tl.arange(0, 8)\ntl.store(o, tl.sum(tl.load(x + i, mask=i < n)))"
    )
    _launch(kernel, (1,), [torch.ones(5), out := torch.zeros(1), 5])
    assert out.isnan().item()
    _launch(kernel, (1,), [torch.ones(5), out, 5], level=EmulatorLevel(poison=False))
    assert out.item() == 5


def test_tf32_is_the_default_of_dot_and_ieee_is_exact() -> None:
    body = """
    i = tl.arange(0, 16)
    places = i[:, None] * 16 + i[None, :]
    v = tl.load(x + places)
    tl.store(o + places, tl.dot(v, v{}))
    """
    x = normal(16, 16)
    results = []
    for option in ("", ', input_precision="ieee"'):
        out = torch.zeros(16, 16)
        _launch(make_kernel("product", "x:*fp32 o:*fp32", body.format(option)), (1,), [x, out])
        results.append((out.double() - x.double() @ x.double()).abs().max().item())
    assert results[0] > 1e-4
    assert results[1] < 1e-5


# ------------------------------------------------------------------------------------------------------- errors and speed


def test_what_is_not_emulated_is_named() -> None:
    kernel = make_kernel("blocks", "x:*fp32", "p = tl.make_block_ptr(x, (4,), (1,), (0,), (4,), (0,))")
    with pytest.raises(NotEmulated, match=r"triton.language.make_block_ptr.*make_block_ptr\(x"):
        _launch(kernel, (1,), [torch.zeros(4)])
    with pytest.raises(NotEmulated, match=r"import triton\.experimental"):
        _launch(Kernel("k", "import triton.experimental\n", ()), (1,), [])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def k(:", "source that is no Python"),
        ("import triton\n", "defines None under this name"),
        ("import triton\n@triton.jit\ndef k(a):\n    pass\n", r"those of the function: \['a'\]"),
    ],
)
def test_modules_that_hold_no_such_kernel_are_named(source: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        _launch(Kernel("k", source, ()), (1,), [])


def test_triton_is_not_imported() -> None:
    script = (
        "import sys, torch\nfrom refimpl.tests.test_codegen_emulator import ADD, _launch\n"
        "_launch(ADD, (1,), [torch.zeros(8), torch.zeros(8), 8], B=8)\nassert 'triton' not in sys.modules\nprint('ran')"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout == "ran\n", ran.stderr


def test_a_small_launch_takes_less_than_a_millisecond_of_processor_time() -> None:
    x, out, level = normal(8192), torch.zeros(8192), EmulatorLevel()
    times = []
    for _ in range(30):
        start = time.process_time()
        _launch(ADD, (64,), [x, out, 8192], level=level, B=128)
        times.append(time.process_time() - start)
    assert min(times) < 1e-3, f"{min(times) * 1e3:.2f} ms"
