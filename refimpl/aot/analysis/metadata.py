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

    arguments: those of the op, with `refimpl.functionalize.VIEWED` in place of the viewed tensor. A `ForwardOutput` among them is
    a symbolic number that the forward graph returns.
    """

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    element: int | None  # which result of an op with several results
    has_gradient: bool  # whether the program made the view in grad mode
    enables_gradients: bool  # whether it entered grad mode itself for this, after it was called in no_grad mode


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
    sets_storage: bool  # the input views other memory than before
    requires_grad: bool  # after the call
    position: int  # position of its new value among the forward outputs
    detaches: bool = False  # its history ends here, by `detach_`
    # Sizes, strides and offset of the new geometry, if some of them are symbolic. Symbolic ones are outputs of the forward graph.
    numbers: tuple[int | ForwardOutput, ...] = ()
    # Position of the forward output that holds the elements of the old geometry, if the new geometry does not cover all of them.
    left_position: int | None = None
    placement: OutputInfo | None = None  # the memory that it views now, if it is not its own
    is_visible_after_move: bool = True  # autograd sees writes to the new memory, and not only those to the old memory
    assigns_data: bool = False  # the memory was replaced by `x.data = y`, which autograd does not notice


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
    # The view ops that make the output from the source. An intermediate with only one view is not an output itself; the graph
    # returns the view's elements as a new tensor, and the step makes a view of that, since the output is a view for autograd.
    steps: tuple[ReplayStep, ...] = ()
    creation: Any = None  # for such an only view: autograd's creation metadata
    geometry: Geometry | None = None
    becomes_leaf: bool = False  # the program called requires_grad_ on it
    # The program put the tensor into this memory (`set_`, `x.data = y`), or made it by a user's autograd.Function. Then its
    # history, and whether it is an inference tensor, do not come from the memory's owner.
    is_put: bool = False
    # A view that was made in no_grad mode, and whose memory was then written to. Autograd forbids its gradient, or takes its
    # history from the base later.
    is_before_writes: bool = False
    has_history: bool = False
    is_inference: bool = False
    becomes_inference: bool = False  # made while the program itself had inference mode on


@dataclass(frozen=True, slots=True, kw_only=True)
class TangentInfo:
    """A tangent: the position of its forward output, and the geometry and dtype that the backward graph expects."""

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
    """The result of analysing one trace of a program.

    Positions count the outputs of the forward graph: new values of inputs, then results, bases of views, and symbolic numbers.
    """

    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    bases: tuple[int, ...]  # positions of intermediates that are outputs only for their views
    differentiable: tuple[int, ...]  # positions of the forward outputs that have gradients
    tangents: tuple[TangentInfo, ...]
    gradients: tuple[int | None, ...]  # per input: index among the gradients that the graph returns
    num_forward_outputs: int
    has_backward: bool
    enables_gradients: bool = False  # the program enters grad mode itself, and was called in no_grad mode
    # Positions of differentiable outputs whose backward raises in autograd, with the error.
    refused: tuple[tuple[int, Exception], ...] = ()
    lacks_formula: bool = False
    replaces_parts: bool = False
    """Whether the program puts another tensor into an input of a wrapper subclass."""
    """Whether an operator on a tensor with gradient has no derivative formula."""
    calls_backward: bool = False
    """Whether the backward of a result calls `backward()` itself."""
    makes_leaf: bool = False
    """Whether the gradients of all results end at leaves that the program makes."""
    calls_give_operands: bool = False
    """Whether a function that an operator of the graph calls returns one of its operands, or a view of it, which writes show."""
    hooks_inputs: bool = False
    """Whether the program registers hooks on its arguments."""
    hides_alias: bool = False
    """Whether a result that the graph computes as a tensor of its own shares memory with an input."""
    shrinks_storage: bool = False
    """Whether the program frees memory of an argument, by `x.untyped_storage().resize_(0)`, which no trace records."""
    reads_storages: bool = False
    """Whether the program asks for the storage of a tensor: it may branch on the storage's size, or resize it."""
    # For each returned gradient, the tangents for which autograd returns it although it is not computed from them
    # (gradient_dependences), such as the zeros of `sgn`; () if there are none.
    given_unread: tuple[frozenset[int], ...] = ()
    # For each custom backward that may return something other than zeros for zero tangents: the tangents that make it run, unless
    # these are all.
    adding: tuple[frozenset[int], ...] = ()
    # For each tangent, those whose backward cannot run after its own has freed saved tensors (autograd_graph.freed_together).
    freed_together: tuple[frozenset[int], ...] = ()
    flat_writes: tuple[FlatWrite, ...] = ()
    backward_writes: tuple[
        int, ...
    ] = ()  # inputs that the backward writes to; it returns their new values after the gradients
    unnoticed_writes: tuple[int, ...] = ()  # inputs that the graph writes to, and whose versions stay as they are
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
