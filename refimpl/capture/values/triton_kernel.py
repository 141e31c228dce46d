"""Triton kernels of the program: `kernel[grid](x, out, n, BLOCK=64)` becomes a node of the launch's operator.

Counterpart: torch/_dynamo/variables/functions.py TritonKernelVariable
Differs: an interpreted kernel (TRITON_INTERPRET=1) is captured as a compiled one is, and no GPU is needed.

The grid, if it is a function, and the functions of `@triton.heuristics` are inlined. Guards hold the kernel, the configurations,
constexpr arguments, and the functions that the kernel calls, since they decide what it writes. What else its code reads from
globals is read when the graph runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import PLAIN_TYPES, is_wrapped_kernel
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, CellSource, GlobalSource, ItemSource, KeptSource, Source
from refimpl.capture.values.constant import ConstantValue, NumberValue
from refimpl.capture.values.hashing import CONSTANT_TYPES
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.polyfills import note_polyfills
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import Value
from refimpl.trace.triton_kernels import (
    Launch,
    Read,
    bound_arguments,
    code_read_by,
    constexpr_parameters,
    defaults_of,
    flat_grids,
    grids_of,
    is_autotuner,
    is_constant,
    layers_of,
    operator_of,
)

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


def _launched(record: Any, layers: Any, grid: Any, arguments: Any) -> Any:
    """Computes the grid of a launch. Capture interprets this code, and so the program's own function of the grid."""
    return record(grids_of(layers, grid, arguments))


note_polyfills([_launched, grids_of])


class KernelValue(ObjectValue):
    """A kernel, known by identity. An object that `torch.library.wrap_triton` returned stands for the kernel within it."""

    __slots__ = ()

    def __init__(self, object_: Any, source: Source | None = None) -> None:
        is_wrapped = is_wrapped_kernel(object_)
        if is_wrapped and source is not None:
            source = AttributeSource(source, "kernel")
        super().__init__(object_.kernel if is_wrapped else object_, source)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        return LaunchValue(self, key)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return LaunchValue(self, None) if name == "run" else super().load_attr(domain, name)


class LaunchValue(Value):
    """`kernel[grid]`, or `kernel.run`, which takes the grid as a keyword."""

    __slots__ = ("grid", "kernel")

    def __init__(self, kernel: KernelValue, grid: Value | None) -> None:
        super().__init__()
        self.kernel = kernel
        self.grid = grid

    @property
    def kind(self) -> str:
        return "launch of a Triton kernel"

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        grid, kernel = self.grid, self.kernel.object
        if grid is None:
            named = dict(kwargs)
            warmup = domain.state.realize(named.pop("warmup", ConstantValue(False)))
            grid, kwargs = named.pop("grid", None), named
            if grid is None or not isinstance(warmup, ConstantValue) or warmup.value:
                raise GraphBreak("unsupported_operation", what="warmup", kind="Triton kernel")
        try:
            arguments = bound_arguments(kernel, args, kwargs)
        except TypeError as error:
            raise GraphBreak("op_raises_on_fake", what=self.kind, error="TypeError") from error
        arguments = {name: domain.state.realize(value) for name, value in arguments.items()}
        for name in constexpr_parameters(kernel) & arguments.keys():
            if isinstance(arguments[name], NumberValue):
                arguments[name] = domain.state.specialised(arguments[name])
        _guard_code(domain, self.kernel)
        defaults = {name: _default(value) for name, value in defaults_of(kernel).items()}
        record = _RecordValue(self.kernel, arguments, len(args))
        given = [record, _layers(self.kernel), grid, domain.named({**defaults, **arguments})]
        return domain.enter_polyfill(_launched, given)

    def rebuilt(self, emitter: Any) -> str:
        kernel = emitter.expression(self.kernel)
        return f"{kernel}.run" if self.grid is None else f"{kernel}[{emitter.expression(self.grid)}]"


class _RecordValue(Value):
    """A function of the grids that adds the node of a launch."""

    __slots__ = ("arguments", "kernel", "positional")

    def __init__(self, kernel: KernelValue, arguments: dict[str, Any], positional: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.arguments = arguments
        self.positional = positional

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        grids = [_sizes_of(domain, grid) for grid in domain.elements(args[0])]
        launch, operands = Launch.of(self.kernel.object, self.arguments, self.positional, _Reading(domain))
        operator, is_written = operator_of(launch)
        sizes: list[Value] = [ConstantValue(size) if type(size) is int else size for size in flat_grids(grids)]
        domain.state.operator(operator, operands, {"grid": SequenceValue(list, sizes)})
        domain.state.note_writes([x for x, may_write in zip(operands, is_written, strict=True) if may_write])
        return ConstantValue(None)


class _Reading:
    """How a launch reads arguments that are values."""

    def __init__(self, domain: SymbolicDomain) -> None:
        self._domain = domain

    def items_of(self, value: Any) -> Sequence[Any] | None:
        is_tuple = isinstance(value, SequenceValue) and value.class_ is tuple
        return [self._domain.state.realize(item) for item in value.items] if is_tuple else None

    def kind_of(self, value: Any) -> type | None:
        if isinstance(value, TensorValue):
            return torch.Tensor
        if isinstance(value, NumberValue):
            return PLAIN_TYPES[type(value.number)]
        kind = type(value.value) if isinstance(value, ConstantValue) else None
        return kind if kind in (bool, int, float) else None

    def constant_of(self, name: str, value: Any) -> Any:
        if isinstance(value, SequenceValue) and value.class_ is tuple:
            return tuple(self.constant_of(name, self._domain.state.realize(item)) for item in value.items)
        if isinstance(value, ObjectValue) and is_constant(value.object):
            if value.source is not None:
                self._domain.state.guard(GuardKind.ID, value.source, value.object)
            return value.object
        if isinstance(value, ConstantValue) and is_constant(value.value):
            return value.value
        raise GraphBreak("not_a_graph_argument", what=f"{value.kind}, the argument {name} of a Triton kernel,")


def _default(value: Any) -> Value:
    return ConstantValue(value) if type(value) in CONSTANT_TYPES else ObjectValue(value)


def _layers(kernel: KernelValue) -> Value:
    """Whether each object around the JITFunction is an autotuner, and its value, the outermost first."""
    layers: list[Value] = []
    source = kernel.source
    for layer in layers_of(kernel.object)[:-1]:
        layers.append(SequenceValue(tuple, [ConstantValue(is_autotuner(layer)), ObjectValue(layer, source)]))
        source = None if source is None else AttributeSource(source, "fn")
    return SequenceValue(tuple, layers)


def _guard_code(domain: SymbolicDomain, kernel: KernelValue) -> None:
    """Guards on what decides which arguments the kernel writes."""
    source = kernel.source
    for layer in layers_of(kernel.object):
        if source is None:
            break
        for name in ("fn", "pre_run_hooks"):
            found = getattr(layer, name, None)
            if name == "fn":
                domain.state.guard(GuardKind.ID, AttributeSource(source, name), found)
            elif found is not None:
                domain.state.guard(GuardKind.LENGTH, AttributeSource(source, name), len(found))
        source = AttributeSource(source, "fn")
    for read in code_read_by(kernel.object):
        domain.state.guard(GuardKind.ID, _way_to(read), read.found)


def _way_to(read: Read) -> Source:
    function: Any = read.function
    name = read.name
    if name in function.__code__.co_freevars:
        closure = AttributeSource(KeptSource(function, function.__qualname__), "__closure__")
        return CellSource(ItemSource(closure, function.__code__.co_freevars.index(name)))
    return GlobalSource(KeptSource(function.__globals__, "G"), name)


def _sizes_of(domain: SymbolicDomain, grid: Any) -> tuple[Any, ...]:
    """The sizes of a grid: ints, and values of symbolic numbers."""
    grid = domain.state.realize(grid)
    items = domain.elements(grid) if isinstance(grid, SequenceValue) and grid.class_ is tuple else []
    sizes = [domain.state.realize(item) for item in items]
    if not 1 <= len(sizes) <= 3:
        raise GraphBreak(
            "unsupported_operation", what="a grid, which has to be a tuple of up to 3 sizes,", kind=grid.kind
        )
    for size in sizes:
        is_number = isinstance(size, NumberValue) and isinstance(size.number, torch.SymInt)
        if not is_number and not (isinstance(size, ConstantValue) and type(size.value) is int):
            raise GraphBreak("unsupported_operation", what="the size of a grid", kind=size.kind)
    return tuple(sizes)
