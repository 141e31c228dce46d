"""Tests of what a call becomes: a node, an answer, a frame that is entered, or a break."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import refimpl
from refimpl.capture.recognition import Treatment, treatment
from refimpl.tests.capture.capturing import assert_same_as_eager, captured_with, same

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
        (torch.func.jacrev, Treatment.ENTER),
        (torch.func.functional_call, Treatment.ENTER),
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

    assert_same_as_eager(program, calls=[tuple(torch.randn(3, 3, 4))], fullgraph=True)


@torch.library.custom_op("recognition::doubled", mutates_args=())
def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("recognition::tripled", mutates_args=())
def _tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


for _times in (_doubled, _tripled):
    _times.register_fake(torch.empty_like)


@pytest.mark.parametrize(
    "operators",
    [
        (torch.ops.aten.sin, torch.ops.aten.cos),
        (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
        (functools.partial(torch.ops.aten.sub, torch.ones(2)), functools.partial(torch.ops.aten.mul, torch.ones(2))),
        (_doubled, _tripled),
        (lambda x: np.sum(x.numpy()), lambda x: np.prod(x.numpy())),
        (np.floor, np.ceil),
        (np.sum, np.prod),
    ],
    ids=["packet", "overload", "partial", "custom operator", "lambda", "ufunc", "function of numpy"],
)
@pytest.mark.parametrize("way", [lambda found: found, lambda found: [found], lambda found: {"found": found}])
def test_another_operator_is_not_the_one_that_was_captured(
    operators: tuple[Any, Any], way: Callable[[Any], Any]
) -> None:
    """Operators share one class, as functions of numpy do: what is called is known by itself alone."""

    def program(holder: Any, x: Any) -> Any:
        found = holder[0] if type(holder) is list else holder["found"] if type(holder) is dict else holder
        return found(x)

    x: Any = torch.tensor([0.5, 1.75])
    if isinstance(operators[0], np.ufunc) or operators[0] is np.sum:
        x = x.numpy()
    compiled, recorder, _ = captured_with(program)
    for operator_ in (*operators, *operators):
        np.testing.assert_array_equal(compiled(way(operator_), x), operator_(x))
    assert len(recorder.graphs) == 2


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: (x.numpy(), x), lambda x: np.add.reduce(x.numpy())])
def test_an_array_over_the_memory_of_an_input_needs_no_graph(read: Callable[[torch.Tensor], Any]) -> None:
    x = torch.tensor([1.0, 2.0])
    compiled = refimpl.compile(read, backend="eager")
    for _ in range(2):
        found, expected = tree_leaves(compiled(x)), tree_leaves(read(x))
        assert [type(leaf) for leaf in found] == [type(leaf) for leaf in expected]
        assert [leaf.tolist() for leaf in found] == [leaf.tolist() for leaf in expected]
        x += 1
