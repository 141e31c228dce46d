"""Results and gradients of arguments that are not row-major have eager mode's strides, also with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot

TABLES = [{}, codegen_decompositions()]


def _columns_first(*shape: int) -> torch.Tensor:
    """Random numbers, the first dimension of which is the fastest; none is 0."""
    dims = range(len(shape) - 1, -1, -1)
    return (torch.rand([shape[dim] for dim in dims]) + 0.25).permute(*dims)


def _unfolded(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.stft(x, 8, center=False, return_complex=True))


def _losses(loss: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    return lambda *arguments: tuple(loss(*arguments, reduction=reduction) for reduction in ("none", "mean", "sum"))


MATRIX, BATCH = _columns_first(4, 6), _columns_first(2, 3, 4, 5)
MASK = torch.tensor([True, False, True, True, False, True])
CLASSES, LABELS = torch.tensor([0, 3, 5, 3]), torch.tensor([[3, -1, 4, 1, 1, 1]] * 4)
SPREAD = torch.arange(1.0, 721).reshape(8, 9, 10)[::2, 1:, ::3] / 500  # with gaps, row by row
PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]] = {
    "masked_select": (lambda x: x.masked_select(MASK.expand(4, 6)), [MATRIX]),
    "masked_select, by a row": (lambda x: x.masked_select(MASK), [MATRIX]),
    "masked_select, of a column": (lambda x: x.masked_select(MASK), [_columns_first(4, 1)]),
    "masked_select, in three dimensions": (
        lambda x: x.masked_select(MASK[:4]),
        [_columns_first(3, 2, 4).permute(1, 0, 2)],
    ),
    "prod": (lambda x: x.prod(), [BATCH]),
    "prod, of dimension 0": (lambda x: x.prod(0), [BATCH]),
    "prod, of dimension -2": (lambda x: x.prod(-2), [BATCH]),
    "prod, of dimension 2, kept": (lambda x: x.prod(2, keepdim=True), [BATCH]),
    "prod, in another dtype": (lambda x: x.prod(1, dtype=torch.float64), [BATCH]),
    "prod, with gaps": (lambda x: x.prod(0), [SPREAD]),
    "prod, of one number": (lambda x: x.prod(0), [torch.tensor(2.0)]),
    "masked.prod": (lambda x: torch.masked.prod(x, dim=(1, 3)), [BATCH]),
    "householder_product": (torch.linalg.householder_product, [_columns_first(2, 5, 4), _columns_first(2, 3)]),
    "ormqr": (torch.ormqr, [_columns_first(5, 2), _columns_first(2, 1)[:, 0], _columns_first(5, 3)]),
    "stft": (_unfolded, [_columns_first(3, 32)]),
    "stft, in steps": (_unfolded, [torch.rand(80)[::2]]),
    "multi_margin_loss": (_losses(lambda x, **named: F.multi_margin_loss(x, CLASSES, **named)), [MATRIX]),
    "multilabel_margin_loss": (_losses(lambda x, **named: F.multilabel_margin_loss(x, LABELS, **named)), [MATRIX]),
    "multilabel_margin_loss, by an operator": (
        lambda x: torch.ops.aten.multilabel_margin_loss_forward.default(x, LABELS, 1)[0],
        [MATRIX],
    ),
    "chunk_cat": (lambda x, y: torch._chunk_cat([x.detach(), y.detach()], 0, 2), [MATRIX, _columns_first(3, 6)]),
    "pad, by sizes that are 0": (lambda x: F.pad(x, (0, x.shape[0] - 4)), [MATRIX]),
    "pad, by sizes that are not": (lambda x: F.pad(x, (0, x.shape[0] - 3)), [MATRIX]),
    "mse_loss": (_losses(F.mse_loss), [MATRIX, _columns_first(4, 6)]),
    "mse_loss, channels last": (
        _losses(F.mse_loss),
        [BATCH.to(memory_format=torch.channels_last), torch.ones(2, 3, 4, 5)],
    ),
    "smooth_l1_loss": (_losses(F.smooth_l1_loss), [MATRIX, _columns_first(4, 6)]),
    "huber_loss, of sizes of 1": (_losses(F.huber_loss), [_columns_first(1, 3, 1, 4), _columns_first(1, 3, 1, 4)]),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("table", TABLES, ids=["operators", "decomposed"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_laid_out_as_in_eager_mode(name: str, table: dict[Any, Any], dynamic: bool) -> None:
    program, values = PROGRAMS[name]
    arguments = [value.detach().requires_grad_() for value in values]
    expected = _with_gradients(program, arguments)
    actual = _with_gradients(compile_aot(program, decompositions=table, dynamic=dynamic), arguments)
    assert [value.stride() for value in actual] == [value.stride() for value in expected]
    torch.testing.assert_close(actual, expected)


def _with_gradients(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results, and for what they need gradients of, those with ones laid out as the results."""
    found = function(*arguments)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    if not results[0].requires_grad:
        return results
    return [*results, *torch.autograd.grad(results, arguments, [torch.ones_like(result) for result in results])]


@pytest.mark.parametrize("table", TABLES, ids=["operators", "decomposed"])
def test_gradients_that_the_program_asks_for_are_laid_out_as_in_eager_mode(table: dict[Any, Any]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (first,) = torch.autograd.grad(x.prod(0).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)[0]

    x = BATCH.detach().requires_grad_()
    expected, actual = program(x), compile_aot(program, decompositions=table)(x)
    assert actual[0].stride() == expected[0].stride() != (60, 20, 5, 1)
    torch.testing.assert_close(actual, expected)


ELEMENTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": F.elu,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "softplus": F.softplus,
    "logit": lambda x: torch.logit(x, 0.1),
    "log_sigmoid": F.logsigmoid,  # its gradient is like the incoming one, this one's like the argument
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x / 2, torch.ones_like(x), reduction="none"),
}
PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "split": lambda y: y.split(1)[0] * 2,
    "contiguous": lambda y: y.contiguous()[:, 0],
    "cat": lambda y: torch.cat([y, y]).sin(),
    "sum": lambda y: y.sum(0),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_gradient_follows_what_arrives_of_a_decomposed_kernel(name: str, backend: str, dtype: torch.dtype) -> None:
    """If only one result has a tangent, its gradient may have other strides than the sum that was traced."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = ELEMENTWISE[name](x.permute(2, 0, 1))
        return [y, *(part(y) for part in PARTS.values())]

    x = _columns_first(2, 3, 4).to(dtype).permute(2, 1, 0).contiguous().requires_grad_()
    compiled = compile_aot(program, backend=backend, decompositions=codegen_decompositions())
    for used in range(1 + len(PARTS)):
        (expected,), (actual,) = (torch.autograd.grad(f(x)[used].sum(), x) for f in (program, compiled))
        assert actual.stride() == expected.stride(), used
        torch.testing.assert_close(actual, expected)
