"""Results that a program makes in inference mode, which it switches on itself: they are inference tensors, and share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot


def negated(x: Any) -> Any:
    with torch.inference_mode():
        y = x.neg()
    return (y,)


def views_of_results_and_inputs(x: Any) -> Any:
    with torch.inference_mode():
        y = x.neg()
        return y, y[1:], y.t(), x[1:], y


def views_alone(x: Any) -> Any:
    with torch.inference_mode():
        y = x.neg()
        part, flat = y[1:], y.view(-1)
        part.add_(1)
    return part, flat, x * 2


def left_again(x: Any) -> Any:
    with torch.inference_mode():
        y = x.neg()
        with torch.inference_mode(False):
            z = x.sin()
        x.add_(1)
    return y, z


def views_with_gradients_on(x: Any) -> Any:
    with torch.inference_mode(), torch.enable_grad():
        whole, (first, last) = x.t(), x.split(1)
    return whole, first, last, whole[1:]


WAYS: dict[str, Callable[[Any], Any]] = {
    "compiled": compile_aot,
    "captured": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
    "with symbols": lambda f: with_options(f, CaptureOptions(backend=aot_eager, dynamic=True)),
}


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "program", [negated, views_of_results_and_inputs, views_alone, left_again, views_with_gradients_on]
)
def test_results_are_what_eager_makes_them(program: Callable[..., Any], way: str, has_gradient: bool) -> None:
    found = []
    for function in (program, WAYS[way](program)):
        x = torch.arange(4.0).view(2, 2)
        x = x.requires_grad_() * 1 if has_gradient else x
        results = function(x)
        storages = [t.untyped_storage().data_ptr() for t in (x, *results)]
        found.append(
            [
                (
                    t.tolist(),
                    t.is_leaf,
                    t.is_inference(),
                    t.requires_grad,
                    t.stride(),
                    t.storage_offset(),
                    storages.index(storage),
                )
                for t, storage in zip((x, *results), storages, strict=True)
            ]
        )
    assert found[1] == found[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_inference", [False, True])
def test_views_as_another_dtype_are_what_they_view_is(way: str, *, is_inference: bool) -> None:
    """Each asked for twice: the second time what is known of the first is not an inference tensor of its own."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for _ in range(2):
            found += [torch.view_as_complex(x), torch.view_as_real(torch.view_as_complex(x)), x.view(torch.int32)]
        return found

    with torch.inference_mode(is_inference):
        x = torch.arange(6.0).view(3, 2)
    for is_called_so in (False, True):
        with torch.inference_mode(is_called_so):
            expected, results = program(x), WAYS[way](program)(x)
        assert [r.is_inference() for r in results] == [e.is_inference() for e in expected]
        assert [r.tolist() for r in results] == [e.tolist() for e in expected]
