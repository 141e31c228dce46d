"""make_fx: run a function on example inputs and give its aten graph.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
Differs: symbolic sizes are refimpl's own (refimpl.symbolic), and `gm.shape_env` is one of them.

Limits that come with tracing (of upstream too): Python runs once, at trace time, so that its effects, its branches and the
values it reads from anything but tensors are those of that run; grad mode and autocast regions leave no trace but the ops,
unless `pre_dispatch` is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from refimpl.trace.options import DecompositionTable, TraceOptions
from refimpl.trace.tracing import Trace


def make_fx(
    f: Callable[..., Any],
    decomposition_table: DecompositionTable | None = None,
    tracing_mode: str = "real",
    _allow_non_fake_inputs: bool = False,
    *,
    pre_dispatch: bool = False,
    record_module_stack: bool = False,
    _allow_fake_constant: bool = False,
    _error_on_data_dependent_ops: bool = True,
    record_stack_traces: bool = False,
    proxy_module_inputs: bool = False,
    _disable_torch_fn_metadata_mode: bool = False,
) -> Callable[..., torch.fx.GraphModule]:
    """Returns a function of example inputs, positional only, that traces `f` anew at each call.

    `decomposition_table` maps aten overloads to Python functions that are traced in their place, recursively.
    `tracing_mode`: "real" runs `f` on the inputs themselves, with all its effects; "fake" on tensors without data, of the same
    sizes; "symbolic" with a symbol for every size but 0 and 1 (equal sizes share one) and for every int input. What the
    program asks of the symbols are guards in `gm.shape_env`: the graph is right for all sizes that satisfy them.
    The GraphModule is named after `f`, returns what `f` returns, and holds captured tensors as attributes (the same objects).

    `pre_dispatch` records above autograd and autocast: composite ops stay whole, and what switches gradients and casts is in the
    graph, so that it can be trained. `record_module_stack`: if `f` has a module as `_orig_mod`, every node says in its meta which
    modules' calls it was made in (`nn_module_stack`), and for which function of torch (`torch_fn`, unless
    `_disable_torch_fn_metadata_mode`), and has a stack trace. `record_stack_traces`: it has one in any case.
    `proxy_module_inputs`: modules among the inputs are fx proxies, and calls through them nodes.

    Raises BadParameter for an unknown mode, ForeignFakeInput for fake inputs of two modes, UnsupportedByRefimpl for what this
    version does not do, and while tracing DataDependentRead if `f` reads a value that depends on its inputs (unless
    `_error_on_data_dependent_ops` is False, which burns the value in), UntraceableOutput if a graph cannot hold what `f` returns.
    """
    options = TraceOptions(
        decompositions=decomposition_table or {},
        tracing_mode=tracing_mode,
        allow_non_fake_inputs=_allow_non_fake_inputs,
        pre_dispatch=pre_dispatch,
        record_module_stack=record_module_stack,
        allow_fake_constant=_allow_fake_constant,
        error_on_data_dependent_ops=_error_on_data_dependent_ops,
        record_stack_traces=record_stack_traces,
        proxy_module_inputs=proxy_module_inputs,
        record_torch_functions=not _disable_torch_fn_metadata_mode,
    )

    @functools.wraps(f)
    def trace(*args: Any) -> torch.fx.GraphModule:
        return Trace(options).run(f, args)

    return trace
