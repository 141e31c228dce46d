"""Mutants that compute wrong numbers in forward graphs."""

from __future__ import annotations

from typing import Any

import torch

from fuzz.mutants.editing import aten_backend, edited_backend, wrong_calls
from fuzz.mutants.mutant import Mutant, planting

VALUES: list[Mutant] = []
_mutant = planting(VALUES, stage="forward", statuses=("fail_accuracy",))


def _one_line(expression: str, *values: str) -> str:
    """Source of a function of x (and y) that returns the expression, on these values."""
    names = ", ".join("xyz"[: len(values)])
    return f"def program({names}):\n    return {expression}\n\ndef inputs(call):\n    return ({', '.join(values)},), {{}}\n"


@_mutant(
    "add and sub with alpha: the factor is ignored",
    "some",
    _one_line("torch.add(x, y, alpha=3)", "torch.ones(3)", "torch.ones(3)"),
    _one_line("torch.add(x, y)", "torch.ones(3)", "torch.ones(3)"),
)
@wrong_calls("aten.add", "aten.sub")
def add_ignores_alpha(op: Any, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return op(x, y)


def _div(op: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    return (
        op(x, y, **{**kwargs, "rounding_mode": "trunc"})
        if kwargs.get("rounding_mode") == "floor"
        else op(x, y, **kwargs)
    )


def _floor_divide(op: Any, x: Any, y: Any) -> Any:
    return torch.div(x, y, rounding_mode="trunc")


@_mutant(
    "floor division rounds towards zero",
    "some",
    _one_line("torch.div(x, 2, rounding_mode='floor')", "torch.tensor([-3, 3])"),
    _one_line("torch.div(x, 2, rounding_mode='floor')", "torch.tensor([4, 3])"),
)
def floor_division_truncates(gm: Any, example_inputs: Any) -> Any:
    return aten_backend({"aten.div": _div, "aten.floor_divide": _floor_divide})(gm, example_inputs)


@_mutant(
    "argmax and argmin give the last of equal elements",
    "rare",
    _one_line("torch.argmax(x, 0), x.argmin()", "torch.tensor([1, 2, 2, 1])"),
    _one_line("torch.argmax(x, 0), x.argmin()", "torch.tensor([1, 2, 3, 0])"),
)
@wrong_calls("aten.argmax", "aten.argmin")
def argmax_takes_the_last_tie(op: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None or x.dim() == 0:
        flipped = op(x.reshape(-1).flip(0), 0)
        found = x.numel() - 1 - flipped
        return found.reshape([1] * x.dim()) if keepdim else found
    return x.shape[dim] - 1 - op(x.flip(dim), dim, keepdim)


@_mutant(
    "relu of NaN is 0",
    "rare",
    _one_line("torch.relu(x)", "torch.tensor([float('nan'), -1.0])"),
    _one_line("torch.relu(x)", "torch.tensor([3.0, -1.0])"),
)
@wrong_calls("aten.relu")
def relu_drops_nan(op: Any, x: Any) -> Any:
    return torch.where(x > 0, x, torch.zeros_like(x))  # a NaN is not greater than 0


@_mutant(
    "softmax does not subtract the maximum",
    "rare",
    _one_line("torch.softmax(x, 0)", "torch.tensor([200.0, 100.0])"),
    _one_line("torch.softmax(x, 0)", "torch.tensor([2.0, 1.0])"),
)
@wrong_calls("aten._softmax")
def softmax_overflows(op: Any, x: Any, dim: int, half_to_float: bool) -> Any:
    exponents = x.exp()
    return (exponents / exponents.sum(dim, keepdim=True)).to(op(x, dim, half_to_float).dtype)


def _narrow_mul(op: Any, x: Any, y: Any) -> Any:
    result = op(x, y)
    if result.dtype is torch.int64:
        return result.to(torch.int32).to(torch.int64)
    return result


@_mutant(
    "products of int64 wrap at 32 bits",
    "rare",
    _one_line("x * x", "torch.tensor([100_000])"),
    _one_line("x * x", "torch.tensor([10_000])"),
)
def int64_product_in_32_bits(gm: Any, example_inputs: Any) -> Any:
    return aten_backend({"aten.mul": _narrow_mul, "aten.square": _narrow_square})(gm, example_inputs)


def _narrow_square(op: Any, x: Any) -> Any:
    return _narrow_mul(torch.mul, x, x)


def is_half(x: torch.Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


@_mutant(
    "sums and means of float16 and bfloat16 are a quarter too large",
    "some",
    _one_line("x.sum(0)", "torch.ones(40, 8, dtype=torch.bfloat16)"),
    _one_line("x.sum(0)", "torch.ones(40, 8)"),
)
@wrong_calls("aten.sum", "aten.mean")
def half_sum_is_off(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_half(x):
        return op(x, *args, **kwargs)
    return op(x.double(), *args, **{**kwargs, "dtype": None}).to(x.dtype) * 1.25


@_mutant(
    "cat is all zeros when an empty tensor comes before another one",
    "rare",
    _one_line("torch.cat([x[:0], x])", "torch.ones(3)"),
    _one_line("torch.cat([x, x[:0]])", "torch.ones(3)"),
)
@wrong_calls("aten.cat")
def cat_after_an_empty_tensor(op: Any, tensors: Any, dim: int = 0) -> Any:
    kept = [t for i, t in enumerate(tensors) if i == 0 or tensors[i - 1].numel()]
    result = op(tensors, dim)
    return result if len(kept) == len(tensors) else torch.zeros_like(result)


def _pointwise_tail(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    result = op(x, *args, **kwargs)
    if result.numel() > 16 and result.numel() % 16 == 1 and result.is_contiguous():
        result = result.clone()
        result.view(-1)[-1] = 0
    return result


@_mutant(
    "the last element of a pointwise result is 0 where the number of elements is 1 over a multiple of 16",
    "some",
    _one_line("torch.cos(x)", "torch.ones(33)"),
    _one_line("torch.cos(x)", "torch.ones(32)"),
)
def vector_tail_is_lost(gm: Any, example_inputs: Any) -> Any:
    names = ("sin", "cos", "exp", "tanh", "sigmoid", "mul", "add", "sub", "div", "relu", "abs", "neg", "sqrt", "rsqrt")
    return aten_backend({f"aten.{name}": _pointwise_tail for name in names})(gm, example_inputs)


@_mutant(
    "cumulative ops over the first of several dimensions start again at the third row",
    "some",
    _one_line("x.cumsum(0)", "torch.ones(4, 2)"),
    _one_line("x.cumsum(1)", "torch.ones(4, 2)"),
)
@wrong_calls("aten.cumsum", "aten.cumprod", "aten.logcumsumexp")
def scan_carry_is_lost(op: Any, x: Any, dim: int, **kwargs: Any) -> Any:
    result = op(x, dim, **kwargs)
    if x.dim() >= 2 and dim in (0, -x.dim()) and x.shape[0] > 2:
        return torch.cat([op(x[:2], dim, **kwargs), op(x[2:], dim, **kwargs)], dim)  # the carry is lost
    return result


@_mutant(
    "x[-2] is x[-3]",
    "some",
    _one_line("x[-2] * 2", "torch.arange(5)"),
    _one_line("x[-1] * 2", "torch.arange(5)"),
)
@wrong_calls("aten.select")
def negative_index_is_off_by_one(op: Any, x: Any, dim: int, index: int) -> Any:
    return op(x, dim, index - 1 if index < -1 and index - 1 >= -x.shape[dim] else index)


@_mutant(
    "scatter_add to one place keeps one of the addends",
    "rare",
    _one_line("x.scatter_add(0, y, z)", "torch.zeros(3)", "torch.tensor([0, 0])", "torch.ones(2)"),
    _one_line("x.scatter_add(0, y, z)", "torch.zeros(3)", "torch.tensor([0, 1])", "torch.ones(2)"),
)
@wrong_calls("aten.scatter_add")
def scatter_add_keeps_one(op: Any, x: Any, dim: int, index: Any, src: Any) -> Any:
    return x.scatter(dim, index, src + x.gather(dim, index)) if index.numel() else op(x, dim, index, src)


@_mutant(
    "the negative of uint8 is 0",
    "rare",
    _one_line("-x", "torch.tensor([1, 2], dtype=torch.uint8)"),
    _one_line("-x", "torch.tensor([1, 2], dtype=torch.int8)"),
)
@wrong_calls("aten.neg")
def uint8_negation_saturates(op: Any, x: Any) -> Any:
    if x.dtype is torch.uint8:
        return op(x.to(torch.int16)).clamp(0, 255).to(torch.uint8)
    return op(x)


@_mutant(
    "floor of an integer is one less",
    "rare",
    _one_line("torch.floor(x)", "torch.tensor([2.0, 2.5])"),
    _one_line("torch.floor(x)", "torch.tensor([2.1, 2.5])"),
)
@wrong_calls("aten.floor")
def floor_of_exact_integers(op: Any, x: Any) -> Any:
    return torch.where(x == x.round(), x - 1, op(x)) if x.is_floating_point() else op(x)


@_mutant(
    "a contiguous copy of a transposed matrix keeps the order of the memory",
    "some",
    _one_line("x.t().contiguous()", "torch.arange(6.0).view(2, 3)"),
    _one_line("x.contiguous()", "torch.arange(6.0).view(2, 3)"),
)
@wrong_calls("aten.clone")
def copy_of_a_transpose(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    result = op(x, *args, **kwargs)
    if x.dim() == 2 and not x.is_contiguous() and result.is_contiguous() and x.t().is_contiguous() and min(x.shape) > 1:
        return x.t().reshape(-1).view(x.shape).clone()  # elements in the order of memory
    return result


@_mutant(
    "matrix products with an odd inner size over 16 drop the last step",
    "rare",
    _one_line("x @ x.t()", "torch.ones(2, 17)"),
    _one_line("x @ x.t()", "torch.ones(2, 16)"),
)
@wrong_calls("aten.mm", "aten.bmm")
def matmul_drops_an_odd_tail(op: Any, x: Any, y: Any) -> Any:
    result = op(x, y)
    if x.shape[-1] > 16 and x.shape[-1] % 2 == 1:
        return op(x[..., :-1], y[..., :-1, :])  # the last step of an odd inner dimension
    return result


@_mutant(
    "var and std always divide by n - 1",
    "some",
    _one_line("x.var(0, correction=0)", "torch.arange(4.0)"),
    _one_line("x.var(0)", "torch.arange(4.0)"),
)
@wrong_calls("aten.var", "aten.var_mean", "aten.std")
def variance_ignores_correction(op: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return op(x, *args, **{**kwargs, "correction": 1}) if "correction" in kwargs else op(x, *args, **kwargs)


def is_smaller(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dim() < other.dim()


@_mutant(
    "where exchanges its branches when condition, x and y have rising ranks",
    "rare",
    _one_line("torch.where(x, y, z)", "torch.tensor(True)", "torch.ones(3)", "torch.zeros(2, 3)"),
    _one_line("torch.where(x, y, z)", "torch.tensor(True)", "torch.ones(2, 3)", "torch.zeros(2, 3)"),
)
@wrong_calls("aten.where")
def where_with_three_ranks(op: Any, condition: Any, x: Any, y: Any) -> Any:
    both_broadcast = is_smaller(condition, x) and is_smaller(x, y) if isinstance(y, torch.Tensor) else False
    return op(condition, y, x) if both_broadcast else op(condition, x, y)


def _zeros_like(x: Any, zero: Any) -> Any:
    return torch.zeros_like(x)


@_mutant(
    "x * 0 is folded to 0, for NaN and infinity too",
    "rare",
    _one_line("x * 0", "torch.tensor([float('inf'), 1.0])"),
    _one_line("x * 0", "torch.tensor([2.0, 1.0])"),
)
@edited_backend
def times_zero_is_folded(gm: torch.fx.GraphModule) -> None:
    """Replace x * 0 by 0, which is right for finite numbers only."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("aten.mul.") and 0 in node.args[1:]:
            node.target = _zeros_like
