"""A trace that records runtime asserts on unbacked symbols in its graph.

Counterpart: torch/fx/passes/runtime_assert.py insert_deferred_runtime_asserts; torch/export/_trace.py
_add_runtime_assertions_to_cond_in_subgraph
Differs: asserts are recorded while the trace runs, in the graph that needs them, then moved to the first node with their symbols.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import sympy
import torch

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.capture.config import config
from refimpl.errors import UnsupportedByRefimpl
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.guards import RuntimeAssert
from refimpl.symbolic.polynomials import without_common_divisor
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.higher_order import Subgraph
from refimpl.trace.options import TraceOptions
from refimpl.trace.tracing import Trace, current_trace


class AssertingTrace(Trace):
    """Functions of higher-order operators traced inside it have the asserts of their own conditions."""

    def __init__(
        self, options: TraceOptions, *, parent: Trace | None = None, shape_env: ShapeEnv | None = None
    ) -> None:
        super().__init__(options, parent=parent)
        outer = parent if isinstance(parent, AssertingTrace) else None
        self._env = outer._env if outer is not None else shape_env
        self._asserted: dict[int, RuntimeAssert] = {} if outer is None else outer._asserted
        # Conditions that capture added before this trace. Their symbols may not occur in this trace, which adds its own.
        self._earlier = {id(c) for c in self._conditions()} if outer is None else outer._earlier

    def assert_conditions(self, besides: Set[int] = frozenset()) -> None:
        """Record an assert for every condition without one, except those with ids in `besides`. To be called inside the trace.

        None under `config.do_not_emit_runtime_asserts`.
        """
        assert self._env is not None
        if config.do_not_emit_runtime_asserts:
            return
        graph = self.builder.graph
        count = len(graph.nodes)
        by_program = _asserted_by_nodes(graph)
        for condition in self._conditions():
            if id(condition) in self._asserted:
                continue
            if condition.expr in by_program:
                self._asserted[id(condition)] = condition
            if id(condition) in self._asserted or id(condition) in besides:
                continue
            holds = self._env.create_symboolnode(condition.expr)
            determines = self._determines_symbols(condition.expr)
            if id(condition) in self._earlier and not self._can_find(condition.expr if determines else holds):
                continue
            self._asserted[id(condition)] = condition
            before = len(graph.nodes)
            place = condition.stack.user_line() or condition.msg
            message = f"Runtime assertion failed for expression {without_common_divisor(condition.expr)}"
            if determines:
                self._assert_unsimplified(condition.expr, holds, message)
            else:
                torch.ops.aten._assert_scalar.default(holds, message)
            for node in list(graph.nodes)[before:]:
                node.meta["stack_trace"] = condition.stack.as_trace()
                if node.target is torch.ops.aten._assert_scalar.default and isinstance(node.args[0], torch.fx.Node):
                    node.args = (node.args[0], f"{message} on node '{node.args[0].name}', at {place}")
        _hoist([node for node in list(graph.nodes)[count:] if _is_of_assertion(node)])

    def _determines_symbols(self, condition: sympy.Basic) -> bool:
        """Whether the condition, or a part of it, is true only because it was learned: `u0 == 3`, or `u0 == 3 and u1 > 2`."""
        assert self._env is not None
        replaced = self._env.replace(condition)
        return replaced == sympy.true or (isinstance(condition, sympy.And) and replaced != condition)

    def _assert_unsimplified(self, condition: sympy.Basic, holds: torch.SymBool, message: str) -> None:
        assert self.recording is not None
        node = self.recording.symbols.node_of_condition(holds, condition)
        assertion = self.builder.call(torch.ops.aten._assert_scalar.default, (node, message), {})
        assertion.meta["val"] = None

    def trace_function(
        self,
        f: Callable[..., Any],
        operands: tuple[Any, ...],
        *,
        may_not_run: bool = False,
        on_copies: bool = False,
        rows: slice = slice(0),
    ) -> Subgraph:
        """Trace the function, with runtime asserts at the end of its graph."""
        known = {id(condition) for condition in self._conditions()}

        @functools.wraps(f)
        def asserting(*args: Any) -> Any:
            result = f(*args)
            inner = current_trace()
            if isinstance(inner, AssertingTrace):
                inner.assert_conditions(besides=known)
            return result

        return super().trace_function(asserting, operands, may_not_run=may_not_run, on_copies=on_copies, rows=rows)

    def innermost_call(self) -> str | None:
        """The key of the innermost module call in `nn_module_stack`."""
        return None if self._module_stack is None else self._module_stack.innermost()

    def check_complete(self) -> None:
        """Raises UnsupportedByRefimpl for a condition without an assert. A condition of capture has one if this trace asserts
        the same of another symbol."""
        if config.do_not_emit_runtime_asserts:
            return
        again = Counter(self._form(c) for c in self._asserted.values() if id(c) not in self._earlier)
        for condition in self._conditions():
            if id(condition) in self._asserted:
                continue
            if self._follows(condition.expr):
                continue
            form = self._form(condition)
            again[form] -= 1
            if again[form] < 0:
                raise UnsupportedByRefimpl(
                    seen=f"{condition.expr}, a condition at {condition.stack.user_line() or condition.msg} on a number that only "
                    "the captured graph has",
                    supported="in strict export numbers that are read outside of branches",
                    do="export with strict=False",
                )

    def _follows(self, condition: sympy.Basic) -> bool:
        """Whether the condition follows from those that are asserted, as `u0 >= 0` follows from `u0 == 3`."""
        facts, known = FactState(), dict[sympy.Basic, sympy.Basic]()
        for asserted in self._asserted.values():
            facts.learn(asserted.expr)
            if isinstance(asserted.expr, sympy.Eq) and asserted.expr.lhs.is_Symbol:
                known[asserted.expr.lhs] = asserted.expr.rhs
        return facts.decide(condition.xreplace(known)) is True

    def _form(self, condition: RuntimeAssert) -> str:
        """The condition with its unbacked symbols renamed in order, for comparison."""
        assert self._env is not None
        numbers = sorted((s for s in condition.expr.free_symbols if s in self._env.unbacked), key=str)
        return str(condition.expr.xreplace({s: sympy.Symbol(f"_{i}", integer=True) for i, s in enumerate(numbers)}))

    def _can_find(self, number: torch.SymBool | sympy.Basic) -> bool:
        if self.recording is None:
            return False
        symbols = self.recording.symbols
        return symbols.can_find(number) if isinstance(number, torch.SymBool) else symbols.can_find_condition(number)

    def _conditions(self) -> list[RuntimeAssert]:
        assert self._env is not None
        return [condition for found in self._env.deferred_runtime_asserts.values() for condition in found]


def _asserted_by_nodes(graph: torch.fx.Graph) -> set[Any]:
    """The conditions that the graph asserts already, as that of an exported program does."""
    nodes = graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    asserted = [node.args[0].meta.get("val") for node in nodes if isinstance(node.args[0], torch.fx.Node)]
    return {holds.node.expr for holds in asserted if isinstance(holds, torch.SymBool)}


def _is_of_assertion(node: torch.fx.Node) -> bool:
    """Whether the node is an assert or computes a number for one. Nodes that end a region are neither, and stay last."""
    is_number = isinstance(node.meta.get("val"), SYMBOLIC_TYPES)
    return is_number or node.target is torch.ops.aten._assert_scalar.default


def _hoist(nodes: Sequence[torch.fx.Node]) -> None:
    """Move each of the nodes, which are the last of their graph, behind the last of its inputs."""
    if not nodes:
        return
    graph = nodes[0].graph
    order: dict[torch.fx.Node, tuple[int, int]] = {node: (index, 0) for index, node in enumerate(graph.nodes)}
    inputs = list(graph.find_nodes(op="placeholder"))  # nodes go behind the last placeholder
    last_at: dict[int, torch.fx.Node] = {}
    for number, node in enumerate(nodes, 1):
        latest = max((*node.all_input_nodes, *inputs[-1:]), key=lambda needed: order[needed])
        place = order[latest][0]
        last_at.get(place, latest).append(node)
        last_at[place] = node
        order[node] = (place, number)
