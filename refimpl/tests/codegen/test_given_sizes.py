"""Kernels of a backward whose saved tensors have sizes of symbols that no tensor gives by itself."""

from __future__ import annotations

import sympy
import torch
import torch.nn.functional as F
from torch import nn

import refimpl
from refimpl.codegen.sizes import solved_for

a, b, c, n, m = sympy.symbols("a b c n m", integer=True, nonnegative=True)


def test_symbols_of_given_numbers_drop_out() -> None:
    given = solved_for({a - b + 1: n}, {n, c})
    assert a - b + 1 in given
    assert given.by_names((a - b + 1) ** 2 + (a - b + 1) * c) == n**2 + n * c
    assert given.by_names((a**2 - 2 * a * b + b**2).expand()) == n**2 - 2 * n + 1
    assert given.by_names(c + 1) == c + 1
    assert solved_for({a - b + 1: n, 2 * a + c: m}, {n, m}).by_names(4 * a + 2 * c) == 2 * m


def test_what_no_number_gives_stays() -> None:
    given = solved_for({a * b: n, 2 * c: m}, {n, m})
    assert given.solved == {}
    assert given.by_names(a + c) == a + c
    assert solved_for({a + b: n}, {n, b}).by_names(a * b) == n * b - b**2


class _Convolutions(nn.Module):
    """The backward has the sizes of what the first one gives, and those of its operands nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv3d(1, 4, 1)

    def forward(self, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.last(F.conv3d(images, weight))


def test_a_backward_that_knows_differences_of_sizes() -> None:
    torch.manual_seed(0)
    module = _Convolutions()
    compiled = refimpl.compile(module, backend="triton", dynamic=True)
    for size in (4, 6, 3):
        images, weight = torch.randn(1, 4, 2, size, size), torch.randn(1, 4, 2, 2, 2)
        gradients = []
        for call in (compiled, module):
            module.zero_grad()
            call(images, weight).square().sum().backward()
            assert module.last.weight.grad is not None
            assert module.last.bias is not None
            assert module.last.bias.grad is not None
            gradients.append([module.last.weight.grad.clone(), module.last.bias.grad.clone()])
        torch.testing.assert_close(*gradients)


def test_a_number_that_the_graph_gives_back_is_an_input_s_offset() -> None:
    """A view in place is made anew from the offset, which is no number of its own here."""
    compiled = refimpl.compile(lambda x: x.t_(), backend="triton", dynamic=True)
    for start, size in ((8, 2), (5, 3)):
        x = torch.arange(10.0)[start:][None, :size]
        result = compiled(x)
        assert (result is x, x.shape, x.storage_offset()) == (True, (size, 1), start)
        assert x.flatten().tolist() == list(range(start, start + size))


def test_places_are_counted_in_32_bits_up_to_a_size_that_is_computed_of_a_larger_number() -> None:
    """Loops run to what fits, and count in the dtype of the number: the place of a maximum stays one of 32 bits."""

    def first_of_equal_columns(n: int, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(torch.ones(n % 5 + 1, n % 5 + 3) * x.sum(), 0)

    compiled = refimpl.compile(first_of_equal_columns, backend="triton", dynamic=True)
    for n in (2, 3, 2**35 + 1, -7):
        torch.testing.assert_close(compiled(n, torch.ones(4)), first_of_equal_columns(n, torch.ones(4)))
