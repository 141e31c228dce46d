"""Runs a TorchScript graph, node by node, on whatever tensors it is given: export sees its operators as those of a program.

Counterpart: torch/_export/converter.py TS2FXGraphConverter
Differs: a graph is run, where upstream turns it into another graph and exports that. Loops and branches on numbers are Python's;
a branch on a tensor is a `torch.cond`; one that only raises is an assertion.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from refimpl._torch import torch_checks
from refimpl.errors import RefimplError, UnsupportedByRefimpl
from refimpl.export.torchscript.operators import on_anything, on_numbers, on_tensor, tensor
from refimpl.export.torchscript.values import ENUMERATIONS, NUMBERS, ModulePath, TruthOfTensor, contains_tensor, plain
from refimpl.symbolic.stacks import Place, interpreting

_OPERATOR = re.compile(r"^(\w+)::(\w+)(?:\.(\w+))?\(")
_FILE = re.compile(r'File "([^"]+)", line (\d+)')
_CONTEXTS = ("prim::Enter", "prim::Exit", "prim::CreateObject")
_OF_DATA = ("aten::tensor", "aten::as_tensor")  # tensors of numbers
_UNPACKED = ("prim::ListUnpack", "prim::TupleUnpack")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of the program."""

    file: str
    line: int
    function: str


class ScriptRaised(RefimplError):
    """The script raises what it says: `raise` or a failed `assert` in it."""


class State(Protocol):
    """What attributes of modules are read from and written to."""

    def read(self, path: str) -> Any: ...
    def write(self, path: str, value: Any) -> None: ...


class ScriptInterpreterState:
    """Values of one run. Mutable."""

    def __init__(self, graph: Any, state: State) -> None:
        self._graph = graph
        self._state = state
        self._constants: set[int] = set()  # tensors without dimensions that the graph holds, by identity
        self._kept: list[Any] = []
        self._node: Any = None

    def run(self, values: Sequence[Any]) -> Any:
        """What the graph gives for its inputs, `self` among them. Raises UnsupportedByRefimpl for nodes that are not known."""
        env = {given.debugName(): value for given, value in zip(self._graph.inputs(), values, strict=True)}
        with interpreting(self._place):
            self._run_nodes(self._graph.nodes(), env)
        results = [_as_declared(env[value.debugName()], value.type()) for value in self._graph.outputs()]
        return results[0] if len(results) == 1 else tuple(results)

    def _place(self) -> Place | None:
        """The line of the source that the script was made of."""
        found = None if self._node is None else _FILE.search(str(self._node.sourceRange()))
        return None if found is None else _Line(file=found[1], line=int(found[2]), function="forward")

    def _run_nodes(self, nodes: Any, env: dict[str, Any]) -> None:
        for node in nodes:
            self._node = node
            try:
                results = self._run_node(node, env)
            except RefimplError:
                raise
            except (TypeError, AttributeError, KeyError, IndexError) as error:
                raise UnsupportedByRefimpl(
                    seen=f"{node.kind()} of a script, which fails with {type(error).__name__}: {error}\n{node.sourceRange()}",
                    supported="operators on tensors, numbers and containers that Python has as well",
                    do="export the original module, or report it",
                ) from error
            for output, value in zip(node.outputs(), results, strict=True):
                env[output.debugName()] = value

    def _run_node(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        kind = node.kind()
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, node, env)
        values = [env[value.debugName()] for value in node.inputs()]
        count = len(list(node.outputs()))
        if kind in _UNPACKED:
            return list(values[0])
        result = self._call(node, kind, values)
        if count == 1:
            gives_itself = result is None and node.schema().endswith("-> t[](a!)")  # aten::append gives the list
            return [values[0] if gives_itself else result]
        return list(result) if count else []

    def _call(self, node: Any, kind: str, values: list[Any]) -> Any:
        has_tensor = any(isinstance(value, torch.Tensor) for value in values)
        function = on_anything(kind, values)
        if function is not None:
            return function(*values)
        values = [plain(value) for value in values]
        if kind in _OF_DATA:
            return tensor(*values)
        if values and isinstance(values[0], torch.Tensor) and id(values[0]) not in self._constants:
            function = on_tensor(kind, node.schema())
            if function is not None:
                return function(*values)
        function = on_numbers(kind)
        if function is not None:
            numbers = self._as_numbers(node, values) if has_tensor else values
            if numbers is not None and not any(map(contains_tensor, numbers)):
                return function(*numbers)
        return self._call_operator(node, values)

    def _as_numbers(self, node: Any, values: list[Any]) -> list[Any] | None:
        """Traced scripts compute with sizes as if they were tensors. None where one of the operands really is a tensor."""
        is_size = any(
            isinstance(value, NUMBERS) and given.type().kind() == "TensorType"
            for given, value in zip(node.inputs(), values, strict=True)
        )
        all_constant = all(id(value) in self._constants for value in values if isinstance(value, torch.Tensor))
        if not all_constant or not (
            is_size or node.kind() in ("aten::Int", "aten::Float", "aten::Bool", "prim::NumToTensor")
        ):
            return None
        return [value.item() if isinstance(value, torch.Tensor) else value for value in values]

    def _call_operator(self, node: Any, values: list[Any]) -> Any:
        found = _OPERATOR.match(node.schema())
        if found is None:
            raise _unknown(node)
        namespace, name, overload = found.groups()
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None:
            raise _unknown(node)
        target = getattr(packet, overload or "default", packet)
        schema = getattr(target, "_schema", None)
        arguments = [] if schema is None else schema.arguments
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        has_numbers = False
        for index, value in enumerate(values):
            argument = arguments[index] if index < len(arguments) else None
            if argument is None:
                args.append(value)
                continue
            has_numbers = has_numbers or (isinstance(value, NUMBERS) and str(argument.type) == "Tensor")
            value = _converted(argument, value)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        if not has_numbers:
            return target(*args, **kwargs)
        args = [
            tensor(a) if isinstance(a, NUMBERS) and i == 0 and str(arguments[i].type) == "Tensor" else a
            for i, a in enumerate(args)
        ]
        return packet(*args, **kwargs)  # finds the overload that takes a number

    # ------------------------------------------------------------------------------------------------ nodes with rules

    def _constant(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        value = node.output().toIValue()
        if isinstance(value, torch.Tensor) and value.dim() == 0:
            self._constants.add(id(value))
            self._kept.append(value)
        return [value]

    def _get_attribute(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        owner = env[node.input().debugName()]
        if not isinstance(owner, ModulePath):
            return [getattr(owner, node.s("name"))]
        path = owner.joined(node.s("name"))
        if node.output().type().kind() == "ClassType" and _is_module(node.output().type()):
            return [ModulePath(path)]
        return [self._state.read(path)]

    def _set_attribute(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        owner, value = (env[given.debugName()] for given in node.inputs())
        if not isinstance(owner, ModulePath):
            raise _unknown(node)
        self._state.write(owner.joined(node.s("name")), plain(value))
        return []

    def _branch(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        asked: Any = env[node.input().debugName()]
        blocks = list(node.blocks())
        depends_on_data = isinstance(asked, TruthOfTensor) or (
            isinstance(asked, torch.SymBool) and not asked.node.has_hint()
        )
        if not depends_on_data:
            return self._run_block(blocks[0] if asked else blocks[1], env)
        raising = [any(n.kind() == "prim::RaiseException" for n in block.nodes()) for block in blocks]
        if any(raising):
            return self._run_block(self._other_than_raising(node, blocks, raising, asked, env), env)
        pred: Any = asked
        if isinstance(asked, TruthOfTensor):
            pred = asked.tensor if asked.tensor.dtype is torch.bool else asked.tensor != 0
            pred = pred.reshape(()) if pred.dim() else pred

        def branch(block: Any) -> Callable[[], tuple[Any, ...]]:
            return lambda: tuple(self._run_block(block, dict(env)))

        return list(torch.cond(pred, branch(blocks[0]), branch(blocks[1]), ()))

    def _other_than_raising(
        self, node: Any, blocks: list[Any], raising: list[bool], asked: Any, env: dict[str, Any]
    ) -> Any:
        """Asserts that the block without `raise` is the one to run."""
        holds = not raising[0]
        if isinstance(asked, TruthOfTensor):
            condition = asked.tensor if holds else asked.tensor.logical_not()
            place = str(node.sourceRange()).strip()
            torch.ops.aten._assert_async.msg(condition, f"Assertion of the script failed: {place}")
        else:
            torch_checks[0](asked if holds else torch.sym_not(asked))
        return blocks[0] if holds else blocks[1]

    def _run_block(self, block: Any, env: dict[str, Any]) -> list[Any]:
        self._run_nodes(block.nodes(), env)
        return [env[value.debugName()] for value in block.outputs()]

    def _loop(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        limit, goes_on, *carried = (env[value.debugName()] for value in node.inputs())
        (block,) = node.blocks()
        names = [value.debugName() for value in block.inputs()]
        turn = 0
        while turn < int(limit) and goes_on:
            env.update(zip(names, (turn, *carried), strict=True))
            goes_on, *carried = self._run_block(block, env)
            turn += 1
        return carried

    def _raise(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        message = env[next(iter(node.inputs())).debugName()]
        raise ScriptRaised(f"the script raises: {message}\n{node.sourceRange()}")

    def _to_list(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        x = env[next(iter(node.inputs())).debugName()]
        return [[v.item() for v in x.unbind()] if x.dim() == 1 else x.tolist()]

    def _as_it_is(self, node: Any, env: dict[str, Any]) -> Sequence[Any]:
        """Contexts of a script change nothing that its graph does not say; gradients are switched by calls."""
        raise _unknown(node)


_Rule = Callable[[ScriptInterpreterState, Any, dict[str, Any]], Sequence[Any]]
_SPECIAL: dict[str, _Rule] = {
    "prim::Constant": ScriptInterpreterState._constant,
    "prim::GetAttr": ScriptInterpreterState._get_attribute,
    "prim::SetAttr": ScriptInterpreterState._set_attribute,
    "prim::If": ScriptInterpreterState._branch,
    "prim::Loop": ScriptInterpreterState._loop,
    "prim::RaiseException": ScriptInterpreterState._raise,
    "prim::tolist": ScriptInterpreterState._to_list,
    **dict.fromkeys(_CONTEXTS, ScriptInterpreterState._as_it_is),
}


def unknown_nodes(graph: Any) -> list[Any]:
    """Nodes that cannot be run."""
    found: list[Any] = []
    for node in graph.nodes():
        kind = node.kind()
        known = kind in _SPECIAL or kind in (*_UNPACKED, *_OF_DATA) or _is_operator(node)
        if kind in _CONTEXTS or not (known or on_anything(kind, ()) or on_numbers(kind)):
            found.append(node)
        for block in node.blocks():
            found += unknown_nodes(block)
    return found


def _is_operator(node: Any) -> bool:
    found = _OPERATOR.match(node.schema())
    return found is not None and hasattr(getattr(torch.ops, found[1]), found[2])


def _as_declared(value: Any, kind: Any) -> Any:
    """A number that the script has for a tensor becomes one."""
    value = plain(value)
    match kind.kind():
        case "TensorType" if isinstance(value, NUMBERS):
            return tensor(value)
        case "TupleType":
            return tuple(map(_as_declared, value, kind.elements()))
        case "ListType":
            return [_as_declared(element, kind.getElementType()) for element in value]
        case "DictType":
            return {key: _as_declared(element, kind.getValueType()) for key, element in value.items()}
        case _:
            return value


def _is_module(kind: Any) -> bool:
    return bool(getattr(kind, "is_module", lambda: True)())


def _converted(argument: Any, value: Any) -> Any:
    """An argument as Python's operators take it: dtypes and their like are numbers in scripts."""
    if value is None:
        return None
    found = str(getattr(argument, "real_type", argument.type)).rstrip("?")
    values = ENUMERATIONS.get(found)
    return values[operator.index(value)] if values is not None and isinstance(value, int) else value


def _unknown(node: Any) -> UnsupportedByRefimpl:
    return UnsupportedByRefimpl(
        seen=f"{node.kind()} in a script\n{node.sourceRange()}",
        supported="operators, containers, attributes, branches and loops",
        do="take it out of the script, or export the original module",
    )
