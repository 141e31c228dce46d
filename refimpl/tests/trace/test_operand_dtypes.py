"""What eager refuses for the dtypes of its operands is refused; what its kernels take of several dtypes becomes kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.lowering.graph import lower_graph
from refimpl.pipeline import compile_aot
from refimpl.trace.decompositions import decomposition_table

aten = torch.ops.aten
X, IMAGE = torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 1, 16).reshape(1, 1, 4, 4)
MASK, PLACES = X > 0, torch.tensor([0, 2])

REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a cross product of two dtypes": (torch.cross, (X, X.half())),
    "a linear cross product of integers and floats": (torch.linalg.cross, (X.long(), X)),
    "a number minus truth values": (lambda mask: 1 - mask, (MASK,)),
    "floats minus truth values": (lambda x, mask: x - mask, (X, MASK)),
    "parameters of another dtype": (lambda x, w: F.layer_norm(x, (3,), w), (X, X[0].double())),
    "statistics of another dtype": (F.batch_norm, (X, X[0].double(), X[1].double().abs())),
    "parameters of a half type": (lambda x, w: F.group_norm(x, 1, w), (X, X[0].half())),
    "bits of floats": (torch.bitwise_and, (X, X.long())),
    "not a float": (torch.bitwise_not, (X,)),
    "no negative truth values": (torch.relu, (MASK,)),
    "the nearest integers": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE.long(),)),
    "means of int32": (lambda x: F.avg_pool2d(x, 2), (IMAGE.int(),)),
    "means of half types in three dimensions": (lambda x: F.avg_pool3d(x, (1, 2, 2)), (IMAGE.half(),)),
    "maxima of integers": (lambda x: F.adaptive_max_pool2d(x, 2), (IMAGE.long(),)),
    "places that are floats": (lambda x, at: torch.index_select(x, 0, at), (X, PLACES.float())),
    "places that are truth values": (lambda x, at: torch.index_fill(x, 0, at, 1.0), (X, PLACES.bool())),
    "a pair of two dtypes": (torch.polar, (X, X.double())),
    "reflected truth values": (lambda x: F.pad(x, (1, 1), mode="reflect"), (MASK,)),
    "gradients of means of int32": (
        lambda grad: aten.avg_pool2d_backward(grad, IMAGE.int(), [1, 1], [], [0, 0], False, True, None),
        (IMAGE.int(),),
    ),
    "gradients of means of half types in three dimensions": (
        lambda grad: aten.avg_pool3d_backward(grad, IMAGE.half(), [1, 1, 1], [], [0, 0, 0], False, True, None),
        (IMAGE.half(),),
    ),
    "a complex number for real ones": (lambda x: torch.index_fill(x, 0, PLACES, 2j), (X,)),
    "8-bit floats that are infinite": (torch.isposinf, (X.to(torch.float8_e5m2),)),
    "triangles of 8-bit floats": (torch.tril, (X.to(torch.float8_e4m3fn),)),
    "16-bit integers that are not signed": (lambda x: x.masked_fill(x == 3, 4), (X.to(torch.uint16),)),
    "pixels in 64 bits": (lambda x: F.pixel_unshuffle(x, 2), (IMAGE.to(torch.uint64),)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_eager_refuses_for_its_dtypes_is_refused(what: str) -> None:
    function, inputs = REFUSED[what]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*inputs)
    compiled = refimpl.compile(function, backend="triton")
    with pytest.raises((RuntimeError, IndexError)) as actual:
        compiled(*inputs)
    assert (actual.type, str(actual.value)) == (expected.type, str(expected.value))


def _left(function: Callable[..., Any], *inputs: torch.Tensor) -> dict[str, int]:
    left: dict[str, int] = {}

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        left.update(lower_graph(graph_module).fallbacks)
        return graph_module

    actual = compile_aot(function, backend=backend, decompositions=codegen_decompositions())(*inputs)
    torch.testing.assert_close(actual, function(*inputs))
    return left


def test_norms_of_half_types_with_parameters_of_float32_become_kernels() -> None:
    x, w = X.bfloat16(), X[0]
    assert _left(lambda x, w: F.layer_norm(x, (3,), w, w), x, w) == {}
    assert _left(lambda x, w: F.batch_norm(x, w, w.abs(), w, w), x, w) == {}


@pytest.mark.parametrize(
    ("overload", "arguments"),
    [
        (aten.mse_loss_backward.default, (1,)),
        (aten.smooth_l1_loss_backward.default, (1, 1.0)),
        (aten.soft_margin_loss_backward.default, (1,)),
    ],
)
def test_a_gradient_has_the_dtype_of_what_it_is_of(overload: Any, arguments: tuple[Any, ...]) -> None:
    grad, target = torch.tensor(1.0), X.flip(0)
    for x in (X.half(), X.double()):
        given = grad.to(torch.result_type(x, target)), x, target, *arguments
        actual, expected = decomposition_table[overload](*given), overload(*given)
        assert actual.dtype == expected.dtype == x.dtype
        torch.testing.assert_close(actual, expected)
    assert decomposition_table[overload](grad, X.long(), target, *arguments) is NotImplemented


@pytest.mark.parametrize(
    ("overload", "arguments"),
    [
        (aten.replication_pad1d.default, (MASK, [1, 1])),
        (aten.norm.ScalarOpt_dtype, (X.long(), 2)),
        (aten.count_nonzero.default, (X.abs().to(torch.uint32),)),
        (aten.angle.default, (X.to(torch.complex64).to(torch.complex32),)),
        (aten.linspace.default, (0, 1, 5)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_a_rule_leaves_what_the_operator_refuses(overload: Any, arguments: tuple[Any, ...]) -> None:
    dtypes = {aten.norm.ScalarOpt_dtype: torch.float64, aten.linspace.default: torch.float8_e5m2}
    keywords = {"dtype": dtypes[overload]} if overload in dtypes else {}
    with pytest.raises((RuntimeError, NotImplementedError)):
        overload(*arguments, **keywords)
    assert decomposition_table[overload](*arguments, **keywords) is NotImplemented


def test_what_is_scattered_on_a_diagonal_is_converted() -> None:
    square, diagonal = X[:3], X[:, 0].double()[:3]
    actual = decomposition_table[aten.diagonal_scatter.default](square, diagonal)
    torch.testing.assert_close(actual, torch.diagonal_scatter(square, diagonal), rtol=0, atol=0)
