"""Mark results that overflow or not, depending on rounding or the order of a sum: eager's value is not the only right one.

Such an element is *open*. The functions here replace its value by another possible one.

Sums: let P be the sum of an element's positive terms and N the sum of the magnitudes of its negative terms. A sum that starts
with all positive terms has the partial sum P, one that starts with the negative terms -N. So if P exceeds the largest number, one
order returns infinity; if N does too, another returns -infinity, and adding two accumulators returns NaN: NaN is then replaced by
infinity, and other values by NaN. No operator promises an order, nor that terms are not rounded before they are added. The
operator is linear in its terms, so it computes P and N itself, in float64: applied to magnitudes it returns P + N, applied to the
numbers P - N.

An infinite term decides the sum, unless the finite terms overflow to the other infinity first, which results in NaN. P and N are
sums of the finite terms.

For float64 results, P and N may exceed float64 too. So all inputs are scaled by a power of 2 first, which scales P and N by that
power, or by its square where terms are products. P and N must then exceed the limit by a bound of their own rounding errors.
float16 and bfloat16 are accumulated in float32.

Magnitudes (`abs`, `sgn`, `hypot`) within a few roundings of the largest number may become that number or infinity. Eager's own
kernels disagree there: for 36 complex numbers of the largest magnitude, its vector loop returns infinity for a third, its scalar
loop for none. `sgn`, which divides by the magnitude, is then 0 and not of magnitude 1. An element is open if its magnitude in
float64 (of scaled coordinates) is within `_MAGNITUDE_ROUNDINGS` of the largest number. That covers the operator's own roundings
and the margin by which noise keeps numbers finite.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from oracle.dtypes import ARITHMETIC_FLOATS

# Operators that compute sums of elements of an input, whose results double if all inputs double.
_SUMS_OF_ELEMENTS = frozenset(
    {"sum", "nansum", "mean", "cumsum", "trace", "index_add", "scatter_add", "col2im", "embedding_dense_backward"}
)
_BEYOND = torch.finfo(torch.float32).max * (1 + 2.0**-25)  # larger numbers round to infinity
_SHRUNK = 2.0**-64  # scale of float64 terms
# Scale of float64 factors. A product of two is never beyond float64; terms that vanish count for nothing.
_SHRUNK_FACTORS = 2.0**-520
# Operators that compute sums of products of two inputs, with the position of the input that is added as it is (-1: none).
_SUMS_OF_PRODUCTS = {
    "mm": -1,
    "bmm": -1,
    "mv": -1,
    "dot": -1,
    "convolution": 2,
    "addmm": 0,
    "baddbmm": 0,
    "addmv": 0,
    "addbmm": 0,
}
# Both. No tag says so, and a kernel shows only its own order of additions, while these rules are about other orders.
LINEAR_SUMS = _SUMS_OF_ELEMENTS | _SUMS_OF_PRODUCTS.keys() | {"addr", "convolution_backward"}
_ROWS = (torch.float32, torch.bfloat16)  # input dtypes whose differences may overflow in a norm's float32
OF_ROWS = frozenset(["native_layer_norm", "native_group_norm"])
_IMAGES = ARITHMETIC_FLOATS - {torch.float16}  # no statistic of float16 images overflows in float32
MAGNITUDES = frozenset(["abs", "sgn", "hypot"])
_MAGNITUDE_ROUNDINGS = 64
_SHRUNK_COORDINATES = 0.25
_FACTORS = ("alpha", "beta")  # names of number arguments that multiply terms


def with_open_overflows(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """`result` of an operator of LINEAR_SUMS, with an infinity or NaN where another order of its terms returns one.

    Applies to float32 and float64 results. An infinite element stays, unless both infinities are possible. Changes no argument.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    name = func._schema.name.removeprefix("aten::")
    is_double = (name in _SUMS_OF_ELEMENTS or name in _SUMS_OF_PRODUCTS) and _is_of(result, torch.float64)
    dtype, scale, beyond = torch.float32, 1.0, _BEYOND
    if is_double:
        dtype, scale = torch.float64, _SHRUNK if name in _SUMS_OF_ELEMENTS else _SHRUNK_FACTORS
        beyond = torch.finfo(torch.float64).max * scale ** (1 if name in _SUMS_OF_ELEMENTS else 2)
    addend = _SUMS_OF_PRODUCTS.get(name, -1)
    has_such = any(_is_of(leaf, dtype) for leaf in tree_leaves(result))
    if not has_such or not _can_overflow(leaves, torch.finfo(dtype).max):
        return result
    if any(tensor.layout is not torch.strided or tensor.dtype.is_complex for tensor in tensors):
        return result
    wide, total, magnitudes = (
        func(*wide_args, **wide_kwargs)
        for wide_args, wide_kwargs in (
            _wide(args, kwargs, scale, addend, of) for of in ("numbers", "finite", "magnitudes")
        )
    )
    count = tensors[0].numel() / max(result.numel(), 1) if name == "mean" else 1.0  # the sum is what overflows
    terms = sum(tensor.numel() for tensor in tensors) if is_double else 0
    error = terms * 2.0**-50  # bound of the errors of P and of N, relative to P + N

    def opened(out: Any, number: Any, finite: Any, magnitude: Any) -> Any:
        if (
            not _is_of(out, dtype) or number is None
        ):  # the float64 kernel may return None where another returns a tensor
            return out
        positive, negative = (magnitude + finite) * (count / 2), (magnitude - finite) * (count / 2)
        least = beyond + magnitude * (count * error)
        above, below = positive > least, negative > least
        bent = torch.where(above, math.inf, torch.where(below, -math.inf, out))
        another = torch.where(out.isnan(), math.inf, math.nan)
        bent = torch.where(above & below, another, bent)
        meets_other = (number == math.inf) & below | (number == -math.inf) & above
        bent = torch.where(number.isfinite(), bent, torch.where(meets_other & out.isinf(), math.nan, out))
        return bent if bent.stride() == out.stride() else torch.empty_like(out).copy_(bent)

    if isinstance(result, torch.Tensor):
        return opened(result, wide, total, magnitudes)
    return type(result)(opened(*parts) for parts in zip(result, wide, total, magnitudes, strict=True))


def with_open_statistics(func: Any, args: Any, result: Any) -> Any:
    """`result` of a batch norm in training, with open values where the sums of its statistics overflow in another order.

    Eager accumulates float32 images in float64 if they are contiguous and have more than one pixel, else in float32 per thread. A
    channel whose sum is open has that sum for its mean, an infinite variance or NaN, and an output of NaN. Running statistics
    are changed in place.
    """
    images, running = args[0], args[3:5]
    if images.dtype not in _IMAGES or not _is_in_training(func, args) or _is_added_up_in_double(images):
        return result
    wide = images.to(torch.promote_types(images.dtype, torch.float32))  # in which they are accumulated
    dims = [dim for dim in range(images.dim()) if dim != 1]
    output, mean, deviation, *rest = result
    found = mean.to(wide.dtype) if mean.numel() else wide.sum(dims)
    total = with_open_overflows(torch.ops.aten.sum.dim_IntList, (wide, dims), {}, found)
    is_open = ~total.isfinite()
    variance = torch.where(total.isnan(), math.nan, math.inf)
    for statistic, open_one in zip(running, (total, variance), strict=False):
        if isinstance(statistic, torch.Tensor):
            statistic.copy_(torch.where(is_open, open_one, statistic))
    channels = is_open.reshape(1, -1, *[1] * (images.dim() - 2))
    output.copy_(torch.where(channels, math.nan, output))
    if mean.numel():
        mean.copy_(torch.where(is_open, total, mean))
        deviation.copy_(torch.where(is_open, 1 / variance, deviation))
    return (output, mean, deviation, *rest)


def with_open_rows(func: Any, args: Any, result: Any) -> Any:
    """`result` of a layer or group norm, with open values where the largest minus the smallest number of a row overflows.

    Its mean is computed from differences, which overflow in one order of the row and not in another. The deviation and the output
    are NaN then. Where they are NaN in eager they stay NaN, since no order gives right numbers.
    """
    x, (output, mean, deviation) = args[0], result
    if not x.numel() or not mean.numel() or x.dtype not in _ROWS:
        return result
    rows = x.detach().double().nan_to_num(0.0, 0.0, 0.0).reshape(*mean.shape, -1)
    is_open = rows.amax(-1) - rows.amin(-1) > _BEYOND
    if not bool(is_open.any()):
        return result
    another = torch.where(mean.isnan(), math.inf, math.nan).to(mean.dtype)
    everywhere = is_open[..., None].expand(rows.shape).reshape(x.shape)
    bent = torch.where(everywhere, math.nan, output)
    bent = bent if bent.stride() == output.stride() else torch.empty_like(output).copy_(bent)
    return bent, torch.where(is_open, another, mean), torch.where(is_open, math.nan, deviation)


def with_open_parameter_gradients(func: Any, args: Any, result: Any) -> Any:
    """`result` of the backward of a batch, layer or group norm, with open gradients of weight and bias where sums overflow.

    The terms are products of the tangent and the centred input. The deviation may divide the terms or their sum.
    """
    of_x, *of_parameters = result
    if not any(_is_of(found, torch.float32) for found in of_parameters):
        return result
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    gradient, x = (given[name].detach().double().nan_to_num(0.0, 0.0, 0.0) for name in ("grad_out", "input"))
    dims = [dim for dim in range(x.dim()) if dim != 1]
    if "normalized_shape" in given:
        dims = list(range(x.dim() - len(given["normalized_shape"])))
    mean, factor = _mean_and_factor(given, x)
    if mean is None or factor is None or not dims:
        return result
    away = gradient * (x - mean)
    terms = ((away, away * factor), (gradient,))
    return of_x, *(_opened_sum(found, of, dims) for found, of in zip(of_parameters, terms, strict=True))


def _mean_and_factor(given: dict[str, Any], x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The mean and the reciprocal deviation that normalise `x`, in float64, in shapes that broadcast with it."""
    channels = (1, -1, *[1] * (x.dim() - 2))
    if "train" in given and not given["train"]:
        mean, variance = given["running_mean"], given["running_var"]
        found = mean, None if variance is None else (variance.detach().double() + given["eps"]).rsqrt()
    elif "train" in given:
        found = given["save_mean"], given["save_invstd"]
    else:
        found = given["mean"], given["rstd"]
    mean, factor = (None if one is None else one.detach().double() for one in found)
    if mean is None or factor is None:
        return None, None
    if "train" in given:
        return mean.reshape(channels), factor.reshape(channels)
    if "group" in given:
        each, shape = x.shape[1] // given["group"], (*x.shape[:2], *[1] * (x.dim() - 2))
        return mean.repeat_interleave(each, 1).view(shape), factor.repeat_interleave(each, 1).view(shape)
    return mean, factor


def _opened_sum(found: Any, ways: tuple[torch.Tensor, ...], dims: list[int]) -> Any:
    """The sum, with an infinity or NaN where another order returns one for one of these ways to form its terms."""
    if not _is_of(found, torch.float32):
        return found
    above, below = (
        torch.stack([(sign * terms).clamp_min(0.0).sum(dims) > _BEYOND for terms in ways]).any(0).reshape(found.shape)
        for sign in (1.0, -1.0)
    )
    another = torch.where(found.isnan(), math.inf, math.nan)
    return torch.where(above & below, another, torch.where(above, math.inf, torch.where(below, -math.inf, found)))


def _is_in_training(func: Any, args: Any) -> bool:
    """Whether the batch norm uses batch statistics; overloads without a `training` argument always do."""
    names = [argument.name for argument in func._schema.arguments]
    return "training" not in names or bool(args[names.index("training")])


def _is_added_up_in_double(images: torch.Tensor) -> bool:
    return images.dtype is torch.float32 and images.is_contiguous() and any(size != 1 for size in images.shape[2:])


def _is_of(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is dtype


def largest_magnitude(tensor: torch.Tensor) -> float:
    """The largest magnitude of a real tensor: infinite or NaN if an element is, and 0 for no elements."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.aminmax()
    return max(abs(low.item()), abs(high.item()))


def _can_overflow(leaves: list[Any], limit: float) -> bool:
    """Whether a bound of the sum, the largest finite term times the number of elements, exceeds the limit."""
    bound, count = 1.0, 1
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.numel() and leaf.layout is torch.strided:
            if not leaf.dtype.is_floating_point:
                continue
            largest = largest_magnitude(leaf.detach())
            if not math.isfinite(largest):
                largest = leaf.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().item()
            bound, count = bound * max(1.0, largest), max(count, leaf.numel())
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and math.isfinite(leaf):
            bound *= max(1.0, abs(float(leaf)))
    return bound * count * 2 > limit


def _wide(args: Any, kwargs: dict[str, Any], scale: float, addend: int, of: str) -> tuple[Any, dict[str, Any]]:
    """The arguments in float64, scaled; the argument at position `addend` is scaled twice.

    `of` is "numbers", "finite" (infinities and NaN become 0) or "magnitudes" (of the finite numbers).
    """

    def one(leaf: Any, times: float = scale) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point:
            leaf = leaf.detach().double() * times
            leaf = leaf if of == "numbers" else leaf.nan_to_num(0.0, 0.0, 0.0)
            return leaf.abs() if of == "magnitudes" else leaf
        return torch.float64 if leaf is torch.float32 else leaf

    named = {name: one(value) for name, value in kwargs.items()}
    if of == "magnitudes":
        named |= {name: abs(named[name]) for name in _FACTORS if name in named}
    wide = [tree_map(one, arg) for arg in args]
    if 0 <= addend < len(args):
        wide[addend] = one(args[addend], scale * scale)
    return tuple(wide), named


def with_open_magnitudes(func: Any, args: Any, result: Any) -> Any:
    """`result` of an operator of MAGNITUDES, with the other possible value where an element is open.

    Applies to complex operands of `abs` and `sgn` and real ones of `hypot`, with coordinates of float32 or float64; otherwise
    returns `result`.
    """
    name = func._schema.name.removeprefix("aten::")
    coordinates = _coordinates(name, args, result)
    if coordinates is None:
        return result
    dtype = coordinates[0].dtype
    if dtype not in (torch.float32, torch.float64):
        return result
    limit = torch.finfo(dtype).max * _SHRUNK_COORDINATES
    magnitude = torch.hypot(*(coordinate.double() * _SHRUNK_COORDINATES for coordinate in coordinates))
    is_open = (magnitude - limit).abs() <= _MAGNITUDE_ROUNDINGS * torch.finfo(dtype).eps * limit
    if not bool(is_open.any()):
        return result
    own = func(*args)
    if name == "sgn":
        direction = torch.complex(
            *(coordinate.double() * _SHRUNK_COORDINATES / magnitude for coordinate in coordinates)
        )
        other = torch.where(own == 0, direction.to(own.dtype), 0.0)
    else:
        other = torch.where(own.isinf(), own.new_full((), torch.finfo(dtype).max), math.inf)
    return torch.empty_like(result).copy_(torch.where(is_open, other, result))


def _coordinates(name: str, args: Any, result: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    if name == "hypot":
        x, y = torch.broadcast_tensors(*(arg.detach() for arg in args[:2]))
        return (x.to(result.dtype), y.to(result.dtype))
    z = args[0].detach()
    if not z.is_complex() or z.layout is not torch.strided:
        return None
    z = z.resolve_conj()
    return z.real, z.imag
