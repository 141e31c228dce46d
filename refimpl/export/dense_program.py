"""Programs with wrapper subclasses as programs of dense tensors, and the functional graphs of these with wrappers again.

Counterpart: torch/_functorch/_aot_autograd/subclass_parametrization.py unwrap_tensor_subclass_parameters
Differs: upstream decomposes programs whose parameters and buffers are wrappers, and no others. Here user inputs and outputs may
be wrappers as well: the functional graph takes and returns them, and computes on their dense tensors in between.

A parameter `lin.weight` becomes `lin.parametrizations.weight.original0`, ..., as if `torch.nn.utils.parametrize` had made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from refimpl.aot.analysis.subclasses import WrapperLayout, dense_parts, layout_of
from refimpl.export.functional_graph import FunctionalGraph, Program
from refimpl.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from refimpl.export.module_stacks import with_root_entry
from refimpl.export.placeholder_names import TakenNames, name_of_state
from refimpl.export.wrappers import InputMaker, WrapperMaker, is_wrapper, part_of, paths_of, read_part


@dataclass(frozen=True, kw_only=True)
class DenseProgram:
    """A program whose inputs and outputs are dense tensors."""

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    state_dict: Mapping[str, torch.Tensor]
    constants: Mapping[str, Any]
    wrapped: Mapping[str, tuple[fx.Node, tuple[str, ...]]] = field(default_factory=dict)
    """By the name of a placeholder: the original user input that has the tensor inside, and the attributes that lead to it."""
    makers: Sequence[InputMaker] = ()
    """What makes the wrappers among the inputs of the original program."""
    outputs: Sequence[Any] = ()
    """The outputs of the original program."""
    replaced: frozenset[str] = frozenset()
    """Names of the placeholders of parameters and buffers that are wrappers."""

    def with_wrappers(self, made: FunctionalGraph) -> FunctionalGraph:
        """The functional graph of this program, with wrappers as user inputs and outputs.

        Raises UnsupportedByRefimpl if the program puts another tensor into one of its inputs."""
        for maker in self.makers:
            maker.check()
        if not self.wrapped and not any(map(_is_wrapper_node, self.outputs)):
            return made
        return _Rejoined(self, made).functional_graph()


def dense_program(program: Program) -> DenseProgram:
    """The program with dense inputs and outputs. Raises UnsupportedByRefimpl for a wrapper of other objects than tensors."""
    returned: Any = program.graph_module.graph.output_node().args[0]
    placeholders = program.graph_module.graph.find_nodes(op="placeholder")
    if any(map(_is_wrapper_node, (*returned, *placeholders))):
        return _Flattened(program).program()
    return DenseProgram(
        graph_module=program.graph_module,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        constants=program.constants,
    )


def _is_wrapper_node(node: Any) -> bool:
    return isinstance(node, fx.Node) and is_wrapper(node.meta.get("val"))


class _Flattened:
    """Makes the graph of dense tensors. Mutable."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._old = program.graph_module.graph
        self._signature = program.graph_signature
        self._graph = fx.Graph()
        self._taken = TakenNames()
        self._state = dict(program.state_dict)
        self._constants = dict(program.constants)
        self._parameters: dict[int, torch.Tensor] = {}
        self._wrapped: dict[str, tuple[fx.Node, tuple[str, ...]]] = {}

    def program(self) -> DenseProgram:
        placeholders = list(self._old.find_nodes(op="placeholder"))
        for node in placeholders:
            self._taken.unique(node.name)
        given: list[tuple[InputSpec, fx.Node, list[tuple[InputSpec, torch.Tensor]]]] = []
        for spec, node in zip(self._signature.input_specs, placeholders, strict=True):
            given.append((spec, node, self._parts_of_input(spec, node) if _is_wrapper_node(node) else []))
        order = _in_order_of_modules([(spec, parts) for spec, _, parts in given])
        made: dict[int, fx.Node] = {}
        specs: list[InputSpec] = []
        copies: dict[fx.Node, fx.Node] = {}
        for index, place in order:
            spec, node, parts = given[index]
            if place is None:
                made[id(spec)] = copies[node] = self._graph.node_copy(node)
                copies[node].name = copies[node].target = node.name
                specs.append(replace(spec))
            else:
                own, value = parts[place]
                placeholder = self._graph.placeholder(own.arg.name)
                placeholder.meta["val"] = value
                made[id(own)] = placeholder
                specs.append(own)
        makers: list[InputMaker] = []
        for _, node, parts in given:
            if parts:
                layout = layout_of(node.meta["val"])
                assert layout is not None
                maker = InputMaker(layout, node.name)
                makers.append(maker)
                wrapper = self._graph.call_function(maker, tuple(made[id(own)] for own, _ in parts))
                wrapper.meta["val"] = node.meta["val"]
                copies[node] = wrapper
        returned: Any = self._old.output_node().args[0]
        output_specs = self._copied(copies, returned)
        return DenseProgram(
            graph_module=fx.GraphModule(self._program.graph_module, self._graph),
            graph_signature=ExportGraphSignature(specs, output_specs),
            state_dict=self._state,
            constants=self._constants,
            wrapped=self._wrapped,
            outputs=list(returned),
            makers=makers,
            replaced=frozenset(n.name for s, n, parts in given if parts and s.kind is not InputKind.USER_INPUT),
        )

    def _parts_of_input(self, spec: InputSpec, node: fx.Node) -> list[tuple[InputSpec, torch.Tensor]]:
        """The spec and the fake of each dense tensor of an input."""
        wrapper = node.meta["val"]
        parts: list[tuple[InputSpec, torch.Tensor]] = []
        targets = [None] * len(dense_parts(wrapper)) if spec.target is None else self._state_of(spec)
        for (path, part), target in zip(paths_of(wrapper), targets, strict=True):
            is_differentiable = spec.kind is InputKind.PARAMETER and wrapper.requires_grad
            value = part.detach().requires_grad_(is_differentiable and _has_gradients(part))
            wanted = f"{node.name}_{'_'.join(path)}" if target is None else name_of_state(spec.kind, target)
            name = self._taken.unique(wanted)
            if target is None:
                self._wrapped[name] = node, path
            parts.append((InputSpec(spec.kind, TensorArgument(name), target, spec.persistent), value))
        return parts

    def _state_of(self, spec: InputSpec) -> list[str]:
        """Replace a parameter or buffer by its dense tensors. Returns their names."""
        assert spec.target is not None
        place = self._state if spec.target in self._state else self._constants
        wrapper = place.pop(spec.target)
        path, _, name = spec.target.rpartition(".")
        prefix = f"{path}.parametrizations.{name}" if path else f"parametrizations.{name}"
        targets = []
        for index, part in enumerate(dense_parts(wrapper)):
            value = part
            if spec.kind is InputKind.PARAMETER:  # tied parameters remain one
                needs_gradient = wrapper.requires_grad and _has_gradients(part)
                made = torch.nn.Parameter(part, requires_grad=needs_gradient)
                value = self._parameters.setdefault(id(part), made)
            place[f"{prefix}.original{index}"] = value
            targets.append(f"{prefix}.original{index}")
        return targets

    def _copied(self, copies: dict[fx.Node, fx.Node], returned: Sequence[Any]) -> list[OutputSpec]:
        """Copy the nodes of the program, and return the dense tensors of wrappers."""
        for node in self._old.nodes:
            if node.op not in ("placeholder", "output"):
                copies[node] = self._graph.node_copy(node, lambda inner: copies[inner])
        names = {(node.name, path): name for name, (node, path) in self._wrapped.items()}
        leaves: list[Any] = []
        specs: list[OutputSpec] = []
        for spec, value in zip(self._signature.output_specs, returned, strict=True):
            if not _is_wrapper_node(value):
                leaves.append(copies[value] if isinstance(value, fx.Node) else value)
                specs.append(replace(spec))
                continue
            for path, _ in paths_of(value.meta["val"]):
                part = read_part(self._graph, copies[value], path, getattr)
                is_write = spec.kind is OutputKind.USER_INPUT_MUTATION
                target = names[str(spec.target), path] if is_write else spec.target
                leaves.append(part)
                specs.append(OutputSpec(spec.kind, TensorArgument(part.name), target))
        output = self._graph.output(tuple(leaves))
        output.meta = dict(self._old.output_node().meta)
        return specs


def _has_gradients(part: torch.Tensor) -> bool:
    return part.is_floating_point() or part.is_complex()


def _in_order_of_modules(given: Sequence[tuple[InputSpec, Sequence[Any]]]) -> list[tuple[int, int | None]]:
    """Positions of inputs, and of dense tensors in them. The dense tensors of a module's parameters come after the parameters of
    its children, since they belong to a child that is added last."""
    order: list[tuple[int, int | None]] = []
    for kind in dict.fromkeys(spec.kind for spec, _ in given):
        plain = [i for i, (spec, parts) in enumerate(given) if spec.kind is kind and not parts]
        flat = [i for i, (spec, parts) in enumerate(given) if spec.kind is kind and parts]
        if kind is InputKind.USER_INPUT:
            for i in sorted((*plain, *flat)):
                order += [(i, None)] if i in plain else [(i, part) for part in range(len(given[i][1]))]
            continue
        own: list[tuple[int, int | None]] = [(i, None) for i in plain]
        flat.sort(key=lambda i: -str(given[i][0].target).count("."))  # children before their parents
        for i in flat:
            prefix = str(given[i][0].target).rpartition(".")[0]
            within = [
                n for n, (j, _) in enumerate(own) if not prefix or str(given[j][0].target).startswith(f"{prefix}.")
            ]
            place = within[-1] + 1 if within else sum(j < i for j, _ in own)
            own[place:place] = [(i, part) for part in range(len(given[i][1]))]
        order += own
    return order


class _Rejoined:
    """Makes the functional graph with wrappers as user inputs and outputs. Mutable."""

    def __init__(self, dense: DenseProgram, made: FunctionalGraph) -> None:
        self._dense = dense
        self._made = made
        self._old = made.graph_module.graph
        self._graph = fx.Graph()
        self._wrappers: dict[str, fx.Node] = {}
        self._copies: dict[fx.Node, fx.Node] = {}

    def functional_graph(self) -> FunctionalGraph:
        specs = self._inputs()
        for node in self._old.nodes:
            if node not in self._copies and node.op != "output":
                self._copies[node] = self._graph.node_copy(node, lambda inner: self._copies[inner])
        output_specs, returned = self._outputs()
        output = self._graph.output(tuple(returned))
        output.meta = dict(self._old.output_node().meta)
        graph_module = fx.GraphModule(self._made.graph_module, self._graph)
        graph_module.meta.update(self._made.graph_module.meta)
        stacks: Any = (node.meta.get("nn_module_stack") for node in self._old.nodes)
        root = next((stack for stack in stacks if stack), {})
        with_root_entry(graph_module, dict(list(root.items())[:1]))
        return FunctionalGraph(graph_module=graph_module, signature=ExportGraphSignature(specs, output_specs))

    def _inputs(self) -> list[InputSpec]:
        specs: list[InputSpec] = []
        parts: list[tuple[fx.Node, str]] = []
        for spec, node in zip(self._made.signature.input_specs, self._old.find_nodes(op="placeholder"), strict=True):
            if spec.arg.name not in self._dense.wrapped:
                self._copies[node] = self._graph.node_copy(node)
                self._copies[node].name = self._copies[node].target = node.name
                specs.append(spec)
                continue
            parts.append((node, spec.arg.name))
            wrapper, _ = self._dense.wrapped[spec.arg.name]
            if wrapper.name not in self._wrappers:
                made = self._wrappers[wrapper.name] = self._graph.placeholder(wrapper.name)
                made.name = made.target = wrapper.name
                made.meta = dict(wrapper.meta)
                specs.append(InputSpec(spec.kind, TensorArgument(wrapper.name), None))
        for node, name in parts:
            if node.users:
                self._copies[node] = self._read(name)
            else:
                self._copies[node] = self._wrappers[self._dense.wrapped[name][0].name]
        return specs

    def _read(self, name: str) -> fx.Node:
        wrapper, path = self._dense.wrapped[name]
        return read_part(self._graph, self._wrappers[wrapper.name], path, part_of)

    def _outputs(self) -> tuple[list[OutputSpec], list[Any]]:
        """Outputs of the functional graph are (tokens, updates, outputs of the program)."""
        old: Any = self._old.output_node().args[0]
        found = list(zip(self._made.signature.output_specs, old, strict=True))
        counts = [len(list(paths_of(n.meta["val"]))) if _is_wrapper_node(n) else 1 for n in self._dense.outputs]
        first = len(found) - sum(counts)
        specs, returned = self._updates(found[:first])
        for node, count in zip(self._dense.outputs, counts, strict=True):
            mine = found[first : first + count]
            first += count
            if not _is_wrapper_node(node):
                self._return(*mine[0], specs, returned)
            else:
                spec = mine[0][0]
                made = self._made_of(node, [self._copies[part] for _, part in mine])
                is_write = spec.kind is OutputKind.USER_INPUT_MUTATION
                target = self._dense.wrapped[str(spec.target)][0].name if is_write else spec.target
                specs.append(OutputSpec(spec.kind, TensorArgument(made.name), target))
                returned.append(made)
        return specs, returned

    def _return(self, spec: OutputSpec, value: Any, specs: list[OutputSpec], returned: list[Any]) -> None:
        """Return a value that is no wrapper. A tensor inside of an input has another name than its placeholder had."""
        made = self._copies.get(value, value)
        specs.append(replace(spec, arg=replace(spec.arg, name=made.name)) if isinstance(made, fx.Node) else spec)
        returned.append(made)

    def _updates(self, found: Sequence[tuple[OutputSpec, Any]]) -> tuple[list[OutputSpec], list[Any]]:
        """Tokens and updates; updates of dense tensors of one wrapper become one update of the wrapper."""
        specs: list[OutputSpec] = []
        returned: list[Any] = []
        written = {s.target: v for s, v in found if s.kind is OutputKind.USER_INPUT_MUTATION}
        done: set[str] = set()
        for spec, value in found:
            target = str(spec.target)
            if spec.kind is not OutputKind.USER_INPUT_MUTATION or target not in self._dense.wrapped:
                self._return(spec, value, specs, returned)
                continue
            wrapper, _ = self._dense.wrapped[target]
            if wrapper.name in done:
                continue
            done.add(wrapper.name)
            names = [name for name, (owner, _) in self._dense.wrapped.items() if owner is wrapper]
            parts = [self._copies[written[n]] if n in written else self._read(n) for n in names]
            made = self._made_of(wrapper, parts)
            specs.append(OutputSpec(spec.kind, TensorArgument(made.name), wrapper.name))
            returned.append(made)
        return specs, returned

    def _made_of(self, node: fx.Node, parts: Sequence[fx.Node]) -> fx.Node:
        layout: WrapperLayout | None = layout_of(node.meta["val"])
        assert layout is not None
        meta = node.meta.get("tensor_meta")
        maker = WrapperMaker(layout, refuses_gradients=meta is not None and meta.requires_grad)
        made = self._graph.call_function(maker, tuple(parts))
        made.meta["val"] = node.meta["val"]
        if meta is not None:
            made.meta["tensor_meta"] = meta
        return made
