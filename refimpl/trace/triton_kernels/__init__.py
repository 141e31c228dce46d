"""Triton kernels that a program launches: `kernel[grid](x, out, n, BLOCK=64)`. A launch is a call of an operator.

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py triton_kernel_wrapper_mutation, triton_kernel_wrapper_functional
Differs: upstream has two higher-order operators, which every pass must know. Here each kind of launch is an operator of
`torch.library`, whose schema says which tensors the kernel writes. Every pass and backend knows what to do with such an operator.

| module | what it holds |
|---|---|
| kernel_objects | what a kernel is: JITFunction, InterpretedFunction, and Autotuner and Heuristics around one; its grids |
| written_arguments | which tensors a kernel writes, from its source |
| operators | the operator of a launch |
| launches | the operator's call that a launch becomes in a trace without capture |

When the graph runs, the operator launches the program's own kernel object, as eager mode does: with its autotuning, its hooks
and its heuristics, and with the globals that its code reads then. Only the grid is computed in the trace, since it may depend on
sizes that are symbols.

As in eager mode, autograd does not see what a kernel writes: a written tensor keeps its history, and a tensor that was made for
the result has none.
"""

from __future__ import annotations

from refimpl.trace.triton_kernels.kernel_objects import (
    bound_arguments,
    constexpr_parameters,
    defaults_of,
    grids_of,
    is_autotuner,
    is_kernel,
    layers_of,
)
from refimpl.trace.triton_kernels.launches import relaunch
from refimpl.trace.triton_kernels.operators import Launch, also_writing, flat_grids, is_constant, is_launch, operator_of
from refimpl.trace.triton_kernels.written_arguments import Read, code_read_by, written_parameters

__all__ = [
    "Launch",
    "Read",
    "also_writing",
    "bound_arguments",
    "code_read_by",
    "constexpr_parameters",
    "defaults_of",
    "flat_grids",
    "grids_of",
    "is_autotuner",
    "is_constant",
    "is_kernel",
    "is_launch",
    "layers_of",
    "operator_of",
    "relaunch",
    "written_parameters",
]
