"""Compilers to hand to aot_function, and memory_efficient_fusion, which is aot_function with a choice of them.

Counterpart: torch/_functorch/compilers.py memory_efficient_fusion, ts_compile, simple_ts_compile, nop, print_compile,
default_decompositions; torch/_functorch/_aot_autograd/utils.py make_boxed_func, make_boxed_compiler
Differs: graphs are not changed by the compilers that only read them; there is no drawing and no saving of graphs.
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

# Backward formulas and activations written in elementwise ops, which min-cut may recompute and a compiler fuses.
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
    """`function` called with one list of arguments, which is emptied: what nobody else holds is freed when it was read last."""

    @functools.wraps(function)
    def boxed(arguments: list[Any]) -> Any:
        values = tuple(arguments)
        arguments.clear()
        return function(*values)

    setattr(boxed, "_boxed_call", True)
    return boxed


def make_boxed_compiler(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler whose results take one list of arguments."""

    @functools.wraps(compiler)
    def compile_boxed(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compiled = compiler(graph_module, inputs)
        return compiled if getattr(compiled, "_boxed_call", False) else make_boxed_func(compiled)

    return compile_boxed


@make_boxed_compiler
def nop(fx_g: torch.fx.GraphModule, _: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph as it is."""
    return fx_g


@make_boxed_compiler
def print_compile(fx_g: torch.fx.GraphModule, _: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph as it is, printed."""
    print(fx_g.code)
    return fx_g


def _frozen_script(graph_module: torch.fx.GraphModule) -> torch.jit.ScriptModule:
    # A module that prints its code when it is first asked for cannot be scripted.
    printed = torch.fx.GraphModule(graph_module, graph_module.graph)
    return torch.jit.freeze(torch.jit.script(printed).eval())


@make_boxed_compiler
def simple_ts_compile(fx_g: torch.fx.GraphModule, _: Sequence[Any]) -> torch.jit.ScriptModule:
    """The graph as a frozen TorchScript module. Overloads are stripped from the graph itself."""
    strip_overloads(fx_g)
    return _frozen_script(fx_g)


@make_boxed_compiler
def ts_compile(fx_g: torch.fx.GraphModule, inps: Sequence[Any]) -> torch.jit.ScriptModule:
    """The graph as a TorchScript module, frozen and optimised, and run once if `inps` are real. The graph itself is changed."""
    with without_autocast():  # dtypes are in the graph already
        strip_overloads(fx_g)
        for node in fx_g.graph.nodes:
            if node.target is _aten._to_copy and len(node.args) == 1 and node.kwargs.keys() == {"dtype"}:
                node.target = _aten.to
            # TorchScript takes names of devices, and knows no symbolic layouts
            node.kwargs = {k: v.type if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
        fx_g.graph.lint()
        fx_g.recompile()
        optimised = torch.jit.optimize_for_inference(_frozen_script(fx_g))
        if not any(isinstance(value, FakeTensor) for value in inps):
            optimised(*inps)
    return optimised


def memory_efficient_fusion(fn: Callable[..., Any] | torch.nn.Module, **kwargs: Any) -> Any:
    """`fn`, a function or a module, compiled so that its backward recomputes what is cheaper than saving it.

    aot_function or aot_module with TorchScript as the compiler, the minimum cut as the partitioner, and default_decompositions;
    `kwargs` replace any of these, or add to them.
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
    """Call packets (aten.add) in place of overloads (aten.add.Tensor), in the module itself.

    Counterpart: torch/_functorch/compile_utils.py strip_overloads
    """
    for node in gm.graph.nodes:
        if isinstance(node.target, OpOverload):
            node.target = node.target.overloadpacket
    gm.recompile()
