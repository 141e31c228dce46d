"""Makes the graph of an exported program functional and decomposed; new values of mutated inputs become outputs.

Counterpart: torch/export/exported_program.py _decompose_exported_program,
  _decompose_and_get_gm_with_new_signature_constants; none; upstream's functional graphs are for inference
Differs: refimpl.aot makes the graph for all tables. If composite operators of the program are not decomposed, the graph is traced
above autograd, else below it. Parts of the program without gradients have none in the functional graph
(upstream loses that): regions are kept, and `detach` is no alias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

from refimpl._torch import FakeTensor, OpOverload, hints_for_kernels, set_grad_enabled
from refimpl._torch.operators import has_composite_kernel
from refimpl.aot.export.function import ExportedFunction, export_function
from refimpl.aot.export.module import leaf_of_loss
from refimpl.aot.export_errors import GradientMissing
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.decomposition_table import CompositeTable, default_decompositions, read_table
from refimpl.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TokenArgument,
)
from refimpl.export.lifted_graph import argument_of
from refimpl.export.module_stacks import with_root_entry
from refimpl.export.placeholder_names import PREFIXES, TakenNames
from refimpl.export.region_operators import (
    REGION_OPERATORS,
    noting_grad_modes,
    wrap_with_autocast,
    wrap_with_set_grad_enabled,
)
from refimpl.export.regions import with_noted_regions, with_regions
from refimpl.functionalize.geometry import is_same_geometry
from refimpl.trace.metadata import copied_meta
from refimpl.trace.options import DecompositionTable

_UPDATES = {
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}


class Program(Protocol):
    """The part of ExportedProgram that this module uses."""

    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def graph_signature(self) -> ExportGraphSignature: ...
    @property
    def state_dict(self) -> Mapping[str, torch.Tensor]: ...
    @property
    def constants(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class FunctionalGraph:
    """A functional graph and its signature, with the inputs of the program."""

    graph_module: fx.GraphModule
    signature: ExportGraphSignature


def functional_graph(program: Program, decompositions: DecompositionTable | None) -> FunctionalGraph:
    """The functional graph of a program. Tokens order side effects; they are the first inputs and outputs.

    Raises an ExportError for effects that a functional graph cannot have, such as a resized input, and UnsupportedByRefimpl for
    writes to constants."""
    table = default_decompositions() if decompositions is None else read_table(decompositions)
    keeps_composites = not isinstance(table, CompositeTable) or _has_any(program.graph_module, table.kept)
    is_whole = keeps_composites and not _has_any(program.graph_module, {wrap_with_autocast})
    source = _Source(program)
    has_gradients = torch.is_grad_enabled() and is_whole
    with torch.set_grad_enabled(has_gradients), noting_grad_modes(), hints_for_kernels():
        exported = source.exported(source.run, table, pre_dispatch=is_whole)
    return _with_signature(source, exported)


def joint_graph(program: Program, loss_index: int) -> FunctionalGraph:
    """The functional graph with gradients of the loss, the user output at `loss_index`, for parameters and inputs that require
    grad. Raises the errors of `functional_graph`, an ExportError for an unsuitable loss and for mutations that require grad, and
    GradientMissing.
    """
    source = _Source(program)
    is_user = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    if not all(is_user):
        raise UnsupportedByRefimpl(
            seen="forward_backward of a program after run_decompositions",
            supported="programs as export returns them",
            do="call forward_backward before run_decompositions",
        )
    losses: list[int] = []

    def run(*leaves: Any) -> Any:
        results = source.run(*leaves)
        losses.append(leaf_of_loss(results, loss_index))
        return results

    with torch.enable_grad():
        exported = source.exported(run, default_decompositions(), trace_joint=True)
    return _with_signature(source, exported, losses[0])


class _Source:
    """The program's graph as a function to trace. Placeholders for one tensor (tied parameters) are one argument."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.placeholders = list(program.graph_module.graph.find_nodes(op="placeholder"))
        # A trace makes fakes of script objects itself.
        self.values = [getattr(node.meta["val"], "real_obj", node.meta["val"]) for node in self.placeholders]
        targets = [spec.target for spec in program.graph_signature.input_specs]
        known = {**program.state_dict, **program.constants}
        states = [known.get(target) if target is not None else None for target in targets]
        self.first, self.distinct = _distinct(self.values, states)

    def run(self, *leaves: Any) -> Any:
        """Run the program with values of the distinct placeholders."""
        given = [leaves[self.first[position]] for position in range(len(self.values))]
        with fx_traceback.preserve_node_meta():
            return tuple(fx.Interpreter(self.program.graph_module).run(*given, enable_io_processing=False))

    def exported(self, run: Any, table: DecompositionTable, **options: Any) -> ExportedFunction:
        """The functional graph of `run`."""
        return export_function(
            run,
            tuple(self.values[position] for position in self.distinct),
            decompositions=_with_clones(table),
            no_tangents=True,
            names=[self.placeholders[position].name for position in self.distinct],
            **options,
        )


def _with_clones(table: DecompositionTable) -> DecompositionTable:
    """The table, in which `lift_fresh_copy` is a copy like others: in a functional graph nothing is left to be lifted."""
    aten = torch.ops.aten
    if aten.lift_fresh_copy.default in table:
        return table
    made = table.copy() if isinstance(table, CompositeTable) else dict(table)
    made[aten.lift_fresh_copy.default] = aten.clone.default
    return made


def _distinct(values: Sequence[Any], states: Sequence[Any]) -> tuple[list[int], list[int]]:
    """For every value its index among the distinct values, and the positions of the distinct values. Tied parameters and buffers
    are one value: `states` has the program's tensor for each of them, and None for other values."""
    positions: dict[int, int] = {}
    first: list[int] = []
    distinct: list[int] = []
    for index, (value, state) in enumerate(zip(values, states, strict=True)):
        key = id(value if state is None else state) if isinstance(value, FakeTensor) else -index - 1
        if key not in positions:
            positions[key] = len(distinct)
            distinct.append(index)
        first.append(positions[key])
    return first, distinct


def _has_any(graph_module: fx.GraphModule, targets: Set[Any]) -> bool:
    modules = (module for module in graph_module.modules() if isinstance(module, fx.GraphModule))
    return any(node.target in targets for module in modules for node in module.graph.nodes)


def _with_signature(source: _Source, exported: ExportedFunction, loss: int | None = None) -> FunctionalGraph:
    """Make the graph with the program's inputs. Outputs are (tokens, updates, outputs of the program, gradients)."""
    program, old = source.program, exported.graph_module.graph
    specs, earlier = program.graph_signature.input_specs, program.graph_signature.output_specs
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    taken = list(old.find_nodes(op="placeholder"))
    tokens = _token_inputs(graph, taken[: exported.num_tokens], [node.name for node in source.placeholders])
    copies.update(zip(taken, tokens, strict=False))
    inputs = _program_inputs(graph, source, taken[len(tokens) :], copies)
    for node in old.nodes:
        if node in copies or node.op == "output" or node.target is set_grad_enabled:
            continue
        if _is_needless_copy(node):
            copies[node] = copies[node.args[1]]
            continue
        copies[node] = graph.node_copy(node, lambda inner: copies[inner])
    found: Any = list(fx.map_arg(old.output_node().args[0], lambda inner: copies[inner]))  # type: ignore[arg-type]
    mutated = [source.distinct[position] for position in exported.metadata.mutated_inp_runtime_indices]
    num_new = len(tokens) + len(mutated)
    returned = found[: num_new + len(earlier)]
    num_forward = len(tokens) + exported.num_forward_outputs
    gradients = [] if loss is None else _gradients(graph, source, inputs, found[num_forward:])
    updates = [
        *range(len(tokens), num_new),
        *(num_new + i for i, s in enumerate(earlier) if s.kind in _UPDATES.values()),
    ]
    num_forward = len(returned)
    returned += [value for _, value in gradients]
    _clone_shared_updates(graph, returned, [*updates, *range(num_forward, len(returned))])
    graph.output(tuple(returned)).meta = copied_meta(program.graph_module.graph.output_node(), "custom")
    _note_requires_grad(program, returned[len(tokens) :], mutated, updates[len(mutated) :], len(tokens))
    graph_module = fx.GraphModule(exported.graph_module, graph)
    with_root_entry(graph_module, _root_entries(program.graph_module))
    graph_module = with_regions(with_noted_regions(graph_module), has_gradients=torch.is_grad_enabled())
    given = returned[num_new:num_forward]
    signature = ExportGraphSignature(
        [*(InputSpec(InputKind.TOKEN, TokenArgument(name=t.name), None) for t in tokens), *map(_input_spec, specs)],
        [
            *(OutputSpec(OutputKind.TOKEN, TokenArgument(name=token.name), None) for token in returned[: len(tokens)]),
            *(_update(specs[i], value) for i, value in zip(mutated, returned[len(tokens) :], strict=False)),
            *(_output_spec(spec, v, is_loss=i == loss) for i, (spec, v) in enumerate(zip(earlier, given, strict=True))),
            *(_gradient_spec(specs[i], v) for (i, _), v in zip(gradients, returned[num_forward:], strict=True)),
        ],
    )
    return FunctionalGraph(graph_module=graph_module, signature=signature)


def _is_needless_copy(node: fx.Node) -> bool:
    """Whether the node copies a new value, which nothing else reads, to a tensor of the same layout: `x.add_(1)` is decomposed to
    such a copy. No value of a functional graph changes, so the copy is the value."""
    if node.target is not torch.ops.aten.copy.default or not isinstance(made := node.args[1], fx.Node):
        return False
    if not isinstance(made.target, OpOverload) or len(made.users) > 1 or has_composite_kernel(made.target):
        return False
    schema = made.target._schema
    if schema.is_mutable or any(part.alias_info is not None for part in (*schema.arguments, *schema.returns)):
        return False
    value, copied = made.meta.get("val"), node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(copied, torch.Tensor):
        return False
    return value.dtype == copied.dtype and value.device == copied.device and is_same_geometry(value, copied)


def _program_inputs(
    graph: fx.Graph, source: _Source, taken: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]
) -> list[fx.Node]:
    """Copies of the program's placeholders. The first of several for one tensor replaces that of the traced graph."""
    inputs: list[fx.Node] = []
    for position, given in enumerate(source.placeholders):
        node = graph.placeholder(given.name)
        node.name = node.target = given.name
        node.meta = dict(given.meta)
        inputs.append(node)
        if source.distinct[source.first[position]] == position:
            copies[taken[source.first[position]]] = node
    return inputs


_GRADIENTS = {
    InputKind.PARAMETER: OutputKind.GRADIENT_TO_PARAMETER,
    InputKind.USER_INPUT: OutputKind.GRADIENT_TO_USER_INPUT,
}


def _gradients(
    graph: fx.Graph, source: _Source, inputs: Sequence[fx.Node], found: Sequence[fx.Node | None]
) -> list[tuple[int, fx.Node]]:
    """The gradients of parameters and inputs that require grad, by position. Further names of a tied parameter have zeros."""
    names = Counter(id(value) for value in source.program.state_dict.values())
    gradients: list[tuple[int, fx.Node]] = []
    for position, spec in enumerate(source.program.graph_signature.input_specs):
        value = source.values[position]
        if spec.kind not in _GRADIENTS or not isinstance(value, torch.Tensor) or not value.requires_grad:
            continue
        gradient = found[source.first[position]]
        is_first = source.distinct[source.first[position]] == position
        is_tied = names[id(source.program.state_dict.get(spec.target or ""))] > 1
        if not is_first or (gradient is None and is_tied):
            gradient = graph.call_function(torch.ops.aten.zeros_like.default, (inputs[position],))
            gradient.meta = copied_meta(inputs[position], "val", "tensor_meta")
        if gradient is None:
            raise GradientMissing(spec.target or spec.arg.name)
        gradients.append((position, gradient))
    return gradients


def _gradient_spec(spec: InputSpec, value: fx.Node) -> OutputSpec:
    kind = _GRADIENTS[spec.kind]
    return OutputSpec(kind, argument_of(value), spec.target if spec.kind is InputKind.PARAMETER else spec.arg.name)


def _token_inputs(graph: fx.Graph, tokens: Sequence[fx.Node], names: Iterable[str]) -> list[fx.Node]:
    """Placeholders for tokens, before all others."""
    given = TakenNames()
    for name in names:
        given.unique(name)
    made = [graph.placeholder(given.unique(PREFIXES[InputKind.TOKEN])) for _ in tokens]
    for node, token in zip(made, tokens, strict=True):
        node.meta = dict(token.meta)
    return made


def _output_spec(spec: OutputSpec, value: Any, *, is_loss: bool) -> OutputSpec:
    kind = OutputKind.LOSS_OUTPUT if is_loss else spec.kind
    is_token = kind is OutputKind.TOKEN
    return OutputSpec(kind, TokenArgument(name=value.name) if is_token else argument_of(value), spec.target)


def _note_requires_grad(
    program: Program, returned: Sequence[Any], mutated: Sequence[int], earlier: Sequence[int], num_tokens: int
) -> None:
    """Note which updates require grad, so that `module()` writes them with or without autograd."""
    graph = program.graph_module.graph
    sources = list(graph.find_nodes(op="placeholder"))
    written = inputs_written_with_grad(graph)
    for position, value in zip(mutated, returned, strict=False):
        _set_requires_grad(value, sources[position] in written)
    before: Any = graph.output_node().args[0]
    for position in earlier:
        index = position - num_tokens
        _set_requires_grad(returned[index], _requires_grad(before[index - len(mutated)]))


def _set_requires_grad(node: fx.Node, requires_grad: bool) -> None:
    """Note in `tensor_meta` whether an update requires grad, which a trace below autograd does not show."""
    made = node.meta.get("tensor_meta")
    if made is not None:
        node.meta["tensor_meta"] = made._replace(requires_grad=requires_grad)


def _requires_grad(node: fx.Node) -> bool:
    made = node.meta.get("tensor_meta")
    return made is not None and made.requires_grad


def _clone_shared_updates(graph: fx.Graph, returned: list[Any], updates: Iterable[int]) -> None:
    """Clone an update that is an input, a view, or another update as well: signatures go by node names, and updates are written
    one after the other."""
    seen: set[Any] = set()
    for index in updates:
        value = returned[index]
        if value in seen or value.op == "placeholder" or _is_view(value):
            clone = graph.call_function(torch.ops.aten.clone.default, (value,))
            clone.meta = copied_meta(value, "val", "tensor_meta")
            returned[index] = clone
        seen.add(returned[index])


def _is_view(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and any(each.alias_info is not None for each in target._schema.returns)


def _update(spec: InputSpec, value: fx.Node) -> OutputSpec:
    kind = _UPDATES.get(spec.kind)
    if kind is None:
        raise UnsupportedByRefimpl(
            seen=f"a write to a constant (Constant {spec.target} is mutated by the program)",
            supported="writes to parameters, buffers and inputs",
            do="register it as a buffer",
        )
    target = spec.arg.name if kind is OutputKind.USER_INPUT_MUTATION else spec.target
    return OutputSpec(kind, argument_of(value), target)


def _input_spec(spec: InputSpec) -> InputSpec:
    return InputSpec(spec.kind, spec.arg, spec.target, spec.persistent)


def _root_entries(graph_module: fx.GraphModule) -> Mapping[str, tuple[str, str]]:
    stacks: Iterable[Any] = (node.meta.get("nn_module_stack") for node in graph_module.graph.nodes)
    first = next((stack for stack in stacks if stack), {})
    return dict(list(first.items())[:1])


# Inputs that a graph writes values to which require grad. Their updates in the functional graph require grad too.


def inputs_written_with_grad(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that require grad after a write to them or to views of them, also in regions with gradients."""
    state = _WritesState()
    placeholders = graph.find_nodes(op="placeholder")
    state.look_at(graph, {node: node for node in placeholders})
    return state.found


class _WritesState:
    """Collects written placeholders of a graph and its regions. Mutable."""

    def __init__(self) -> None:
        self.found: set[fx.Node] = set()

    def look_at(self, graph: fx.Graph, inputs: dict[fx.Node, fx.Node]) -> None:
        """inputs: from nodes of the graph to the placeholder that they alias."""
        owners = dict(inputs)
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node.target in REGION_OPERATORS:
                self._look_into(node, owners)
            elif isinstance(node.target, OpOverload):
                self._look_at_operator(node, owners)

    def _look_at_operator(self, node: fx.Node, owners: dict[fx.Node, fx.Node]) -> None:
        schema: Any = node.target._schema  # type: ignore[union-attr]
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not isinstance(value, fx.Node) or value not in owners:
                continue
            owners[node] = owners[value]
            made = node.meta.get("tensor_meta")
            if argument.alias_info.is_write and getattr(made, "requires_grad", False):
                self.found.add(owners[value])

    def _look_into(self, node: fx.Node, owners: dict[fx.Node, fx.Node]) -> None:
        if node.target is wrap_with_set_grad_enabled and node.args[0] is False:
            return
        place = next(i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg.op == "get_attr")
        function: Any = node.args[place]
        body = getattr(node.graph.owning_module, str(function.target))
        inner = body.graph.find_nodes(op="placeholder")
        operands = zip(inner, node.args[place + 1 :], strict=True)
        self.look_at(body.graph, {mine: owners[given] for mine, given in operands if given in owners})
