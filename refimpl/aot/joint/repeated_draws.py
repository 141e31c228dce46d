"""Merges random ops that draw from the same generator state, such as a dropout that a checkpoint runs a second time.

Counterpart: upstream has none: its joint trace leaves out the program's hooks on saved tensors, and with them checkpoints
Differs: a checkpoint of the program runs in the trace. It restores the generator's state in Python before it runs forward ops a
second time, which no graph shows. Fake random ops leave the generator unchanged, so the trace advances it, and notes on every
random op the state it draws from.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from refimpl._torch import OpOverload, without_dispatch
from refimpl.aot.errors import RandomStateRestored
from refimpl.functionalize.schemas import facts_of
from refimpl.trace.metadata import note, notes_of

_FIRST = 0x5EED
_SAME_VALUE = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})


def start_draws() -> None:
    """Seed the generator with a state that no program uses. To be called within torch.random.fork_rng."""
    torch.default_generator.manual_seed(_FIRST)


def mark_draw(node: torch.fx.Node) -> None:
    """Note on a random op the state of the default generator it draws from, and advance the generator."""
    if node.op != "call_function" or not facts_of(node.target).is_random or _has_own_generator(node):
        return
    state = torch.default_generator.initial_seed()
    note(node, random_state=state)
    # A step of a full-period congruential generator: states of different seeds do not meet by counting.
    torch.default_generator.manual_seed((state * 6364136223846793005 + 1442695040888963407) % 2**63)


def merge_repeated_draws(graph_module: torch.fx.GraphModule) -> None:
    """Replace every random op of a functional graph by an earlier one that draws the same numbers.

    Raises RandomStateRestored for two ops that draw different numbers from one state.
    """
    if not has_repeated_draws(graph_module.graph):
        return
    values = _Values()
    first: dict[Hashable, torch.fx.Node] = {}
    repeated: list[torch.fx.Node] = []
    for node in graph_module.graph.nodes:
        value = values.add(node)
        state = _draws_from(node)
        if state is None:
            continue
        earlier = first.setdefault(state, node)
        if earlier is node:
            continue
        if value == values.of[earlier]:
            node.replace_all_uses_with(earlier)
            repeated.append(node)
        elif not _draws_nothing(node):
            raise RandomStateRestored(str(earlier.target), str(node.target))
    for node in repeated:
        graph_module.graph.erase_node(node)
    graph_module.recompile()


def has_repeated_draws(graph: torch.fx.Graph) -> bool:
    """Whether two random ops draw from the same state."""
    states = [state for node in graph.nodes if (state := _draws_from(node)) is not None]
    return len(set(states)) != len(states)


class _Values:
    """Numbers nodes so that equal numbers mean equal values. Nodes are added in program order."""

    def __init__(self) -> None:
        self.of: dict[torch.fx.Node, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def add(self, node: torch.fx.Node) -> int:
        """The number of a node whose arguments are numbered."""
        if node.target in _SAME_VALUE:
            number = self.of[node.args[0]]  # type: ignore[index]
        else:
            number = self._numbers.setdefault(self._key(node), len(self._numbers))
        self.of[node] = number
        return number

    def _key(self, node: torch.fx.Node) -> Hashable:
        if node.op != "call_function":
            return node.op, node
        facts = facts_of(node.target)
        state = notes_of(node).random_state if facts.is_random else None
        if facts.is_effectful or (facts.is_random and state is None):
            return node
        if facts.is_random and _reads_no_elements(node):
            given = node.args[0].meta["val"]  # type: ignore[union-attr]
            return node.target, str((given.shape, given.dtype)), self._literal(node.args[1:]), str(node.kwargs), state
        return node.target, self._literal(node.args), self._literal(node.kwargs), state

    def _literal(self, value: Any) -> Hashable:
        if isinstance(value, torch.fx.Node):
            return "value", self.of[value]
        if isinstance(value, (tuple, list)):
            return tuple(map(self._literal, value))
        if isinstance(value, dict):
            return tuple((key, self._literal(item)) for key, item in value.items())
        return type(value), value if isinstance(value, Hashable) else id(value)


def _reads_no_elements(node: torch.fx.Node) -> bool:
    """Whether an aten op draws the same numbers for every tensor of one shape and dtype: it does for small tensors of 0 and 1."""
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten" or not node.args:
        return False
    if not isinstance(node.args[0], torch.fx.Node) or not isinstance(node.args[0].meta.get("val"), torch.Tensor):
        return False
    zeros, ones = (_drawn_for(node, number) for number in (0, 1))
    return zeros is not None and ones is not None and torch.equal(zeros, ones)


def _drawn_for(node: torch.fx.Node, number: int) -> torch.Tensor | None:
    def stand_in(operand: torch.fx.Node) -> Any:
        value = operand.meta.get("val")
        return torch.full([2] * value.dim(), number, dtype=value.dtype) if isinstance(value, torch.Tensor) else 1

    with without_dispatch(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(_FIRST)
        args = torch.fx.map_arg(node.args, stand_in)
        kwargs = {name: torch.device("cpu") if name == "device" else value for name, value in node.kwargs.items()}
        try:
            found = node.target(*args, **torch.fx.map_arg(kwargs, stand_in))  # type: ignore[operator]
        except (RuntimeError, ValueError, TypeError, IndexError):
            return None
    return found if isinstance(found, torch.Tensor) else None


def _is_draw(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and facts_of(node.target).is_random


def _draws_from(node: torch.fx.Node) -> Any:
    """The noted state that a random op draws from; None for other nodes."""
    return notes_of(node).random_state if _is_draw(node) else None


def _draws_nothing(node: torch.fx.Node) -> bool:
    """Whether it is attention without dropout, which is a random op all the same."""
    return _argument(node, "dropout_p") == 0


def _has_own_generator(node: torch.fx.Node) -> bool:
    return _argument(node, "generator") is not None


def _argument(node: torch.fx.Node, name: str) -> Any:
    """The argument of that name, or its default; None where the op has none."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    for position, argument in enumerate(arguments):
        if argument.name == name:
            return node.args[position] if position < len(node.args) else node.kwargs.get(name, argument.default_value)
    return None
