"""What a trace finds out: the metadata of the program, or what the trace lacked for it (`NeedsMore`).

The metadata tells which inputs the program writes to, which outputs are views and of what, and which of them have gradients.

Counterpart: torch/_functorch/_aot_autograd/schemas.py ViewAndMutationMeta, InputAliasInfo, OutputAliasInfo, MutationType,
OutputType
Differs: filled from the one joint trace, in which autograd runs on the program's own writes; upstream runs the program once more.
An alias is remade by a list of view ops, not by a function that autograd keeps.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl.functionalize import AliasGroup
from refimpl.functionalize.schemas import METADATA_OPS


class OutputKind(enum.Enum):
    """What an output of the program is."""

    FRESH = "fresh"  # a new tensor that the graph computes
    INPUT = "input"  # the argument itself, the same object
    VIEW_OF_INPUT = "view of input"
    VIEW_OF_INTERMEDIATE = "view of intermediate"  # remade from a base, so that all views of the base share memory
    REPEATED = "repeated"  # the same object as an earlier output
    CONSTANT = "constant"  # no tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The size, strides and storage offset of a tensor, as integers or SymInts."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry | None:
        """The geometry of a tensor; None for a layout without strides."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        return cls(size=tuple(tensor.shape), stride=tuple(tensor.stride()), offset=tensor.storage_offset())

    def places(self) -> set[int]:
        """The positions of its elements in the storage. Not for SymInts."""
        steps = [range(0, n * s, s) if s else range(min(n, 1)) for n, s in zip(self.size, self.stride, strict=True)]
        return {self.offset + sum(index) for index in itertools.product(*steps)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """One of the view ops that make an alias from a base.

    arguments: of the op, with `refimpl.functionalize.VIEWED` in place of the tensor that is viewed; a `ForwardOutput` is a
    symbolic number that the forward graph returns.
    """

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    element: int | None  # of an op with several results
    has_gradient: bool  # whether the program made the view in grad mode
    enables_gradients: bool  # whether it did, and was called in no_grad mode


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The value of the forward graph's output at `position`."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMutation:
    """How a program mutates one of its inputs."""

    writes_data: bool
    is_visible_to_autograd: bool  # gradients flow through the write
    overlaps_itself: bool  # several elements of the input share memory
    bumps_version: bool  # a write through `.data` does not
    geometry: Geometry | None  # the new geometry; None if unchanged
    resizes: bool  # the storage may have to grow
    sets_storage: bool  # the input views other memory than it did
    requires_grad: bool  # afterwards
    position: int  # of its new value among the forward outputs
    detaches: bool = False  # its history ends here, by `detach_`
    # Sizes, strides and offset of a new geometry, where some are symbolic: those are outputs of the forward graph.
    numbers: tuple[int | ForwardOutput, ...] = ()
    # Among the forward outputs, of what was written in its old place, where the new geometry leaves some of that out.
    left_position: int | None = None
    placement: OutputInfo | None = None  # where the memory is that it views, if that is other memory
    is_visible_after_move: bool = True  # if to autograd at all; else it saw what was written in the old place
    assigns_data: bool = False  # and whether it was put there by `x.data = y`, which autograd does not notice


@dataclass(frozen=True, slots=True, kw_only=True)
class InputInfo:
    """One placeholder. `mutation` is None if the program does not mutate it."""

    is_tensor: bool
    requires_grad: bool = False
    is_leaf: bool = True
    becomes_leaf: bool = False  # the program called requires_grad_ on it
    mutation: InputMutation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputInfo:
    """One output of the program, in the order of the flattened result."""

    kind: OutputKind
    position: int  # among the forward outputs
    requires_grad: bool = False
    source: int | None = None  # argument, slot, forward output or earlier output that it is or views
    # How a view is made of the source. Of the only view of an intermediate, which the graph gives as a tensor of its own, how a
    # view is made of that: it is one for autograd.
    steps: tuple[ReplayStep, ...] = ()
    creation: Any = None  # of such an only view: in which mode and by what kind of op it is made
    geometry: Geometry | None = None
    becomes_leaf: bool = False  # the program asked for a gradient of it, by requires_grad_
    # The program has put the tensor into this memory, or views it by a user's Function: its history, or whether it is an
    # inference tensor, does not come from it.
    is_put: bool = False
    # A view made without gradients of what is then written to: autograd forbids its gradient, or finds it by the base later.
    is_before_writes: bool = False
    has_history: bool = False
    is_inference: bool = False
    becomes_inference: bool = False  # made where the program has switched inference mode on itself


@dataclass(frozen=True, slots=True, kw_only=True)
class TangentInfo:
    """A tangent: of which forward output, and the geometry that the backward graph expects."""

    position: int
    geometry: Geometry | None
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatWrite:
    """The forward output at `position` is the final value of the group's flat base."""

    group: AliasGroup
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnalysis:
    """What one trace tells of a program. Positions count forward outputs: new values of inputs, results, bases, numbers."""

    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    bases: tuple[int, ...]  # positions of intermediates that are outputs only for their views
    differentiable: tuple[int, ...]  # positions of the forward outputs that have gradients
    tangents: tuple[TangentInfo, ...]
    gradients: tuple[int | None, ...]  # per input: index among the gradients that the graph returns
    num_forward_outputs: int
    has_backward: bool
    enables_gradients: bool = False  # the program enters grad mode itself, and was called in no_grad mode
    # Positions of the differentiable outputs for whose gradient autograd raises, with the error.
    refused: tuple[tuple[int, Exception], ...] = ()
    lacks_formula: bool = False
    """Whether an operator that tensors with gradients pass through has no formula for its gradient."""
    # Per returned gradient, the tangents that it is given for without being computed from them (gradient_dependences); () if none
    given_unread: tuple[frozenset[int], ...] = ()
    # For each custom backward that may return something else than zeros for zeros: the tangents it runs for, if not all
    adding: tuple[frozenset[int], ...] = ()
    # Per tangent, those whose backward cannot run after its own has freed saved tensors (autograd_graph.freed_together)
    freed_together: tuple[frozenset[int], ...] = ()
    flat_writes: tuple[FlatWrite, ...] = ()
    backward_writes: tuple[
        int, ...
    ] = ()  # inputs that the backward writes to; it returns their new values after the gradients
    # Positions of the outputs that own their memory for autograd: new tensors, and bases of views.
    owned: tuple[int, ...] = ()
    argument_mutations: tuple[tuple[int, InputMutation], ...] = ()  # new geometry of arguments that are views of a slot

    @property
    def mutated_inputs(self) -> tuple[int, ...]:
        """Inputs whose data or geometry the program changes, in order."""
        return tuple(i for i, info in enumerate(self.inputs) if info.mutation is not None)


GEOMETRY_CHANGES = frozenset(op for op in METADATA_OPS if op is not torch.ops.aten.detach_.default)
_AS_STRIDED = torch.ops.aten.as_strided.default
_READ_NUMBER = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNeeds:
    """Features of a trace that only few programs need.

    A trace starts without them, because they cost time: a function mode that sees every call, or another form of the inputs. If
    the program needs one, the trace raises `NeedsMore`, and the program is traced again with it.

    captured_tensors: tensors of closures and globals become inputs of the graph.
    captured_first: those of them that the backward uses and the program does not. They become inputs before the program runs.
    wrappers: results may be wrapper subclasses although no argument is one.
    assignments: `x.data = y` is recorded.
    remade_views: views are remade when an op such as `x.t_()` changes the geometry of their base.
    scalar_masks: `x[mask] = y` with a 0-dimensional bool mask is recorded as `where`.
    python_kernels: composite ops run their Python kernels. Some C++ kernels (istft) read values, which fake tensors do not have.

    Counterpart: none; in torch, capture in front of AOT autograd sees these programs first
    """

    captured_tensors: bool = False
    captured_first: tuple[torch.Tensor, ...] = ()
    wrappers: bool = False
    assignments: bool = False
    remade_views: bool = False
    scalar_masks: bool = False
    python_kernels: bool = False


class NeedsMore(Exception):
    """The program needs a feature that the trace lacks. Not an error: the program is traced again with `needs`."""

    def __init__(self, needs: TraceNeeds) -> None:
        super().__init__(needs)
        self.needs = needs


def with_needs_of(node: torch.fx.Node, needs: TraceNeeds) -> TraceNeeds:
    """`needs` with those of the recorded node; the same object if it adds none.

    An op that changes a geometry needs `remade_views`, and so does `as_strided` of a tensor with an offset. Reading a bool needs
    `scalar_masks`, because it may be the mask of an assignment.
    """
    if node.target in GEOMETRY_CHANGES or (node.target is _AS_STRIDED and _begins_inside(node.args[0])):
        return needs if needs.remade_views else replace(needs, remade_views=True)
    if node.target is _READ_NUMBER and _is_bool(node.args[0]):
        return needs if needs.scalar_masks else replace(needs, scalar_masks=True)
    return needs


def _begins_inside(node: Any) -> bool:
    value = node.meta.get("val")
    offset = value.storage_offset() if isinstance(value, torch.Tensor) else 0
    return type(offset) is int and offset != 0


def _is_bool(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool
