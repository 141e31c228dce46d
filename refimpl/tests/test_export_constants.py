"""Constants of exported programs: attributes that are tensors, literals, wherever they are used."""

from __future__ import annotations

import pytest
import torch

from refimpl.export import InputKind, export

strict_or_not = pytest.mark.parametrize("strict", [False, True])


class Branching(torch.nn.Module):
    """Reads an attribute and a literal in its branches only, in one of them in a branch of the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        constant = self.constant

        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 3, lambda x: x * constant, lambda x: x + constant, (x,))

        def negative(x: torch.Tensor) -> torch.Tensor:
            return x - constant * torch.tensor([1.0, 2.0, 3.0])

        return torch.cond(x.sum() > 0, positive, negative, (x,))


@strict_or_not
def test_constants_of_branches_are_inputs_of_the_program(strict: bool) -> None:
    module = Branching()
    program = export(module, (torch.ones(3),), strict=strict)
    assert program.constants["constant"] is module.constant
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    assert kinds.count(InputKind.CONSTANT_TENSOR) == len(program.constants)
    for x in (torch.ones(3) * 3, torch.ones(3) / 4, -torch.ones(3)):
        assert torch.equal(program.module()(x), module(x))
        assert torch.equal(program.run_decompositions().module()(x), module(x))
