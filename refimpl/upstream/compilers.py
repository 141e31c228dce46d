"""Compilers for aot_function (print the graph, script it, run it unchanged), and memory_efficient_fusion, which uses them.

Counterpart: torch/_functorch/compilers.py memory_efficient_fusion, ts_compile, simple_ts_compile, nop, print_compile,
default_decompositions; torch/_functorch/_aot_autograd/utils.py make_boxed_func, make_boxed_compiler
Differs: compilers that only read a graph do not change it; none draws or saves it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, without_autocast
from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_function, aot_module
from refimpl.trace.decompositions import get_decompositions

_aten = torch.ops.aten

# Activations and backward ops. The min-cut partitioner may recompute the elementwise ops they decompose into.
default_decompositions = get_decompositions(
    [
        _aten.detach,
        _aten.gelu_backward,
        _aten.leaky_relu_backward,
        _aten.sigmoid_backward,
        _aten.threshold_backward,
        _aten.hardtanh_backward,
        _aten.hardsigmoid_backward,
        _aten.hardswish_backward,
        _aten.tanh_backward,
        _aten.silu_backward,
        _aten.elu_backward,
        _aten.cudnn_batch_norm,
        _aten.cudnn_batch_norm_backward,
        _aten.masked_fill.Scalar,
        _aten.masked_fill.Tensor,
        _aten.elu,
        _aten.leaky_relu,
        _aten.hardtanh,
        _aten.hardswish,
        _aten.hardsigmoid,
        _aten.conj_physical,
        _aten.is_same_size,
    ]
)


def make_boxed_func(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Wrap `function` to take one list of arguments. The list is emptied, so that a tensor is freed after its last use."""

    @functools.wraps(function)
    def boxed(arguments: list[Any]) -> Any:
        values = tuple(arguments)
        arguments.clear()
        return function(*values)

    setattr(boxed, "_boxed_call", True)
    return boxed


def make_boxed_compiler(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a compiler so that its compiled functions take one list of arguments."""

    @functools.wraps(compiler)
    def compile_boxed(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compiled = compiler(graph_module, inputs)
        return compiled if getattr(compiled, "_boxed_call", False) else make_boxed_func(compiled)

    return compile_boxed


@make_boxed_compiler
def nop(fx_g: torch.fx.GraphModule, _: Sequence[Any]) -> torch.fx.GraphModule:
    """Return the graph unchanged."""
    return fx_g


@make_boxed_compiler
def print_compile(fx_g: torch.fx.GraphModule, _: Sequence[Any]) -> torch.fx.GraphModule:
    """Print the graph and return it unchanged."""
    print(fx_g.code)
    return fx_g


def _frozen_script(graph_module: torch.fx.GraphModule) -> torch.jit.ScriptModule:
    # A LazyGraphModule has no Python code yet, so torch.jit.script cannot read it.
    printed = torch.fx.GraphModule(graph_module, graph_module.graph)
    return torch.jit.freeze(torch.jit.script(printed).eval())


@make_boxed_compiler
def simple_ts_compile(fx_g: torch.fx.GraphModule, _: Sequence[Any]) -> torch.jit.ScriptModule:
    """Compile the graph to a frozen TorchScript module. Changes the graph: overloads become packets."""
    strip_overloads(fx_g)
    return _frozen_script(fx_g)


@make_boxed_compiler
def ts_compile(fx_g: torch.fx.GraphModule, inps: Sequence[Any]) -> torch.jit.ScriptModule:
    """Compile the graph to a frozen, optimised TorchScript module, and run it once on real `inps`. Changes the graph."""
    with without_autocast():  # the graph already has the casts
        strip_overloads(fx_g)
        for node in fx_g.graph.nodes:
            if node.target is _aten._to_copy and len(node.args) == 1 and node.kwargs.keys() == {"dtype"}:
                node.target = _aten.to
            # TorchScript takes device names, not torch.device objects
            node.kwargs = {k: v.type if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
        fx_g.graph.lint()
        fx_g.recompile()
        optimised = torch.jit.optimize_for_inference(_frozen_script(fx_g))
        if not any(isinstance(value, FakeTensor) for value in inps):
            optimised(*inps)
    return optimised


def memory_efficient_fusion(fn: Callable[..., Any] | torch.nn.Module, **kwargs: Any) -> Any:
    """Compile a function or module so that its backward recomputes what costs less than saving it.

    Calls aot_function or aot_module with `ts_compile`, the min-cut partitioner and `default_decompositions`; `kwargs` replace
    these options or add others.
    """
    config = {
        "fw_compiler": ts_compile,
        "bw_compiler": ts_compile,
        "partition_fn": min_cut_rematerialization_partition,
        "decompositions": default_decompositions,
        **kwargs,
    }
    return aot_module(fn, **config) if isinstance(fn, torch.nn.Module) else aot_function(fn, **config)


def strip_overloads(gm: torch.fx.GraphModule) -> None:
    """Replace overloads (aten.add.Tensor) by packets (aten.add), in place.

    Counterpart: torch/_functorch/compile_utils.py strip_overloads
    """
    for node in gm.graph.nodes:
        if isinstance(node.target, OpOverload):
            node.target = node.target.overloadpacket
    gm.recompile()
