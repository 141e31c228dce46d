"""Constants of exported programs: attributes that are tensors, literals, wherever they are used."""

from __future__ import annotations

import copy
from typing import Any

import torch

from refimpl.export import InputKind, export
from refimpl.tests.export.corpus import CASES, program_of
from refimpl.tests.export.forms import STRICT


@STRICT
def test_constants_of_branches_are_inputs_of_the_program(strict: bool) -> None:
    module, program = program_of(CASES["constants_of_branches"], strict=strict)
    assert program.constants["constant"] is module.constant
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    assert kinds.count(InputKind.CONSTANT_TENSOR) == len(program.constants)


def test_a_deep_copy_is_no_constant() -> None:
    class Copying(torch.nn.Module):
        def forward(self, state: dict[str, torch.Tensor]) -> tuple[Any, ...]:
            deep = copy.deepcopy(state)
            x, y = state["x"], deep["x"]
            y.add_(1)
            return x + y, torch.cond(x.sum() > 0, lambda x: x * y, lambda x: x - y, (x,))

    module = Copying()
    program = export(module, ({"x": torch.ones(3)},))
    assert program.constants == {}
    for x in (torch.full((3,), 2.0), torch.full((3,), -2.0)):
        for got, expected in zip(program.module()({"x": x}), module({"x": x}), strict=True):
            assert torch.equal(got, expected)


@STRICT
def test_a_constant_of_the_module_is_not_trained(strict: bool) -> None:
    class Scaled(torch.nn.Module):
        scale = torch.full((2,), 3.0, requires_grad=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    program = export(Scaled(), (torch.ones(2),), strict=strict)
    assert [constant.requires_grad for constant in program.constants.values()] == [True]
    module = program.module()
    assert [constant.requires_grad for constant in module.buffers()] == [False]
    assert module(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_parameter_that_the_program_makes_is_decomposed() -> None:
    class Making(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.nn.Parameter(torch.full((2,), 3.0))
            return x * weight * torch.nn.Parameter(torch.tensor(5.0))

    program = export(Making(), (torch.ones(2),)).run_decompositions({})
    assert program.state_dict == {}
    assert program.module()(torch.ones(2)).tolist() == [15.0, 15.0]
