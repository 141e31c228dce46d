"""make_fx: run a function on example inputs and return the graph of the aten ops it called.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
Differs: symbolic sizes and the `gm.shape_env` that owns them are refimpl's (refimpl.symbolic).

Limits of tracing, upstream's as well: Python runs once, at trace time. Its side effects happen then, its branches are fixed, and
values read from anything but tensors are constants. Grad mode and autocast show in the recorded ops only, unless `pre_dispatch`
is set.
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
    """Returns a function of positional example inputs that traces `f` again at each call.

    `decomposition_table` maps aten overloads to Python functions that are traced in their place, recursively.
    `tracing_mode`: "real" runs `f` on the inputs themselves, side effects included; "fake" runs it on fake tensors of the same
    sizes; "symbolic" uses a symbol for every size except 0 and 1 (equal sizes share one) and for every int input. Branches of
    `f` on symbols add guards to `gm.shape_env`: the graph is valid for all sizes that satisfy them.
    The GraphModule is named after `f`, has the same result, and holds captured tensors as attributes (the same objects).

    `pre_dispatch` records above autograd and autocast: composite ops stay whole, and changes of grad mode and autocast are nodes,
    so that the graph can be trained. `record_module_stack`: if `f` has a module as `_orig_mod`, every node has an
    `nn_module_stack`, a stack trace, and the torch function it was called for (`torch_fn`, unless
    `_disable_torch_fn_metadata_mode`). `record_stack_traces`: every node has a stack trace, with or without a module.
    `proxy_module_inputs`: modules among the inputs are fx proxies, and calls of them are nodes.

    Raises BadParameter for an unknown mode, ForeignFakeInput for fake inputs of two modes, and UnsupportedByRefimpl for what
    refimpl cannot trace. While tracing, raises DataDependentRead if `f` reads a value that depends on its inputs (the value is a
    constant with `_error_on_data_dependent_ops=False`), and UntraceableOutput if a graph cannot return `f`'s result.
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
