"""Tests of the second process: every dtype comes back as it went."""

from __future__ import annotations

import pytest
import torch

from oracle.observe.outcome import Returned
from oracle.observe.peer import observe_in_second_process
from oracle.program import Call, Program

_SOURCE = """
import torch


def program():
    return (torch.arange(32, dtype=torch.uint8) % 2).view(torch.{dtype}).reshape(2, -1)
"""
_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64",
    "complex32", "complex64", "complex128", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip
_DTYPES = [name for name in _NAMES if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", _DTYPES)
def test_every_dtype_comes_back(dtype: str) -> None:
    program = Program(name=dtype, source=_SOURCE.format(dtype=dtype), calls=(Call(),))
    outcome = observe_in_second_process(program, device="cpu")
    assert isinstance(outcome, Returned)
    (leaf,) = outcome.calls[0].outputs
    assert isinstance(leaf.value, torch.Tensor)
    assert str(leaf.value.dtype) == f"torch.{dtype}"
    assert leaf.value.shape[0] == 2
    assert leaf.value.contiguous().reshape(-1).view(torch.uint8).tolist() == [0, 1] * 16
