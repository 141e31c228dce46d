"""The call of a higher-order operator that a rule works on: tracing its functions, lifting closed-over values, making results.

Counterpart: torch/_higher_order_ops/utils.py reenter_make_fx, unique_graph_id
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import SYMBOLIC_TYPES, FakeTensor, FakeTensorMode, pytree
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.options import TraceOptions

# Whether gradients were on when the program made the call: a rule runs below autograd, where they are off.
WANTS_GRADIENTS: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_wants_gradients", default=False)
# Whether the trace has no backward: gradients of the call, whatever it closes over, are up to the user of the graph.
IS_RECORDED: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_is_recorded", default=False)
# Modes that replace tensors which the program's functions close over by inputs of the graph. They are entered again where a
# function is traced later.
CLOSED_OVER: contextvars.ContextVar[tuple[TorchFunctionMode, ...]] = contextvars.ContextVar(
    "refimpl_closed_over", default=()
)
# The mode that keeps or replaces the random numbers of the running function; None in a function that an operator in it takes,
# whose numbers are the operator's further results or operands (refimpl.trace.higher_order.draws).
NUMBERS: contextvars.ContextVar[Any] = contextvars.ContextVar("refimpl_numbers_of_function", default=None)


@contextlib.contextmanager
def numbers_of(mode: Any) -> Iterator[None]:
    """A block in which NUMBERS is this mode."""
    token = NUMBERS.set(mode)
    try:
        yield
    finally:
        NUMBERS.reset(token)


@contextlib.contextmanager
def closed_over_by(*modes: TorchFunctionMode) -> Iterator[None]:
    """A block in which these modes are active, and are CLOSED_OVER. The last one sees a call first."""
    token = CLOSED_OVER.set(modes)
    try:
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            yield
    finally:
        CLOSED_OVER.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    """A traced function.

    `result` is what it returned when it was traced, in its own containers. `lifted` are the closed-over values: each has a
    placeholder after those of the operands. `with_shared_operands` adds those of other subgraphs to it.
    """

    graph_module: torch.fx.GraphModule
    result: Any
    lifted: list[tuple[Any, torch.fx.Node]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A rule's result: the arguments of the operator's node (values and nodes mixed), and the result of the call.

    seen_of: what the program sees of the results, once these are tracked. It may record more, such as writes of other results.
    gives_written: the field of the node's notes.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    seen_of: Callable[[Any], Any] | None = None
    gives_written: bool = False


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A function that was traced before the operator was called."""

    subgraph: Subgraph

    def __call__(self, *operands: Any) -> Any:
        raise AssertionError(
            "this function is already traced into a graph with lifted inputs: only the operator's rule may use it"
        )


class Recording(Protocol):
    """The part of RecordingMode that rules need."""

    builder: GraphBuilder
    options: TraceOptions
    fake_mode: FakeTensorMode | None
    reused_graphs: dict[Any, Any]  # for rules that make one graph for several calls
    fakes_of_objects: dict[int, Any]  # hash of a script object -> the fake that runs its methods
    histories: dict[int, Any]  # of leaf functions: where torch keeps the history of a call -> what the backward needs
    trace_function: Callable[..., Subgraph]  # (function, operands, *, may_not_run=False)

    def __enter__(self) -> Any: ...
    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None: ...
    def node_of(self, value: Any) -> Any: ...
    def can_find(self, value: Any) -> bool: ...
    def track_result(self, result: Any, node: torch.fx.Node) -> None: ...
    def record_write(self, written: torch.Tensor, value: torch.Tensor) -> None: ...
    def bind_fresh_symbols(self, result: Any, node: torch.fx.Node) -> None: ...


class HigherOrderCall:
    """One call of `operator`. Rules run with recording off."""

    def __init__(self, operator: Any, recording: Recording) -> None:
        self.operator = operator
        self.recording = recording

    @property
    def fake_mode(self) -> FakeTensorMode | None:
        """The trace's fake mode; None in real mode."""
        return self.recording.fake_mode

    @property
    def shape_env(self) -> Any:
        """The trace's shape env; None if it has none."""
        return None if self.fake_mode is None else self.fake_mode.shape_env

    def trace(self, function: Callable[..., Any], operands: Sequence[Any], *, may_not_run: bool = False) -> Subgraph:
        """Trace the function on the operands (on copies of them in real mode). may_not_run: as a branch of torch.cond."""
        if isinstance(function, TracedFunction):
            return function.subgraph
        return self.recording.trace_function(function, tuple(operands), may_not_run=may_not_run)

    def lifted(self, *subgraphs: Subgraph) -> list[Any]:
        """The closed-over values of all subgraphs, which become operands of each.

        Raises UnsupportedByRefimpl if one requires grad: the operator's backward only has gradients of its original operands.
        """
        values = with_shared_operands(subgraphs)
        if not IS_RECORDED.get() and (WANTS_GRADIENTS.get() or torch.is_grad_enabled()):
            for value in values:
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise UnsupportedByRefimpl(
                        seen=f"a function of {self.operator} that closes over a tensor with requires_grad=True",
                        supported="such a tensor as an operand, or closed over by a branch of torch.cond",
                        do="pass the tensor as an operand, or call the operator under torch.no_grad()",
                    )
        return values

    def attach(self, subgraphs: Mapping[str, torch.nn.Module]) -> list[torch.fx.Node]:
        """Make the graphs submodules named `<key>0`, all with the first number that is free for all keys."""
        root, graph = self.recording.builder.root, self.recording.builder.graph
        number = 0
        while any(hasattr(root, f"{stem}{number}") for stem in subgraphs):
            number += 1
        nodes: list[torch.fx.Node] = []
        for stem, graph_module in subgraphs.items():
            root.add_module(f"{stem}{number}", graph_module)
            nodes.append(graph.get_attr(f"{stem}{number}"))
        return nodes

    def constant(self, value: object) -> torch.fx.Node:
        """The node of an object that is not traced, as an attribute of the graph module."""
        return self.recording.builder.constant(value)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator itself, on real tensors or by its own fake implementation."""
        return self.operator(*args, **kwargs)

    def as_fake(self, operand: Any) -> Any:
        """The operand, or the fake of a tensor that the program reads from elsewhere."""
        if self.fake_mode is None or not isinstance(operand, torch.Tensor) or isinstance(operand, FakeTensor):
            return operand
        return self.fake_mode.from_tensor(operand, static_shapes=True)

    def fresh(self, value: Any) -> Any:
        """`value` with new fake tensors in place of its tensors, each with its own storage.

        An unbacked size that only the subgraph knows (it calls `nonzero`) becomes a new unbacked symbol of the outer trace.
        """
        return pytree.tree_map(self._fresh_leaf, value)

    def _fresh_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, SYMBOLIC_TYPES):
            return leaf if self.recording.can_find(leaf) else self.unbacked_int()
        if not isinstance(leaf, FakeTensor):
            return leaf
        sizes = [n if self.recording.can_find(n) else self.unbacked_int() for n in leaf.shape]
        return self.empty(sizes, leaf)

    def unbacked_int(self) -> torch.SymInt:
        """A new unbacked symbol."""
        return self.shape_env.create_unbacked_symint()

    def empty(self, sizes: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
        """A dense fake tensor of these sizes, with strides in the order of `like`'s."""
        assert self.fake_mode is not None
        with self.fake_mode:
            return torch.empty_strided(sizes, strides_in_order_of(like, sizes), dtype=like.dtype, device=like.device)


Rule = Callable[..., Recorded]


def copy_of(operand: Any) -> Any:
    """A clone of a tensor, on which a function that mutates it can be traced."""
    return operand.detach().clone() if isinstance(operand, torch.Tensor) else operand


def in_plain_containers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a result in containers other than tuples, lists and dicts flattened to a tuple."""

    @functools.wraps(function, updated=())
    def plain(*operands: Any) -> Any:
        result = function(*operands)
        return result if _is_plain(result) else tuple(pytree.tree_leaves(result))

    return plain


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return pytree.tree_structure(value).is_leaf()


def strides_in_order_of(like: torch.Tensor, sizes: Sequence[Any]) -> list[Any]:
    """Dense strides for `sizes` in the order of `like`'s strides; 0 for dimensions that are expanded in `like`."""
    strides = list(like.stride())
    order = sorted(range(len(sizes)), key=lambda dim: (_hint(strides[dim]), -dim))
    result: list[Any] = [0] * len(sizes)
    step: Any = 1
    for dim in order:
        if type(strides[dim]) is int and strides[dim] == 0 and not (type(sizes[dim]) is int and sizes[dim] <= 1):
            continue
        result[dim] = step
        step = step * sizes[dim]
    return result


def _hint(stride: Any) -> int:
    """A number to order strides by. The dimension of an unbacked stride counts as the outermost."""
    if type(stride) is int:
        return stride
    hint = getattr(stride.node, "hint", None)
    return 2**62 if hint is None else int(hint)


def with_shared_operands(subgraphs: Iterable[Subgraph]) -> list[Any]:
    """Give every subgraph a placeholder for each value that any of them closes over, in the same order. Returns the values."""
    subgraphs = list(subgraphs)
    values: list[Any] = []
    for subgraph in subgraphs:
        values.extend(value for value, _ in subgraph.lifted if not any(_is_same(value, known) for known in values))
    if values:
        for subgraph in subgraphs:
            _order_lifted(subgraph, values)
    return values


def _order_lifted(subgraph: Subgraph, values: list[Any]) -> None:
    graph = subgraph.graph_module.graph
    ordered: list[tuple[Any, torch.fx.Node]] = []
    for index, value in enumerate(values):
        last = list(graph.find_nodes(op="placeholder"))[-1:]
        node = next((node for known, node in subgraph.lifted if _is_same(known, value)), None)
        if node is None:
            with graph.inserting_before(_after_placeholders(graph)):
                node = graph.placeholder(f"unused{index}")
                node.meta["val"] = value
        elif last and last[0] is not node:
            last[0].append(node)
        ordered.append((value, node))
    subgraph.lifted[:] = ordered
    subgraph.graph_module.recompile()


def _after_placeholders(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(node for node in graph.nodes if node.op != "placeholder")


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, SYMBOLIC_TYPES) and isinstance(b, SYMBOLIC_TYPES):
        return a.node.pytype is b.node.pytype and a.node.expr == b.node.expr
    return a is b
