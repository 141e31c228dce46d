"""Wrong subjects that draw random numbers of their own: what they make of them is not what eager makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from oracle.tests.battery.entries import (
    Change,
    Entry,
    Target,
    Wrap,
    outputs_changed,
    result_changed,
)
from oracle.tests.battery.programs import NAMES
from oracle.tests.battery.unstable import times, wrong_entry


def own_stream(target: Target, *, number: int = 1) -> Target:
    """The program under a generator seeded by a draw of eager's: what Inductor does. Each number is another stream."""

    def run(*args: Any) -> Any:
        seed = int(torch.randint(2**40, ()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 11 * number)
            return target(*args)

    return run


def own_stream_then(change: Change) -> Wrap:
    return lambda target: outputs_changed(change)(own_stream(target))


def same_draw_every_call(target: Target) -> Target:
    def run(*args: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return target(*args)

    return run


def same_draw_in_every_row(target: Target) -> Target:
    """One row of random numbers for all rows: of programs `f(draw, a)` that treat all elements of `a` alike."""

    def run(a: Tensor) -> Tensor:
        seed = int(torch.randint(2**40, ()))
        rows = []
        for row in a:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                rows.append(target(row))
        return torch.stack(rows)

    return run


class _OtherMask(torch.autograd.Function):
    """Dropout whose backward draws a mask of its own."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dropped: Tensor, p: float) -> Tensor:
        ctx.p = p
        return dropped.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.nn.functional.dropout(grads[0], ctx.p), None, None


def other_mask_in_backward(target: Target) -> Target:
    dropped_by = own_stream(target)

    def run(a: Tensor) -> Any:
        return _OtherMask.apply(a, dropped_by(a.detach()), 0.3)

    return run


def _hundred_set(value: Tensor) -> Tensor:
    flat = value.flatten().clone()
    flat[:: max(flat.numel() // 100, 1)] = 5.0
    return flat.reshape(value.shape)


def _shuffled(value: Tensor) -> Tensor:
    order = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(1))
    return value.flatten()[order].reshape(value.shape)


def _nan_in_one(value: Tensor) -> Tensor:
    flat = value.flatten().clone()
    flat[7] = torch.nan
    return flat.reshape(value.shape)


def random_streams() -> Iterator[Entry]:
    """Entries for subjects that draw random numbers of their own: programs with `rng="own"`."""
    changes: dict[str, tuple[Change, tuple[str, ...]]] = {
        "reversed": (lambda v: v.flip(0), ("small_noise", "noise_in_rows", "bernoulli", "dropout", "normal")),
        "negated": (torch.neg, ("small_noise", "scaled_uniform", "dropout", "normal", "two_draws")),
        "shuffled": (_shuffled, ("small_noise", "scaled_uniform", "bernoulli", "two_draws")),
        "times_1.01": (times(1.01), ("small_noise", "scaled_uniform", "dropout", "normal")),
        "hundred_elements_5": (_hundred_set, ("small_noise", "scaled_uniform", "bernoulli", "dropout", "normal")),
        "one_nan": (_nan_in_one, ("small_noise", "scaled_uniform", "dropout")),
        "without_noise": (lambda v: torch.linspace(-1, 1, v.numel(), dtype=v.dtype), ("small_noise", "normal")),
        "half_the_noise": (
            lambda v: (v.double() + torch.linspace(-1, 1, v.numel()).double()).div(2).to(v.dtype),
            ("small_noise", "normal"),
        ),
    }
    for dtype in (torch.float32, torch.bfloat16):
        for name, (change, programs) in changes.items():
            for program in programs:
                yield wrong_entry("random", NAMES[program], name, own_stream_then(change), dtype, rng="own")
        for program in ("small_noise", "scaled_uniform", "dropout", "bernoulli"):
            yield wrong_entry("random", NAMES[program], "same_draw_every_call", same_draw_every_call, dtype, rng="own")
        for program in ("noise_in_rows", "uniform_rows"):
            yield wrong_entry(
                "random", NAMES[program], "same_draw_in_every_row", same_draw_in_every_row, dtype, rng="own"
            )
        yield wrong_entry(
            "random", NAMES["dropout"], "other_mask_in_backward", other_mask_in_backward, dtype, rng="own"
        )
        yield wrong_entry(
            "random", NAMES["two_draws"], "second_draw_is_the_first",
            lambda target: result_changed(lambda r: (r[0], r[0] - torch.linspace(-1, 1, r[0].numel()).to(r[0].dtype)))(
                own_stream(target)
            ),
            dtype, rng="own",
        )  # fmt: skip
