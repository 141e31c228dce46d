"""Rewrites a captured graph so that it is called like the original function.

Counterpart: torch/_dynamo/eval_frame.py FlattenInputOutputSignature, rewrite_signature
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx

from refimpl._torch import SYMBOLIC_TYPES, FakeTensor, PyTreeCodeGen, PyTreeInfo, is_graph_object, pytree
from refimpl.capture.guards.sources import DimensionSource, KeptSource, ReaderBuilder, Source
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.capture.segment import Segment
from refimpl.symbolic.dynamic_shapes import InputPolicy
from refimpl.symbolic.fake_inputs import fake_input
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.metadata import copied_meta, notes_of

CONSTANT_TYPES = (
    int, float, complex, bool, str, bytes, type(None), type(...), CodeType, torch.device, torch.dtype, torch.memory_format,
    torch.layout,
)  # fmt: skip
INPUT_CONSTANT_TYPES = (*CONSTANT_TYPES, enum.Enum)
_LEAVES = (torch.Tensor, *SYMBOLIC_TYPES, torch.ScriptObject, *CONSTANT_TYPES)
_COPIED_META = (
    "val",
    "example_value",
    "unbacked_bindings",
    "tensor_dict",
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
)


@dataclass(frozen=True, kw_only=True)
class Captured:
    """The segment of a whole function, with its inputs and outputs."""

    nodes: list[fx.Node]
    inputs: list[Any]
    """The value of each placeholder. A size is a `SizeOf`, an integer that varies an `InputNumber`."""
    outputs: list[fx.Node]
    values: list[Any]
    """Tensors without data for the outputs."""
    result: Any
    """The function's result, with these tensors in place of computed ones."""

    @classmethod
    def of(
        cls, segment: Segment, kept: tuple[Any, ...], frames: list[FrameState], varying: Mapping[str, int] | None = None
    ) -> Captured:
        """kept: the result of the segment's check of the frames. varying: sources of the integers that vary, with their
        positions among the arguments. The function's side effects on objects happen.
        """
        graph = segment.graph
        nodes = [] if graph is None else list(graph.graph.nodes)
        kept = _with_sizes(segment, kept, frames, varying or {})
        outputs: list[fx.Node] = list(nodes[-1].args[0]) if nodes else []
        values = [node.meta["example_value"] for node in outputs]
        return cls(
            nodes=nodes, outputs=outputs, values=values, result=segment.rebuild(tuple(values), kept),
            inputs=list(kept[: segment.inputs]),
        )  # fmt: skip


class InputNumber(int):
    """An integer argument that varies: its value in the example, and its position."""

    position: int


class SizeOf(int):
    """A size, stride or storage offset of a tensor: its value in the example, and its source."""

    tensor: torch.Tensor
    operator: Any
    dims: tuple[int, ...]


_DIMENSIONS = {
    "size": torch.ops.aten.sym_size.int,
    "stride": torch.ops.aten.sym_stride.int,
    "storage_offset": torch.ops.aten.sym_storage_offset.default,
}


def _with_sizes(
    segment: Segment, kept: tuple[Any, ...], frames: list[FrameState], varying: Mapping[str, int]
) -> tuple[Any, ...]:
    """`kept`, with sizes and varying integers replaced by SizeOf and InputNumber."""
    made = list(kept)
    sources: Sequence[Source | None] = segment.sources
    if not sources and segment.graph is not None:
        sources = [notes_of(node).source for node in segment.graph.graph.nodes if node.op == "placeholder"]
    for index, source in enumerate(sources):
        if isinstance(source, DimensionSource):
            reader = ReaderBuilder()
            size = made[index] = SizeOf(made[index])
            size.tensor = reader.function(reader.read(source.of))(frames)
            size.operator = _DIMENSIONS[source.which]
            size.dims = () if source.dim is None else (source.dim,)
        elif source is not None and source.name in varying:
            number = made[index] = InputNumber(made[index])
            number.position = varying[source.name]
    return tuple(made)


def with_signature(
    captured: Captured, flat_args: list[Any], in_spec: Any, names: Sequence[str], policies: Sequence[InputPolicy]
) -> fx.GraphModule:
    """A module with one placeholder for each leaf of the arguments, used or not, that returns the containers of the result.

    policies: of each leaf, which sizes are symbols, also if the function does not use it. A captured tensor that is no argument
    becomes an attribute. Raises UserError for a leaf of arguments or results that is neither a tensor nor a constant.
    """
    check_leaves(flat_args, UserErrorType.INVALID_INPUT, "inputs")
    flat_results, out_spec = pytree.tree_flatten(captured.result)
    check_leaves(flat_results, UserErrorType.INVALID_OUTPUT, "outputs")
    assert len(policies) == len(flat_args), (
        f"{len(policies)} policies\n  expected: one for each of {len(flat_args)} leaves"
    )
    builder = _Builder(captured, flat_args)
    builder.note_unused(policies)
    output = builder.graph.output([builder.result(leaf) for leaf in flat_results])
    output.meta["val"] = tuple(flat_results)
    module = fx.GraphModule(builder.root, builder.graph)
    module.graph.set_codegen(PyTreeCodeGen(PyTreeInfo(list(names), in_spec, out_spec)))
    module.recompile()
    module.meta["dynamo_flat_name_to_original_fqn"] = dict(builder.attribute_names)
    return module


def check_leaves(leaves: Sequence[Any], error: UserErrorType, what: str) -> None:
    """Raises UserError for a leaf that can be neither an input nor an output of a graph. Members of enums can be inputs only."""
    accepted = (*_LEAVES, enum.Enum) if error is UserErrorType.INVALID_INPUT else _LEAVES
    for leaf in leaves:
        if not isinstance(leaf, accepted) and not is_graph_object(leaf):
            kind = type(leaf)
            raise UserError(
                error,
                f"It looks like one of the {what} with type `{kind}` is not supported or pytree-flattenable.\n"
                f"  expected: {', '.join(each.__name__ for each in accepted)}, and containers of these\n"
                "  what to do: tell pytree how the class is flattened (torch.utils._pytree.register_pytree_node), or for a "
                "dataclass call torch.export.register_dataclass",
            )


def _is_kept(source: Source | None) -> bool:
    """Whether it is read from an object that the segment keeps: then it is a constant, even if an argument is the same object."""
    return source is not None and isinstance(next(source.way()), KeptSource)


def _unmatched(found: Any, where: str, expected: str) -> AssertionError:
    return AssertionError(f"Unexpectedly found a {type(found)} in the {where}\n  expected: {expected}")


class _Builder:
    """Copies the nodes of a captured graph to a graph with new placeholders."""

    def __init__(self, captured: Captured, flat_args: list[Any]) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.attribute_names: dict[str, str] = {}
        self._attributes: dict[int, fx.Node] = {}
        self._args = flat_args
        self._leaves: list[fx.Node] = []
        by_object = self._by_object = dict[int, fx.Node]()
        for number, arg in enumerate(flat_args):
            node = self.graph.placeholder(f"arg{number}")
            self._leaves.append(node)
            if isinstance(arg, INPUT_CONSTANT_TYPES):
                node.meta["val"] = arg
            else:
                by_object.setdefault(id(arg), node)
        copies = self._inputs(captured, by_object)
        for node in captured.nodes:
            if node.op not in ("placeholder", "output"):
                copies[node] = self._copy(node, copies)
        self._given = {id(value): copies[node] for node, value in zip(captured.outputs, captured.values, strict=True)}
        self._given.update(by_object)
        fakes = [*captured.values, *(node.meta.get("example_value") for node in captured.nodes)]
        self._modes = dict.fromkeys(value.fake_mode for value in fakes if isinstance(value, FakeTensor))
        self._held = [captured.values, flat_args]  # keeps the objects alive whose ids are used as keys

    def note_unused(self, policies: Sequence[InputPolicy]) -> None:
        """Gives placeholders of tensors that the function does not use a fake tensor of the mode of the others."""
        mode = next((mode for mode in self._modes if isinstance(mode.shape_env, ShapeEnv)), None)
        env = None if mode is None else mode.shape_env
        for number, (node, arg, policy) in enumerate(zip(self._leaves, self._args, policies, strict=True)):
            if isinstance(env, ShapeEnv) and isinstance(arg, torch.Tensor) and "val" not in node.meta:
                assert mode is not None
                node.meta["val"] = fake_input(arg, mode, env, f"arg{number}", policy)

    def _inputs(self, captured: Captured, by_object: dict[int, fx.Node]) -> dict[fx.Node, fx.Node]:
        copies: dict[fx.Node, fx.Node] = {}
        placeholders = [node for node in captured.nodes if node.op == "placeholder"]
        for node, given in zip(placeholders, captured.inputs, strict=True):
            if isinstance(given, SizeOf):
                copies[node] = self._size(given)
            elif isinstance(given, InputNumber):
                copies[node] = self._leaves[given.position]
            else:
                if not isinstance(given, _LEAVES) and not is_graph_object(given):
                    raise _unmatched(given, "inputs", "a tensor, a number or a constant")
                known = None if _is_kept(notes_of(node).source) else by_object.get(id(given))
                copies[node] = known or self._attribute(str(node.target), given)
            if "example_value" in node.meta:
                copies[node].meta.update(self._meta(node))
            if isinstance(given, torch.Tensor):
                copies[node].meta["tensor_dict"] = dict(given.__dict__)  # attributes that the user set on the tensor
        return copies

    def _size(self, size: SizeOf) -> fx.Node:
        tensor = self._by_object.get(id(size.tensor)) or self._attribute("held", size.tensor)
        return self.graph.call_function(size.operator, (tensor, *size.dims))

    def _copy(self, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
        if node.op == "get_attr":
            made = self._attribute(str(node.target), getattr(node.graph.owning_module, str(node.target)))
        else:
            made = self.graph.node_copy(node, lambda inner: copies[inner])
        made.meta.update(self._meta(node))
        return made

    def _meta(self, node: fx.Node) -> dict[str, Any]:
        meta = copied_meta(node, *_COPIED_META)
        if "example_value" in meta:
            meta["val"] = meta["example_value"]
        return meta

    def _attribute(self, name: str, held: Any) -> fx.Node:
        """A `get_attr` node for a tensor, or for the module of a branch, which becomes an attribute of the new module."""
        known = self._attributes.get(id(held))
        if known is not None:
            return known
        taken = self.attribute_names
        name = next(n for n in (name, *(f"{name}_{i}" for i in range(1, len(taken) + 2))) if n not in taken)
        if isinstance(held, torch.nn.Parameter):
            self.root.register_parameter(name, held)
        elif isinstance(held, torch.Tensor):
            self.root.register_buffer(name, held)
        else:
            setattr(self.root, name, held)
        self.attribute_names[name] = name
        node = self._attributes[id(held)] = self.graph.get_attr(name)
        return node

    def result(self, leaf: Any) -> Any:
        """The node of a leaf of the result; a constant unchanged."""
        if isinstance(leaf, SizeOf):
            return self._size(leaf)
        if isinstance(leaf, InputNumber):
            return self._leaves[leaf.position]
        if isinstance(leaf, CONSTANT_TYPES):
            return leaf
        known = self._given.get(id(leaf))
        if known is not None:
            return known
        if isinstance(leaf, torch.Tensor) and not (isinstance(leaf, FakeTensor) and leaf.fake_mode in self._modes):
            return self._attribute("held", leaf)
        raise _unmatched(leaf, "outputs", "what the graph computes, an argument, or a constant")
