"""Calls of a nested compile region that take the graph of an earlier call in place of being captured.

Counterpart: torch/_dynamo/variables/invoke_subgraph.py find_reuse_match, stamp_out_subgraph
Differs: a segment that has changed an object captures its regions anew, whatever it has changed.

Capture is deterministic: what it does with a function follows from what it reads. So a call that reads the same as an earlier one
has the same graph, with other tensors. It reads the same if its arguments are equal constants, tensors of the same metadata, or
objects for which all guards hold that the segment has on the earlier call's objects, and if nothing else can have changed, such
as torch's modes. These guards then become guards of the segment. For example, the second of two equal layers is not captured:

    for layer in self.layers:  # of one class, with weights of one shape
        x = layer(x)  # its forward is a region
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from refimpl._torch import is_any_autocast_enabled, is_exporting, storage_key, transform_kinds
from refimpl.capture.guards.guard_list import Guard, GuardKind
from refimpl.capture.guards.sources import READ_ERRORS, Source
from refimpl.capture.guards.torch_state import autocast_state, determinism
from refimpl.capture.higher_order.bodies import flatten, results, unflatten
from refimpl.capture.higher_order.subgraphs import SubGraph
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.state.side_effects import version_of
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    LocalFunctionValue,
    MethodValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)
from refimpl.symbolic.guards import PRINTED_NAMES
from refimpl.trace.metadata import notes_of

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_OBJECTS = (ObjectValue, LocalFunctionValue)
_ROOTS = (torch.nn.Module, FunctionType)  # objects in whose place there may be others
_OF_ALL_TENSORS = (GuardKind.TENSOR, GuardKind.MARKS)


class _Differs(Exception):
    """The call may compute something else than the earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInputs:
    """What a call of a region is given: values without containers, the containers around them, and torch's state."""

    leaves: tuple[Value, ...]
    nodes: tuple[Any, ...]  # of the leaves that are tensors: `x.data = y` gives a tensor another one
    tree: Any
    facts: tuple[Any, ...]  # of the leaves that are tensors or numbers
    first: tuple[int, ...]  # for each leaf where it is first: (0, 1, 0) for (x, y, x)
    modes: tuple[Any, ...]
    containers: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCall:
    """A call that was captured. outputs: for each leaf of its result a constant, or its number among the graph's outputs."""

    inputs: RegionInputs
    name: str
    lifted: tuple[fx.Node, ...]
    templates: tuple[Any, ...]
    outputs: tuple[ConstantValue | int, ...]
    tree: Any
    sets_state: bool


def region_inputs(
    domain: SymbolicDomain, function: Any, given: Sequence[Any], named: Mapping[str, Any]
) -> RegionInputs | None:
    """The inputs of a call; None where calls are always captured. The arguments become values of the segment, in their order."""
    state = domain.state
    functions: list[Any] = [state.realize(function)]
    while isinstance(functions[-1], MethodValue):
        functions[-1:] = [state.realize(functions[-1].receiver), state.realize(functions[-1].function)]
    together = SequenceValue(tuple, [*functions, *given, domain.named(dict(named))])
    leaves, tree = flatten(together, state.realize)
    if not _is_undisturbed(domain) or type(state.graph) is not SegmentGraph or is_exporting():
        return None
    same = [id(leaf) if isinstance(leaf, (TensorValue, *_OBJECTS)) else 0 for leaf in leaves]
    modes = (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), determinism(),
        autocast_state() if is_any_autocast_enabled() else (), len(state.open_regions),
    )  # fmt: skip
    return RegionInputs(
        leaves=tuple(leaves), nodes=tuple(getattr(leaf, "node", None) for leaf in leaves), tree=tree,
        facts=tuple(map(_facts, leaves)), first=tuple(map(same.index, same)), modes=modes,
        containers=tuple(_containers(together, domain)),
    )  # fmt: skip


def _facts(leaf: Any) -> Any:
    """What capture may read of a tensor or number; None for other values."""
    if isinstance(leaf, NumberValue):
        return str(leaf.number), type(leaf.number)
    return _facts_of_fake(leaf.fake) if type(leaf) is TensorValue else None


def _facts_of_fake(fake: torch.Tensor) -> Any:
    """What capture may read of a tensor."""
    is_strided = fake.layout is torch.strided
    return (
        type(fake), fake.dtype, fake.device, fake.layout, fake.is_conj(), fake.is_neg(), str(tuple(fake.shape)),
        str(fake.stride()) if is_strided else None, fake.requires_grad, fake.is_leaf, fake._is_view(), version_of(fake),
    )  # fmt: skip


def _containers(value: Any, domain: SymbolicDomain) -> Iterator[Any]:
    """The containers that `flatten` takes apart."""
    value = domain.state.realize(value)
    if isinstance(value, SequenceValue):
        yield value
        for item in value.items:
            yield from _containers(item, domain)
    elif isinstance(value, DictValue):
        yield value
        for _, item in value.items.values():
            yield from _containers(item, domain)


# ------------------------------------------------------------------------------------------------------- the earlier call


def noted(
    domain: SymbolicDomain, inputs: RegionInputs, graph: SubGraph, name: str, result: Any, made: Sequence[Any]
) -> EarlierCall | None:
    """The call that was captured, for later ones; None if a call that is given the same may differ from it."""
    if graph.has_effects or not _is_undisturbed(domain):
        return None
    leaves, tree = flatten(result, domain.state.realize)
    containers = [*_containers(result, domain)]
    if len({*map(id, containers)} - {*map(id, inputs.containers)}) < len(containers):
        return None  # the result has a list twice, or one of the arguments
    numbers = {id(leaf): index for index, leaf in enumerate(made)}
    outputs: list[ConstantValue | int] = []
    for leaf in leaves:
        number = numbers.get(id(leaf))
        if number is None and not isinstance(leaf, ConstantValue):
            return None
        outputs.append(leaf if number is None else number)
    used = {output for output in outputs if isinstance(output, int)}
    if len(used) < len(made) or not all(map(_is_plain_output, made)):
        return None
    return EarlierCall(
        inputs=inputs, name=name, lifted=tuple(graph.lifted), outputs=tuple(outputs), tree=tree, sets_state=graph.sets_state,
        templates=tuple(leaf.fake if isinstance(leaf, TensorValue) else leaf.number for leaf in made),
    )  # fmt: skip


def _is_undisturbed(domain: SymbolicDomain) -> bool:
    """Whether all objects of the program are as they were at the entry, and nothing counts what capture has done."""
    state = domain.state
    is_plain = not (state.overrides.modes or state.iterators or transform_kinds()) and state.draws is None
    return is_plain and not state.effects.count


def _is_plain_output(leaf: Any) -> bool:
    if isinstance(leaf, NumberValue):
        return not _is_unbacked(leaf.number)
    fake = leaf.fake
    if type(leaf) is not TensorValue or fake.layout is not torch.strided or leaf.attributes:
        return False
    if any(map(_is_unbacked, (*fake.shape, *fake.stride()))) or str(fake.storage_offset()) != "0":
        return False
    return not (fake.is_conj() or fake.is_neg() or (fake.requires_grad and fake.is_leaf))


def _is_unbacked(number: Any) -> bool:
    return not isinstance(number, (int, float, bool)) and not number.node.has_hint()


# --------------------------------------------------------------------------------------------------------- the later call


def repeated(
    domain: SymbolicDomain, operator: Any, earlier: Sequence[EarlierCall], inputs: RegionInputs
) -> Value | None:
    """The result of a call that takes the graph of an earlier one. None if no earlier one is known to compute the same."""
    for call in reversed(earlier):
        try:
            pairing = _Pairing(domain, call, inputs)
        except _Differs:
            continue
        return pairing.result(operator)
    return None


class _Pairing:
    """An earlier call and a later one, with the node of the later one for each node that the graph takes. Raises _Differs."""

    def __init__(self, domain: SymbolicDomain, call: EarlierCall, inputs: RegionInputs) -> None:
        self._domain, self._call = domain, call
        before = call.inputs
        if (before.tree, before.facts, before.first) != (inputs.tree, inputs.facts, inputs.first):
            raise _Differs
        if before.modes != inputs.modes:
            raise _Differs
        self._nodes: dict[fx.Node, fx.Node] = {}
        self._roots: list[tuple[Any, Any]] = []
        for one, other in zip(before.leaves, inputs.leaves, strict=True):
            self._pair(one, other)
        for one, node, other in zip(before.leaves, before.nodes, inputs.nodes, strict=True):
            if type(one) is TensorValue and self._nodes.setdefault(node, other) is not other:
                raise _Differs
        tensors = [leaf.fake for leaf in before.leaves if isinstance(leaf, TensorValue)]
        self._sizes = {str(size) for fake in tensors for size in fake.shape}
        self._current = {value.source: value.node for value in domain.state.by_fake.values()}
        guards = [guard for root in self._roots for guard in self._guards_of(*root)]
        self._operands = [self._operand(node) for node in call.lifted]
        self._check_operands()
        for guard in guards:
            domain.state.guards.add(guard)

    def _pair(self, one: Any, other: Any) -> None:
        """Raises _Differs if the second value cannot stand for the first one."""
        if type(one) is not type(other):
            raise _Differs
        if type(one) is TensorValue:
            if (
                one.attributes
                or other.attributes
                or (one is not other and (self._is_read(one) or self._is_read(other)))
            ):
                raise _Differs
        elif isinstance(one, ConstantValue):
            if (
                type(one.value) is not type(other.value)
                or repr(one.value) != repr(other.value)
                or one.value != other.value
            ):
                raise _Differs
        elif (
            one is not other and isinstance(one, _OBJECTS) and isinstance(one.object, _ROOTS) and one.source is not None
        ):
            self._roots.append((one, other))
        elif not isinstance(one, NumberValue) and not (one is other and isinstance(one, _OBJECTS)):
            raise _Differs  # numbers have the same symbols: their facts are equal

    def _is_read(self, tensor: TensorValue) -> bool:
        """Whether the segment has read more of an input than its metadata, an attribute of the program's say."""
        if tensor.source is None:
            return False
        found = self._domain.state.object_of(tensor)
        if getattr(found, "__dict__", None) or (found.is_leaf and found.grad is not None):
            return True
        return any(
            guard.kind not in _OF_ALL_TENSORS or guard.source != tensor.source
            for guard in self._domain.state.guards
            if tensor.source in guard.source.way()
        )

    def _guards_of(self, one: Any, other: Any) -> Iterator[Guard]:
        """The guards on the first object, as guards on the second. Raises _Differs if one does not hold for it."""
        is_function = isinstance(one.object, FunctionType)
        if is_function and not _same_function(one.object, other.object):
            raise _Differs
        for guard in [*self._domain.state.guards]:
            if one.source not in guard.source.way() or (is_function and guard.source == one.source):
                continue
            if other.source is None:
                raise _Differs
            moved = replace(guard, source=_moved(guard.source, one.source, other.source))
            if isinstance(guard.seen, Source) or not _holds(moved, other.source, other.object):
                raise _Differs
            yield moved

    def _operand(self, node: fx.Node) -> fx.Node:
        """The node that the later call gives in place of this one."""
        example, source = node.meta.get("example_value"), notes_of(node).source
        if node in self._nodes:
            return self._nodes[node]
        if not isinstance(example, torch.Tensor):
            if self._roots and str(example) not in self._sizes:
                raise _Differs  # it may be a number of one of the objects
            return node
        for one, other in self._roots:
            if source is not None and one.source in source.way():
                way = _moved(source, one.source, other.source)
                value = self._domain.state.wrap(_read(way, other.source, other.object), way)
                if type(value) is not TensorValue or self._is_read(value):
                    raise _Differs
                if _facts_of_fake(value.fake) != _facts_of_fake(example):
                    raise _Differs
                return value.node
        if source is None or self._current.get(source) is not node:
            raise _Differs
        return node

    def _check_operands(self) -> None:
        """Different operands stay different, and share no memory."""
        fakes = [node.meta.get("example_value") for node in self._operands]
        memories = [
            storage_key(fake) for fake in fakes if isinstance(fake, torch.Tensor) and fake.layout is torch.strided
        ]
        if len({*self._operands}) < len(self._operands) or len({*memories}) < len(memories):
            raise _Differs
        made = results(self._domain, self._call.templates, self._operands)
        with self._domain.state.fake_mode:
            self._fakes = [
                one.detach() if isinstance(one, torch.Tensor) and not template.requires_grad else one
                for one, template in zip(made, self._call.templates, strict=True)
            ]
        for fake, template in zip(self._fakes, self._call.templates, strict=True):
            if isinstance(fake, torch.Tensor) and fake.requires_grad is not template.requires_grad:
                raise _Differs

    def result(self, operator: Any) -> Value:
        """The node of the later call, and its result."""
        call, graph = self._call, self._domain.state.graph
        graph.sets_state |= call.sets_state
        args = (graph.attribute(call.name), call.name, *self._operands)
        node = graph.call("call_function", operator, args, {}, tuple(self._fakes))
        parts = [self._domain.state.part_of(node, index, fake) for index, fake in enumerate(self._fakes)]
        leaves = (parts[output] if isinstance(output, int) else output for output in call.outputs)
        return unflatten(leaves, call.tree, self._domain.put)


def _same_function(one: Any, other: Any) -> bool:
    """Whether two functions of the program differ at most in what they close over."""
    return (
        isinstance(other, FunctionType)
        and one.__code__ is other.__code__
        and one.__globals__ is other.__globals__
        and one.__defaults__ is other.__defaults__
        and one.__kwdefaults__ is other.__kwdefaults__
        and len(one.__closure__ or ()) == len(other.__closure__ or ())
        and all(a is b for a, b in zip(one.__closure__ or (), other.__closure__ or (), strict=True))
    )


def _moved(source: Source, one: Source, other: Source) -> Source:
    """The source below one root as a source below another."""
    if source == one:
        return other
    parts = {each.name: getattr(source, each.name) for each in fields(cast(Any, source))}
    below = {
        name: _moved(part, one, other) for name, part in parts.items() if isinstance(part, Source) and one in part.way()
    }
    if not below:
        raise _Differs
    return replace(cast(Any, source), **below)


def _read(source: Source, root: Source, found: Any, constants: dict[str, Any] | None = None) -> Any:
    """The object at a source below a root. Raises _Differs if it cannot be read, or is not below the root."""
    constants = {} if constants is None else constants
    way = [*source.way()]
    if root not in way:
        raise _Differs
    for step in way[way.index(root) + 1 :]:
        try:
            found = eval(step.expression("base", _namer(constants)), {**constants, "base": found})
        except READ_ERRORS as error:
            raise _Differs from error
    return found


def _holds(guard: Guard, root: Source, found: Any) -> bool:
    """Whether a guard holds now. Raises _Differs if it concerns more than the root."""
    constants: dict[str, Any] = {}

    def read(source: Source) -> str:
        name = f"v{len(constants)}"
        constants[name] = _read(source, root, found, constants)
        return name

    try:
        return bool(eval(guard.condition(read, _namer(constants)), {**PRINTED_NAMES, **constants}))
    except READ_ERRORS:
        return False


def _namer(constants: dict[str, Any]) -> Any:
    def named(kept: Any) -> str:
        name = f"c{len(constants)}"
        constants[name] = kept
        return name

    return named
