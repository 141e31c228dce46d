"""What a caller sees of a call: values, layouts, aliases, gradients, arguments, random state. Where two calls differ in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from refimpl._torch import pytree

SEED = 3
MakeFresh = Callable[[], tuple[Sequence[Tensor], Sequence[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that a caller can see of a call.

    `layouts` and `flags` are those of every tensor among results, arguments and sources. `after_write` are the results once
    each of them was written to, as a later part of a program might. `refusals` are errors of the backward.
    """

    structure: Any
    results: list[Any]
    arguments: list[Any]
    layouts: list[Any]
    flags: list[Any]
    after_write: list[Any]
    gradients: list[Tensor | None]
    refusals: list[str]
    random_state: Tensor


def observe(
    function: Callable[..., Any],
    make: MakeFresh,
    *,
    calls: int = 1,
    writes: bool = False,
    module: torch.nn.Module | None = None,
) -> Seen:
    """Calls `function` with fresh inputs, then asks for gradients of the sources; with `writes`, after a write to every result.

    `calls` repeats the call with the same arguments. Parameters of `module` are sources, its buffers are looked at as arguments.
    """
    torch.manual_seed(SEED)
    sources, arguments = make()
    result: Any = None
    for _ in range(calls):
        result = function(*arguments)
    if module is not None:
        sources, arguments = [*sources, *module.parameters()], [*arguments, *module.buffers()]
    random_state = torch.get_rng_state()
    results, structure = pytree.tree_flatten(result)
    seen_arguments = pytree.tree_leaves(list(arguments))
    tensors = [t for t in (*results, *seen_arguments, *sources) if isinstance(t, Tensor)]
    layouts = [_layout(tensor, tensors) for tensor in tensors]
    flags = [(t.requires_grad, t.is_leaf, t.is_inference()) for t in tensors]
    values = _snapshot(results)
    after_write = _written(results) if writes else []
    ends = [
        t for t in (*results, *seen_arguments) if isinstance(t, Tensor) and t.requires_grad and t.grad_fn is not None
    ]
    wanted = [source for source in sources if source.requires_grad]
    gradients, refusals = _gradients(ends, wanted) if ends and wanted else ([], [])
    return Seen(
        structure=structure, results=values, arguments=_snapshot([*seen_arguments, *sources]), layouts=layouts, flags=flags,
        after_write=after_write, gradients=gradients, refusals=refusals, random_state=random_state,
    )  # fmt: skip


def _written(results: Sequence[Any]) -> list[Any]:
    """The results after a write to each of them, and the classes of errors of writes that were refused."""
    refused = []
    for tensor in results:
        if isinstance(tensor, Tensor):
            try:
                tensor.add_(1)
            except RuntimeError as refusal:
                refused.append(type(refusal).__name__)
    return [*_snapshot(results), *refused]


def _snapshot(leaves: Iterable[Any]) -> list[Any]:
    return [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _gradients(ends: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[list[Tensor | None], list[str]]:
    """Gradients of one loss that reads all of `ends`. If autograd refuses it, those of one loss each, and which were refused."""
    try:
        return list(torch.autograd.grad(_loss(ends), wanted, allow_unused=True, retain_graph=True)), []
    except RuntimeError as refusal:
        refusals = [_told(refusal)]
    gradients: list[Tensor | None] = []
    for index, end in enumerate(ends if len(ends) > 1 else ()):
        try:
            gradients += torch.autograd.grad(_loss([end]), wanted, allow_unused=True, retain_graph=True)
        except RuntimeError as refusal:
            refusals.append(f"of {index}: {_told(refusal)}")
    return gradients, refusals


def _told(error: Exception) -> str:
    """The class of an error, and how its message begins: what follows names shapes and nodes."""
    return f"{type(error).__name__}: {str(error)[:40]}"


def _loss(ends: Sequence[Tensor]) -> Tensor:
    """Weighs every element of every result by another number, so that no gradient is taken for another."""
    total = torch.zeros(())
    for index, end in enumerate(ends):
        end = end.to_dense() if end.layout is not torch.strided else end
        weights = torch.linspace(1, 2, end.numel(), dtype=torch.float32).view(end.shape) + index
        total = total + (end.abs() * weights).sum()
    return total


def _layout(tensor: Tensor, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Metadata, which of the tensors are the same object and which share its memory."""
    is_strided = tensor.layout is torch.strided
    same_storage = tuple(
        index
        for index, other in enumerate(tensors)
        if is_strided
        and other.layout is torch.strided
        and other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and tensor.numel()
    )
    same_object = tuple(index for index, other in enumerate(tensors) if other is tensor)
    strides = (tensor.stride(), tensor.storage_offset()) if is_strided else None
    return (
        type(tensor).__name__, tuple(tensor.shape), strides, str(tensor.dtype), tensor.is_conj(), tensor.is_neg(),
        same_storage, same_object,
    )  # fmt: skip


EVERYTHING = tuple(field.name for field in fields(Seen))


def assert_same(
    expected: Seen, actual: Seen, *, parts: Sequence[str] = EVERYTHING, is_exact: bool = False, what: str = ""
) -> None:
    """Raises AssertionError at the first difference. `is_exact` compares numbers bit by bit."""
    __tracebackhide__ = True
    tolerance = 0.0 if is_exact else None  # None: by dtype
    for part in parts:
        a, b = getattr(expected, part), getattr(actual, part)
        if not isinstance(a, list):
            same = torch.equal(a, b) if isinstance(a, Tensor) else a == b
            assert same, f"{what}{part} is {b}, but should be {a}"
            continue
        assert len(a) == len(b), f"{what}{len(b)} {part}, but should be {len(a)}"
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            place = f"{what}{part}[{index}]"
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                torch.testing.assert_close(
                    other,
                    one,
                    rtol=tolerance,
                    atol=tolerance,
                    equal_nan=True,
                    msg=lambda text, place=place: f"{place}: {text}",
                )
            else:
                assert other == one or (other != other and one != one), f"{place} is {other}, but should be {one}"


def assert_same_or_more(expected: Seen, actual: Seen, **options: Any) -> None:
    """`assert_same`, but a backward that eager mode refuses after writes to results may run: other tensors were saved for it."""
    __tracebackhide__ = True
    parts = options.pop("parts", EVERYTHING)
    if expected.after_write and expected.refusals:
        parts = [part for part in parts if part not in ("gradients", "refusals")]
    assert_same(expected, actual, parts=parts, **options)


def assert_agrees(
    function: Callable[..., Any], compiled: Callable[..., Any], make: MakeFresh, *, calls: int = 1, **options: Any
) -> None:
    """What is seen of `compiled` is what is seen of `function`, at a first call and at one whose results are written to."""
    __tracebackhide__ = True
    for writes in (False, True):
        expected, actual = (observe(f, make, calls=calls, writes=writes) for f in (function, compiled))
        assert_same_or_more(expected, actual, what="after writes: " if writes else "", **options)
