"""The operator's call that a launch becomes in a trace without capture (`make_fx`, `compile_aot`).

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py TraceableTritonKernelWrapper, TracingTritonHOPifier
Differs: kernels need no `torch.library.wrap_triton`. Without it a trace of torch launches them and records nothing.

refimpl.trace.higher_order.direct_calls replaces `kernel.run` while a trace runs.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from refimpl._torch import PLAIN_TYPES, captured_launch
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.triton_kernels.kernel_objects import (
    bound_arguments,
    constexpr_parameters,
    defaults_of,
    grids_of,
    is_autotuner,
    layers_of,
    parameter_names,
)
from refimpl.trace.triton_kernels.operators import (
    Launch,
    is_constant,
    is_grid,
    launch_operator,
    unsupported_argument,
)

_NUMBERS = PLAIN_TYPES | {kind: kind for kind in PLAIN_TYPES.values()}


def launch(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call the operator of `kernel[grid](*args, **kwargs)`."""
    arguments = bound_arguments(kernel, args, kwargs)
    for name in constexpr_parameters(kernel) & arguments.keys():
        arguments[name] = _as_number(arguments[name])
    layers = [(is_autotuner(layer), layer) for layer in layers_of(kernel)[:-1]]
    grids = grids_of(layers, grid, {**defaults_of(kernel), **arguments})
    for found in grids:
        if not is_grid(found):
            raise UnsupportedByRefimpl(
                seen=f"the grid {found!r}, a {type(found).__name__}",
                supported="tuples of one to three numbers, and functions that return one",
                do="return a tuple from the function of the grid",
            )
    taken, operands = Launch.of(kernel, arguments, len(args), _Reading())
    launch_operator(taken, operands, grids)


def relaunch(
    *, kernel_idx: int, constant_args_idx: int, grid: Any, tma_descriptor_metadata: Any, kwargs: dict[str, Any]
) -> None:
    """Call the operator of a launch that torch has captured, from the arguments of `triton_kernel_wrapper_mutation`."""
    if tma_descriptor_metadata:
        raise unsupported_argument(*next(iter(tma_descriptor_metadata.items())))
    kernel, constants = captured_launch(kernel_idx, constant_args_idx)
    arguments = bound_arguments(kernel, (), {**kwargs, **constants})
    pairs = zip(arguments, parameter_names(kernel), strict=False)
    positional = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    taken, operands = Launch.of(kernel, arguments, positional, _Reading())
    launch_operator(taken, operands, grid)


class _Reading:
    """How a launch reads arguments that are tensors, numbers and other objects themselves."""

    def items_of(self, value: Any) -> tuple[Any, ...] | None:
        return value if type(value) is tuple else None

    def kind_of(self, value: Any) -> type | None:
        return torch.Tensor if isinstance(value, torch.Tensor) else _NUMBERS.get(type(value))

    def constant_of(self, name: str, value: Any) -> Any:
        if not is_constant(value):
            raise unsupported_argument(name, value)
        return value


def _as_number(value: Any) -> Any:
    """A constexpr argument: a symbolic number is held to its value."""
    kind = _NUMBERS.get(type(value))
    return value if kind is None else kind(value)
