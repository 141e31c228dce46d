"""Honest arithmetic other than eager's: dispatch modes that compute each operator as some real compiler would.

A rule takes an operator's arguments and returns its result in any dtype; the mode rounds it once to eager's dtype and lays it
out with eager's strides. Nothing here is less careful than a documented compiler: half types are added up in float32,
every function is good to two units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
Rule = Callable[..., Any]
Sum = Callable[[Tensor], Tensor]  # adds up the last dimension

HALF = (torch.bfloat16, torch.float16)


def computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """What kernels hold a value of `dtype` in: float32 for half types."""
    return torch.float32 if dtype in HALF else dtype


def wider_dtype(dtype: torch.dtype) -> torch.dtype:
    """The next wider dtype that a compiler may keep intermediate values in; float64 has none."""
    return torch.float32 if dtype in HALF else torch.float64 if dtype is torch.float32 else dtype


def converted(value: Any, dtype_of: Callable[[torch.dtype], torch.dtype]) -> Any:
    """A tree of arguments with its float tensors in the dtypes that `dtype_of` says."""
    return tree_map(lambda x: x.to(dtype_of(x.dtype)) if isinstance(x, Tensor) and x.is_floating_point() else x, value)


def laid_out_like(value: Any, eager: Any) -> Any:
    """`value` rounded to the dtypes of eager's result, with its strides."""
    if isinstance(eager, (tuple, list)):
        return type(eager)(laid_out_like(a, b) for a, b in zip(value, eager, strict=True))
    if not isinstance(eager, Tensor):
        return value
    return torch.empty_like(eager).copy_(value) if value is not eager else eager


class Arithmetic(TorchDispatchMode):
    """Eager but for operators with a rule; those without one are decomposed first, where `decompositions` has them."""

    def __init__(self, rules: Mapping[Any, Rule], decompositions: Mapping[Any, Rule] | None = None) -> None:
        super().__init__()
        self.rules, self.decompositions = rules, decompositions or {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        eager = func(*args, **kwargs)
        if func in self.rules:
            own = self.rules[func](*args, **kwargs)
        elif func in self.decompositions and not func._schema.is_mutable:
            with self:
                own = self.decompositions[func](*args, **kwargs)
        else:
            return eager
        return eager if own is NotImplemented else laid_out_like(own, eager)


# --------------------------------------------------------------------------------------------- orders of summation


def reversed_sum(terms: Tensor) -> Tensor:
    return terms.flip(-1).sum(-1)


def chunked_sum(terms: Tensor) -> Tensor:
    """Three parts, each added up by itself, as of threads or of a split reduction."""
    return torch.stack([part.sum(-1) for part in terms.tensor_split(3, -1)]).sum(0)


def pairwise_sum(terms: Tensor) -> Tensor:
    """A tree that adds neighbours, as of the threads of a warp."""
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = torch.cat([terms, torch.zeros_like(terms[..., :1])], -1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0] if terms.shape[-1] else terms.sum(-1)


def sequential_sum(terms: Tensor) -> Tensor:
    """One accumulator from the first term to the last, as of a plain loop."""
    total = torch.zeros(terms.shape[:-1], dtype=terms.dtype)
    for at in range(terms.shape[-1]):
        total = total + terms[..., at]
    return total


SUMS: dict[str, Sum] = {
    "reversed": reversed_sum,
    "chunked": chunked_sum,
    "pairwise": pairwise_sum,
    "sequential": sequential_sum,
}


def sum_rules(add_up: Sum) -> dict[Any, Rule]:
    """Reductions whose terms `add_up` adds in the dtype that kernels hold them in."""

    def over(value: Tensor, dim: Any, keepdim: bool) -> Tensor:
        value = value.to(computation_dtype(value.dtype)) if value.is_floating_point() else value
        dims = [d % value.dim() for d in ([dim] if isinstance(dim, int) else dim or range(value.dim()))]
        kept = [d for d in range(value.dim()) if d not in dims]
        terms = value.permute(*kept, *dims).reshape(*(value.shape[d] for d in kept), -1)
        total = add_up(terms)
        return total.reshape([1 if d in dims else n for d, n in enumerate(value.shape)]) if keepdim else total

    def total_of(value: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        return over(value if dtype is None else value.to(dtype), dim, keepdim)

    def mean_of(value: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        total = total_of(value, dim, keepdim, dtype=dtype)
        return total / (value.numel() / max(total.numel(), 1))

    def squares_of(value: Tensor, dim: Any, correction: Any) -> tuple[Tensor, Tensor]:
        value = value.to(computation_dtype(value.dtype))
        mean = mean_of(value, dim, True)
        squares = total_of((value - mean) ** 2, dim, True)
        count = value.numel() / max(mean.numel(), 1)
        return squares / max(count - (1 if correction is None else correction), 0), mean

    def without(value: Tensor, dim: Any, keepdim: bool, like: Tensor) -> Tensor:
        dims = [d % like.dim() for d in dim] if dim else list(range(like.dim()))
        return value if keepdim else value.reshape([n for d, n in enumerate(like.shape) if d not in dims])

    def variance_of(value: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
        return without(squares_of(value, dim, correction)[0], dim, keepdim, value)

    def deviation_of(value: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
        return variance_of(value, dim, correction=correction, keepdim=keepdim).sqrt()

    def variance_and_mean_of(
        value: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        variance, mean = squares_of(value, dim, correction)
        return without(variance, dim, keepdim, value), without(mean, dim, keepdim, value)

    def product(a: Tensor, b: Tensor) -> Tensor:
        a, b = (x.to(computation_dtype(x.dtype)) for x in (a, b))
        return add_up(a.unsqueeze(-2) * b.transpose(-1, -2).unsqueeze(-3))  # (..., M, 1, K) * (..., 1, N, K)

    def product_and_sum(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        scaled = product(a, b)
        return (scaled if alpha == 1 else scaled * alpha) + (c if beta == 1 else c * beta)

    def running_sum(value: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        value = value.to(computation_dtype(value.dtype) if dtype is None else dtype).movedim(dim, -1)
        return torch.stack([add_up(value[..., : n + 1]) for n in range(value.shape[-1])], -1).movedim(-1, dim)

    def softmax(value: Tensor, dim: int, half_to_float: bool) -> Tensor:
        value = value.to(computation_dtype(value.dtype))
        powers = torch.exp(value - value.amax(dim, keepdim=True))
        return powers / over(powers, dim, True)

    def log_softmax(value: Tensor, dim: int, half_to_float: bool) -> Tensor:
        value = value.to(computation_dtype(value.dtype))
        shifted = value - value.amax(dim, keepdim=True)
        return shifted - torch.log(over(torch.exp(shifted), dim, True))

    def norm_of(value: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return (
            over(value.to(computation_dtype(value.dtype)) ** 2, dim, keepdim).sqrt() if order == 2 else NotImplemented
        )

    def convolution(
        value: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
        output_padding: Any, groups: int,
    ) -> Any:  # fmt: skip
        if transposed or groups != 1 or value.dim() != 4:
            return NotImplemented
        wide, kernel = (x.to(computation_dtype(x.dtype)) for x in (value, weight))
        columns = torch.nn.functional.unfold(wide, weight.shape[2:], dilation, padding, stride)
        result = product(kernel.reshape(weight.shape[0], -1), columns)
        height = (value.shape[2] + 2 * padding[0] - dilation[0] * (weight.shape[2] - 1) - 1) // stride[0] + 1
        result = result.reshape(value.shape[0], weight.shape[0], height, -1)
        return result if bias is None else result + bias.reshape(-1, 1, 1)

    def index_add(value: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
        if dim != 0 or alpha != 1:
            return NotImplemented
        wide, terms = (x.to(computation_dtype(x.dtype)) for x in (value, source))
        hits = torch.arange(value.shape[0])[:, None] == index  # (rows, terms)
        return wide + add_up(torch.where(hits.unsqueeze(-2), terms.reshape(len(index), -1).t(), 0.0)).reshape(
            wide.shape
        )

    def scatter_add(value: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
        return (
            index_add(value, dim, index, source) if value.dim() == 1 and len(index) == len(source) else NotImplemented
        )

    def embedding_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, scaled: bool) -> Any:
        empty = torch.zeros(rows, grad.shape[-1], dtype=computation_dtype(grad.dtype))
        return NotImplemented if scaled else index_add(empty, 0, indices.reshape(-1), grad.flatten(0, -2))

    return {
        aten.sum.dim_IntList: total_of,
        aten.sum.default: total_of,
        aten.mean.dim: mean_of,
        aten.mean.default: mean_of,
        aten.var.correction: variance_of,
        aten.std.correction: deviation_of,
        aten.var_mean.correction: variance_and_mean_of,
        aten.mm.default: product,
        aten.bmm.default: product,
        aten.addmm.default: product_and_sum,
        aten.cumsum.default: running_sum,
        aten._softmax.default: softmax,
        aten._log_softmax.default: log_softmax,
        aten.linalg_vector_norm.default: norm_of,
        aten.convolution.default: convolution,
        aten.index_add.default: index_add,
        aten.scatter_add.default: scatter_add,
        aten.embedding_dense_backward.default: embedding_backward,
    }


# --------------------------------------------------------------------------------------------- other functions


def _exp(x: Tensor) -> Tensor:
    """The exponential by exp2. A rounded `x * log2(e)` costs |x| units, so it is computed in float64, or x is reduced first."""
    if x.dtype is not torch.float64:
        return torch.exp2(x.double() * math.log2(math.e))
    power = torch.round(x * math.log2(math.e))
    rest = (
        x - power * 0.693145751953125
    ) - power * 1.42860682030941723212e-6  # ln 2 in two parts, the first of 20 bits
    return torch.exp2(power) * (1 + torch.expm1(rest))


def _log(x: Tensor) -> Tensor:
    x = x.to(computation_dtype(x.dtype))
    return torch.log2(x) * math.log(2)


def _sigmoid(x: Tensor) -> Tensor:
    x = x.to(computation_dtype(x.dtype))
    power = torch.exp(-x.abs())
    return torch.where(x >= 0, 1.0, power) / (1 + power)


def _tanh(x: Tensor) -> Tensor:
    x = x.to(computation_dtype(x.dtype))
    power = torch.expm1(-2 * x.abs())
    return torch.copysign(-power / (2 + power), x)


def _erf(x: Tensor) -> Tensor:
    wide = x.double()
    return torch.where(wide.abs() > 0.5, torch.copysign(1 - torch.erfc(wide.abs()), wide), torch.erf(wide)).to(
        computation_dtype(x.dtype)
    )


def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    if approximate != "none":
        return NotImplemented
    x = x.to(computation_dtype(x.dtype))
    return x * (0.5 * torch.special.erfc(-x * math.sqrt(0.5)))


def _silu(x: Tensor) -> Tensor:
    x = x.to(computation_dtype(x.dtype))
    return x * _sigmoid(x)


FUNCTIONS: dict[Any, Rule] = {
    aten.exp.default: _exp,
    aten.log.default: _log,
    aten.sigmoid.default: _sigmoid,
    aten.tanh.default: _tanh,
    aten.erf.default: _erf,
    aten.gelu.default: _gelu,
    aten.silu.default: _silu,
    aten.sin.default: lambda x: NotImplemented if x.dtype is torch.float64 else torch.cos(x.double() - math.pi / 2),
    aten.cos.default: lambda x: NotImplemented if x.dtype is torch.float64 else torch.sin(math.pi / 2 - x.double()),
    aten.rsqrt.default: lambda x: 1 / torch.sqrt(x.to(computation_dtype(x.dtype))),
}


def _fast_exp(x: Tensor) -> Any:
    """float32 `exp2(x * log2(e))`, the product rounded: `tl.exp` of Triton and CUDA's `__expf`, 2 + 1.2 |x| units."""
    return NotImplemented if x.dtype is torch.float64 else torch.exp2(x.to(torch.float32) * math.log2(math.e))


def _fast_sigmoid(x: Tensor) -> Any:
    return NotImplemented if x.dtype is torch.float64 else 1 / (1 + _fast_exp(-x))


def _fast_softmax(value: Tensor, dim: int, half_to_float: bool) -> Any:
    if value.dtype is torch.float64:
        return NotImplemented
    powers = _fast_exp(value.to(torch.float32) - value.to(torch.float32).amax(dim, keepdim=True))
    return powers / powers.sum(dim, keepdim=True)


FAST_EXP: dict[Any, Rule] = {
    aten.exp.default: _fast_exp,
    aten.sigmoid.default: _fast_sigmoid,
    aten.silu.default: lambda x: NotImplemented if x.dtype is torch.float64 else x.to(torch.float32) * _fast_sigmoid(x),
    aten._softmax.default: _fast_softmax,
}


def _online_softmax(value: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Blocks of 5 from left to right, what was added up rescaled when a greater element comes: flash attention's."""
    value = value.to(computation_dtype(value.dtype)).movedim(dim, -1)
    greatest, total = value[..., :0].new_full((*value.shape[:-1], 1), -math.inf), value.new_zeros(())
    for block in value.split(5, -1):
        seen = torch.maximum(greatest, block.amax(-1, keepdim=True))
        total = total * torch.exp(greatest - seen) + torch.exp(block - seen).sum(-1, keepdim=True)
        greatest = seen
    return (torch.exp(value - greatest) / total).movedim(-1, dim)


def _blockwise_variance(
    value: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Means and squares of blocks of 5, merged by Welford's formula."""
    dims = [d % value.dim() for d in dim] if dim else list(range(value.dim()))
    kept = [d for d in range(value.dim()) if d not in dims]
    wide = value.to(computation_dtype(value.dtype)).permute(*kept, *dims).reshape(*(value.shape[d] for d in kept), -1)
    count, mean, squares = 0, wide.new_zeros(wide.shape[:-1]), wide.new_zeros(wide.shape[:-1])
    for block in wide.split(5, -1):
        size, of_block = block.shape[-1], block.mean(-1)
        away = of_block - mean
        squares = (
            squares + (block - of_block.unsqueeze(-1)).square().sum(-1) + away**2 * (count * size / (count + size))
        )
        mean, count = mean + away * (size / (count + size)), count + size
    variance = squares / max(count - (1 if correction is None else correction), 0)
    if keepdim:
        shape = [1 if d in dims else n for d, n in enumerate(value.shape)]
        return variance.reshape(shape), mean.reshape(shape)
    return variance, mean


BLOCKWISE: dict[Any, Rule] = {
    aten._softmax.default: _online_softmax,
    aten.var_mean.correction: _blockwise_variance,
    aten.var.correction: lambda *args, **kwargs: _blockwise_variance(*args, **kwargs)[0],
    aten.std.correction: lambda *args, **kwargs: _blockwise_variance(*args, **kwargs)[0].sqrt(),
}


def _reciprocal_division(a: Any, b: Any) -> Any:
    """float32 `a * (1 / b)`: two roundings, within the two units of the last place of `div.full.f32` (CUDA, Triton's `/`)."""
    if not isinstance(b, Tensor) or not b.is_floating_point() or b.dtype is torch.float64:
        return NotImplemented
    wide = b.to(torch.float32)
    return (a.to(torch.float32) if isinstance(a, Tensor) else a) * (1 / wide)


DIVISION: dict[Any, Rule] = {aten.div.Tensor: _reciprocal_division}


# --------------------------------------------------------------------------------------------- fused kernels


class Fused(TorchDispatchMode):
    """Chains of pointwise operators keep wide intermediate values and round what leaves the chain: a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self._wide: dict[int, tuple[Tensor, Tensor]] = {}  # id of a rounded result -> itself, and what was rounded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        eager = func(*args, **kwargs)
        is_pointwise = torch.Tag.pointwise in func.tags and not func._schema.is_mutable
        if not is_pointwise or not isinstance(eager, Tensor) or not eager.is_floating_point():
            return eager
        wide_args, wide_kwargs = tree_map(self._widened, (args, kwargs))
        wide = func(*wide_args, **wide_kwargs)
        if not wide.is_floating_point():
            return eager
        rounded = laid_out_like(wide, eager)
        self._wide[id(rounded)] = (rounded, wide)
        return rounded

    def _widened(self, value: Any) -> Any:
        if id(value) in self._wide:
            return self._wide[id(value)][1]
        return converted(value, wider_dtype)


class Contracted(TorchDispatchMode):
    """`a * b + c` with one rounding, where the product is used by an addition or a subtraction."""

    def __init__(self) -> None:
        super().__init__()
        self._products: dict[int, tuple[Tensor, Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        eager = func(*args, **(kwargs or {}))
        if not isinstance(eager, Tensor) or not eager.is_floating_point():
            return eager
        if func is aten.mul.Tensor:
            self._products[id(eager)] = (eager, args[0], args[1])
        elif func in (aten.add.Tensor, aten.sub.Tensor) and not kwargs:
            sign = 1 if func is aten.add.Tensor else -1
            if id(args[0]) in self._products:
                return laid_out_like(_fused(self._products[id(args[0])], args[1], 1, sign), eager)
            if id(args[1]) in self._products:
                return laid_out_like(_fused(self._products[id(args[1])], args[0], sign, 1), eager)
        return eager


def _fused(product: tuple[Tensor, Any, Any], addend: Any, product_sign: int, addend_sign: int) -> Tensor:
    """`product_sign * a * b + addend_sign * c` in twice the precision: float64, or pairs of float64."""
    rounded, *factors = product
    held = computation_dtype(rounded.dtype)  # kernels hold Python numbers in it too
    a, b, c = (
        x.double() if isinstance(x, Tensor) else torch.tensor(x, dtype=held).double() for x in (*factors, addend)
    )
    c = addend_sign * c
    if rounded.dtype is not torch.float64:
        return product_sign * (a * b) + c
    high = product_sign * (a * b)
    low = product_sign * _product_error(a, b)
    total = high + c
    back = total - high
    return total + (((high - (total - back)) + (c - back)) + low)


def _product_error(a: Tensor, b: Tensor) -> Tensor:
    """What rounding took from `a * b`, by splitting both into halves of 26 bits."""

    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        spread = x * 134217729.0  # 2**27 + 1
        high = spread - (spread - x)
        return high, x - high

    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    return ((a_high * b_high - a * b) + a_high * b_low + a_low * b_high) + a_low * b_low


class EachOperatorWide(TorchDispatchMode):
    """Every operator on its own in the next wider dtype, rounded once: kernels that hold values in wider registers."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        eager = func(*args, **kwargs)
        is_view = any(result.alias_info is not None for result in func._schema.returns)
        if is_view or func._schema.is_mutable or "dtype" in kwargs or any(isinstance(a, torch.dtype) for a in args):
            return eager
        try:
            wide = func(*converted(args, wider_dtype), **converted(kwargs, wider_dtype))
        except (RuntimeError, NotImplementedError):  # no kernel for these dtypes
            return eager
        if any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(wide)):
            return laid_out_like(wide, eager)
        return eager
