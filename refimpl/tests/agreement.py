"""Runs a program compiled and in eager mode, and says where they differ: values, gradients, mutation, aliases, metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.pipeline import compile_aot

MakeArguments = Callable[[], tuple[Sequence[torch.Tensor], Sequence[Any]]]


@dataclass
class Seen:
    """Of one run: results and all that can be told of them afterwards."""

    results: list[Any]
    arguments: list[Any]
    gradients: list[torch.Tensor | None]
    facts: list[Any]
    error: str = ""


def observe(fn: Callable[..., Any], make: MakeArguments, *, calls: int = 1, writes_afterwards: bool = True) -> Seen:
    """Run `fn(*arguments)`; then write to every result, as a later program would; then ask for gradients of the sources."""
    torch.manual_seed(3)
    sources, arguments = make()
    result: Any = None
    for _ in range(calls):
        result = fn(*arguments)
    results = pytree.tree_leaves(result)
    tensors = [t for t in (*results, *arguments) if isinstance(t, torch.Tensor)]
    facts: list[Any] = [_facts(t, tensors) for t in tensors]
    values = [r.detach().clone() if isinstance(r, torch.Tensor) else r for r in results]
    error = ""
    if writes_afterwards:
        for tensor in results:
            if isinstance(tensor, torch.Tensor):
                try:
                    tensor.add_(1)
                except RuntimeError as refusal:
                    facts.append(type(refusal).__name__)
        values += [r.detach().clone() for r in results if isinstance(r, torch.Tensor)]
    floats = [t for t in tensors if t.requires_grad and t.grad_fn is not None]
    gradients: list[torch.Tensor | None] = []
    wanted = [s for s in sources if s.requires_grad]
    if floats and wanted:
        loss = sum((t * (1 + i)).abs().sum() for i, t in enumerate(floats))
        try:
            gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True))  # type: ignore[arg-type]
        except RuntimeError as refusal:
            error = type(refusal).__name__
    seen_arguments = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    return Seen(values, seen_arguments, gradients, facts, error)


def _facts(tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    is_strided = tensor.layout is torch.strided
    same_storage = tuple(
        i
        for i, other in enumerate(tensors)
        if is_strided
        and other.layout is torch.strided
        and other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and tensor.numel()
    )
    same_object = tuple(i for i, other in enumerate(tensors) if other is tensor)
    return (
        tuple(tensor.shape),
        tensor.stride() if is_strided else None,
        tensor.dtype,
        tensor.requires_grad,
        tensor.is_leaf,
        same_storage,
        same_object,
        tensor.is_conj(),
    )


def assert_agrees(fn: Callable[..., Any], make: MakeArguments, *, calls: int = 1, **options: Any) -> None:
    """Compiled and eager see the same. `make` gives (sources of gradients, arguments), new ones at every call.

    Where eager refuses backward because the results were written to afterwards, compiled need not: it has saved other values.
    """
    __tracebackhide__ = True
    for writes in (False, True):
        expected = observe(fn, make, calls=calls, writes_afterwards=writes)
        actual = observe(compile_aot(fn, **options), make, calls=calls, writes_afterwards=writes)
        if not writes:
            assert expected.error == actual.error, f"backward: {expected.error!r} in eager, {actual.error!r} compiled"
        for what in ("facts", "results", "arguments", "gradients"):
            if what == "gradients" and expected.error:
                continue
            _assert_same(what, getattr(expected, what), getattr(actual, what))


def _assert_same(what: str, expected: list[Any], actual: list[Any]) -> None:
    __tracebackhide__ = True
    assert len(expected) == len(actual), f"{len(actual)} {what}, but should be {len(expected)}"
    for index, (a, b) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            torch.testing.assert_close(b, a, msg=lambda m, i=index: f"{what}[{i}]: {m}")
        else:
            assert b == a, f"{what}[{index}] is {b}, but should be {a}"
