"""What callers choose reaches the compilation, and names that mean nothing are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import refimpl
from refimpl.backends.eager import aot_eager
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


def _sorts(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.sort()[0]


@pytest.mark.parametrize(
    "compiled",
    [
        torch.compile(_sorts, backend=triton, options={"strict": True}),
        refimpl.compile(_sorts, backend="triton", options={"strict": True}),
        refimpl.compile(backend="triton", options={"strict": True})(_sorts),
    ],
    ids=["torch.compile", "refimpl.compile", "decorator"],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_in_strict_mode_the_line_of_the_program_is_named(compiled: Callable[..., Any], requires_grad: bool) -> None:
    line = rf"aten\.sort\.default in a kernel: no rule\n  called at: File .*{Path(__file__).name}.* in _sorts: return y\.sort"
    with pytest.raises(Exception, match=line):
        compiled(torch.ones(3, requires_grad=requires_grad))


def test_a_backend_without_options_says_so() -> None:
    with pytest.raises(BadParameter, match="for the backend 'eager'"):
        refimpl.compile(_sorts, backend="eager", options={"strict": True})


def test_a_backend_of_any_kind_gets_them() -> None:
    given: list[Any] = []

    def keeps(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **keywords: Any) -> Callable[..., Any]:
        given.append(keywords)
        return graph_module.forward

    x = torch.tensor([3.0, 1.0])
    assert refimpl.compile(_sorts, backend=keeps, options={"speed": 11})(x).equal(_sorts(x))
    assert given == [{"options": {"speed": 11}}]


@pytest.mark.parametrize("backend", [triton, aot_eager], ids=["triton", "aot_eager"])
def test_a_graph_whose_course_depends_on_data_is_left_to_torch_compile(backend: Any) -> None:
    compiled = torch.compile(lambda x, at: x[at] * 2, backend=backend)
    x, at = torch.tensor([3.0, 1.0]), torch.tensor(1)
    assert compiled(x, at).equal(x[1] * 2)
    whole = torch.compile(lambda x, at: x[at] * 2, backend=backend, fullgraph=True)
    with pytest.raises(Exception, match="depends on its inputs"):
        whole(x, at)


def test_the_text_of_the_kernels_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="refimpl.codegen.compile"):
        refimpl.compile(lambda x: x.exp() + 1, backend="triton")(torch.ones(3))
    assert "def kernel_0(" in caplog.text
    assert "def call(" in caplog.text
