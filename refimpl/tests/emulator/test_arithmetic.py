"""Where device and Triton's interpreter compute differently, the emulator follows the device."""

from __future__ import annotations

import torch

from refimpl.codegen.emulator import Options
from refimpl.tests.emulator.kernels import make, normal


def _one(expression: str, x: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    kinds = {
        torch.float32: "fp32",
        torch.int32: "i32",
        torch.int64: "i64",
        torch.uint8: "u8",
        torch.int8: "i8",
        torch.bfloat16: "bf16",
    }
    kernel = make(
        "one", f"x:*{kinds[x.dtype]} o:*{kinds[out]} B:constexpr",
        f"i = tl.arange(0, B)\na = tl.load(x + i)\ntl.store(o + i, {expression})",
    )  # fmt: skip
    result = torch.zeros(x.numel(), dtype=out)
    kernel.launch((1,), [x, result], B=x.numel())
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
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e30, -1e-30, 2.5])
    x = torch.cat([special, 3 * normal(56)]).to(torch.bfloat16)
    torch.testing.assert_close(_one("a * a + a", x, torch.bfloat16), x * x + x, rtol=0, atol=0, equal_nan=True)
    ones = torch.full((512,), 1.0, dtype=torch.bfloat16)
    kernel = make(
        "loop", "x:*bf16 o:*bf16", "s = tl.load(x) * 0\nfor k in range(512):\n    s += tl.load(x + k)\ntl.store(o, s)"
    )
    kernel.launch((1,), [ones, out := torch.zeros(1, dtype=torch.bfloat16)])
    assert out.item() == 256.0  # 257 is no bfloat16


def test_integers_wrap_and_divide_towards_zero() -> None:
    x = torch.tensor([2**31 - 1, -7, 7, -(2**31)], dtype=torch.int32)
    assert _one("a + 1", x, torch.int32).tolist() == [-(2**31), -6, 8, -(2**31) + 1]
    assert _one("a // 2", x, torch.int32).tolist() == [2**30 - 1, -3, 3, -(2**30)]
    assert _one("a % 4", x, torch.int32).tolist() == [3, -3, 3, 0]
    assert _one("(a * 0 + a) // (a * 0 - 1)", x, torch.int32).tolist() == [-(2**31) + 1, 7, -7, -(2**31)]


def test_masked_lanes_without_other_are_poison() -> None:
    kernel = make(
        "unset", "x:*fp32 o:*fp32 n:i32", "i = tl.arange(0, 8)\ntl.store(o, tl.sum(tl.load(x + i, mask=i < n)))"
    )
    kernel.launch((1,), [torch.ones(5), out := torch.zeros(1), 5])
    assert out.isnan().item()
    kernel.launch((1,), [torch.ones(5), out, 5], options=Options(poison=False))
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
        make("product", "x:*fp32 o:*fp32", body.format(option)).launch((1,), [x, out])
        results.append((out.double() - x.double() @ x.double()).abs().max().item())
    assert results[0] > 1e-4
    assert results[1] < 1e-5
