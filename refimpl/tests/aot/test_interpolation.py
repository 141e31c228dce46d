"""Interpolation where sizes are symbols: what eager mode's operators give, which torch's Python kernels do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from refimpl import compile_aot

Tensor = torch.Tensor
interpolate = torch.nn.functional.interpolate
aten = torch.ops.aten
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def assert_alike(
    program: Callable[[Tensor], Tensor], images: Sequence[Tensor], loss: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """What the compiled program gives for each, and the gradient of the loss, bit by bit. Gives eager's results."""
    compiled = compile_aot(program, dynamic=True)
    results = []
    for x in images:
        found = []
        for function in (program, compiled):
            leaf = x.clone().requires_grad_()
            result = function(leaf)
            found.append((result, *torch.autograd.grad(loss(result), leaf)))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0, check_stride=True, equal_nan=True)
        results.append(found[0][0])
    return results


def images_of(*sizes: int, batches: Sequence[int] = (2, 3), channels: int = 2) -> list[Tensor]:
    """The one of 3 images is in the layout that has channels last."""
    made = [torch.randn(batch, channels, *sizes) for batch in batches]
    last = CHANNELS_LAST.get(len(sizes))
    return [x.contiguous(memory_format=last) if last is not None and len(x) == 3 else x for x in made]


@pytest.mark.parametrize(
    ("mode", "sizes", "named"),
    [
        ("linear", (5,), {"size": 7}),
        ("linear", (5,), {"scale_factor": 1.7, "align_corners": True}),
        ("linear", (5,), {"scale_factor": (1.7,), "recompute_scale_factor": True}),
        ("bilinear", (3, 4), {"size": (5, 9)}),
        ("bilinear", (3, 4), {"scale_factor": 1.7, "align_corners": True}),
        ("bilinear", (3, 4), {"scale_factor": (2.3, 0.6)}),
        ("trilinear", (2, 3, 4), {"size": (3, 3, 9)}),
        ("trilinear", (2, 3, 4), {"scale_factor": (2.0, 1.3, 0.6)}),
        ("trilinear", (2, 3, 4), {"scale_factor": 1.3, "recompute_scale_factor": True, "align_corners": True}),
    ],
)
def test_sums_of_large_neighbours_overflow_where_those_of_eager_mode_do(
    mode: str, sizes: tuple[int, ...], named: Any
) -> None:
    large = 0.9 * torch.finfo(torch.float32).max
    results = assert_alike(
        lambda x: interpolate(x, mode=mode, **named),
        [x.sign() * large for x in images_of(*sizes)],
        lambda result: result.clamp(-1, 1).sum(),
    )
    assert all(result.isfinite().all() for result in results)


@pytest.mark.parametrize(
    "named", [{"size": (5, 9)}, {"scale_factor": 1.7, "align_corners": True}, {"scale_factor": (2.3, 0.6)}]
)
def test_cubic_sums_are_rounded_as_those_of_eager_mode(named: Any) -> None:
    images = [*images_of(4, 5, batches=(2,), channels=3), *images_of(4, 6, batches=(3,), channels=3)]
    assert_alike(lambda x: interpolate(x, mode="bicubic", **named), images, lambda result: result.square().sum())


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((5,), {"size": 7}),
        ((5,), {"scale_factor": (1.7,), "recompute_scale_factor": True}),
        ((3, 4), {"scale_factor": (2.3, 0.6)}),
        ((2, 3, 4), {"size": (3, 3, 9)}),
    ],
)
def test_the_nearest_elements_are_of_one_operator(mode: str, sizes: tuple[int, ...], named: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return interpolate(x, mode=mode, **named)

    assert_alike(program, images_of(*sizes, batches=(2, 3, 0)), lambda result: result.square().sum())
    for function in (program, compile_aot(program, dynamic=True)):
        with pytest.raises(RuntimeError, match="Non-empty"):
            function(torch.zeros(2, 0, *sizes))


@pytest.mark.parametrize(
    ("sizes", "program"),
    [
        ((5,), lambda x: aten.upsample_linear1d(x, [7], True)),
        ((5,), lambda x: aten.upsample_linear1d.default(x, [3], False)),
        ((5,), lambda x: aten.upsample_linear1d.vec(x, None, False, [1.7])),
        ((5,), lambda x: aten.upsample_nearest1d(x, [7])),
        ((2, 2), lambda x: aten.upsample_bilinear2d(x, [3, 3], True)),
        ((3, 4), lambda x: aten.upsample_bilinear2d.default(x, [5, 9], False)),
        ((3, 4), lambda x: aten.upsample_bilinear2d(x, None, True, [1.7, 0.6])),
        ((3, 4), lambda x: aten.upsample_bicubic2d(x, [5, 9], False)),
        ((3, 4), lambda x: aten.upsample_bicubic2d.vec(x, None, True, [1.7, 0.6])),
        ((3, 4), lambda x: aten._upsample_nearest_exact2d.vec(x, [5, 2], None)),
        ((2, 3, 4), lambda x: aten.upsample_trilinear3d.default(x, [3, 3, 9], True)),
        ((2, 3, 4), lambda x: aten.upsample_nearest3d.vec(x, None, [2.0, 1.3, 0.6])),
    ],
)
def test_operators_that_the_program_calls_itself(sizes: tuple[int, ...], program: Callable[[Tensor], Tensor]) -> None:
    """Next to infinity sums are infinite, differences NaN."""
    special = torch.tensor([1.0, -2.0, 0.5, torch.inf])
    images = [special[(7 * x).long() % 4] for x in images_of(*sizes)]
    assert_alike(
        program, [*images, *(x.sign() * 3e38 for x in images_of(*sizes))], lambda result: result.clamp(-1, 1).sum()
    )


@pytest.mark.parametrize(
    "named", [{"size": 7, "scale_factor": 2.0}, {"size": (7, 7)}, {}, {"size": 7, "antialias": True}]
)
def test_arguments_of_linear_interpolation_that_do_not_fit_are_refused_with_symbolic_sizes(named):
    def program(x):
        return torch.nn.functional.interpolate(x, mode="linear", **named)

    with pytest.raises(ValueError, match=r"size|Anti"):
        program(torch.randn(2, 3, 5))
    with pytest.raises(ValueError, match=r"size|Anti"):
        compile_aot(program, dynamic=True)(torch.randn(2, 3, 5))
