"""Tests of modules that a segment makes, slices of lists of modules, and signatures that it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from refimpl.capture.compile import compile
from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, assert_same_as_eager, captured_with, each_of, same


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


@IN_EVERY_MODE
@each_of(makes, softmax, replaces, asked)
def test_a_module_made_in_a_function_is_a_module(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.randn(2),)] * 2, is_whole=True, graphs=1)


@IN_EVERY_MODE
def test_a_slice_of_layers_is_a_list_of_layers(mode: str) -> None:
    assert_same_as_eager(Layers(), mode, [(torch.randn(2), count) for count in (2, 2, 3, 4)], is_whole=True)


def gives(x: Any) -> Any:
    made = Scaled(RELU, x * 2)
    made.eval()
    return made


@IN_EVERY_MODE
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
    assert_same_as_eager(softmax, calls=[(torch.randn(2),)] * 2, is_whole=True)


def test_a_hook_of_all_modules_runs_once_for_a_module_that_is_compiled() -> None:
    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    module = Shifted()
    captured: Any = compile(module)
    doubled = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, result: result * 2)
    try:
        with_hook = captured(torch.ones(1)), module(torch.ones(1))
    finally:
        doubled.remove()
    assert same(*with_hook)
    assert same(captured(torch.ones(1)), torch.ones(1) * 2)


def test_new_tensor_is_a_tensor_of_the_same_dtype() -> None:
    def program(x: Any) -> Any:
        return (
            x.new_tensor([1, 2]),
            x.new_tensor(5, dtype=torch.int32),
            x.new_tensor((1.0,), requires_grad=True).requires_grad,
        )

    calls = [(torch.ones(2, dtype=dtype),) for dtype in (torch.float64, torch.float32)]
    assert_same_as_eager(program, calls=calls, is_whole=True, graphs=2)


class Switched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(()))
        self.is_on = True


def written_plainly(x: torch.Tensor, model: Any) -> Any:
    model.is_on, model.last, model.names = False, x + 1, ["a"]
    return x.sin(), [name for name, _ in model.named_modules()], [name for name, _ in model.named_parameters()]


def in_training_and_not(x: torch.Tensor, model: Any) -> Any:
    model.eval()
    seen = [each.training for each in model.modules()]
    model.train()
    return x.sin(), seen, [each.training for each in model.modules()]


def written_to_a_buffer(x: torch.Tensor, model: Any) -> Any:
    model.count = x.sum()
    return x.sin(), [buffer + 1 for buffer in model.buffers()], [name for name, _ in model.named_modules()]


def given_a_module(x: torch.Tensor, model: Any) -> Any:
    model.another = torch.nn.ReLU()
    return x.sin(), [name for name, _ in model.named_modules()]


@IN_EVERY_MODE
@each_of(written_plainly, in_training_and_not, written_to_a_buffer, given_a_module)
def test_a_module_knows_its_parts_after_an_assignment(program: Callable[..., Any], mode: str) -> None:
    def whole(x: torch.Tensor) -> Any:
        return program(x, model)

    model = Switched()
    assert_same_as_eager(whole, mode)


@each_of(written_plainly, in_training_and_not)
def test_an_assignment_of_what_is_never_registered_costs_no_graph(program: Callable[..., Any]) -> None:
    captured, recorder, _ = captured_with(program, fullgraph=True)
    captured(torch.ones(2), Switched())
    assert len(recorder.graphs) == 1
