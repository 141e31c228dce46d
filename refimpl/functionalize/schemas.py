"""The effects of an op, by its schema and tags: what it writes to, which results are views, whether it is random or has effects.

Counterpart: the alias annotations that torchgen turns into the kernels of FunctionalTensorWrapper; torch/fx/node.py
Node.is_impure; the tables of torch/_functorch/compile_utils.py rand_ops
Differs: schemas are read at run time, once per overload, so that ops of `torch.library` are treated like aten's. The schema
of `_unsafe_view` and its like declares a fresh result, and the kernel returns a view. Eager programs see the view, so it counts.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from refimpl._torch import SYMBOLIC_FUNCTIONS, HigherOrderOperator, OpOverload, registered_effect

# Ops whose schemas declare a view, but whose kernels return a new tensor.
_FRESH_RESULTS = frozenset({torch.ops.aten.slice_inverse.default})


def _view_op(name: str, like: OpOverload) -> OpOverload | None:
    """The overload of this aten name that takes the arguments of `like` and returns a view; None if none does."""
    types = [str(argument.type) for argument in like._schema.arguments]
    packet = getattr(torch.ops.aten, name, None)
    for overload in () if packet is None else packet.overloads():
        schema = getattr(packet, overload)._schema
        is_view = not schema.is_mutable and any(returned.alias_info is not None for returned in schema.returns)
        if is_view and [str(argument.type) for argument in schema.arguments] == types:
            return getattr(packet, overload)
    return None


def _metadata_ops() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name in dir(torch.Tensor):
        packet = getattr(torch.ops.aten, name, None) if name.endswith("_") and not name.startswith("_") else None
        for overload in () if packet is None else packet.overloads():
            op = getattr(packet, overload)
            # swapaxes_ and swapdims_ transpose.
            view = "transpose" if name.startswith("swap") else name.removesuffix("_")
            if torch.Tag.inplace_view in op.tags and (counterpart := _view_op(view, op)) is not None:
                found[op] = counterpart
    return found


# In-place view ops, which only change the tensor's sizes and strides: `x.t_()` makes x the view `x.t()` of what x was.
METADATA_OPS: dict[Any, Any] = _metadata_ops()
SET_OPS = frozenset(getattr(torch.ops.aten.set_, name) for name in torch.ops.aten.set_.overloads())
RESIZE_OPS = frozenset({torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default})
_NO_WRITES = frozenset({torch.ops.aten.record_stream.default, torch.ops.aten.retain_grad.default})


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a schema: its position, its name, and whether it can only be given by name."""

    position: int
    name: str
    is_kwarg_only: bool

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value that a call passes for this argument; None if the call leaves it out."""
        if self.name in kwargs:
            return kwargs[self.name]
        return args[self.position] if not self.is_kwarg_only and self.position < len(args) else None


@dataclass(frozen=True, slots=True)
class ResultAlias:
    """A result that is `parameter` itself ("same"), or a view of it."""

    kind: Literal["same", "view"]
    parameter: Parameter
    is_list: bool


@dataclass(frozen=True, slots=True)
class OpEffects:
    """Effects of one overload. `results` has one entry per return; None is a result in fresh memory."""

    written: tuple[Parameter, ...]
    results: tuple[ResultAlias | None, ...]
    is_out_variant: bool


_NOTHING = OpEffects((), (), False)


@functools.cache
def effects_of(target: Any) -> OpEffects:
    """The effects of a node's target. A target that is no overload, such as `operator.getitem`, has none."""
    if not isinstance(target, OpOverload):
        return _NOTHING
    schema = target._schema
    written: list[Parameter] = []
    by_alias: dict[str, Parameter] = {}
    first_tensor: Parameter | None = None
    scattered: Parameter | None = None
    for position, argument in enumerate(schema.arguments):
        parameter = Parameter(position, argument.name, argument.kwarg_only)
        if first_tensor is None and str(argument.type) == "Tensor":
            first_tensor = parameter
        info = argument.alias_info
        if info is None:
            continue
        if info.is_write and target not in METADATA_OPS and target not in _NO_WRITES:
            written.append(parameter)
        for name in info.before_set:
            by_alias[name] = parameter
        if scattered is None and "*" in info.after_set:
            scattered = parameter
    results: list[ResultAlias | None] = []
    for returned in schema.returns:
        info = returned.alias_info
        is_list = str(returned.type).startswith("List")
        parameter = None if info is None else next((by_alias[n] for n in info.before_set if n in by_alias), None)
        if parameter is None and info is not None and is_list:  # Tensor(a -> *) self ... -> Tensor(a)[]
            parameter = scattered
        if first_tensor is not None and _is_unsafe_view(target):
            results.append(ResultAlias("view", first_tensor, is_list))
        elif parameter is None or info is None or target in _FRESH_RESULTS:
            results.append(None)
        elif target in METADATA_OPS:
            results.append(ResultAlias("view", parameter, is_list))
        else:
            results.append(ResultAlias("same" if info.is_write else "view", parameter, is_list))
    if target in SET_OPS or target in RESIZE_OPS:
        written = []
    is_out = any(argument.is_out for argument in schema.arguments)
    return OpEffects(tuple(written), tuple(results), is_out)


def _is_unsafe_view(target: OpOverload) -> bool:
    """Whether the kernel returns a view although the schema declares a new tensor, such as `_unsafe_view` and `unsafe_split`."""
    name = target._schema.name.removeprefix("aten::").removeprefix("_")
    return name.startswith("unsafe_") and _view_op(name.removeprefix("unsafe_"), target) is not None


def is_mutating(node: torch.fx.Node) -> bool:
    """Whether the call writes to an argument, or changes its storage, sizes or strides."""
    target: Any = node.target
    if node.op != "call_function":
        return False
    return bool(effects_of(target).written) or target in METADATA_OPS or target in SET_OPS or target in RESIZE_OPS


def nodes_in(value: Any) -> list[torch.fx.Node]:
    """All nodes in an argument, which may be a node, or a list of nodes and None."""
    if isinstance(value, torch.fx.Node):
        return [value]
    if isinstance(value, (list, tuple)):
        return [node for item in value for node in nodes_in(item)]
    return []


# For passes over functional graphs: randomness, effects, and the argument that the result is a view of.


_RANDOM = torch.Tag.nondeterministic_seeded
# Random ops that take seed and offset as arguments: two runs return the same numbers.
_FUNCTIONAL_RANDOM = frozenset({"rngprims::philox_rand"})
# Ops that return a view, although their schema has no alias annotation.
_UNANNOTATED_VIEWS = frozenset({"aten::_unsafe_view"})
# Libraries whose ops have effects other than on tensors, such as profiler ranges and collectives, or wait for these.
_EFFECTFUL_LIBRARIES = frozenset({"profiler", "_c10d_functional", "c10d_functional", "c10d", "_dist"})
_PURE_PYTHON_MODULES = frozenset({"_operator", "operator", "math"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """Facts about the target of a call node. `viewed` is the position and name of the argument that the result is a view of."""

    name: str  # "aten::add", without the overload; for a Python function, its name
    is_random: bool
    is_effectful: bool
    is_mutable: bool
    viewed: tuple[int, str] | None


@functools.cache
def facts_of(target: Any) -> OpFacts:
    """Facts about an overload, a higher-order operator, or a Python function."""
    if isinstance(target, OpOverload):
        return _facts_of_overload(target)
    if isinstance(target, HigherOrderOperator):
        # The functions it calls are not inspected: they may have any effect.
        return OpFacts(name=target.name(), is_random=False, is_effectful=True, is_mutable=False, viewed=None)
    return _facts_of_function(target)


def _facts_of_overload(target: OpOverload) -> OpFacts:
    schema = target._schema
    name = schema.name
    is_random = _RANDOM in target.tags and name not in _FUNCTIONAL_RANDOM
    is_mutable = schema.is_mutable
    is_effectful = is_mutable or not schema.returns or target.namespace in _EFFECTFUL_LIBRARIES
    is_effectful = is_effectful or registered_effect(target) is not None
    viewed: tuple[int, str] | None = None
    if not is_mutable:
        if name in _UNANNOTATED_VIEWS:
            viewed = (0, schema.arguments[0].name)
        elif any(result.alias_info is not None for result in schema.returns):
            annotated = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None]
            viewed = annotated[0] if annotated else None
    return OpFacts(name=name, is_random=is_random, is_effectful=is_effectful, is_mutable=is_mutable, viewed=viewed)


def _facts_of_function(target: Any) -> OpFacts:
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", None)
    if target is operator.getitem:
        return OpFacts(name="getitem", is_random=False, is_effectful=False, is_mutable=False, viewed=None)
    if module in _PURE_PYTHON_MODULES or target in (min, max, abs, round, int, float, bool, math.floor):
        return OpFacts(name=name, is_random=False, is_effectful=False, is_mutable=False, viewed=None)
    if target in SYMBOLIC_FUNCTIONS:
        return OpFacts(name=name, is_random=False, is_effectful=False, is_mutable=False, viewed=None)
    packet = getattr(torch.ops.aten, name, None) if _is_torch_builtin(target) else None
    if packet is not None and not name.endswith("_"):
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        return OpFacts(
            name=f"aten::{name}",
            is_random=any(_RANDOM in overload.tags for overload in overloads),
            is_effectful=False,
            is_mutable=False,
            viewed=(0, "self")
            if all(_facts_of_overload(o).viewed for o in overloads if not o._schema.is_mutable)
            else None,
        )
    return OpFacts(name=name, is_random=False, is_effectful=True, is_mutable=True, viewed=None)


def _is_torch_builtin(target: Any) -> bool:
    """Whether this is a C++ function such as torch.cos, which graphs of torch functions call instead of overloads."""
    return type(target) is type(len) and (
        getattr(target, "__module__", None) in (None, "torch") or "torch" in str(getattr(target, "__module__", ""))
    )


def viewed_node(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node that this one is a view of, by the op's schema. For an item of a tuple of views it is the tuple's node."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        parent = node.args[0]
        is_view = isinstance(parent, torch.fx.Node) and viewed_node(parent) is not None
        return parent if is_view and isinstance(parent, torch.fx.Node) else None
    viewed = facts_of(node.target).viewed
    if viewed is None:
        return None
    position, name = viewed
    source = node.args[position] if position < len(node.args) else node.kwargs.get(name)
    return source if isinstance(source, torch.fx.Node) else None


def memory_owners(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """Map each node to the node that allocated its memory. Nodes must come in program order."""
    owners: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        source = viewed_node(node)
        owners[node] = node if source is None else owners.get(source, source)
    return owners
