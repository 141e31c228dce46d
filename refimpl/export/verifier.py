"""Verifiers of exported programs: allowed operators, metadata, names, and consistency with the signature.

Counterpart: torch/_export/verifier.py; _verify_nn_module_stack, _verify_stack_trace, _verify_placeholder_names of
torch/export/_trace.py
Differs: `stack_trace` is checked in all graphs; upstream checks the outermost one repeatedly.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import fx

from refimpl._torch import (
    SYMBOLIC_FUNCTIONS,
    SYMBOLIC_TYPES,
    HigherOrderOperator,
    OpOverload,
    enter_autocast,
    exit_autocast,
    is_opaque_object,
    pytree,
    set_grad_enabled,
)
from refimpl.export.errors import SpecViolationError
from refimpl.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from refimpl.export.placeholder_names import PREFIXES
from refimpl.export.region_operators import REGION_OPERATORS
from refimpl.export.wrappers import is_of_wrappers

_VALUES = (torch.Tensor, *SYMBOLIC_TYPES, int, float, bool, str, type(None))
# Functions on numbers and SymInts that graphs may call. Archives allow the same ones.
NUMBER_FUNCTIONS: tuple[Any, ...] = (
    operator.getitem, operator.add, operator.mul, operator.sub, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.neg, operator.abs, operator.and_, operator.or_, operator.not_, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge, operator.lshift, operator.rshift, operator.pos, operator.invert, operator.xor,
    math.ceil, math.floor, math.trunc, math.sqrt, round, pow,
    *(function for function in SYMBOLIC_FUNCTIONS if function is not torch.sym_fresh_size),  # it makes a new symbol
)  # fmt: skip
# Calls that change what later operators do.
_STATE_FUNCTIONS: tuple[Any, ...] = (set_grad_enabled, enter_autocast, exit_autocast)


class Program(Protocol):
    """The part of ExportedProgram that this module uses."""

    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def graph_signature(self) -> ExportGraphSignature: ...
    @property
    def state_dict(self) -> dict[str, torch.Tensor]: ...
    @property
    def constants(self) -> dict[str, Any]: ...


class Verifier:
    """The dialect of functional graphs of aten operators."""

    dialect = "ATEN"

    def allowed_builtin_ops(self) -> tuple[Any, ...]:
        """Allowed functions of Python and torch on numbers."""
        return NUMBER_FUNCTIONS

    def allowed_op_types(self) -> tuple[type, ...]:
        """Allowed types of operators."""
        return (OpOverload, HigherOrderOperator)

    def allowed_getattr_types(self) -> tuple[type, ...]:
        """Allowed types of attributes that the graph reads."""
        return (fx.GraphModule,)

    def check_valid_op(self, op: Any) -> None:
        """Raises SpecViolationError for an operator that is not in the dialect."""
        if isinstance(op, OpOverload) and _writes(op):
            raise SpecViolationError(
                f"operator '{op}' is not functional\n  expected: operators that write to no argument"
            )

    def check_additional(self, gm: fx.GraphModule) -> None:
        """Further checks of subclasses."""

    def check(self, ep: Program) -> None:
        """Check graph and signature. Raises SpecViolationError."""
        self.check_graph_module(ep.graph_module)
        verify_signature(ep)

    def check_graph_module(self, gm: fx.GraphModule) -> None:
        """Check the graph and those of higher-order operators. Raises SpecViolationError."""
        for module in gm.modules():
            if isinstance(module, fx.GraphModule):
                module.graph.lint()
                self._check_nodes(module)
        self.check_additional(gm)

    def _check_nodes(self, gm: fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            if node.op in ("call_module", "call_method"):
                raise SpecViolationError(f"call_{node.op[5:]} is not valid: got a {node.op} of '{node.target}'")
            if node.op == "call_function":
                _check_value(node)
                self._check_function(node)
            elif node.op == "get_attr":
                self._check_attribute(gm, node)

    def _check_function(self, node: fx.Node) -> None:
        target = node.target
        if target in self.allowed_builtin_ops() or target in REGION_OPERATORS or is_of_wrappers(node):
            return
        if not isinstance(target, self.allowed_op_types()):
            raise SpecViolationError(
                f"Operator '{_name(target)}' is not an allowed operator type: {self.allowed_op_types()}, of {node.format_node()}"
            )
        self.check_valid_op(target)

    def _check_attribute(self, gm: fx.GraphModule, node: fx.Node) -> None:
        try:
            value = operator.attrgetter(str(node.target))(gm)
        except AttributeError as error:
            raise SpecViolationError(f"get_attr of {node.target!r}, which the module does not have") from error
        if not isinstance(value, self.allowed_getattr_types()) and not _is_for_operators(value, node):
            raise SpecViolationError(
                f"Invalid get_attr type {type(value)} of {node.target!r}\n  expected: {self.allowed_getattr_types()}; "
                "tensors are inputs"
            )


def _is_for_operators(value: Any, node: fx.Node) -> bool:
    """Whether only higher-order operators read the attribute, which they need as it is: a function, or a tree of containers."""
    if not isinstance(value, pytree.TreeSpec) and not is_opaque_object(value):
        return False
    return all(isinstance(user.target, HigherOrderOperator) for user in node.users)


class TrainingIRVerifier(Verifier):
    """The dialect before decomposition: in-place ops, and calls that switch gradients or autocast, are allowed."""

    dialect = "TRAINING"

    def allowed_builtin_ops(self) -> tuple[Any, ...]:
        return (*NUMBER_FUNCTIONS, *_STATE_FUNCTIONS)

    def check_valid_op(self, op: Any) -> None:
        """All operators are valid."""


def _writes(op: OpOverload) -> bool:
    """Whether the op has a mutable schema."""
    return op._schema.is_mutable


def _name(target: Any) -> str:
    return getattr(target, "__name__", str(target))


def _check_value(node: fx.Node) -> None:
    if "val" not in node.meta and _has_results(node.target):
        raise SpecViolationError(f"Node.meta {node.name} is missing val field.")
    for each in _flat(node.meta.get("val")):
        if not isinstance(each, _VALUES) and not is_opaque_object(each):
            raise SpecViolationError(f"Node.meta {node.name} has 'val' field of invalid type {type(each)}")


def _flat(value: Any) -> Iterator[Any]:
    """The values in lists of any depth: a collective returns lists of lists of tensors."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _has_results(target: Any) -> bool:
    return isinstance(target, OpOverload) and bool(target._schema.returns)


# --------------------------------------------------------------------------------------------------------- signature


def verify_signature(ep: Program) -> None:
    """Raises SpecViolationError if graph, signature and state do not match."""
    signature, graph = ep.graph_signature, ep.graph_module.graph
    placeholders = [node.name for node in graph.find_nodes(op="placeholder")]
    specified = [spec.arg.name for spec in signature.input_specs]
    if placeholders != specified:
        raise SpecViolationError(f"inputs of the graph are {placeholders}, those of its signature {specified}")
    for spec in signature.input_specs:
        _check_target(ep, spec)
    returned: Any = graph.output_node().args[0]
    if len(returned) != len(signature.output_specs):
        raise SpecViolationError(
            f"Number of output nodes {len(returned)} is different from the number of outputs in the signature "
            f"{len(signature.output_specs)}: {list(returned)}"
        )
    updated = {
        OutputKind.BUFFER_MUTATION: set(signature.buffers),
        OutputKind.PARAMETER_MUTATION: set(signature.parameters),
    }
    updated[OutputKind.USER_INPUT_MUTATION] = {str(name) for name in signature.user_inputs}
    for value, spec in zip(returned, signature.output_specs, strict=True):
        if isinstance(value, fx.Node) and spec.arg.name != value.name:
            raise SpecViolationError(f"output {value.name} is {spec.arg.name!r} in the signature")
        if spec.kind in updated and spec.target not in updated[spec.kind]:
            raise SpecViolationError(
                f"output {spec.arg.name} is {spec.kind.name} of {spec.target!r}, which is no such input"
            )


def _check_target(ep: Program, spec: Any) -> None:
    places: Mapping[InputKind, Any] = {
        InputKind.PARAMETER: ep.state_dict,
        InputKind.CONSTANT_TENSOR: ep.constants,
        InputKind.CUSTOM_OBJ: ep.constants,
        InputKind.BUFFER: ep.constants if spec.persistent is False else ep.state_dict,
    }
    place = places.get(spec.kind)
    if place is None:
        return
    if spec.target is None:
        raise SpecViolationError(f"{spec.kind.name} {spec.arg.name} has no target")
    if spec.target not in place:
        where = "constants" if place is ep.constants else "the state dict"
        raise SpecViolationError(f"{spec.kind.name} {spec.target!r} is not in {where}")
    if spec.kind is InputKind.PARAMETER and not isinstance(place[spec.target], torch.nn.Parameter):
        raise SpecViolationError(
            f"parameter {spec.target!r} is a {type(place[spec.target]).__name__} in the state dict\n"
            "  expected: a torch.nn.Parameter"
        )


# ------------------------------------------------------------------------------------------------ metadata and names


def verify_metadata(graph_module: fx.GraphModule) -> None:
    """Check `nn_module_stack` and `stack_trace`; placeholders and outputs must have neither. Raises SpecViolationError."""
    for number, module in enumerate(m for m in graph_module.modules() if isinstance(m, fx.GraphModule)):
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output"):
                _check_bare(node)
                continue
            _check_stack(node, is_required=number == 0)
            trace = node.meta.get("stack_trace")
            if trace is not None and not isinstance(trace, str):
                raise SpecViolationError(f"{node}.meta['stack_trace'] is {trace!r}, but should be text or None")


def _check_bare(node: fx.Node) -> None:
    for field in ("nn_module_stack", "stack_trace"):
        if field in node.meta:
            raise SpecViolationError(f"{node}.meta has a {field!r}, but a {node.op} should have none")


def _check_stack(node: fx.Node, *, is_required: bool) -> None:
    stack = node.meta.get("nn_module_stack")
    if stack is None and not is_required:
        return
    if not isinstance(stack, dict) or not all(_is_module_entry(key, entry) for key, entry in stack.items()):
        raise SpecViolationError(
            f"{node}.meta['nn_module_stack'] of a {node.op} is {stack!r}, but should be a dict of text to (text, text)"
        )


def _is_module_entry(key: object, entry: object) -> bool:
    if not isinstance(entry, tuple) or len(entry) != 2:
        return False
    path, kind = entry
    return all(isinstance(text, str) for text in (key, path, kind))


def verify_placeholder_names(graph_module: fx.GraphModule, signature: ExportGraphSignature) -> None:
    """Check the prefixes in the names of lifted placeholders. Raises SpecViolationError."""
    kinds = {spec.arg.name: spec.kind for spec in signature.input_specs}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        kind = kinds.get(node.name)
        if kind is None or not node.name.startswith(PREFIXES[kind]):
            kind_name = "nothing" if kind is None else kind.name
            raise SpecViolationError(
                f"Placeholder node name {node.name} does not follow spec for {kind_name}, name should have prefix: "
                f"{'' if kind is None else PREFIXES[kind]!r}"
            )
