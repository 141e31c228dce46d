"""Traces a graph again by an fx interpreter, with all ops or only chosen nodes decomposed.

Counterpart: torch/fx/experimental/proxy_tensor.py DecompositionInterpreter, selective_decompose, _SelectiveDecomposeInterpreter
Differs: nodes are also chosen inside the functions of higher-order operators; upstream uses the trace's table there. If the
higher-order operator itself is chosen, all nodes inside are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import HigherOrderOperator, active_fake_mode, pytree
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.make_fx import make_fx
from refimpl.trace.modes import decompose
from refimpl.trace.options import DecompositionTable, TraceOptions
from refimpl.trace.recording_mode import RecordingMode, paused_recordings

Choice = Callable[[torch.fx.Node], bool]


class DecompositionInterpreter(torch.fx.Interpreter):
    """Running it on example inputs records the decomposed ops of `module` into `new_graph`.

    Placeholders and attributes keep their names. Constants met on the way become attributes of `module`.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        new_graph: torch.fx.Graph,
        decomposition_table: DecompositionTable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(module, **kwargs)
        self.new_graph = new_graph
        self.decomposition_table = decomposition_table or {}
        builder = GraphBuilder()
        builder.graph, builder.root = new_graph, module
        options = TraceOptions(decompositions=self.decomposition_table)
        self.mode = RecordingMode(builder, options, active_fake_mode())

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        with paused_recordings():
            self.mode.track(value, self.mode.builder.placeholder(str(target), value))
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        with paused_recordings():
            node = self.new_graph.get_attr(str(target))
            self.mode.builder.describe(node, value)
            self.mode.track(value, node)
        return value

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().output(target, args, kwargs)
        with paused_recordings():
            self.new_graph.output(pytree.tree_map(self.mode.node_of, value))
        return value

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module returns for these inputs."""
        with self.mode:
            return super().run(*args, **kwargs)


class _SelectiveInterpreter(torch.fx.Interpreter):
    """Runs a graph inside of a trace. Nodes that `is_chosen` selects are decomposed by `table`, others by the trace's own."""

    def __init__(self, module: torch.fx.GraphModule, is_chosen: Choice, table: DecompositionTable | None) -> None:
        super().__init__(module)
        self.is_chosen = is_chosen
        self.table = table
        self._is_chosen_inside = is_chosen

    def run_node(self, n: torch.fx.Node) -> Any:
        is_chosen = self.is_chosen(n)
        self._is_chosen_inside = _always if is_chosen else self.is_chosen
        if not is_chosen:
            return super().run_node(n)
        with decompose(self.table):
            return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, HigherOrderOperator):
            args, kwargs = pytree.tree_map_only(torch.fx.GraphModule, self._inside, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def _inside(self, module: torch.fx.GraphModule) -> Callable[..., Any]:
        """The function of a higher-order operator, run by another such interpreter when the operator traces it."""
        return _SelectiveInterpreter(module, self._is_chosen_inside, self.table).run


def _always(node: torch.fx.Node) -> bool:
    return True


def selective_decompose(
    joint_gm: torch.fx.GraphModule,
    *args: object,
    decomposition: DecompositionTable | None,
    should_decompose: Callable[..., bool],
    trace_joint_graph: bool,
) -> torch.fx.GraphModule:
    """Trace the graph again on `args`. Nodes for which `should_decompose` is true are decomposed by `decomposition`.

    With `trace_joint_graph`, `args` are two lists, and placeholders are named primals and tangents, by which partitioners tell
    them apart. Raises what `make_fx` raises.
    """

    def run(*args: Any) -> Any:
        return _SelectiveInterpreter(joint_gm, should_decompose, decomposition).run(*args)

    def run_joint(primals: list[Any], tangents: list[Any]) -> Any:
        return run(primals, tangents)

    return make_fx(run_joint if trace_joint_graph else run)(*args)
