"""What callers choose reaches the compilation, and names that mean nothing are refused."""

from __future__ import annotations

import pytest
import torch

from refimpl.backends.triton import triton
from refimpl.codegen.options import CodegenOptions, codegen_options
from refimpl.errors import BadParameter


def test_options_are_fields_by_name() -> None:
    assert codegen_options(None) == CodegenOptions()
    assert codegen_options({"contractions": "extern"}) == CodegenOptions(contractions="extern")
    assert codegen_options(CodegenOptions(contractions="extern")).contractions == "extern"


def test_what_is_no_option_is_named() -> None:
    with pytest.raises(BadParameter, match="options speed"):
        codegen_options({"speed": 11})
    with pytest.raises(BadParameter, match="one of template, extern, measured"):
        codegen_options({"contractions": "fast"})
    with pytest.raises(BadParameter, match="autotune='no'"):
        codegen_options({"autotune": "no"})


def test_torch_compile_hands_them_on() -> None:
    compiled = torch.compile(lambda x: x + 1, backend=triton, options={"contractions": "fast"})
    with pytest.raises(Exception, match="contractions='fast'"):
        compiled(torch.ones(3))
