"""The right subjects: each runs the eager program in another honest arithmetic, or draws its random numbers elsewhere."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._inductor.decomposition import decompositions as inductor_decompositions
from torch.utils._pytree import tree_flatten, tree_unflatten

from oracle.tests.battery.arithmetic import (
    BLOCKWISE,
    DIVISION,
    FAST_EXP,
    FUNCTIONS,
    SUMS,
    Arithmetic,
    Contracted,
    EachOperatorWide,
    Fused,
    converted,
    laid_out_like,
    sum_rules,
    wider_dtype,
)
from oracle.tests.battery.entries import Entry, Target, Wrap, dtype_name
from oracle.tests.battery.programs import (
    ARITHMETIC,
    CANCELLING,
    FLOATS,
    JUMPING,
    NAMES,
    RANDOM,
    TIED,
    TO_FLOAT8,
    Template,
    program_of,
)
from oracle.tests.battery.random_streams import own_stream
from oracle.tests.battery.wrong import SIZES, live_entries

Mode = Callable[[], AbstractContextManager[Any]]
aten = torch.ops.aten

# Operators that other rules compute from smaller ones, taken apart so that their sums are met.
_TAKEN_APART = {
    op: rule
    for op, rule in decomposition_table.items()
    if isinstance(op, torch._ops.OpOverload)
    and op.namespace == "aten"
    and op.overloadpacket
    in (
        aten.native_layer_norm, aten.native_group_norm, aten.native_layer_norm_backward, aten.logsumexp,
        aten._softmax_backward_data, aten._log_softmax_backward_data, aten.mse_loss, aten.std_mean, aten._fused_rms_norm,
        aten._fused_rms_norm_backward, aten.native_group_norm_backward,
    )
}  # fmt: skip
_ALL_DECOMPOSITIONS = {op: rule for op, rule in decomposition_table.items() if isinstance(op, torch._ops.OpOverload)}
_INDUCTOR = {op: rule for op, rule in inductor_decompositions.items() if isinstance(op, torch._ops.OpOverload)}

MODES: dict[str, Mode] = {
    **{
        f"order/{name}": functools.partial(Arithmetic, sum_rules(add_up), _TAKEN_APART) for name, add_up in SUMS.items()
    },
    "fma/contracted": Contracted,
    "wider/fused": Fused,
    "wider/each_operator": EachOperatorWide,
    "order/blockwise": functools.partial(Arithmetic, BLOCKWISE, _TAKEN_APART),
    "functions/fast_exp": functools.partial(Arithmetic, FAST_EXP),
    "functions/other": functools.partial(Arithmetic, FUNCTIONS),
    "functions/reciprocal_division": functools.partial(Arithmetic, DIVISION),
    "decomposed/torch": functools.partial(Arithmetic, {}, _ALL_DECOMPOSITIONS),
    "decomposed/inductor": functools.partial(Arithmetic, {}, _INDUCTOR),
}


class _Under(torch.autograd.Function):
    """A program whose forward and backward both run under a mode."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], mode: Mode, *args: Any) -> Any:
        leaves = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in args]
        with torch.enable_grad(), mode():
            results = run(*leaves)
        ctx.mode, ctx.leaves, ctx.results = mode, leaves, results
        returned = tuple(x.detach() if isinstance(x, Tensor) else x for x in results)
        ctx.mark_non_differentiable(
            *(x for x, made in zip(returned, results, strict=True) if isinstance(x, Tensor) and not made.requires_grad)
        )
        return returned

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ends = [(end, grad) for end, grad in zip(ctx.results, grads, strict=True) if _requires_grad(end)]
        wanted = [x for x in ctx.leaves if _requires_grad(x)]
        with ctx.mode():
            found = torch.autograd.grad(
                [e for e, _ in ends], wanted, [g for _, g in ends], allow_unused=True, retain_graph=True
            )
        left = iter(found)
        return None, None, *(next(left) if _requires_grad(x) else None for x in ctx.leaves)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def under(mode: Mode) -> Wrap:
    """Forward and backward of the program under `mode`."""

    def wrap(target: Target) -> Target:
        def run(*args: Any) -> Any:
            trees: list[Any] = []

            def flat(*leaves: Any) -> tuple[Any, ...]:
                found, tree = tree_flatten(target(*leaves))
                trees.append(tree)
                return tuple(found)

            return tree_unflatten(list(_Under.apply(flat, mode, *args)), trees[0])

        return run

    return wrap


def wholly_wide(target: Target) -> Target:
    """The whole program in the next wider dtype; only what it returns, and its gradients, are rounded."""

    def run(*args: Any) -> Any:
        with torch.no_grad():
            eager = target(*args)
        wide = tree_flatten(target(*converted(args, wider_dtype)))[0]
        leaves, tree = tree_flatten(eager)
        return tree_unflatten(
            [_rounded(a, b) if isinstance(b, Tensor) else b for a, b in zip(wide, leaves, strict=True)], tree
        )

    return run


def _rounded(value: Tensor, like: Tensor) -> Tensor:
    if value.requires_grad:
        return torch.empty_like(like).copy_(value)
    return laid_out_like(value, like)


# --------------------------------------------------------------------------------------------- random numbers

STREAMS = 8  # tests of distributions alarm by chance, if they do: the more streams, the better that is known


def _uniform(like: Tensor) -> Tensor:
    """Uniform random numbers between 0 and 1, both excluded."""
    return (torch.randint(0, 2**32, like.shape, dtype=torch.int64).double() + 0.5) / 2**32


def _normal(mean: Tensor, std: float = 1.0, **options: Any) -> Tensor:
    return mean.double() + std * torch.special.ndtri(_uniform(mean))


def _below_one(like: Tensor) -> Tensor:
    """Multiples of the dtype's eps over two, one left out, as `rand` promises."""
    step = torch.finfo(like.dtype).eps / 2
    return torch.floor(_uniform(like) / step) * step


DRAWS: dict[Any, Callable[..., Any]] = {
    aten.randn_like.default: lambda like, **options: _normal(torch.zeros_like(like)),
    aten.normal.Tensor_float: _normal,
    aten.rand_like.default: lambda like, **options: _below_one(like),
    aten.bernoulli.default: lambda p, **options: _uniform(p) < p.double(),
}


def _drawn_otherwise(target: Target) -> Target:
    """Normal numbers by the inverse of the distribution, flags by comparison: other algorithms than eager's."""
    return own_stream(under(functools.partial(Arithmetic, DRAWS))(target))


# --------------------------------------------------------------------------------------------- ties


def _last_of_ties(value: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """A sort that is stable from the other end: among equal elements the last comes first."""
    values, order = torch.sort(value.flip(dim), dim=dim, descending=descending, stable=True)
    return values, value.shape[dim] - 1 - order


def _topk(value: Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> tuple[Tensor, Tensor]:
    values, order = _last_of_ties(value, dim, largest)
    return values.narrow(dim, 0, k), order.narrow(dim, 0, k)


def _kthvalue(value: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, order = _last_of_ties(value, dim)
    return values.select(dim, k - 1), order.select(dim, k - 1)


def _sort(value: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _last_of_ties(value, dim, descending)


# sort without stable=True, argsort, topk and kthvalue promise no order among equal elements; argmax, argmin and max(dim) do.
TIES = functools.partial(
    Arithmetic,
    {
        aten.sort.default: _sort,
        aten.topk.default: _topk,
        aten.kthvalue.default: _kthvalue,
        aten.argsort.default: lambda value, dim=-1, descending=False: _sort(value, dim, descending)[1],
    },
)


def _entry(
    kind: str, name: str, template: Template, wrap: Wrap, dtype: torch.dtype, size: int | None = None, **options: Any
) -> Entry:
    elements = template.size if size is None else size
    return Entry(
        kind=kind, name=name, program=template.name, dtype=dtype, size=elements, is_wrong=False,
        case=program_of(template, dtype=dtype, size=elements), wrap=wrap, is_measured=True, **options,
    )  # fmt: skip


# Also run in other sizes: statistics that see a small bias in many elements must not see one in honest arithmetic.
_IN_ALL_SIZES = (
    "mul_add", "polynomial", "div", "sigmoid", "tanh", "gelu", "exp_log", "softmax", "log_softmax", "layer_norm",
    "matmul", "chain", "linear_gelu", "normalised", "cumsum",
)  # fmt: skip


def _in_every_mode(template: Template, dtype: torch.dtype, size: int) -> Iterator[Entry]:
    for name, mode in MODES.items():
        kind, _, arithmetic = name.partition("/")
        yield _entry(kind, arithmetic, template, under(mode), dtype, size)
    if wider_dtype(dtype) is not dtype:
        yield _entry("wider", "whole_program", template, wholly_wide, dtype, size)


def keeps_last_calls(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A compiler that keeps the tensors of the first call and of the last three, and no more."""
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=3)

    def run(*args: Any) -> Any:
        results = gm.forward(*args)
        last.append((args, results))
        first[:] = first or [example_inputs, args, results]
        return results

    return run


def keeps_many_last_calls(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A compiler with a cache that is full after twenty calls."""
    last: deque[Any] = deque(maxlen=20)

    def run(*args: Any) -> Any:
        results = gm.forward(*args)
        last.append((args, results))
        return results

    return run


def caches() -> Iterator[Entry]:
    """What a compiler keeps of a few calls is no leak, asked of `oracle.check` as a user would."""
    yield from live_entries("cache", keeps_last_calls, backward=True, is_wrong=False)
    yield from live_entries("cache", keeps_many_last_calls, backward=False, is_wrong=False)


def right_entries() -> Iterator[Entry]:
    yield from caches()
    for template in (*ARITHMETIC, *CANCELLING, *JUMPING, *TO_FLOAT8):
        for dtype in template.dtypes:
            yield from _in_every_mode(template, dtype, template.size)
    for name in _IN_ALL_SIZES:
        for dtype in FLOATS:
            for size in SIZES:
                if size != NAMES[name].size:
                    yield from _in_every_mode(NAMES[name], dtype, size)
    for template in TIED:
        for dtype in template.dtypes:
            yield _entry("ties", "last_first", template, under(TIES), dtype)
    for template in RANDOM:
        for dtype in (torch.float32, torch.bfloat16):
            for number in range(1, STREAMS + 1):
                stream = functools.partial(own_stream, number=number)
                yield _entry("random", f"own_stream_{number}", template, stream, dtype, rng="own")
            yield _entry("random", "other_generators", template, _drawn_otherwise, dtype, rng="own")


__all__ = ["MODES", "dtype_name", "right_entries"]
