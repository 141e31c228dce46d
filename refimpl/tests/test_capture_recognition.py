"""Tests of what a call becomes: a node, an answer, a frame that is entered, or a break."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import pytest
import torch

from refimpl.capture.recognition import Treatment, treatment
from refimpl.tests.capturing import captured_with, same

_NATIVE: Any = torch._C


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.add, Treatment.NODE),
        (torch._foreach_add, Treatment.NODE),
        (torch.nn.functional.linear, Treatment.NODE),
        (torch.nn.functional.layer_norm, Treatment.NODE),
        (torch.fft.rfft, Treatment.NODE),
        (torch.linalg.svd, Treatment.NODE),
        (torch.special.erf, Treatment.NODE),
        (torch.Tensor.mul, Treatment.NODE),
        (torch.ops.aten.add.Tensor, Treatment.NODE),
        (torch.ops.aten.add, Treatment.NODE),
        (torch.is_grad_enabled, Treatment.STATE),
        (torch.get_default_dtype, Treatment.STATE),
        (torch.set_num_threads, Treatment.BREAK),
        (torch.manual_seed, Treatment.BREAK),
        (torch.from_numpy, Treatment.BREAK),
        (torch._C._set_grad_enabled, Treatment.BREAK),
        (torch._C._pop_torch_function_stack, Treatment.BREAK),
        (_NATIVE._autograd._pop_saved_tensors_default_hooks, Treatment.BREAK),
        (torch.nn.functional.multi_head_attention_forward, Treatment.ENTER),
        (torch.nn.functional.gaussian_nll_loss, Treatment.ENTER),
        (torch.nn.functional.triplet_margin_with_distance_loss, Treatment.ENTER),
        (torch.nn.Module.train, Treatment.ENTER),
        (math.sqrt, Treatment.FOLD),
        (operator.countOf, Treatment.FOLD),
        (operator.setitem, Treatment.BREAK),
        (torch.compile(math.sqrt), Treatment.BREAK),
        (print, Treatment.BREAK),
        (id, Treatment.BREAK),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_treatment(function: Any, expected: Treatment) -> None:
    assert treatment(function) is expected


def test_a_wrapper_of_what_breaks_breaks() -> None:
    @functools.wraps(torch.initial_seed)
    def wrapper() -> int:
        return torch.initial_seed()

    assert treatment(wrapper) is Treatment.BREAK


def test_nearly_all_of_torch_is_known() -> None:
    places: list[Any] = [torch, torch.nn.functional, torch.special, torch.fft, torch.linalg, torch.Tensor, _NATIVE._nn]
    functions = [
        found
        for place in places
        for name in dir(place)
        if not name.startswith("_") and callable(found := getattr(place, name)) and not isinstance(found, type)
    ]
    unknown = [function for function in functions if treatment(function) is Treatment.BREAK]
    assert len(functions) > 1500
    assert len(unknown) < 60


def test_a_function_of_the_users_that_compares_oddly_is_no_key() -> None:
    class Odd:
        def __hash__(self) -> int:
            raise AssertionError("run by the capture")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("run by the capture")

        def __call__(self) -> None: ...

    assert treatment(Odd()) is Treatment.BREAK


def test_a_loss_that_looks_at_its_data_is_captured_before_and_after() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gaussian_nll_loss(x.sin(), y, variance).cos()

    captured, recorder, _ = captured_with(program)
    args = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4)
    assert same(captured(*args), program(*args))
    assert [name for name in recorder.targets if name in ("sin", "any", "log", "mean", "cos")] == [
        "sin",
        "any",
        "log",
        "mean",
        "cos",
    ]
    with pytest.raises(ValueError, match="var has negative entry"):
        captured(args[0], args[1], -args[2])


def test_a_loss_that_is_given_a_function_is_one_graph() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.triplet_margin_with_distance_loss(
            x, y, z, distance_function=lambda a, b: (a - b).norm()
        )

    captured, _, _ = captured_with(program, fullgraph=True)
    args = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)
    assert same(captured(*args), program(*args))
