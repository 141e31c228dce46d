"""Launches in a trace without capture (`make_fx`, `compile_aot`): while a trace runs, `kernel.run` calls the launch's operator.

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py TraceableTritonKernelWrapper, TracingTritonHOPifier
Differs: kernels need no `torch.library.wrap_triton`. Without it a trace of torch launches them and records nothing.

While any trace runs in the process, `run` of Triton's classes of kernels is replaced. In a thread that traces the replacement
calls the operator, which the trace records; in other threads, and while an operator runs, it is the original.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from refimpl._torch import captured_launch, without_wrapped_kernels
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.triton_kernels.kernel_objects import (
    bound_arguments,
    constexpr_parameters,
    defaults_of,
    grids_of,
    is_autotuner,
    is_kernel,
    launch_classes,
    layers_of,
    parameter_names,
)
from refimpl.trace.triton_kernels.operators import (
    RUNS_KERNEL,
    Launch,
    is_constant,
    is_grid,
    launch_operator,
    unsupported_argument,
)

_IS_TRACING: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_records_launches", default=False)
_NUMBERS = {int: int, float: float, bool: bool, torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class _InstallationState:
    """Replaces `run` of Triton's classes while at least one trace runs in any thread. Mutable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._originals: list[tuple[type, Any]] = []

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            replaced = [class_ for class_, _ in self._originals]
            for class_ in launch_classes():  # the program may have imported Triton since another trace began
                if class_ not in replaced:
                    original = class_.__dict__["run"]
                    self._originals.append((class_, original))
                    class_.run = _replacement(original)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                for class_, original in self._originals:
                    class_.run = original
                self._originals.clear()


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup or RUNS_KERNEL.get() or not _IS_TRACING.get() or not is_kernel(kernel):
            return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        return launch(kernel, grid, args, kwargs)

    return run


_INSTALLATION = _InstallationState()


@contextlib.contextmanager
def launches_recorded() -> Iterator[None]:
    """A block, for the thread of a trace or capture, in which a launch calls its operator."""
    _INSTALLATION.enter()
    token = _IS_TRACING.set(True)
    try:
        with without_wrapped_kernels():
            yield
    finally:
        _IS_TRACING.reset(token)
        _INSTALLATION.leave()


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
