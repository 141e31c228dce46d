"""Tests of modules that a segment makes, slices of lists of modules, and signatures that it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import MODES, captured_with, same


class Scaled(torch.nn.Module):
    factor = 3

    def __init__(self, inner: torch.nn.Module, by: Any) -> None:
        super().__init__()
        self.inner = inner
        self.by = by
        self.register_buffer("offset", torch.ones(2))

    def forward(self, x: Any) -> Any:
        offset: Any = self.offset
        return self.inner(x) * self.by + offset * self.factor


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(4)])

    def forward(self, x: Any, count: int) -> Any:
        for layer in self.layers[:count]:
            x = layer(x)
        return x, len(self.layers[1:]), isinstance(self.layers[:1], torch.nn.ModuleList)


RELU = torch.nn.ReLU()


def makes(x: Any) -> Any:
    made = Scaled(RELU, x.sum())
    return (
        made(x),
        hasattr(made, "nothing"),
        made.offset,
        made.inner is RELU,
        made.training,
        isinstance(made, torch.nn.Module),
    )


def softmax(x: Any) -> Any:
    return torch.nn.Softmax(dim=-1)(x), torch.nn.GELU()(x)


def replaces(x: Any) -> Any:
    made = Scaled(RELU, 2)
    made.inner = torch.nn.Tanh()
    made.by = 5
    return made(x), list(made._modules), made.by


def asked(x: Any) -> Any:
    signature = inspect.signature(RELU.forward)
    return x + len(signature.parameters), list(signature.parameters), len(inspect.signature(makes).parameters)


PROGRAMS: list[Callable[..., Any]] = [makes, softmax, replaces, asked]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_module_made_in_a_function_is_a_module(program: Callable[..., Any], mode: str) -> None:
    x = torch.randn(2)
    captured, recorder, options = captured_with(program, breaks_at=MODES[mode])
    for _ in range(2):
        assert same(captured(x), program(x))
    if MODES[mode] is None:
        assert not options.breaks, [str(reason) for reason in options.breaks]
        assert len(recorder.graphs) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_slice_of_layers_is_a_list_of_layers(mode: str) -> None:
    module, x = Layers(), torch.randn(2)
    captured, _, options = captured_with(module, breaks_at=MODES[mode])
    for count in (2, 2, 3, 4):
        assert same(captured(x, count), module(x, count))
    if MODES[mode] is None:
        assert not options.breaks, [str(reason) for reason in options.breaks]


def gives(x: Any) -> Any:
    made = Scaled(RELU, x * 2)
    made.eval()
    return made


@pytest.mark.parametrize("mode", MODES)
def test_a_module_that_is_given_out_works(mode: str) -> None:
    x = torch.randn(2)
    captured, _, _ = captured_with(gives, breaks_at=MODES[mode])
    for _ in range(2):
        ours, theirs = captured(x), gives(x)
        assert type(ours) is Scaled
        assert vars(ours).keys() == vars(theirs).keys()
        assert same(ours(x), theirs(x))
        assert ours.training is theirs.training is ours.inner.training
        assert [*ours.state_dict()] == [*theirs.state_dict()]


def test_modules_are_made_where_torch_counts_them() -> None:
    torch.compile(torch.nn.ReLU(), backend="eager")(torch.ones(2))  # puts another `__init__` in its place
    x = torch.randn(2)
    captured, _, options = captured_with(softmax)
    for _ in range(2):
        assert same(captured(x), softmax(x))
    assert not options.breaks
