"""Gradients of torch.cond, map and while_loop inside of a trace: their backward is another call of an operator.

It computes gradients of operands and of tensors that the functions close over.

Counterpart: CondAutogradOp, MapAutogradOp and WhileLoopAutogradOp in torch/_higher_order_ops/
Differs: the functions are traced before autograd runs, which finds the tensors that they close over; upstream relies on a front
end for that, and traces the backward functions with its own tracer. Double backward is refused.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    OpOverload,
    dispatch_keys,
    gradients_in_trace,
    pytree,
    set_grad_enabled,
    with_dispatch_keys,
    without_overrides,
    without_saved_tensors_hooks,
    written_arguments,
)
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.higher_order.calls import (
    CLOSED_OVER,
    IS_RECORDED,
    WANTS_GRADIENTS,
    Subgraph,
    TracedFunction,
    closed_over_by,
    numbers_of,
    with_shared_operands,
)
from refimpl.trace.higher_order.draws import (
    Drawing,
    are_numbers_kept,
    draws_numbers,
    keep_numbers,
    numbers_again,
    replaying,
)

Function = Callable[..., Any]
_MAP: Any = torch.ops.higher_order.map_impl
_LOOP: Any = torch.ops.higher_order.while_loop
# Whether the running trace may compute gradients.
TRACES_BACKWARD: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_traces_backward", default=True)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of an operator, as the program made it.

    run: makes the call, without gradients. operands: in the order of the functions' parameters. trace: traces a function.
    """

    run: Callable[[], Any]
    trace: Callable[..., Subgraph]
    operands: tuple[Any, ...]
    read: tuple[tuple[torch.Tensor, int], ...]  # operands and closed-over tensors, with their versions
    keys: Any  # the dispatcher's included and excluded keys
    closed_over: tuple[TorchFunctionMode, ...]  # what CLOSED_OVER was

    @classmethod
    def here(
        cls, run: Callable[[], Any], trace: Callable[..., Subgraph], operands: Sequence[Any], lifted: Sequence[Any]
    ) -> _Call:
        """The call that the running program makes now. lifted: what the functions close over."""
        read = [x for x in (*operands, *lifted) if isinstance(x, torch.Tensor) and not x.is_inference()]
        return cls(
            run=run,
            trace=trace,
            operands=tuple(operands),
            read=tuple((x, x._version) for x in read),
            keys=dispatch_keys(),
            closed_over=CLOSED_OVER.get(),
        )

    def check_unwritten(self, read: Sequence[Any] | None = None) -> None:
        """Raises RuntimeError, as autograd does, if a tensor was written to after the call: the backward reads it again.

        read: the tensors that the backward needs, if it is known.
        """
        for tensor, version in self.read:
            if tensor._version != version and (read is None or any(tensor is each for each in read)):
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"an operand of shape {list(tensor.shape)} is at version {tensor._version}; expected version {version}"
                )

    def backward_of(
        self, function: Function, needed: Sequence[bool], wanted: Sequence[torch.Tensor], results: Any,
        drawn: Sequence[torch.Tensor] = (), rows: int = 0,
    ) -> _Backward:  # fmt: skip
        """The backward, traced now: the variables that the function reads may have other values when the backward is called.

        results: of the function; they stand for the tangents. drawn: numbers that the function gets after its operands.
        rows: how many operands the function gets a row of. An error is raised when the backward is called. A trace for export
        has no backward.
        """
        backward = _backward_of(function, [*needed, *(False for _ in drawn)], [*wanted], self)
        if not TRACES_BACKWARD.get():
            return _Backward(run=backward)
        tangents = [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]
        try:
            with _below_gradients(), torch.no_grad():
                traced = self.trace(
                    backward, (*self.operands, *drawn, *tangents), may_not_run=True, on_copies=True, rows=slice(rows)
                )
        except Exception as error:
            return _Backward(run=_raising(error))
        closed_over = [value for value, _ in traced.lifted]
        given = [*self.operands, *drawn, *tangents, *closed_over]
        return _Backward(
            run=lambda *operands: traced.graph_module(*operands, *closed_over), read=_needed_of(given, traced)
        )


@dataclass(frozen=True, kw_only=True)
class _Backward:
    """The backward of a function. read: the operands and closed-over tensors that it needs; None if that is not known."""

    run: Function
    read: tuple[Any, ...] | None = None

    def __call__(self, *operands: Any) -> Any:
        return self.run(*operands)


def _needed_of(given: Sequence[Any], traced: Subgraph) -> tuple[Any, ...] | None:
    """Which of the values that the function is given its results depend on. None if an operator in its graph writes."""
    graph = traced.graph_module.graph
    if any(_is_writing(node) for node in graph.nodes):
        return None
    seen: set[torch.fx.Node] = set()
    waiting = [graph.output_node()]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(node.all_input_nodes)
    placeholders = graph.find_nodes(op="placeholder")
    return tuple(value for value, node in zip(given, placeholders, strict=True) if node in seen)


def _is_writing(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(written_arguments(node.target))


def is_wanted(*values: Any) -> bool:
    """Whether a call on these operands and closed-over values has gradients."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in values)


def tensors_of(lifted: Sequence[tuple[Any, torch.fx.Node]]) -> list[torch.Tensor]:
    """The closed-over tensors that require gradients."""
    return [value for value, _ in lifted if isinstance(value, torch.Tensor) and value.requires_grad]


@contextlib.contextmanager
def _below_gradients() -> Iterator[None]:
    """A block in which closed-over tensors may require gradients, because the caller computes these."""
    token = WANTS_GRADIENTS.set(False)
    try:
        yield
    finally:
        WANTS_GRADIENTS.reset(token)


def recorded(run: Callable[[], Any], *inputs: Any) -> Any:
    """The results of a call in a trace that has no backward, as a flat list.

    inputs: operands and closed-over tensors. The functions are traced in grad mode, which is that of the call.
    """
    return _RecordedFunction.apply(run, *inputs)


class _RecordedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[], Any], *inputs: Any) -> tuple[Any, ...]:
        token = IS_RECORDED.set(True)
        try:
            with without_overrides():  # else a mode of the trace records the switch, and what follows has no gradients
                set_grad_enabled(True)
            return tuple(pytree.tree_leaves(run()))
        finally:
            with without_overrides():
                set_grad_enabled(False)
            IS_RECORDED.reset(token)


def _raising(error: Exception) -> Function:
    """A function that raises the error."""

    def raises(*operands: Any) -> Any:
        raise error

    return raises


# ------------------------------------------------------------------------------------------------------------------- cond


def cond(
    call: Function,
    trace: Callable[..., Subgraph],
    subgraphs: Sequence[Subgraph],
    pred: Any,
    functions: Sequence[Function],
    operands: Any,
) -> Any:
    """Run torch's operator, `call(pred, true_fn, false_fn, operands)`, as an autograd Function if gradients are needed.

    subgraphs: the traced branches.
    """
    lifted = with_shared_operands(subgraphs)
    is_needed = is_wanted(*operands, *lifted)
    drawn, functions, results = [], [*functions], [subgraph.result for subgraph in subgraphs]
    if (is_needed or are_numbers_kept()) and any(map(draws_numbers, subgraphs)):
        drawn, functions, subgraphs = _with_numbers(trace, functions, operands)
        if (again := numbers_again(len(drawn))) is not None:
            operands = (*operands, *again)
            ways = [trace(function, operands, may_not_run=True, on_copies=True) for function in functions]
            return cond(call, trace, ways, pred, functions, operands)
        lifted = with_shared_operands(subgraphs)
    branches = [TracedFunction(subgraph) for subgraph in subgraphs]
    if not is_needed:
        found = call(pred, *branches, operands)
        return _without_numbers(found, len(drawn), pytree.tree_structure(results[0])) if drawn else found
    made = _Call.here(lambda: call(pred, *branches, operands), trace, operands, lifted)
    needed = [isinstance(x, torch.Tensor) and x.requires_grad for x in operands]
    wanted = [x for x in lifted if isinstance(x, torch.Tensor) and x.requires_grad]
    backwards = [
        made.backward_of(function, needed, wanted, result, drawn)
        for function, result in zip(functions, results, strict=True)
    ]
    leaves = _CondFunction.apply(made, call, pred, backwards, len(drawn), *operands, *lifted)
    return pytree.tree_unflatten(list(leaves), pytree.tree_structure(results[0]))


def _with_numbers(
    trace: Callable[..., Subgraph], functions: Sequence[Function], operands: Any
) -> tuple[list[torch.Tensor], list[Function], list[Subgraph]]:
    """Examples of all numbers that the branches draw; the branches, which get these after their operands; and as they are traced,
    which return them after their results. Of the other branch's numbers a branch returns zeros.
    """
    drawing = [Drawing(function) for function in functions]
    for function in drawing:
        trace(function, tuple(operands), may_not_run=True, on_copies=True)
    examples = [[*function.examples] for function in drawing]

    def numbered(index: int, *operands: Any) -> tuple[Any, ...]:
        found = drawing[index](*operands)
        others = [_zeros_like(example) for example in examples[1 - index]]
        results, own = found[: len(found) - len(examples[index])], found[len(found) - len(examples[index]) :]
        return (*results, *(own if index == 0 else others), *(others if index == 0 else own))

    subgraphs = [
        trace(functools.partial(numbered, index), tuple(operands), may_not_run=True, on_copies=True) for index in (0, 1)
    ]
    first, count = len(examples[0]), len(examples[0]) + len(examples[1])
    places = slice(first), slice(first, count)
    replayed = [replaying(function, place, count) for function, place in zip(functions, places, strict=True)]
    return [*examples[0], *examples[1]], replayed, subgraphs


def _without_numbers(found: Any, count: int, spec: pytree.TreeSpec) -> Any:
    """The results of a call without the numbers, which come last and are kept."""
    leaves = pytree.tree_leaves(found)
    keep_numbers(leaves[len(leaves) - count :])
    return pytree.tree_unflatten(leaves[: len(leaves) - count], spec)


def _zeros_like(example: torch.Tensor) -> torch.Tensor:
    return torch.zeros(example.shape, dtype=example.dtype, device=example.device)


class _CondFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, made: _Call, call: Function, pred: Any, backwards: Any, count: int, *inputs: Any
    ) -> tuple[Any, ...]:
        ctx.made, ctx.call, ctx.pred, ctx.backwards = made, call, pred, backwards
        leaves = pytree.tree_leaves(made.run())
        ctx.drawn = leaves[len(leaves) - count :]
        keep_numbers(ctx.drawn)
        return tuple(leaves[: len(leaves) - count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        made: _Call = ctx.made
        made.check_unwritten()
        given = [g for g in gradients if isinstance(g, torch.Tensor)]
        found = iter(ctx.call(ctx.pred, *ctx.backwards, (*made.operands, *ctx.drawn, *given)))
        needed = ctx.needs_input_grad[5:]
        return None, None, None, None, None, *(next(found) if is_needed else None for is_needed in needed)


# -------------------------------------------------------------------------------------------------------------------- map


def map_over(
    run: Callable[[], Any],
    trace: Callable[..., Subgraph],
    once: Subgraph,
    function: Function,
    xs: Sequence[Any],
    args: Sequence[Any],
) -> Any:
    """The results of a map that has gradients, as a flat list. once: the function, traced on one row."""
    made = _Call.here(run, trace, (*xs, *args), [value for value, _ in once.lifted])
    wanted = tensors_of(once.lifted)
    if not TRACES_BACKWARD.get():
        return recorded(run, *made.operands, *wanted)
    needed = [isinstance(x, torch.Tensor) and x.requires_grad for x in made.operands]
    drawn, results = [], once.result
    if draws_numbers(once):
        drawing = Drawing(function)
        trace(drawing, made.operands, may_not_run=True, on_copies=True, rows=slice(len(xs)))
        drawn, made = drawing.examples, replace(made, run=lambda: _MAP(drawing, [*xs], [*args]))
        if (again := numbers_again(len(drawn))) is not None:
            return _mapped_again(trace, function, again, xs, args)
    replayed = replaying(function, slice(None), len(drawn))
    if not is_wanted(*made.operands, *wanted):
        with numbers_of(None):
            found = made.run()
        return _without_numbers(found, len(drawn), pytree.tree_structure(pytree.tree_leaves(results)))
    backward = made.backward_of(replayed, needed, wanted, results, drawn, len(xs))
    return _MapFunction.apply(made, len(xs), len(drawn), backward, *xs, *args, *wanted)


def _mapped_again(
    trace: Callable[..., Subgraph],
    function: Function,
    numbers: Sequence[torch.Tensor],
    xs: Sequence[Any],
    args: Sequence[Any],
) -> Any:
    """The results of a map of a function that draws, which gets a row of these numbers."""
    replayed = replaying(function, slice(None), len(numbers))

    def step(*operands: Any) -> Any:
        return replayed(*operands[len(numbers) :], *operands[: len(numbers)])

    rows = [*numbers, *xs]
    once = trace(step, (*rows, *args), may_not_run=True, on_copies=True, rows=slice(len(rows)))
    return map_over(lambda: _MAP(step, rows, [*args]), trace, once, step, rows, args)


class _MapFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: _Call, count: int, num_drawn: int, backward: Function, *inputs: Any) -> tuple[Any, ...]:
        ctx.made, ctx.count, ctx.backward_of_row = made, count, backward
        with _below_gradients(), numbers_of(None):
            leaves = pytree.tree_leaves(made.run())
        ctx.drawn = leaves[len(leaves) - num_drawn :]
        keep_numbers(ctx.drawn)
        return tuple(leaves[: len(leaves) - num_drawn])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        made: _Call = ctx.made
        made.check_unwritten()
        needed, count = ctx.needs_input_grad[4:], ctx.count
        given = [*ctx.drawn, *(g for g in gradients if isinstance(g, torch.Tensor))]

        def of_row(*values: Any) -> tuple[torch.Tensor, ...]:
            rows, of_results, args = values[:count], values[count : count + len(given)], values[count + len(given) :]
            return ctx.backward_of_row(*rows, *args, *of_results)

        found = iter(_MAP(of_row, [*made.operands[:count], *given], list(made.operands[count:])))
        gradients_of = [next(found) if is_needed else None for is_needed in needed]
        # What is not mapped has a gradient from each row.
        summed = [g if g is None else g.sum(0) for g in gradients_of[count:]]
        return None, None, None, None, *gradients_of[:count], *summed


# ------------------------------------------------------------------------------------------------------------------ loops


def while_loop(
    trace: Callable[..., Subgraph], once: Subgraph, cond_fn: Function, body_fn: Function, carried: Sequence[Any]
) -> Any:
    """The results of a while_loop that has gradients, as a flat list. once: the function of one round, traced.

    As in torch, a loop of no rounds has the gradient of one round.
    """

    if not TRACES_BACKWARD.get():
        return recorded(lambda: _LOOP(cond_fn, body_fn, tuple(carried), ()), *carried, *tensors_of(once.lifted))
    drawing = Drawing(body_fn)
    is_drawing = draws_numbers(once)
    if is_drawing:
        trace(drawing, tuple(carried), may_not_run=True, on_copies=True)
    drawn = [*drawing.examples]

    def counted_cond(rounds: torch.Tensor, *operands: Any) -> Any:
        return cond_fn(*operands[: len(carried)])

    def counted_body(rounds: torch.Tensor, *operands: Any) -> tuple[Any, ...]:
        return rounds + 1, *(drawing if is_drawing else body_fn)(*operands[: len(carried)])

    def run() -> Any:
        rounds = torch.zeros((), dtype=torch.int64)
        operator = torch.ops.higher_order.while_loop_stack_output
        return operator(counted_cond, counted_body, (rounds, *carried, *map(_zeros_like, drawn)), ())

    made = _Call.here(run, trace, carried, [value for value, _ in once.lifted])
    wanted = tensors_of(once.lifted)
    varies = [x.dtype.is_floating_point or x.dtype.is_complex for x in carried]
    results = [x for x, does_vary in zip(once.result, varies, strict=True) if does_vary]
    replayed = replaying(_those(body_fn, varies), slice(None), len(drawn))
    backward = made.backward_of(replayed, varies, wanted, results, drawn)
    return _LoopFunction.apply(made, varies, backward, *carried, *wanted)


class _LoopFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: _Call, varies: list[bool], backward: _Backward, *inputs: Any) -> tuple[Any, ...]:
        with _below_gradients():
            rounds, *stacked = made.run()
        stacked, ctx.drawn = stacked[: len(varies)], stacked[len(varies) :]
        ctx.made, ctx.varies, ctx.backward_of_round, ctx.inputs, ctx.stacked = made, varies, backward, inputs, stacked
        # The last element: its number is a tensor, since the size of the first dimension is not known in a trace.
        ctx.last = (rounds.amax() - 1).clamp(min=0)
        return tuple(_element(each, ctx.last) for each in stacked)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        made: _Call = ctx.made
        made.check_unwritten(ctx.backward_of_round.read)  # of torch's loops autograd checks nothing
        initial, wanted = made.operands, list(ctx.inputs[len(made.operands) :])
        varies: list[bool] = ctx.varies
        tangents = [g.contiguous() for g, does_vary in zip(gradients, varies, strict=True) if does_vary]
        count = len(tangents)

        def step(at: torch.Tensor, *values: Any) -> tuple[torch.Tensor, ...]:
            before = (at - 1).clamp(min=0)
            carried = [
                torch.where(at == 0, x, _element(each, before)) for x, each in zip(initial, ctx.stacked, strict=True)
            ]
            drawn = [_element(each, at) for each in ctx.drawn]
            found = ctx.backward_of_round(*carried, *drawn, *values[:count])
            sums = (a + b for a, b in zip(values[count:], found[count:], strict=True))
            return at - 1, *found[:count], *sums

        zeros = [torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in wanted]
        _, *found = _LOOP(lambda at, *_: at >= 0, step, (ctx.last.clone(), *tangents, *zeros), ())
        of_carried = iter(found[:count])
        given = [next(of_carried) if does_vary else None for does_vary in varies]
        is_needed = ctx.needs_input_grad[3:]
        return None, None, None, *(g if n else None for g, n in zip((*given, *found[count:]), is_needed, strict=True))


def _element(stacked: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return stacked.index_select(0, at.reshape(1)).squeeze(0)


def _those(function: Function, chosen: Sequence[bool]) -> Function:
    """The function, which returns only the chosen ones of its results."""
    return lambda *operands: [x for x, is_chosen in zip(function(*operands), chosen, strict=True) if is_chosen]


# ---------------------------------------------------------------------------------------------------------- what they share


def _backward_of(function: Function, needed: Sequence[bool], wanted: list[torch.Tensor], made: _Call) -> Function:
    """The backward: a function of operands and tangents that returns gradients of needed operands and of `wanted`.

    The function runs again. Where it reads a module's parameters, it now finds the real ones: inputs replace them once more.
    Hooks on saved tensors are those of the program around it, as of a checkpoint, which would run that program again.
    """

    def backward(*values: Any) -> tuple[torch.Tensor, ...]:
        operands, given = values[: len(needed)], values[len(needed) :]
        with with_dispatch_keys(made.keys), torch.enable_grad(), without_saved_tensors_hooks():  # else below autograd
            inputs = [x.detach().requires_grad_() if n else x for x, n in zip(operands, needed, strict=True)]
            leaves = [x.detach().requires_grad_() for x in wanted]
            with closed_over_by(_Replaced(wanted, leaves), *made.closed_over):
                outputs = [x for x in pytree.tree_leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
            _check_cut(outputs, wanted)
            targets = [*(x for x, is_needed in zip(inputs, needed, strict=True) if is_needed), *leaves]
            used = [(x, g) for x, g in zip(outputs, given, strict=True) if x.requires_grad]
            found: Sequence[torch.Tensor | None] = [None] * len(targets)
            if used:
                results, gradients = zip(*used, strict=True)
                found = gradients_in_trace(results, targets, gradients, allow_unused=True)
        # Gradients of both branches must have the same strides, and none is a lazy conjugate or negative.
        return tuple(
            _zeros_like(t) if g is None else g.contiguous().resolve_conj().resolve_neg()
            for t, g in zip(targets, found, strict=True)
        )

    return backward


class _Replaced(TorchFunctionMode):
    """Replaces closed-over tensors by detached leaves in every call of a torch function, so that their gradients end there."""

    def __init__(self, originals: Sequence[torch.Tensor], replacements: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._by_id = {id(original): new for original, new in zip(originals, replacements, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.within((args, kwargs or {}))
        return func(*args, **kwargs)

    def within(self, arguments: Any) -> Any:
        """The arguments with replaced tensors."""
        return pytree.tree_map_only(torch.Tensor, lambda t: self._by_id.get(id(t), t), arguments)


def as_replaced(arguments: Any) -> Any:
    """The arguments of a call in a function that runs for its gradients: tensors from around it are replaced."""
    for mode in reversed(CLOSED_OVER.get()):
        if isinstance(mode, _Replaced):
            arguments = mode.within(arguments)
    return arguments


def _check_cut(outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Raises UnsupportedByRefimpl if a result still depends on a replaced tensor, so that a gradient would be lost."""
    around = [t.grad_fn for t in wanted if t.grad_fn is not None]
    seen: set[Any] = set()
    waiting = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in around or any(getattr(node, "variable", None) is t for t in wanted):
            raise UnsupportedByRefimpl(
                seen="a function of torch.cond, map or while_loop that passes a closed-over tensor with requires_grad=True to a "
                "function that no __torch_function__ sees, such as torch.autograd.Function.apply",
                supported="closed-over tensors that only torch functions use",
                do="pass the tensor as an operand",
            )
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
