"""The wrong subjects: each runs the eager program and spoils what comes of it, by class, dtype, size and size of the error."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from oracle.tests.battery.arithmetic import converted, wider_dtype
from oracle.tests.battery.bits import low_bits_cleared, moved, truncated
from oracle.tests.battery.entries import (
    Change,
    Entry,
    LiveCase,
    Target,
    Wrap,
    gradients_changed,
    is_float,
    outputs_changed,
    replaced,
    result_changed,
)
from oracle.tests.battery.programs import FLOATS, NAMES, TO_FLOAT8
from oracle.tests.battery.random_streams import random_streams
from oracle.tests.battery.unstable import times, unstable, unstable_elements, wrong_entry

SIZES = (64, 1024, 65536)
DIAL = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)
FINE_DIAL = (1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15)  # float64 goes on
DIALLED = ("mul", "softmax", "layer_norm", "matmul")


# --------------------------------------------------------------------------------------------- low precision


def every_fourth(change: Change) -> Change:
    def some(value: Tensor) -> Tensor:
        wide = value.to(torch.float64).flatten()
        chosen = torch.arange(wide.numel()) % 4 == 1
        return torch.where(chosen, change(value).to(torch.float64).flatten(), wide).reshape(value.shape).to(value.dtype)

    return some


def stepped(steps: int) -> Change:
    return lambda value: moved(value, steps)


def cleared(count: int) -> Change:
    return lambda value: low_bits_cleared(value, count)


def truncating(target: Target) -> Target:
    """The whole program in the next wider dtype, its results truncated instead of rounded."""

    def run(*args: Any) -> Any:
        result = target(*args)
        with torch.no_grad():
            wide = tree_flatten(target(*converted(args, wider_dtype)))[0]
        leaves, tree = tree_flatten(result)
        leaves = [
            replaced(leaf, functools.partial(_truncation_of, exact)) if is_float(leaf) else leaf
            for leaf, exact in zip(leaves, wide, strict=True)
        ]
        return tree_unflatten(leaves, tree)

    return run


def _truncation_of(exact: Tensor, value: Tensor) -> Tensor:
    return truncated(exact, value.dtype)


def rounded_after_each_step(target: Target) -> Target:
    """Sums of rows and products whose accumulator is rounded to the narrow dtype after each addition.

    The accumulator has the program's own dtype where that is a half type, bfloat16 for float32, float32 for float64.
    """

    def run(*args: Any) -> Any:
        value = target(*args)
        narrow = {torch.float32: torch.bfloat16, torch.float64: torch.float32}.get(value.dtype, value.dtype)
        with torch.no_grad():
            terms = (args[0].unsqueeze(-1) * args[1]).movedim(-2, 0) if len(args) == 2 else args[0].movedim(-1, 0)
            total = torch.zeros_like(terms[0], dtype=narrow)
            for term in terms:
                total = (total.float() + term.to(narrow).float()).to(narrow)
        return replaced(value, lambda old: total.to(old.dtype))

    return run


def dialled() -> Iterator[Entry]:
    """The dial: every result times 1 + d."""
    for dtype in FLOATS:
        for size in SIZES:
            for program in DIALLED:
                for d in (*DIAL, *(FINE_DIAL if dtype is torch.float64 else ())):
                    yield wrong_entry(
                        "scaled", NAMES[program], f"times_1+{d:g}", outputs_changed(times(1 + d)), dtype, size,
                        dial=d, is_measured=True,
                    )  # fmt: skip


def biased_before_rounding(factor: float) -> Wrap:
    """The whole program in the next wider dtype, its results times `factor`, then rounded once."""

    def wrap(target: Target) -> Target:
        def run(*args: Any) -> Any:
            with torch.no_grad():
                wide = tree_flatten(target(*converted(args, wider_dtype)))[0]
            leaves, tree = tree_flatten(target(*args))
            leaves = [
                replaced(leaf, functools.partial(_scaled_and_rounded, exact, factor)) if is_float(leaf) else leaf
                for leaf, exact in zip(leaves, wide, strict=True)
            ]
            return tree_unflatten(leaves, tree)

        return run

    return wrap


def _scaled_and_rounded(exact: Tensor, factor: float, value: Tensor) -> Tensor:
    return (exact.to(torch.float64) * factor).to(value.dtype)


def biased() -> Iterator[Entry]:
    """The dial again, with the bias before rounding: it may be smaller than half a unit of the last place."""
    for dtype in FLOATS[:3]:
        for size in SIZES:
            for program in DIALLED:
                for d in (*DIAL, 3e-8, 1e-8):
                    yield wrong_entry(
                        "biased", NAMES[program], f"times_1+{d:g}", biased_before_rounding(1 + d), dtype, size,
                        dial=d, is_measured=True,
                    )  # fmt: skip


def low_precision() -> Iterator[Entry]:
    changes: dict[str, Change] = {
        **{f"up_{steps}_ulp": stepped(steps) for steps in (1, 2, 4)},
        **{f"low_{count}_bits_cleared": cleared(count) for count in (1, 2, 4)},
        **{f"quarter_times_1+{d:g}": every_fourth(times(1 + d)) for d in (1e-1, 1e-2, 1e-3, 1e-4)},
    }
    for dtype in FLOATS:
        for program in (*DIALLED, "sigmoid", "row_sum"):
            template = NAMES[program]
            for name, change in changes.items():
                yield wrong_entry(
                    "low_precision", template, name, outputs_changed(change), dtype, 1024, is_measured=True
                )
            if dtype is not torch.float64:
                yield wrong_entry("low_precision", template, "truncation", truncating, dtype, 1024, is_measured=True)
        for program in ("matmul", "row_sum"):
            yield wrong_entry(
                "low_precision", NAMES[program], "narrow_accumulator", rounded_after_each_step, dtype, 1024,
                is_measured=True,
            )  # fmt: skip
    for template in TO_FLOAT8:
        for dtype in template.dtypes:
            for size in SIZES:
                up = outputs_changed(stepped(1))
                yield wrong_entry("low_precision", template, "fp8_one_up", up, dtype, size, is_measured=True)


def gradients() -> Iterator[Entry]:
    for dtype in FLOATS:
        for program in (*DIALLED, "sigmoid", "gelu"):
            for d in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
                yield wrong_entry(
                    "gradient", NAMES[program], f"times_1+{d:g}", gradients_changed(times(1 + d)), dtype,
                    dial=d, is_measured=True,
                )  # fmt: skip
            up = gradients_changed(stepped(2))
            yield wrong_entry("gradient", NAMES[program], "up_2_ulp", up, dtype, is_measured=True)


# --------------------------------------------------------------------------------------------- no digits left


def without_digits() -> Iterator[Entry]:
    for program in ("hilbert_inverse", "cancelled_products", "cancelled_sum"):
        template = NAMES[program]
        for dtype in template.dtypes:
            for name, change in {"negated": torch.neg, "zeroed": torch.zeros_like, "times_3": times(3.0)}.items():
                wrap = outputs_changed(change)
                yield wrong_entry("no_digits", template, name, wrap, dtype, may_skip=True, is_measured=True)
    for program in ("overflow", "overflowing_exp"):
        for size in SIZES:
            for name, change in {
                "inf_to_nan": lambda v: torch.where(torch.isinf(v), torch.nan, v),
                "inf_to_minus_inf": lambda v: torch.where(torch.isinf(v), -torch.inf, v),
                "inf_to_zero": lambda v: torch.where(torch.isinf(v), 0.0, v).to(v.dtype),
            }.items():
                yield wrong_entry(
                    "no_digits", NAMES[program], name, outputs_changed(change), torch.float16, size,
                    may_skip=True, is_measured=True,
                )  # fmt: skip


# --------------------------------------------------------------------------------------------- memory of the first call

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def first_result_again(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        if not kept:
            kept.append(gm.forward(*args))
        return tuple(x.clone() if isinstance(x, Tensor) else x for x in kept[0])

    return run


def first_gradient_again(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    kept: dict[int, Tensor] = {}

    def run(*args: Any) -> Any:
        for at, arg in enumerate(args):
            if isinstance(arg, Tensor) and arg.requires_grad:
                arg.register_hook(lambda grad, at=at: kept.setdefault(at, grad.clone()))
        return gm.forward(*args)

    return run


def error_on_the_third_call(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    calls = 0

    def run(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("the third call")
        return gm.forward(*args)

    return run


class _Once(torch.autograd.Function):
    """The graph, with gradients that have no history: a second derivative is lost without a word."""

    @staticmethod
    def forward(ctx: Any, gm: Any, *args: Any) -> Any:
        ctx.gm = gm
        ctx.save_for_backward(*args)
        with torch.no_grad():
            return gm.forward(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        args = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad():
            results = ctx.gm.forward(*args)
        wanted = [x for x in args if x.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, [g.detach() for g in grads], allow_unused=True))
        return None, *(next(found) if x.requires_grad else None for x in args)


def no_second_derivative(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    return lambda *args: _Once.apply(gm, *args)


def keeps_every_result(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        results = gm.forward(*args)
        kept.append([x.detach() for x in results if isinstance(x, Tensor)])
        return results

    return run


def keeps_every_second_result(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A cache of the first twenty calls that later drops only every second one."""
    kept: list[Any] = []
    count = 0

    def run(*args: Any) -> Any:
        nonlocal count
        results = gm.forward(*args)
        if count < 20 or count % 2:
            kept.append([x.detach() for x in results if isinstance(x, Tensor)])
        count += 1
        return results

    return run


LIVE: dict[str, Callable[..., Any]] = {
    "mul": lambda a, b: a * b.sigmoid(),
    "matmul": lambda a, b: (a.reshape(-1, 16) @ b.reshape(16, -1)).tanh(),
    "softmax": lambda a, b: torch.softmax(a.reshape(-1, 16) * 2, -1) + b.reshape(-1, 16) ** 2,
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a.reshape(-1, 16), (16,)) * b.reshape(-1, 16),
}


def memory() -> Iterator[Entry]:
    """What only another call shows, asked of `oracle.check` as a user would."""
    backends: dict[Backend, bool] = {
        first_result_again: False,
        first_gradient_again: True,
        error_on_the_third_call: False,
        no_second_derivative: True,
        keeps_every_result: False,
        keeps_every_second_result: False,
    }
    for backend, backward in backends.items():
        yield from live_entries("memory", backend, backward=backward, is_wrong=True)


def live_entries(kind: str, backend: Backend, *, backward: bool, is_wrong: bool) -> Iterator[Entry]:
    """A backend on each program of LIVE in each dtype. backward: inputs require gradients."""
    for dtype in FLOATS:
        for program, function in LIVE.items():
            inputs = functools.partial(_live_inputs, dtype, backward)
            yield Entry(
                kind=kind, name=backend.__name__, program=program, dtype=dtype, size=256, is_wrong=is_wrong,
                case=LiveCase(function=function, inputs=inputs, backend=backend),
            )  # fmt: skip


def _live_inputs(dtype: torch.dtype, backward: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(256, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(backward) for _ in range(2)
    ]


# --------------------------------------------------------------------------------------------- eager is not repeatable


def not_repeatable() -> Iterator[Entry]:
    """Values that differ from run to run excuse values, and nothing else."""
    changes: dict[str, Callable[[Any], Any]] = {
        "other_shape": lambda r: _first_leaf(r, lambda x: x.reshape(-1, 2)),
        "other_dtype": lambda r: _first_leaf(r, lambda x: x.to(torch.complex64)),
        "other_stride": lambda r: _first_leaf(r, lambda x: torch.empty(x.numel() * 2, dtype=x.dtype)[::2].view(-1)
                                              .as_strided(x.shape, [2 * s for s in x.stride()])),
        "missing_output": lambda r: r[:1] if isinstance(r, tuple) else None,
        "other_structure": lambda r: list(r) if isinstance(r, tuple) else (r,),
        "second_output_wrong": lambda r: (r[0], r[1] + 1) if isinstance(r, tuple) else r * torch.nan + torch.nan,
    }  # fmt: skip
    for program in ("unfilled", "unfilled_rows", "clock"):
        for dtype in FLOATS:
            for name, change in changes.items():
                if name == "second_output_wrong" and program == "unfilled_rows":
                    continue
                yield wrong_entry("not_repeatable", NAMES[program], name, result_changed(change), dtype)


def _first_leaf(result: Any, change: Change) -> Any:
    leaves, tree = tree_flatten(result)
    return tree_unflatten([change(leaves[0]), *leaves[1:]], tree)


# --------------------------------------------------------------------------------------------- plain


def on_copies(target: Target) -> Target:
    """No mutation of an argument reaches the caller."""
    return lambda *args: target(*(x.clone() for x in args))


def also_mutating(target: Target) -> Target:
    def run(*args: Any) -> Any:
        result = target(*args)
        args[-1].mul_(1.5)
        return result

    return run


def mutating_wrongly(target: Target) -> Target:
    def run(*args: Any) -> Any:
        result = target(*args)
        args[0].add_(0.5)
        return result

    return run


def without_gradient(target: Target) -> Target:
    return lambda *args: target(args[0].detach(), *args[1:])


def zero_gradient(target: Target) -> Target:
    def run(*args: Any) -> Any:
        args[0].register_hook(torch.zeros_like)
        return target(*args)

    return run


def state_left_behind(target: Any) -> Target:
    """The module's buffers never change: every call starts from a copy."""
    return lambda *args: copy.deepcopy(target)(*args)


def state_frozen_after_first_call(target: Any) -> Target:
    first = copy.deepcopy(target)

    def run(*args: Any) -> Any:
        result = copy.deepcopy(first)(*args)
        target(*args)
        return result

    return run


def drawing_too_much(target: Target) -> Target:
    def run(*args: Any) -> Any:
        torch.rand(1)
        return target(*args)

    return run


def one_element(change: Change) -> Change:
    """The change on one element in the middle."""

    def some(value: Tensor) -> Tensor:
        flat, at = value.flatten().clone(), value.numel() // 2
        flat[at] = change(value).flatten()[at]
        return flat.reshape(value.shape)

    return some


def plain() -> Iterator[Entry]:
    def on(program: str, spoilings: dict[str, Wrap], dtypes: Sequence[torch.dtype] = FLOATS) -> Iterator[Entry]:
        for dtype in dtypes:
            for name, wrap in spoilings.items():
                yield wrong_entry("plain", NAMES[program], name, wrap, dtype)

    half_off = {"one_element_half_off": outputs_changed(one_element(times(1.5)))}
    for program in ("mul", "softmax", "matmul", "row_sum", "conv", "embedding_sum"):
        yield from on(program, {**half_off, "zero_gradients": gradients_changed(torch.zeros_like)})
    yield from on("add_in_place", {
        "lost_mutation": on_copies, "wrong_mutation": mutating_wrongly, "extra_mutation": also_mutating,
        "draws_a_number": drawing_too_much,
    })  # fmt: skip
    yield from on("views", {
        "copied_view": result_changed(lambda r: (r[0].clone(), *r[1:])),
        "contiguous": result_changed(lambda r: (r[0], r[1].contiguous(), r[2])),
        "one_object": result_changed(lambda r: (r[0], r[1], r[0].new_empty(r[2].shape).copy_(r[2]).as_strided(
            r[2].shape, (1, r[2].shape[0])).copy_(r[2]))),
        "row_too_far": result_changed(lambda r: (r[2][:-1], *r[1:])),
    })  # fmt: skip
    yield from on("two_results", {
        "swapped": result_changed(lambda r: (r[1], r[0])),
        "one_lost": result_changed(lambda r: (r[0],)),
        "list_for_tuple": result_changed(list),
        "same_twice": result_changed(lambda r: (r[0], r[0])),
        "detached": result_changed(lambda r: (r[0].detach(), r[1])),
        "missing_gradient": without_gradient,
        "zero_gradient": zero_gradient,
        "row_lost": result_changed(lambda r: (r[0][:-1], r[1])),
        "broadcast": result_changed(lambda r: (r[0][None], r[1])),
    })  # fmt: skip
    yield from on("transposed", {"contiguous": result_changed(lambda r: r.contiguous())})
    yield from on("two_results", {"in_double": result_changed(lambda r: tree_map(lambda x: x.double(), r))}, FLOATS[:3])
    yield from on("integers", {
        "one_off": result_changed(lambda r: (r[0] + (torch.arange(len(r[0])) == 3), *r[1:])),
        "truncating_division": result_changed(lambda r: (r[0] + (r[0] < 0), *r[1:])),
        "flag_flipped": result_changed(lambda r: (*r[:2], r[2] ^ (torch.arange(len(r[2])) == 5))),
        "in_int32": result_changed(lambda r: (r[0], r[1].int(), r[2])),
    }, (torch.int64,))  # fmt: skip
    yield from on("complex_numbers", {
        "conjugate": result_changed(lambda r: r.conj().resolve_conj()),
        "imaginary_lost": result_changed(lambda r: torch.complex(r.real, torch.zeros_like(r.real))),
        "times_1.01": result_changed(lambda r: r * 1.01),
        "one_element": result_changed(one_element(torch.neg)),
    }, (torch.complex64, torch.complex128))  # fmt: skip
    yield from on("python_numbers", {
        "number": result_changed(lambda r: (r[0] + 1, *r[1:])),
        "float": result_changed(lambda r: (r[0], r[1] * 1.01, *r[2:])),
        "flag": result_changed(lambda r: (*r[:2], not r[2], r[3])),
        "integer_for_flag": result_changed(lambda r: (*r[:2], int(r[2]), r[3])),
    })  # fmt: skip
    for program in ("counter", "running_mean"):
        yield from on(program, {
            "state_left_behind": state_left_behind, "state_frozen": state_frozen_after_first_call,
        })  # fmt: skip
    for program in ("argmax", "floor_of_sums", "bucketize", "sort_of_products"):
        yield from on(program, {"one_stable_element_off": _one_stable_off})


def _one_stable_off(target: Target) -> Target:
    """One element that no rounding moves is off by two."""

    def run(*args: Any) -> Any:
        value = target(*args)
        (where, _), = unstable_elements(target, args)  # fmt: skip
        at = int((~where).flatten().nonzero()[0])
        flat = value.flatten().clone()
        flat[at] += 2
        return flat.reshape(value.shape)

    return run


def wrong_entries() -> Iterator[Entry]:
    yield from unstable()
    yield from dialled()
    yield from biased()
    yield from low_precision()
    yield from gradients()
    yield from random_streams()
    yield from without_digits()
    yield from memory()
    yield from not_repeatable()
    yield from plain()
