"""Facts that one of our passes records on a node for a later one: a frozen record under one key of `node.meta`.

Upstream's keys ("val", "stack_trace", "partitioner_tag", ...) stay beside it. `notes_of(node)` reads the record and
`note(node, field=value)` changes it. A copy of a node starts with the same record.

Counterpart: none; upstream's passes add keys of their own to `node.meta`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_KEY = "torch_oracle"


class Notes(NamedTuple):  # twice as fast to change as a frozen dataclass, and every node of a joint graph changes it
    """The facts about one node. A field that no pass has set has its default."""

    # Any graph.
    # Random op: the generator state that it draws from. Where one draw is split into several nodes, (state, index of the part).
    random_state: Any = None
    # Functional form of an in-place op: in the program its result had the strides of its first argument.
    has_strides_of_first: bool = False
    # `set_` that stands for `x.data = y`.
    is_data_assignment: bool = False

    # A graph of capture.
    # Placeholder: where the input comes from, a `refimpl.capture` Source.
    source: Any = None

    # A joint graph while it is recorded.
    # Whether autograd recorded the node: grad mode was on, and inference mode was not.
    is_in_grad_mode: bool = True
    # Sequence number of the autograd node that was created or was running when the node was recorded.
    autograd_step: int | None = None
    # Backward: the node reads a tensor with requires_grad=True.
    reads_history: bool = False
    # Backward: the node is part of the decomposition of a kernel.
    is_decomposed_gradient: bool = False
    # Backward: for each decomposed kernel that reads its result, the number of that operand among all such operands.
    operand_numbers: tuple[int, ...] = ()
    # Backward: the decomposed kernel whose result it is, a `decomposed_calls.Decomposed`.
    decomposed_call: Any = None
    # Graph of calls on wrapper subclasses: the nodes of the plain tensors inside, an `outer_graph.DenseNodes`.
    dense: Any = None

    # A summand of gradients that depends on no tangent, such as the zeros that `sgn` gives.
    # Positions of tangents: if one of them is given, autograd adds the summand.
    given_with: frozenset[int] | None = None
    # Whether no custom autograd.Function, whose backward may return None, comes before it.
    is_given_for_sure: bool = False

    # A placeholder of a joint graph.
    # Mutated between the forward and the backward: the partitioner must not save it.
    is_mutated_input: bool = False
    # The program may mutate it before the backward runs.
    is_writable_input: bool = False


_NONE = Notes()


def notes_of(node: torch.fx.Node) -> Notes:
    """The record of a node; one of defaults if nothing was recorded."""
    return node.meta.get(_KEY, _NONE)


def note(node: torch.fx.Node, **changes: Any) -> None:
    """Change fields of a node's record. Raises ValueError, or TypeError from Python 3.13 on, for a name that is no field."""
    notes = notes_of(node)._replace(**changes)
    if notes == _NONE:
        node.meta.pop(_KEY, None)
    else:
        node.meta[_KEY] = notes


def note_grad_mode(node: torch.fx.Node) -> None:
    """Records whether autograd records the call that the node stands for."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        note(node, is_in_grad_mode=False)
