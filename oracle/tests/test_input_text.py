"""Inputs written as text."""

from __future__ import annotations

import pytest
import torch

from oracle.errors import UsageError
from oracle.program.input_text import parse_call
from oracle.program.inputs import decode_call


def _made(text: str) -> tuple[tuple, dict]:
    return decode_call(parse_call(text), seed=0)


def test_tensors_have_the_dtype_shape_and_flags_that_are_written() -> None:
    (a, b, c, d, e, f), _ = _made("f32[4, 8], bf16[2].grad, i64[100] < 3, bool[5], f32[], u8[7]")
    assert (a.dtype, a.shape, a.requires_grad) == (torch.float32, (4, 8), False)
    assert (b.dtype, b.requires_grad, b.is_leaf) == (torch.bfloat16, True, True)
    assert (c.dtype, set(c.tolist())) == (torch.int64, {0, 1, 2})
    assert (d.dtype, e.shape, f.dtype) == (torch.bool, (), torch.uint8)
    assert int(f.max()) < 10


def test_layouts_are_those_that_are_written() -> None:
    (a, b, c), _ = _made("f32[2, 4, 8].t, f32[4, 8].stride(1, 4), f32[2, 3, 8, 8].channels_last.grad")
    assert (a.shape, a.stride()) == ((2, 4, 8), (32, 1, 4))
    assert b.stride() == (1, 4)
    assert c.is_contiguous(memory_format=torch.channels_last)
    assert c.requires_grad


def test_python_values_and_keywords() -> None:
    args, kwargs = _made("3, -1.5, 'sum', None, [f32[2], True], (1, f64[1]), {'a': i32[2]}, dim=-1, dtype=bfloat16")
    assert args[:4] == (3, -1.5, "sum", None)
    assert isinstance(args[4][0], torch.Tensor)
    assert isinstance(args[5], tuple)
    assert args[6]["a"].dtype is torch.int32
    assert kwargs == {"dim": -1, "dtype": torch.bfloat16}


def test_values_are_those_that_are_written() -> None:
    (a,), _ = _made("f32[2, 2].values(1, -0.0, 'nan', 'inf')")
    assert str(a.tolist()) == "[[1.0, -0.0], [nan, inf]]"


def test_no_text_is_no_argument() -> None:
    assert _made("") == ((), {})


@pytest.mark.parametrize(
    "text",
    ["f32[4", "g32[4]", "f32[-1]", "f32[n]", "f32[4] < 3", "i64[4] < 0", "i64[4].grad", "f32[4].t", "f32[2].values(1)",
     "**x", "__import__('os')", "f32[4].foo", "x", "f32[4]) + (1", "lambda: 0"],
)  # fmt: skip
def test_what_is_no_input_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"for example --inputs"):
        parse_call(text)
