"""The functionalization pass: removes mutation from a graph of aten ops.

Counterpart: torch/_subclasses/functional_tensor.py FunctionalTensorMode, FunctionalizeFallbackKernel.cpp,
torch.func.functionalize
Differs: a pure function of a recorded graph instead of a wrapper around tensors at run time. It knows which memory is written
later, and copies all other nodes as they are. It works on real, fake and symbolic traces alike.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import (
    FakeTensorMode,
    LazyGraphModule,
    below_autograd,
    graph_codegen,
    without_autocast,
)
from refimpl.functionalize.aliases import AS_STRIDED, AliasMap, is_view_call
from refimpl.functionalize.emitter import EmitterState, fake_mode_of, map_nodes
from refimpl.functionalize.errors import CannotFunctionalize, ResizedView, SymbolicMemory
from refimpl.functionalize.flat_bases import AliasGroup, flattened
from refimpl.functionalize.geometry import begins_inside, has_symbols, is_row_major, is_same_layout
from refimpl.functionalize.memory import MemoryState, Strategy
from refimpl.functionalize.schemas import METADATA_OPS, RESIZE_OPS, SET_OPS, effects_of, is_mutating
from refimpl.functionalize.verify import verify_functional, verify_reads
from refimpl.functionalize.views import ViewWriter
from refimpl.functionalize.writes import CallWriter
from refimpl.trace.composite_kernels import composite_kernels
from refimpl.trace.higher_order.direct_calls import launches_recorded
from refimpl.trace.layouts import is_same_number
from refimpl.trace.recording_mode import paused_recordings

Node = torch.fx.Node
_aten = torch.ops.aten
_SIZE_READS = frozenset({_aten.sym_size.int, _aten.sym_size.default, _aten.sym_numel.default})


@dataclass(frozen=True, slots=True, kw_only=True)
class Functionalized:
    """`written` are positions of the given placeholders that some op writes to, also through a view or an alias.

    `written_attributes` has, for every attribute of the module that is written to, its name and the node of its value at the end;
    the caller makes it an output, or writes it back. `replaced`: see AliasGroup; if empty, the placeholders are the given ones.
    """

    graph_module: torch.fx.GraphModule
    written: tuple[int, ...]
    replaced: tuple[AliasGroup, ...] = ()
    written_attributes: tuple[tuple[str, Node], ...] = ()


def functionalize_graph(
    gm: torch.fx.GraphModule,
    *,
    alias_groups: Sequence[Sequence[int]] = (),
    strategy: Strategy = "table",
    keeps_views: bool = True,
    is_exact: bool = False,
    num_tangents: int = 0,
) -> Functionalized:
    """The graph without mutation; `gm` is not changed. The outputs are the same; a mutated placeholder returns its last value.

    `alias_groups`: positions of placeholders that share a storage. `strategy`: whether a write through a view is carried to the
    base by the inverse of each view, or by index. Without `keeps_views` view ops become their `*_copy` forms. `is_exact` writes
    every view of the program, and regenerates written tensors at once, as torch's own functionalization does. The last
    `num_tangents` placeholders are tangents: no size is read from them, since the forward graph does not have them.

    Raises CannotFunctionalize for an op whose effect has no rule, and NotFunctional if the result breaks the pass's own rules.
    """
    if keeps_views and not is_exact and not _has_mutation(gm):
        return Functionalized(graph_module=_copy_of(gm), written=())
    prepared = flattened(gm.graph, alias_groups)
    fake_mode = fake_mode_of(prepared.graph)
    with only_metadata(fake_mode):
        run = FunctionalizationState(
            gm, prepared.graph, prepared.aliases, fake_mode, strategy,
            keeps_views=keeps_views, is_exact=is_exact, num_tangents=num_tangents,
        )  # fmt: skip
        run.all_nodes()
        groups = tuple(group.with_value(run.final_value(node)) for group, node in prepared.groups)
        attributes = run.attribute_values()
        kept = [group.value for group in groups if group.value is not None] + [node for _, node in attributes]
        if not is_exact:
            run.remove_unused(kept)
    if not groups:  # the pytree codegen; groups change the number of inputs
        run.emit.graph.set_codegen(copy.copy(graph_codegen(gm.graph)))
    verify_functional(run.emit.graph)
    verify_reads(prepared.graph, run.memory)
    module = LazyGraphModule(run.emit.attributes, run.emit.graph, type(gm).__name__)
    module.meta.update(gm.meta)
    return Functionalized(graph_module=module, written=prepared.written, replaced=groups, written_attributes=attributes)


def _has_mutation(gm: torch.fx.GraphModule) -> bool:
    """Whether an op mutates, in the graph or in a function that a higher-order op takes."""
    functions = (module for module in gm.children() if isinstance(module, torch.fx.GraphModule))
    return any(map(is_mutating, gm.graph.nodes)) or any(map(_has_mutation, functions))


def _copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    new: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    graph.set_codegen(copy.copy(graph_codegen(gm.graph)))
    module = LazyGraphModule(gm, graph, type(gm).__name__)
    module.meta.update(gm.meta)
    return module


@contextlib.contextmanager
def only_metadata(fake_mode: FakeTensorMode | None) -> Any:
    """Run ops for the metadata of their results: under the fake mode, without autograd, autocast or traces."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(paused_recordings())
        stack.enter_context(without_autocast())
        stack.enter_context(below_autograd())
        stack.enter_context(launches_recorded())
        if fake_mode is not None:
            stack.enter_context(fake_mode)
            if fake_mode.shape_env is not None:
                stack.enter_context(composite_kernels())
        yield


class FunctionalizationState:
    """One walk over a graph, in order; afterwards `emit.graph` is the new one. Mutable."""

    def __init__(
        self,
        root: torch.nn.Module,
        graph: torch.fx.Graph,
        aliases: AliasMap,
        fake_mode: FakeTensorMode | None,
        strategy: Strategy,
        *,
        keeps_views: bool,
        is_exact: bool,
        num_tangents: int = 0,
    ) -> None:
        self.root = root
        self.given = graph
        self.emit = EmitterState(fake_mode)
        self.views = ViewWriter(self.emit, keeps_views=keeps_views, is_exact=is_exact)
        self.aliases = aliases
        self.memory = MemoryState(self.aliases, self.emit, self.views, strategy)
        self.results: dict[tuple[Node, int | None], Node] = {}  # (call, index of the result) -> value, see CallWriter
        self.calls = CallWriter(self.emit, self.memory, self.results)
        self.new = self.views.new_of
        self.placeholders: dict[Node, Node] = {}  # given placeholder -> new one
        self.is_exact = is_exact
        self.keeps_views = keeps_views
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.tangents = set(inputs[len(inputs) - num_tangents :])

    def all_nodes(self) -> None:
        """Visit all nodes of the given graph in order."""
        for node in self.given.nodes:
            self.emit.origin = node
            self._visit(node)
        self.emit.origin = None

    def _visit(self, node: Node) -> None:
        match node.op:
            case "placeholder":
                new = self.emit.copy(node, node.args, node.kwargs, has_sizes=node not in self.tangents)
                self.placeholders[node] = new
                self._input(node, new)
            case "get_attr":
                self._attribute(node)
            case "output":
                self._output(node)
            case "call_function":
                self._call(node)
            case _:
                raise CannotFunctionalize(
                    node,
                    seen=f"a {node.op} node",
                    expected="calls of aten overloads",
                    do="trace the module with make_fx",
                )

    def _own(self, node: Node, value: Node) -> None:
        self.new[node] = value
        self.memory.own(node, value)

    def _input(self, node: Node, value: Node) -> None:
        """Add a placeholder or attribute as a base.

        One that is written to and read by `as_strided` is cloned if its storage offset is not 0, since kernels of `*_scatter`
        disagree on whether their result has that offset; and if it is not contiguous, since `as_strided_scatter` then refuses an
        input that requires grad."""
        given: Any = node.meta.get("val")
        is_strided = bool(self.aliases.writes_to(node)) and bool(self.aliases.as_strided_views_of(node))
        if is_strided and (begins_inside(given) or not is_row_major(given)):
            value = self.emit.call(_aten.clone.default, value)
        self._own(node, value)

    def _value(self, node: Node) -> Any:
        """The new node for the current value of a given node."""
        return self.memory.read(node) if self.memory.is_known(node) else self.new[node]

    def _argument(self, node: Node) -> Any:
        value = self._value(node)
        assert self.emit.origin is not None
        self.memory.note_read(self.emit.origin, node, value)
        return value

    def _argument_to_draw_for(self, node: Node) -> Any:
        """An argument of a random op, with its strides in the program: random numbers are drawn in the order of memory."""
        value, like = self._argument(node), node.meta.get("val")
        return self.views.with_layout(value, like) if like is not None and not _has_layout_of(value, like) else value

    # ---------------------------------------------------------------------------------------------------- kinds of nodes

    def _attribute(self, node: Node) -> None:
        assert isinstance(node.target, str)
        base = self.aliases.base_of(node)
        if base is not node:
            self.new[node] = self.new[base]
            return
        attribute = operator.attrgetter(node.target)(self.root)
        if isinstance(attribute, torch.fx.GraphModule):
            attribute = self._function(node, attribute)
        self.emit.attributes[node.target] = attribute
        self._input(node, self.emit.copy(node, (), {}))

    def _function(self, node: Node, body: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Functionalize a function that a higher-order op takes. It may write to its own intermediates only."""
        if not _has_mutation(body):
            return body
        done = functionalize_graph(body, strategy=self.memory.strategy, keeps_views=self.keeps_views)
        if done.written or done.written_attributes:
            operands = [
                value for each in body.graph.find_nodes(op="placeholder") if _is_strided(value := each.meta["val"])
            ]
            refusal = SymbolicMemory if any(map(has_symbols, operands)) else CannotFunctionalize
            users = ", ".join(map(str, node.users))
            raise refusal(
                next(iter(node.users), node),
                seen=f"{users} calls the function {node.target}, which writes to its operands or to captured tensors",
                expected="a function that only writes to its own intermediates",
                do="clone the tensor inside the function, write to the clone, and return it",
            )
        return done.graph_module

    def _call(self, node: Node) -> None:
        target: Any = node.target
        if target in _SIZE_READS and isinstance(node.args[0], Node):
            known = self.memory.any_value(node.args[0])
            if known is not None:
                self.new[node] = self.emit.copy(node, (known, *map_nodes(node.args[1:], self._argument)), {})
                return
        if target is operator.getitem:
            self._element(node)
        elif target in RESIZE_OPS or target in SET_OPS:
            self._change_memory(node)
        elif effects_of(target).written:
            self.calls.write_call(node, self._argument)
            self._after_write(node)
        elif target in METADATA_OPS:
            self.memory.read(node)
        elif is_view_call(node):
            self._view(node)
        else:
            draws = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
            read = self._argument_to_draw_for if draws else self._argument
            args, kwargs = map_nodes(node.args, read), map_nodes(node.kwargs, read)
            self._own(node, self.emit.copy(node, args, kwargs))

    def _after_write(self, node: Node) -> None:
        value = self.results.get((node, None))
        if value is not None:
            self._own(node, value)
        if self.is_exact:
            for parameter in effects_of(node.target).written:
                map_nodes(parameter.of(node.args, node.kwargs), self.memory.read)

    def _element(self, node: Node) -> None:
        call, index = node.args
        assert isinstance(call, Node)
        if self.aliases.tensor_of(node) is not node:  # an argument that the op wrote to, or a repeated getitem
            return
        if node in self.aliases.grown:  # an out= tensor that the call has resized
            return
        if self.aliases.step_of(node) is not None:
            if call in self.new:
                self._keep_view(node, self.emit.copy(node, (self.new[call], index), {}))
            else:
                self.memory.read(node)
            return
        value = self.results.get((call, index)) if isinstance(index, int) else None
        if value is None:
            value = self.emit.copy(node, (self._value(call), index), {})
        self._own(node, value)

    def _view(self, node: Node) -> None:
        """Copy the view call if nothing has written to the base yet. Later it becomes a view of the base's current value."""
        result = effects_of(node.target).results[0]
        assert result is not None
        viewed = result.parameter.of(node.args, node.kwargs)
        if not isinstance(viewed, Node):
            self._own(node, self.emit.copy(node, *map_nodes((node.args, node.kwargs), self._argument)))
            return
        source = self.memory.read(viewed)
        base = self.aliases.base_of(viewed)
        like = viewed.meta.get("val")
        is_unchanged = self.memory.version_of(base) == 0 and not self.memory.is_outgrown(base)
        if node.target is AS_STRIDED and isinstance(like, torch.Tensor):  # its offset is one into the storage
            is_unchanged &= is_same_number(source.meta["val"].storage_offset(), like.storage_offset())
        if self.keeps_views and is_unchanged and _has_layout_of(source, like):
            args, kwargs = map_nodes(node.args, self._argument), map_nodes(node.kwargs, self._argument)
            new = self.emit.copy(node, self.emit.number(args), kwargs)
            self.emit.extras.add(new)
            if result.is_list:
                self.new[node] = new
            else:
                self._keep_view(node, new)
        elif not result.is_list:
            self.memory.read(node)

    def _keep_view(self, node: Node, value: Node) -> None:
        self.emit.extras.add(value)
        self.memory.keep(node, value)

    def _change_memory(self, node: Node) -> None:
        """Handle a `set_` or `resize_`, after which the tensor object is a view of other memory, or a new base."""
        source = node.args[0]
        assert isinstance(source, Node)
        if self.aliases.step_of(node) is not None:
            self.memory.read(node)
            return
        if node not in self.aliases.grown:
            if node.target is _aten.set_.default:
                like = node.meta["val"]
                self._own(node, self.emit.call(_aten.empty.memory_format, [0], dtype=like.dtype, device=like.device))
                return
            raise CannotFunctionalize(
                node,
                seen="set_ is given a storage that no tensor of the graph has",
                expected="set_ to a tensor of the program",
                do="use tensor.set_(other_tensor)",
            )
        if self.aliases.step_of(source) is not None:
            raise ResizedView(node)
        size = node.args[1] if node.target is _aten.resize_.default else self.emit.number(node.meta["val"].shape)
        kwargs: Any = {} if node.target is _aten.resize_as_.default else dict(node.kwargs)
        size = map_nodes(size, self._argument)
        value = self.emit.call(_aten.resize.default, self.memory.read(source), size, **kwargs)
        self.memory.outgrow(self.aliases.tensor_of(source), node)
        self._own(node, value)

    def _output(self, node: Node) -> None:
        self.emit.graph.output(map_nodes(node.args[0], self._output_value), type_expr=node.type)
        self.emit.graph.output_node().meta.update(node.meta)

    def _output_value(self, node: Node) -> Any:
        """The value at the end of the graph. Unless it aliases an input, it has the strides that it has in the program."""
        value = self._argument(node)
        like = node.meta.get("val")
        base = self.aliases.base_of(node)
        is_seen = base.op == "call_function" and self.keeps_views
        if base in self.aliases.grown and base.target not in RESIZE_OPS:
            is_seen = False  # the kernel chooses the strides of a resized out= tensor; fake kernels do not know them
        if is_seen and isinstance(like, torch.Tensor) and not _has_layout_of(value, like):
            if base is not self.aliases.tensor_of(node) and not self.memory.is_outgrown(base):
                self.memory.restore_strides(base)
                value = self.memory.read(node)
            return self.views.with_layout(value, like)
        return value

    # --------------------------------------------------------------------------------------------------------- the end

    def final_value(self, node: Node) -> Node:
        """The value of a given node at the end of the graph."""
        with self.emit.graph.inserting_before(self.emit.graph.output_node()):
            return self.memory.read(node)

    def attribute_values(self) -> tuple[tuple[str, Node], ...]:
        """The name, and the value at the end of the graph, of every attribute that is written to."""
        written = [base for base in self.aliases.written_bases() if base.op == "get_attr"]
        return tuple((str(base.target), self.final_value(base)) for base in written)

    def remove_unused(self, kept: Sequence[Node]) -> None:
        """Remove views and other nodes of the pass that nothing reads."""
        extras = self.emit.extras.difference(kept)
        for node in reversed(self.emit.graph.nodes):
            if node in extras and not node.users:
                self.emit.graph.erase_node(node)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _has_layout_of(value: Node, like: Any) -> bool:
    now = value.meta.get("val")
    if not isinstance(now, torch.Tensor) or not isinstance(like, torch.Tensor):
        return True
    return is_same_layout(now, like)
