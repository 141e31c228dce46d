"""Lines of the program stand in the launch plan, and errors of kernels name them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import refimpl
from refimpl.backends.triton import triton
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.emulator import KernelError
from refimpl.codegen.kernel import Kernel, Level
from refimpl.codegen.launch_plan import CompiledGraph

_FILE = re.escape(str(Path(__file__)))


class _Refusing:
    """A level that launches nothing."""

    def launch(self, kernel: Kernel, grid: Any, arguments: Any, constants: Any) -> None:
        raise KernelError(kernel.name, seen="a launch", expected="none", do="wait")


def _compiled(
    function: Callable[..., Any], level: Level | None = None
) -> tuple[Callable[..., Any], list[CompiledGraph]]:
    made: list[CompiledGraph] = []

    def compiler(graph_module: torch.fx.GraphModule, example_inputs: Any, options: Any) -> CompiledGraph:
        made.append(compile_graph(graph_module, example_inputs, level=level, options=options))
        return made[-1]

    return refimpl.compile(function, backend=functools.partial(triton, compiler=compiler)), made


def _comments_before(text: str, launch: str) -> list[str]:
    """The texts of the program in the comments above a launch or a call."""
    lines = text.partition("def call(")[2].splitlines()
    at = next(at for at, line in enumerate(lines) if launch in line)
    comments: list[str] = []
    for line in reversed(lines[:at]):
        found = re.match(rf'\s*# File "{_FILE}", line \d+, in \w+: (.*)', line)
        if found:
            comments.insert(0, found[1])
        elif "kernel_" in line or "call_" in line:
            break
    return comments


def test_a_launch_names_the_lines_that_it_computes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y * 2 + 1
        z = z.softmax(-1)
        u = z.sort()[0]
        return u.exp()

    compiled, made = _compiled(program)
    compiled(torch.randn(4, 8))
    source = made[0].source
    assert _comments_before(source, "kernel_0(") == ["y = x.sin()", "z = y * 2 + 1", "z = z.softmax(-1)"]
    assert _comments_before(source, "call_0(") == ["u = z.sort()[0]"]
    assert _comments_before(source, "kernel_1(") == ["return u.exp()"]


def test_a_kernel_of_the_backward_names_what_it_is_the_gradient_of() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()

    compiled, made = _compiled(program)
    compiled(torch.randn(4, requires_grad=True)).sum().backward()
    assert _comments_before(made[1].source, "kernel_0(") == ["return x.sin().exp()"]


def test_an_error_of_a_kernel_names_the_lines() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y.exp()

    compiled, _ = _compiled(program, level=_Refusing())
    with pytest.raises(
        KernelError, match=rf"(?s)what to do: wait\n  computes: File \"{_FILE}\", .*: y = x \* 2\n.*y\.exp"
    ):
        compiled(torch.randn(4))


def test_graphs_without_stack_traces_have_no_comments() -> None:
    traced = refimpl.make_fx(lambda x: (x.sin(),), tracing_mode="fake")(torch.ones(3))
    assert "#" not in compile_graph(traced, [torch.ones(3)]).source
