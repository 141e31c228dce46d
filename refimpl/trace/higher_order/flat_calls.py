"""Direct calls of torch.cond, map, scan and while_loop in a trace: containers are flattened, steps unrolled for gradients.

Counterpart: torch/_dynamo/variables/higher_order_ops.py, which flattens what the functions return before the operator sees it
Differs: within torch.vmap both branches of torch.cond run, and each slice takes the results of one. A scan whose gradient is
needed, and a map or scan within a transform of torch.func, is traced step by step, so that the number of steps is a constant of
the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import pytree, transform_kinds
from refimpl.errors import MismatchedBranches, UnsupportedByRefimpl
from refimpl.trace.higher_order import gradients
from refimpl.trace.higher_order.calls import Subgraph, numbers_of
from refimpl.trace.higher_order.control_flow import check_like
from refimpl.trace.higher_order.draws import are_numbers_kept, draws_numbers
from refimpl.trace.higher_order.functional_checks import check_functional

Function = Callable[..., Any]
TraceFunction = Callable[..., Subgraph]


def with_flat_operands(function: Function, spec: pytree.TreeSpec, places: Sequence[int]) -> Function:
    """The function, which takes the leaves of its operands, each once. places: which of those each leaf is."""

    def called(*given: Any) -> Any:
        return function(*pytree.tree_unflatten([given[place] for place in places], spec))

    return called


class Flat:
    """A function that returns a flat tuple. `spec` is the structure of what it returned last."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.spec: pytree.TreeSpec | None = None

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        leaves, self.spec = pytree.tree_flatten(self._function(*operands))
        return tuple(leaves)

    def described(self) -> str:
        """What it returned last, for messages."""
        assert self.spec is not None, "the function was called"
        if self.spec.is_leaf():
            return "one value"
        return f"a container of {self.spec.num_leaves} values, {self.spec}"

    def restored(self, leaves: Sequence[Any]) -> Any:
        """The leaves in that structure."""
        assert self.spec is not None, "the operator has called the function"
        return pytree.tree_unflatten(list(leaves), self.spec)


def cond_within_vmap(pred: Any, true_fn: Function, false_fn: Function, operands: Any) -> Any:
    """torch.cond where a transform of torch.func is active. The predicate may be another for each slice."""
    if {*transform_kinds()} != {"Vmap"}:
        raise UnsupportedByRefimpl(
            seen="torch.cond within torch.func.grad, vjp or jvp",
            supported="torch.cond within torch.vmap",
            do="call the transform in both branches of torch.cond",
        )
    if not isinstance(pred, torch.Tensor):
        return (true_fn if pred else false_fn)(*operands)
    one, spec = pytree.tree_flatten(true_fn(*operands))
    other, other_spec = pytree.tree_flatten(false_fn(*operands))
    if spec != other_spec:
        raise MismatchedBranches("cond", str(spec), str(other_spec), ("the true branch", "the false branch"))
    chosen = pred.reshape(())
    return pytree.tree_unflatten([torch.where(chosen, a, b) for a, b in zip(one, other, strict=True)], spec)


def map_over(trace: TraceFunction, call: Function, function: Function, xs: Sequence[Any], args: Sequence[Any]) -> Any:
    """`map(function, xs, *args)`; `call` takes the function, and the leaves of xs and args."""
    flat = Flat(function)
    specs = inspect.getclosurevars(call).nonlocals

    def step(*leaves: Any) -> tuple[Any, ...]:
        count = len(xs)
        row = pytree.tree_unflatten(list(leaves[:count]), specs["xs_spec"])
        return flat(row, *pytree.tree_unflatten(list(leaves[count:]), specs["args_spec"]))

    if transform_kinds():
        rows = [step(*(x[index] for x in xs), *args) for index in range(int(xs[0].shape[0]))]
        return flat.restored([torch.stack(parts) for parts in zip(*rows, strict=True)])
    return flat.restored(_mapped(trace, lambda: call(flat, xs, args), step, xs, args))


def map_operator(trace: TraceFunction, function: Function, xs: Sequence[Any], args: Sequence[Any] = ()) -> Any:
    """`map_impl(function, xs, args)`, whose gradients are needed. xs and args are flat."""
    flat = Flat(function)
    return flat.restored(_mapped(trace, lambda: torch.ops.higher_order.map_impl(flat, xs, args), flat, xs, args))


def _mapped(
    trace: TraceFunction, run: Callable[[], Any], step: Function, xs: Sequence[Any], args: Sequence[Any]
) -> Any:
    """The results of a map, as a flat list. run: makes the call without gradients. step: takes leaves of a row and of `args`."""
    once = _once(trace, step, [*xs, *args], slice(len(xs)))
    check_functional("map", once)
    is_drawing = are_numbers_kept() and draws_numbers(once)
    if is_drawing or gradients.is_wanted(*xs, *args, *gradients.tensors_of(once.lifted)):
        return gradients.map_over(run, trace, once, step, xs, args)
    with numbers_of(None):
        return run()


def scan(trace: TraceFunction, combine_fn: Function, init: Sequence[Any], xs: Sequence[Any]) -> Any:
    """`scan(combine_fn, init, xs)` over the first dimension of leaves. Returns the final carry and the stacked outputs."""
    carried, outs = Flat(lambda *operands: None), Flat(lambda *operands: None)

    def flat(*operands: Any) -> tuple[Any, ...]:
        carry, out = combine_fn(*operands)
        leaves, carried.spec = pytree.tree_flatten(carry)
        if len(leaves) != len(init):
            names = ("init", "the carry that the function returns")
            raise MismatchedBranches("scan", f"{len(init)} values", f"{len(leaves)} values", names)
        more, outs.spec = pytree.tree_flatten(out)
        return (*leaves, *more)

    if transform_kinds():
        found = _unrolled(flat, init, xs)
    else:
        once = _once(trace, flat, [*init, *xs], slice(len(init), None))
        check_functional("scan", once)
        for before, after in zip(init, once.result, strict=False):
            check_like("scan", "init", before, "the carry", after)
        is_drawing = are_numbers_kept() and draws_numbers(once)
        found = _unrolled(flat, init, xs) if is_drawing else _scanned(flat, init, xs, gradients.tensors_of(once.lifted))
    return carried.restored(found[: len(init)]), outs.restored(found[len(init) :])


def scan_operator(
    trace: TraceFunction,
    call: Function,
    function: Function,
    init: Sequence[Any],
    xs: Sequence[Any],
    additional: Sequence[Any] = (),
) -> Any:
    """`scan(function, init, xs, additional)` in a function whose random numbers are kept. Returns a flat tuple."""

    def step(*operands: Any) -> Any:
        return function(*operands, *additional)

    if draws_numbers(_once(trace, step, [*init, *xs], slice(len(init), None))):
        return tuple(_unrolled(step, init, xs))
    with numbers_of(None):
        return call(function, init, xs, additional)


def _scanned(function: Function, init: Sequence[Any], xs: Sequence[Any], closed_over: Sequence[torch.Tensor]) -> Any:
    def run() -> Any:
        return torch.ops.higher_order.scan(function, init, xs, ())

    if not gradients.is_wanted(*init, *xs, *closed_over):
        return run()
    if gradients.TRACES_BACKWARD.get():
        return _unrolled(function, init, xs)
    return gradients.recorded(run, *init, *xs, *closed_over)


def _unrolled(function: Function, init: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    carry, rows = list(init), []
    for index in range(int(xs[0].shape[0])):
        found = function(*carry, *(x[index] for x in xs))
        carry = list(found[: len(init)])
        rows.append(found[len(init) :])
    return [*carry, *(torch.stack(parts) for parts in zip(*rows, strict=True))]


def while_loop(
    trace: TraceFunction, call: Function, cond_fn: Function, body_fn: Function, carried: Any, *more: Any
) -> Any:
    """`call` takes both functions and the leaves of what the loop carries."""
    if transform_kinds():
        raise UnsupportedByRefimpl(
            seen="while_loop within a transform of torch.func", supported="torch.cond within torch.vmap, and map and scan",
            do="call the transform in the function of the loop",
        )  # fmt: skip
    flat = Flat(body_fn)
    is_of_tensors = all(isinstance(x, torch.Tensor) for x in carried)
    if torch.is_grad_enabled():
        check_functional("while_loop", _once(trace, cond_fn, carried, slice(0)))
    if torch.is_grad_enabled() and is_of_tensors and not any(more):
        once = _once(trace, flat, carried, slice(0))
        check_functional("while_loop", once)
        if gradients.is_wanted(*carried, *gradients.tensors_of(once.lifted)):
            return flat.restored(gradients.while_loop(trace, once, cond_fn, flat, carried))
    elif gradients.is_wanted(*carried):
        _refuse_carried_ints(carried)
    return flat.restored(call(cond_fn, flat, carried, *more))


def _refuse_carried_ints(carried: Sequence[Any]) -> None:
    if not all(isinstance(x, torch.Tensor) for x in carried):
        raise UnsupportedByRefimpl(
            seen="a while_loop with gradients that carries an int",
            supported="a loop with gradients that carries tensors",
            do="carry a 0-dim tensor in place of the int",
        )


def while_loop_operator(
    trace: TraceFunction,
    call: Function,
    cond_fn: Function,
    body_fn: Function,
    carried: Sequence[Any],
    additional: Sequence[Any] = (),
    **kwargs: Any,
) -> Any:
    """`while_loop(cond_fn, body_fn, carried, additional)`, whose gradients are needed. `call`: torch's rule for them."""
    if any(kwargs.values()):
        return call(cond_fn, body_fn, carried, additional, **kwargs)
    _refuse_carried_ints(carried)

    def with_additional(function: Function) -> Function:
        return lambda *operands: function(*operands, *gradients.as_replaced(tuple(additional)))

    flat = Flat(with_additional(body_fn))
    once = _once(trace, flat, carried, slice(0))
    check_functional("while_loop", once)
    return flat.restored(gradients.while_loop(trace, once, with_additional(cond_fn), flat, carried))


def _once(trace: TraceFunction, step: Function, operands: Sequence[Any], rows: slice) -> Subgraph:
    """One call of the function, traced. A tensor that it closes over counts as such if it is one of the operands as well.

    rows: which operands have a row for each step.
    """
    return trace(step, tuple(operands), may_not_run=True, on_copies=True, rows=rows)
