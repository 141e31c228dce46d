"""Contracts of ahead-of-time autograd (rows AO of docs/contracts.md): entry points and calling conventions."""

from __future__ import annotations

import ast
import inspect
import operator
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import AOTConfig as TorchAOTConfig

import refimpl
from refimpl import aot_entry_points as entry_points
from refimpl.aot.functional_program import ProgramRequest
from refimpl.aot.options import AOT_COUNTER, AOTConfig
from refimpl.aot_entry_points import aot_function, aot_module, aot_module_simplified
from refimpl.pipeline import compile_program
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.tests.aot.kept_graphs import Compiler, Tuple, leaf_of_numbers
from refimpl.tests.graphs import placeholders_of
from refimpl.upstream.nested_inputs import flatten_graph_inputs, set_locals_to_steal

Tensor = torch.Tensor


def test_a_function_is_compiled_once_and_its_containers_are_kept() -> None:
    """AO-25, XC-04, XC-12"""

    def function(d: dict[str, Any], *, k: list[Tensor]) -> dict[str, Any]:
        return {"sum": d["x"] + k[0], "rest": (None, [d["n"], d["x"] * 2])}

    compiler = Compiler()
    compiled = compiler.function(function)
    for size in (2, 5):
        result = compiled({"x": torch.ones(size), "n": 3}, k=[torch.ones(size)])
        assert result["sum"].tolist() == [2.0] * size
        assert result["rest"][0] is None
        assert result["rest"][1][0] == 3
        assert result["rest"][1][1].tolist() == [2.0] * size
    assert compiler.kinds == ["inference"]


def test_a_module_keeps_its_parameters_and_they_get_the_gradients() -> None:
    """AO-26"""
    compiler = Compiler()
    original = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module = aot_module(original, fw_compiler=compiler.kind("fw"), bw_compiler=compiler.kind("bw"))
    assert module.orig_module is original
    module(torch.randn(4, 2)).pow(2).sum().backward()
    assert all(parameter.grad is not None for parameter in original.parameters())
    state = dict(original.named_buffers())
    assert state["1.num_batches_tracked"] == 1
    assert state["1.running_mean"].any()
    assert len(placeholders_of(compiler.graph("fw"))) == 2 + 2 + 3 + 1
    with symbolic_fake_mode(allow_fallback_kernels=False, allow_non_fake_inputs=True, static_shapes=True):
        fake = torch.nn.Linear(2, 2)
    with pytest.raises(AssertionError, match="Unexpected fake"):
        aot_module(fake, fw_compiler=compiler.kind("fw"))


def test_a_captured_module_is_compiled_at_once_for_flat_arguments() -> None:
    """AO-27"""
    compiler = Compiler()
    linear = torch.nn.Linear(2, 3)
    module = torch.nn.Sequential(linear, Tuple())
    compiled = aot_module_simplified(module, [torch.ones(4, 2)], compiler.kind("fw"), compiler.kind("bw"))
    assert compiler.kinds == ["fw"]
    assert len(placeholders_of(compiler.graph("fw"))) == 3
    x = torch.randn(4, 2)
    (out,) = compiled(x)
    assert torch.equal(out, linear(x))
    out.sum().backward()
    assert linear.weight.grad is not None
    compiled.zero_grad()  # type: ignore[attr-defined]
    assert linear.weight.grad is None
    assert [name for name, _ in compiled.named_parameters()] == ["0.weight", "0.bias"]  # type: ignore[attr-defined]
    assert list(compiled.named_buffers()) == []  # type: ignore[attr-defined]
    with pytest.raises((RuntimeError, AssertionError), match=r"Graph output must be a \(\)"):
        aot_module_simplified(linear, [torch.ones(4, 2)], compiler.kind("fw"))


def test_a_boxed_graph_is_given_a_list_that_it_may_empty() -> None:
    """AO-29"""
    died: list[bool] = []

    def compile(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(args: list[Any]) -> Any:
            (x,) = args
            alive = weakref.ref(x)
            result = graph_module(x)
            args.clear()
            del x
            died.append(alive() is None)
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    config = AOTConfig(fw_compiler=compile, inference_compiler=compile)
    request = ProgramRequest(function=lambda x: [x * 2], args=[torch.ones(2)], config=config)
    call = compile_program(request).call
    args = [torch.ones(2)]
    assert call(args)[0].tolist() == [2.0, 2.0]
    assert args == []
    assert died == [True]
    held = torch.ones(2)
    assert aot_function(lambda x: x * 2, compile)(held).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_module_that_takes_a_list_is_compiled_to_a_function_that_empties_it(requires_grad: bool) -> None:
    """AO-29"""
    died: list[bool] = []
    alive: list[weakref.ref[Tensor]] = []

    def compile(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(args: list[Any]) -> Any:
            result = graph_module(*args)
            args.clear()
            died.append(alive[0]() is None)
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def program(held: list[Tensor]) -> tuple[Tensor]:
        return (held[0] * 2,)

    graph_module = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    given = graph_module.graph.placeholder("held")
    first = graph_module.graph.call_function(operator.getitem, (given, 0))
    graph_module.graph.output((graph_module.graph.call_function(operator.mul, (first, 2)),))
    graph_module.recompile()
    set_locals_to_steal(graph_module, ["held"])
    example = [torch.ones(2, requires_grad=requires_grad)]
    seen: list[Any] = []

    def compile_flat(module: Any, inputs: list[Any]) -> Any:
        seen.append(aot_module_simplified(module, inputs, compile))
        return seen[0]

    compiled = flatten_graph_inputs(graph_module, [example], compile_flat)
    assert seen[0]._boxed_call
    held = [torch.ones(2, requires_grad=requires_grad)]
    alive.append(weakref.ref(held[0]))
    result = compiled(held)[0]
    assert torch.equal(result, program([torch.ones(2)])[0])
    assert held == []
    assert result.requires_grad is requires_grad
    if not requires_grad:
        assert died == [True]
    plain = aot_module_simplified(torch.nn.Sequential(torch.nn.Linear(2, 2), Tuple()), [torch.ones(1, 2)], compile)
    assert not hasattr(plain, "_boxed_call")


def test_configurations_are_named_as_upstream_s() -> None:
    """AO-40"""
    names = {
        "fw_compiler", "bw_compiler", "inference_compiler", "partition_fn", "decompositions", "num_params_buffers", "aot_id",
        "keep_inference_input_mutations", "dynamic_shapes", "aot_autograd_arg_pos_to_source", "is_export", "no_tangents",
        "pre_dispatch", "enable_log",
    }  # fmt: skip
    ours = inspect.signature(AOTConfig).parameters
    assert names <= set(ours)
    assert names <= set(inspect.signature(TorchAOTConfig).parameters)
    config = AOTConfig(num_params_buffers=2, aot_id=7, no_tangents=True)
    assert (config.num_params_buffers, config.aot_id, config.no_tangents, config.is_export) == (2, 7, True, False)


def test_every_compile_has_a_greater_number() -> None:
    """AO-41"""
    first = next(AOT_COUNTER)
    compiler = Compiler()
    for _ in range(2):
        compiler.function(lambda x: x + 1)(torch.ones(2))
    assert next(AOT_COUNTER) >= first + 3


def test_every_zip_says_whether_lengths_may_differ() -> None:
    """AO-42"""
    for path in sorted((Path(refimpl.__file__).parent / "aot").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
                assert "strict" in {keyword.arg for keyword in node.keywords}, f"{path.name}:{node.lineno}"
    with pytest.raises(ValueError, match="longer"):
        list(zip([1], [1, 2], strict=True))


def test_entry_points_have_their_old_names() -> None:
    """AO-44"""
    assert entry_points.compiled_function is aot_function
    assert entry_points.compiled_module is aot_module


def test_compiling_runs_no_kernel_of_the_user() -> None:
    """XC-16"""
    calls: list[torch.Size] = []
    library = torch.library.Library("refimpl_test_kernel", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")

    def twice(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return x * 2

    library.impl("twice", twice, "CPU")
    torch.library.register_fake("refimpl_test_kernel::twice", torch.empty_like, lib=library)
    torch.library.register_autograd("refimpl_test_kernel::twice", lambda ctx, gradient: gradient * 2, lib=library)

    class Twice(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (torch.ops.refimpl_test_kernel.twice(x),)

    compiler = Compiler()
    x = leaf_of_numbers(3)
    compiled = aot_module_simplified(Twice(), [x], compiler.kind("fw"), compiler.kind("bw"))
    assert calls == []
    compiled(x)[0].sum().backward()
    assert calls == [torch.Size([3])]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
    library._destroy()
