"""The rule of `invoke_leaf_function`: a function that no trace looks into (`torch._dynamo.decorators.leaf_function`).

Counterpart: torch/_higher_order_ops/invoke_leaf_function.py
Differs: of a function that writes to arguments, the node calls it on copies, which are results of the node, and `copy_` nodes
follow. So a graph has the writes, in a form that every pass knows. The node of a backward has as its last operand a number that
the forward's node gave: torch's backward takes the history of the last forward, also where that of an earlier one is meant.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import FakeScriptObject, StorageWeakRef, is_below_autograd, leaf_functions, pytree
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded
from refimpl.trace.read_after_write import share_memory

_HOOKS = ("_leaf_hook_real_fn", "_leaf_hook_fake_fn")
Function = Callable[..., tuple[Any, ...]]


def invoke_leaf_function(
    call: HigherOrderCall, real: Any, fake: Any, spec: Any, mutated: str, *operands: Any, **settings: Any
) -> Recorded:
    """Node: invoke_leaf_function(real, fake, spec, "", *operands); the two functions and the spec are attributes of the graph."""
    given = real, fake  # the fakes of objects, if a graph that has them as inputs is traced again
    real, fake = map(_object_of, given)
    written = [int(place) for place in mutated.split(",") if place]
    if writes_to_shared_memory(written, operands):
        raise UnsupportedByRefimpl(
            seen="a leaf function that writes to an argument which shares memory with another argument",
            supported="written arguments with memory of their own",
            do="give the function a copy of the other argument",
        )
    histories = call.recording.histories
    history: History | None = None
    key = 0
    forward, backward = _cell_of(real, "state"), _cell_of(real, "real_state")
    if forward is not None:
        key = id(forward.cell_contents)
        history = History(forward)
        real, fake = _made(history.noted(real), real), _made(_with_a_number(fake), fake)
    elif backward is not None:
        history, number = histories.get(id(backward.cell_contents), (None, None))
        if history is None:
            raise UnsupportedByRefimpl(
                seen="the backward of a leaf function whose forward is in another graph",
                supported="leaf functions whose forward and backward are traced together",
                do="call the leaf function outside of the branch, the loop or the region",
            )
        real, fake = _made(history.restored(real, backward), real), _made(_without_a_number(fake), fake)
        operands = (*operands, number)
        spec = pytree.tree_structure((operands, {}))
    if written:  # the operator returns the new values of written arguments last
        real, fake = (_made(_on_copies(one, written), one) for one in (real, fake))
    results = call.run(real, fake, spec, "", *map(call.as_fake, operands), **settings)
    hidden = len(written) + (forward is not None)

    def seen_of(results: tuple[Any, ...]) -> tuple[Any, ...]:
        if forward is not None:
            histories[key] = history, results[-1 - len(written)]
        for place, value in zip(written, results[len(results) - len(written) :], strict=True):
            call.recording.record_write(operands[place], value)
        return results[: len(results) - hidden]

    functions = (
        before if isinstance(before, FakeScriptObject) and _object_of(before) is now else call.constant(now)
        for before, now in zip(given, (real, fake), strict=True)
    )
    return Recorded(
        args=(*functions, call.constant(spec), "", *operands), kwargs=settings, result=results, seen_of=seen_of
    )


def gives_operands(graph: torch.fx.Graph) -> bool:
    """Whether a leaf function of the graph returns one of its operands, or a view of it."""
    if leaf_functions is None:  # before torch 2.13
        return False
    return any(
        share_memory(result, operand)
        for node in graph.find_nodes(op="call_function", target=leaf_functions.invoke_leaf_function, sort=False)
        for result in _tensors_in(node.meta.get("val"))
        for operand in _tensors_in([operand.meta.get("val") for operand in node.all_input_nodes])
    )


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def writes_to_shared_memory(written: Sequence[int], operands: Sequence[Any]) -> bool:
    """Whether an operand at one of the places `written` shares memory with another operand: a copy of it would not."""
    return any(
        share_memory(operands[place], operand)
        for place in written
        for other, operand in enumerate(operands)
        if other != place
    )


def _object_of(given: Any) -> Any:
    return object.__getattribute__(given, "real_obj") if isinstance(given, FakeScriptObject) else given


def _made(function: Function, like: Any) -> Any:
    """The function as an object of torch's class for leaf functions, with the hooks of another one."""
    made = type(like)(function)
    for one in (getattr(like._fn, "__wrapped__", None), like):
        made.__dict__.update({name: value for name, value in getattr(one, "__dict__", {}).items() if name in _HOOKS})
    return made


def _cell_of(real: Any, name: str) -> Any:
    """The cell with the history that torch's autograd of the operator keeps of a call; None of a function that is no part of it.

    Below autograd, where a trace sees the call, torch's function holds the program's own. It has a dictionary in a closure.
    """
    function = real._fn
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    if name not in names or not getattr(function, "__module__", "").startswith("torch."):
        return None
    return function.__closure__[names.index(name)]


class _OfThread(threading.local):
    """Stands for that dictionary, since calls in several threads would write to one. Each thread has values of its own."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self.before = before  # another object could get its id, by which it is known
        self.values: dict[str, Any] = {"inputs": None, "outputs": None}
        self.results: Any = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.values[name] = value


class History:
    """The histories of the calls of one node, each as long as the number that the call gave is in use. Mutable."""

    def __init__(self, cell: Any) -> None:
        self._last = cell.cell_contents = _OfThread(cell.cell_contents)
        self._numbers = itertools.count()
        self._kept: dict[int, tuple[StorageWeakRef, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def noted(self, real: Any) -> Function:
        """The forward, with a number as its last result.

        Its other results have their history, if the graph runs where autograd records: a graph that is traced without its
        backward would lose the gradients.
        """
        forward, inner = real._fn, getattr(real._fn, "__wrapped__", None)
        if inner is not None:
            function = inner._fn

            def keeps_results(*args: Any, **kwargs: Any) -> Any:
                self._last.results = function(*args, **kwargs)
                return self._last.results

            inner._fn = keeps_results

        def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            results = forward(*args, **kwargs)
            if inner is not None:
                with_history, self._last.results = self._last.results, None
                results = results if is_below_autograd() else with_history
            key = next(self._numbers)
            number = torch.tensor(key)
            with self._lock:
                self._kept = {one: kept for one, kept in self._kept.items() if not kept[0].expired()}
                self._kept[key] = StorageWeakRef(number.untyped_storage()), {**self._last.values}
            return (*results, number)

        return run

    def restored(self, backward: Any, cell: Any) -> Function:
        """The backward, of the call that gave the number in the last argument. cell: where it reads the history."""
        cell.cell_contents = self._last

        def run(*args: Any) -> tuple[Any, ...]:
            *tangents, number = args
            self._last.values = self._kept[int(number)][1]
            return backward(*tangents)

        return run


def _with_a_number(fake: Any) -> Function:
    return lambda *args, **kwargs: (*fake(*args, **kwargs), torch.empty((), dtype=torch.int64))


def _without_a_number(fake: Any) -> Function:
    return lambda *args: fake(*args[:-1])


def _on_copies(function: Callable[..., Any], written: Sequence[int]) -> Function:
    """The function on copies of the tensors that it writes to, which are its last results.

    written: their places among the leaves of the arguments. A module has as leaves its number, its parameters and its buffers.
    """

    def on_copies(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places: list[tuple[Any, Any]] = []  # the container that holds each leaf, and the key of the leaf in it
        for at, leaf in enumerate(leaves):
            places += _places_of(leaf) if isinstance(leaf, torch.nn.Module) else [(leaves, at)]
        before = [(*places[place], places[place][0][places[place][1]]) for place in written]
        copies = []
        try:
            for container, key, tensor in before:
                container[key] = tensor.detach().clone()
                copies.append(container[key])
            given, named = pytree.tree_unflatten(leaves, spec)
            return (*(function(*given, **named) or ()), *copies)
        finally:
            for container, key, tensor in before:
                container[key] = tensor

    return on_copies


def _places_of(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = [(None, None)]
    for names, kind in ((module.named_parameters(), "_parameters"), (module.named_buffers(), "_buffers")):
        for name, _ in names:
            owner, _, key = name.rpartition(".")
            places.append((getattr(module.get_submodule(owner), kind), key))
    return places
