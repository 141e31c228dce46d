"""The operator of a launch: its schema says which tensors the kernel writes, its kernel launches the Triton kernel.

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py KernelSideTable, triton_kernel_wrapper_mutation_dense
Differs: upstream's nodes name the kernel and the constants by numbers of a table; here each operator has its own.

    refimpl_triton::add_kernel_0(Tensor x_ptr, Tensor y_ptr, Tensor(a2!) out_ptr, SymInt n, *, SymInt[] grid) -> ()

Tensors and numbers are arguments of the operator. All else belongs to the operator: constexpr arguments, None, options. An
operator lives as long as the process, and so does its kernel.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from refimpl._torch import OpOverload
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.triton_kernels.kernel_objects import (
    constexpr_parameters,
    is_autotuner,
    is_kernel,
    kernel_name,
    layers_of,
)
from refimpl.trace.triton_kernels.written_arguments import written_parameters

_NAMESPACE = "refimpl_triton"
_SIZES_OF_A_GRID = 3
_TYPES = {torch.Tensor: "Tensor", int: "SymInt", float: "Scalar", bool: "bool"}  # a Scalar may be a symbolic number
_PLAIN_CONSTANTS = (int, float, bool, str, bytes, type(None), torch.dtype)
# Whether a launch in this thread is one of the graph's own, and no trace may see it.
RUNS_KERNEL: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_runs_kernel", default=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Stands in the constants of an operator for one of its arguments."""

    index: int


class Reading(Protocol):
    """How a launch reads its arguments, which are values of capture there."""

    def items_of(self, value: Any) -> Sequence[Any] | None:
        """The items of a tuple; None for other values."""
        ...

    def kind_of(self, value: Any) -> type | None:
        """The class of an operand, a key of _TYPES; None for a value that is no operand."""
        ...

    def constant_of(self, name: str, value: Any) -> Any:
        """A value that is no operand, as a constant. Raises for one that an operator cannot hold."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch taken apart: `operands` are tensors and numbers, `template` the arguments by name with a Place for each of them.

    positional: how many of the arguments were given by position. kinds: the class of each operand, a key of _TYPES.
    names: for each operand the parameters that it is given to; a tensor that is given twice is one operand.
    """

    kernel: Any
    positional: int
    template: dict[str, Any]
    names: tuple[tuple[str, ...], ...]
    kinds: tuple[type, ...]

    @staticmethod
    def of(kernel: Any, arguments: Mapping[str, Any], positional: int, reading: Reading) -> tuple[Launch, list[Any]]:
        """The launch and its operands."""
        constexprs = constexpr_parameters(kernel)
        operands: list[Any] = []
        names: list[tuple[str, ...]] = []
        kinds: list[type] = []

        def taken(name: str, value: Any) -> Any:
            items = None if name in constexprs else reading.items_of(value)
            if items is not None:
                return tuple(taken(name, item) for item in items)
            kind = None if name in constexprs else reading.kind_of(value)
            if kind is None:
                return reading.constant_of(name, value)
            at = next(
                (at for at, known in enumerate(operands) if kind is torch.Tensor and known is value), len(operands)
            )
            if at < len(operands):  # a copy of it, if the operator is called on copies, has to be one copy
                names[at] = (*names[at], name)
            else:
                operands.append(value)
                names.append((name,))
                kinds.append(kind)
            return Place(at)

        template = {name: taken(name, value) for name, value in arguments.items()}
        return Launch(
            kernel=kernel, positional=positional, template=template, names=tuple(names), kinds=tuple(kinds)
        ), operands


@dataclass(frozen=True, slots=True)
class _Known:
    launch: Launch
    written: tuple[bool, ...]  # for each operand
    operator: OpOverload


_LIBRARY: list[torch.library.Library] = []
_KNOWN: dict[int, list[_Known]] = {}  # by the id of the kernel, which the operator keeps alive
_BY_OPERATOR: dict[Any, _Known] = {}
_NUMBERS = itertools.count()
_LOCK = threading.Lock()


def operator_of(launch: Launch) -> tuple[OpOverload, tuple[bool, ...]]:
    """The operator of such launches, and for each operand whether the kernel may write it."""
    of_tensors = [names for names, kind in zip(launch.names, launch.kinds, strict=True) if kind is torch.Tensor]
    tensors = frozenset(itertools.chain(*of_tensors))
    constants = {name: value for name, value in launch.template.items() if name not in itertools.chain(*launch.names)}
    found = written_parameters(launch.kernel, tensors, constants)
    written = tuple(not found.isdisjoint(names) and names in of_tensors for names in launch.names)
    return _operator(launch, written), written


def is_launch(operator: Any) -> bool:
    """Whether it is the operator of a launch, which only this process has."""
    return isinstance(operator, OpOverload) and operator.namespace == _NAMESPACE


def also_writing(operator: Any, names: Collection[str]) -> OpOverload | None:
    """The operator of the same launch that counts these of its arguments as written as well; None for other operators.

    For a call on copies: an argument that shares memory with a written one has to be copied with it.
    """
    known = _BY_OPERATOR.get(operator)
    if known is None:
        return None
    arguments = zip(known.written, operator._schema.arguments, strict=False)
    return _operator(known.launch, tuple(is_written or argument.name in names for is_written, argument in arguments))


def _operator(launch: Launch, written: tuple[bool, ...]) -> OpOverload:
    with _LOCK:
        known = _KNOWN.setdefault(id(launch.kernel), [])
        operator = next((k.operator for k in known if k.written == written and _is_same(k.launch, launch)), None)
        if operator is None:
            operator = _define(launch, written)
            known.append(_Known(launch, written, operator))
            _BY_OPERATOR[operator] = known[-1]
        return operator


def launch_operator(launch: Launch, operands: Sequence[Any], grids: Sequence[Sequence[Any]]) -> None:
    """Call the operator of a launch. grids: one for each configuration of the autotuner."""
    operator, _ = operator_of(launch)
    operator(*operands, grid=flat_grids(grids))


def flat_grids(grids: Sequence[Sequence[Any]]) -> list[Any]:
    """The grids as the operator takes them: three numbers for each."""
    return [size for grid in grids for size in (*grid, *[1] * (_SIZES_OF_A_GRID - len(grid)))]


def is_grid(grid: Any) -> bool:
    """Whether it is a grid that both Triton's launcher and its interpreter take: a tuple of one to three numbers."""
    return type(grid) is tuple and 1 <= len(grid) <= _SIZES_OF_A_GRID


def is_constant(value: Any) -> bool:
    """Whether an operator may hold the value: a plain constant, a function or a type of Triton's, or a tuple of such."""
    if type(value) is tuple:
        return all(map(is_constant, value))
    return type(value) in _PLAIN_CONSTANTS or is_kernel(value) or _is_of_language(value)


def _is_of_language(value: Any) -> bool:
    return type(value).__module__ == "triton.language.core" or (
        callable(value) and str(getattr(value, "__module__", "")).startswith("triton.language")
    )


def unsupported_argument(name: str, value: Any) -> UnsupportedByRefimpl:
    """The error for an argument that is no operand and no constant."""
    return UnsupportedByRefimpl(
        seen=f"the argument {name}={type(value).__name__} of a Triton kernel",
        supported="tensors, numbers, strings, None, dtypes, functions and types of Triton, and tuples of these",
        do="make descriptors and other objects within the kernel, from tensors and numbers",
    )


def _define(launch: Launch, written: Sequence[bool]) -> OpOverload:
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library(_NAMESPACE, "FRAGMENT"))
    library = _LIBRARY[0]
    stem = re.sub(r"\W", "_", kernel_name(launch.kernel)).strip("_") or "kernel"
    name = f"{stem}_{next(_NUMBERS)}"
    parts = [_parameter(launch, index, is_written) for index, is_written in enumerate(written)]
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(f"{name}({', '.join([*parts, '*', 'SymInt[] grid'])}) -> ()", tags=tags)
    library.impl(name, _Run(launch), "CompositeExplicitAutograd")
    library._register_fake(name, _run_on_fakes)
    for key in ("Autograd", "ADInplaceOrView"):  # a launch has no history, and is no write that autograd counts
        library.impl(name, torch.library.fallthrough_kernel, key)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


def _parameter(launch: Launch, index: int, is_written: bool) -> str:
    name = launch.names[index][0]
    of_it = [place for place, other in enumerate(launch.names) if other[0] == name]
    called = name if len(of_it) == 1 else f"{name}_{of_it.index(index)}"
    called = f"{called}_" if called in ("grid", "self", "from") else called
    return f"{_TYPES[launch.kinds[index]]}{f'(a{index}!)' if is_written else ''} {called}"


def _run_on_fakes(*operands: Any, grid: Sequence[Any]) -> None:
    return None


class _Run:
    """The operator's kernel: launches the program's kernel object."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._configurations = next((layer.configs for layer in layers_of(launch.kernel) if is_autotuner(layer)), None)

    def __call__(self, *operands: Any, grid: Sequence[int]) -> None:
        launch = self._launch
        arguments = {name: _filled(value, operands) for name, value in launch.template.items()}
        args = [*arguments.values()][: launch.positional]
        kwargs = dict([*arguments.items()][launch.positional :])
        grids = _in_threes(grid)
        with _running():
            launch.kernel[grids[0] if len(grids) == 1 else self._choice_of(grids)](*args, **kwargs)

    def _choice_of(self, grids: Sequence[tuple[int, ...]]) -> Any:
        """The grid of the configuration that is launched, as a function."""
        configurations = self._configurations or []

        def chosen(meta: Mapping[str, Any]) -> tuple[int, ...]:
            for configuration, grid in zip(configurations, grids, strict=True):
                if all(meta[name] == value for name, value in configuration.kwargs.items()):
                    return grid
            raise AssertionError("the autotuner has launched a configuration that it did not have when it was traced")

        return chosen


def _in_threes(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(sizes[at : at + _SIZES_OF_A_GRID]) for at in range(0, len(sizes), _SIZES_OF_A_GRID)]


@contextlib.contextmanager
def _running() -> Iterator[None]:
    token = RUNS_KERNEL.set(True)
    try:
        yield
    finally:
        RUNS_KERNEL.reset(token)


def _filled(value: Any, operands: Sequence[Any]) -> Any:
    if isinstance(value, Place):
        return operands[value.index]
    return tuple(_filled(item, operands) for item in value) if type(value) is tuple else value


def _is_same(a: Launch, b: Launch) -> bool:
    if a.kernel is not b.kernel or (a.positional, a.names, a.kinds) != (b.positional, b.names, b.kinds):
        return False
    return [*a.template] == [*b.template] and all(map(_is_same_constant, a.template.values(), b.template.values()))


def _is_same_constant(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_is_same_constant, a, b))
    if type(a) is float:  # two zeros, and NaN
        return a.hex() == b.hex()
    return a is b or (isinstance(a, (*_PLAIN_CONSTANTS, Place)) and a == b)
