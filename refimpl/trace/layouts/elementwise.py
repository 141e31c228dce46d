"""Strides of fresh results, for operators whose fake kernel or decomposition orders dimensions otherwise than the kernel does.

Kernels of elementwise operators order the dimensions of a result by the strides of the operands: the first operand that can
tell two dimensions apart decides. Strides of 0 tell nothing, which is where broadcast and expanded operands leave the word to
the next one. Fake kernels written in Python judge the same questions by other rules. An operand of another dtype than the common
one is converted first on the CPU, which leaves no gaps.

Counterpart: torch/_prims_common/__init__.py compute_elementwise_output_strides
Differs: follows the kernels where the two disagree. Of symbolic sizes and strides the order is asked of their environment, which
guards what it does not know.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.dtypes import BOOL, FLOAT, INT, common_dtype, kind_of
from refimpl.trace.size_checks import is_known

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides; symbolic integers count as integers

aten = torch.ops.aten

# By all tensors among the arguments, in order.
_ELEMENTWISE = frozenset(
    [
        aten.addcdiv.default,
        aten.addcmul.default,
        aten.clamp.Tensor,
        aten.complex.default,
        aten.copysign.Scalar,
        aten.copysign.Tensor,
        aten.div.Scalar_mode,
        aten.div.Tensor_mode,
        aten.elu_backward.default,
        aten.floor_divide.default,
        aten.fmax.default,
        aten.fmin.default,
        aten.hardshrink_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.gcd.default,
        aten.gelu_backward.default,
        aten.heaviside.default,
        aten.hypot.default,
        aten.leaky_relu_backward.default,
        aten.lcm.default,
        aten.lerp.Scalar,
        aten.lerp.Tensor,
        aten.logaddexp.default,
        aten.logaddexp2.default,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.logit_backward.default,
        aten.native_dropout_backward.default,
        aten.polar.default,
        aten.softplus_backward.default,
        aten.softshrink_backward.default,
        aten.special_xlog1py.default,
        aten.threshold_backward.default,
        aten.xlogy.Tensor,
    ]
)
# The same, where the fake kernel goes wrong: it converts half types, and a copy has no strides of 0.
_ELEMENTWISE_OF_HALVES = frozenset(
    [
        aten.add.Tensor,
        aten.atan2.default,
        aten.clamp_max.Tensor,
        aten.clamp_min.Tensor,
        aten.div.Tensor,
        aten.eq.Tensor,
        aten.fmod.Tensor,
        aten.ge.Tensor,
        aten.gt.Tensor,
        aten.igamma.default,
        aten.igammac.default,
        aten.le.Tensor,
        aten.lt.Tensor,
        aten.maximum.default,
        aten.minimum.default,
        aten.mish_backward.default,
        aten.mul.Tensor,
        aten.ne.Tensor,
        aten.pow.Tensor_Tensor,
        aten.remainder.Tensor,
        aten.sigmoid_backward.default,
        aten.silu_backward.default,
        aten.sub.Tensor,
        aten.tanh_backward.default,
    ]
)
# Of these, those that compute with integers as with floats.
_IN_FLOATS = frozenset([aten.copysign.Scalar, aten.copysign.Tensor, aten.special_xlog1py.default, aten.xlogy.Tensor])
# Those whose kernel is given the gradient after the others.
_GRADIENT_LAST = frozenset(
    [
        aten.binary_cross_entropy_backward.default,
        aten.leaky_relu_backward.default,
        aten.threshold_backward.default,
    ]
)
# By the first tensor alone, as the kernel of one operand; below, as `empty_like`, which keeps strides along sizes of 1 too.
_BY_FIRST = frozenset([aten.soft_margin_loss.default])
_LIKE_FIRST = frozenset(
    [
        aten.binary_cross_entropy.default,
        aten.binary_cross_entropy_backward.default,
        aten.huber_loss.default,
        aten.log_sigmoid_backward.default,
        aten.uniform.default,
    ]
)
# As `empty_like` of the first where that has the result's shape; else by all, of which none is converted. Of integer exponents;
# of float32 alone by the first and by powers, which are row-major.
_IN_FIRST = frozenset([aten.ldexp.Tensor])
# Whatever the operands are.
_CONTIGUOUS = frozenset(
    [
        aten._log_softmax.default,
        aten._log_softmax_backward_data.default,
        aten._softmax_backward_data.default,
        aten.glu_backward.default,
        aten.huber_loss_backward.default,
        aten.mse_loss_backward.default,
        aten.pow.Scalar,
        aten.smooth_l1_loss_backward.default,
        aten.normal.Tensor_Tensor,
        aten.normal.float_Tensor,
        aten._standard_gamma.default,
        aten.poisson.default,
        aten.rrelu_with_noise.default,
        aten.tril.default,
        aten.triu.default,
    ]
)
# As `empty_like` too; their fake kernels err along sizes of 1 only.
_LIKE = frozenset(
    [
        aten._conj_physical.default,
        aten.conj_physical.default,
        aten._to_copy.default,
        aten.clone.default,
        aten.deg2rad.default,
        aten.empty_like.default,
        aten.fill.Scalar,
        aten.fill.Tensor,
        aten.flip.default,
        aten.full_like.default,
        aten.hardtanh.default,
        aten.nan_to_num.default,
        aten.ones_like.default,
        aten.rad2deg.default,
        aten.rand_like.default,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.randn_like.default,
        aten.zeros_like.default,
    ]
)
# Elementwise in one step, which tags do not say; and in several, or not in all dtypes, which they do.
_IN_ONE_STEP = frozenset(
    [
        aten.hardswish.default,
        aten.mish_backward.default,
        aten.rrelu_with_noise_backward.default,
    ]
)
_COPIED_FIRST = frozenset(
    [aten.masked_fill.Scalar, aten.masked_fill.Tensor]
)  # without gaps, in the order of dimensions
_IN_SEVERAL_STEPS = frozenset([aten.isinf.default, aten.native_dropout_backward.default])
_KNOWN = _ELEMENTWISE | _ELEMENTWISE_OF_HALVES | _BY_FIRST | _LIKE_FIRST | _IN_FIRST | _CONTIGUOUS


def follows_operands(func: Any) -> bool:
    """Whether what an operator gives is laid out by its operands alone, element by element."""
    return func in _KNOWN or func in _LIKE or func in _COPIED_FIRST or _is_pointwise(func)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size if size != 0 else 1
    return tuple(reversed(strides))


def elementwise_strides(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...]:
    """Strides of a new result of this shape, to which the operands broadcast, in elements."""
    if all(tuple(own) == tuple(shape) for own, _ in operands):
        strides = _strides_of_all(shape, operands)
        if strides is not None:
            return strides
    order = _fastest_first(shape, operands)
    if order == list(reversed(range(len(shape)))):
        return contiguous_strides(shape)
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def kept_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of `empty_like` a tensor that has these."""
    return tuple(strides) if _is_dense(shape, strides) else elementwise_strides(shape, [(tuple(shape), tuple(strides))])


def result_strides(func: Any, shape: Sequence[int], args: Iterable[Any]) -> tuple[int, ...] | None:
    """Strides of an operator's result, where this module knows better than the fake kernel; None where it does not.

    None also for sizes that only a run of the graph knows.
    """
    if func not in _KNOWN:
        return None
    args = list(args)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if func in _ELEMENTWISE_OF_HALVES and not any(_is_repeated_half(tensor) for tensor in tensors):
        return None
    if func in _GRADIENT_LAST:
        tensors = [*tensors[1:], tensors[0]]
    layouts = [(tuple(tensor.shape), tensor.stride()) for tensor in tensors]
    numbers = [*shape, *(n for layout in layouts for part in layout for n in part)]
    if not tensors or not all(map(is_known, numbers)):
        return None
    if func in _CONTIGUOUS:
        return contiguous_strides(shape)
    if func in _IN_FIRST:
        if len(tensors) == 2 and all(tensor.dtype is torch.float32 for tensor in tensors):
            own = layouts[1][0]
            return elementwise_strides(shape, [layouts[0], (own, contiguous_strides(own))])
        if [kind_of(tensor.dtype) for tensor in tensors] != [FLOAT, INT]:
            return None
        if layouts[0][0] != tuple(shape):
            return elementwise_strides(shape, layouts)
    if func in _LIKE_FIRST or func in _BY_FIRST or func in _IN_FIRST:
        own, strides = layouts[0]
        if own != tuple(shape):
            return None
        return elementwise_strides(shape, layouts[:1]) if func in _BY_FIRST else kept_strides(shape, strides)
    dtype = common_dtype(*args)
    if func in _IN_FLOATS and kind_of(dtype) in (BOOL, INT):
        dtype = torch.get_default_dtype()
    return strides_by_operands(shape, layouts, tensors, dtype, any(isinstance(arg, (int, float)) for arg in args))


def strides_by_operands(
    shape: Sequence[int],
    layouts: Sequence[Layout],
    tensors: Sequence[torch.Tensor],
    dtype: torch.dtype,
    has_number: bool,
) -> tuple[int, ...]:
    """`dtype` is what a CPU's kernel converts operands to, beforehand."""
    layouts = _converted(layouts, tensors, dtype)
    if len(tensors) == 1 and has_number:
        layouts.append(((), ()))  # a number is a tensor without dimensions
    return elementwise_strides(shape, layouts)


def _copied_strides(result: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...] | None:
    """The argument's, where the result of no other sizes has them but along sizes of 1: as far as expressions show it."""
    if len(x.shape) != len(result.shape) or not all(map(_is_same, x.shape, result.shape)):
        return None
    places = zip(result.shape, result.stride(), x.stride(), strict=True)
    is_kept = all((type(size) is int and size == 1) or _is_same(own, given) for size, own, given in places)
    return tuple(x.stride()) if is_kept else None


def _is_same(a: Any, b: Any) -> bool:
    return (a if type(a) is int else a.node.expr) == (b if type(b) is int else b.node.expr)


def _converted(layouts: Sequence[Layout], tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[Layout]:
    converted = list(layouts)
    for i, (own, strides) in enumerate(layouts):
        if tensors[0].device.type == "cpu" and tensors[i].dtype is not dtype and not _is_dense(own, strides):
            converted[i] = own, elementwise_strides(own, [layouts[i]])
    return converted


def _dtype_inside(func: Any, result: torch.Tensor, args: Sequence[Any]) -> torch.dtype:
    """What the kernel of an operator computes in: integers become floats where the result is one."""
    dtype = common_dtype(*args)
    is_float = kind_of(result.dtype) == FLOAT and kind_of(dtype) in (BOOL, INT)
    return torch.get_default_dtype() if is_float else dtype


def _has_number(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operand is a number. Other numbers are parameters of a function of the tensors."""
    named = zip(func._schema.arguments, args, strict=False)
    return any(argument.name in ("self", "other") and isinstance(x, (int, float, complex)) for argument, x in named)


def strides_along_ones(
    func: Any, result: torch.Tensor, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """Strides of a result whose fake kernel errs along sizes of 1 only. Kernels choose layouts of results by these as well
    (`cat`). None for other operators than elementwise ones, and for symbolic sizes where more than a copy's are asked for."""
    shape, args = result.shape, list(args)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    is_like = func in _LIKE
    if not tensors or not (is_like or func in _COPIED_FIRST or _is_pointwise(func)):
        return None
    if any(tensor.layout is not torch.strided for tensor in (result, *tensors)):
        return None
    layouts = [(tuple(tensor.shape), tensor.stride()) for tensor in tensors]
    numbers = (*shape, *result.stride(), *(n for layout in layouts for part in layout for n in part))
    is_copy = is_like and kwargs.get("memory_format") in (None, torch.preserve_format)
    if any(type(number) is not int for number in numbers):
        return _copied_strides(result, tensors[0]) if is_copy else None
    if 1 not in shape:
        return None
    if is_like:
        if not is_copy or layouts[0][0] != tuple(shape):
            return None
        strides = kept_strides(shape, layouts[0][1])
    elif func in _COPIED_FIRST:
        strides = contiguous_strides(shape)
    elif func is aten.where.self:  # whose condition is not converted
        strides = elementwise_strides(shape, [layouts[0], *_converted(layouts[1:], tensors[1:], result.dtype)])
    else:
        strides = strides_by_operands(
            shape, layouts, tensors, _dtype_inside(func, result, args), _has_number(func, args)
        )
    return strides if agree_but_for_ones(shape, strides, result.stride()) else None


@functools.cache
def _is_pointwise(func: Any) -> bool:
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func in _IN_SEVERAL_STEPS:
        return False
    if torch.Tag.pointwise not in func.tags and func not in _IN_ONE_STEP:
        return False
    return not any(value.alias_info for value in (*func._schema.arguments, *func._schema.returns))


def _is_repeated_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16) and any(type(t) is int and t == 0 for t in tensor.stride())


def in_layout_of(func: OpOverload, out: torch.Tensor, args: Iterable[Any]) -> torch.Tensor:
    """What a decomposition of the operator gave, in the layout that the operator gives."""
    strides = result_strides(func, out.shape, args)
    if strides is None or out.numel() == 0:
        return out
    if func in _LIKE_FIRST and out.stride() != strides:
        memory = aten.empty_strided.default(out.shape, strides, dtype=out.dtype, device=out.device)
        return aten.copy.default(memory, out)
    if agree_but_for_ones(out.shape, out.stride(), strides):
        return out
    order = sorted(range(out.ndim), key=lambda dim: -strides[dim])
    inverse = [order.index(dim) for dim in range(out.ndim)]
    return out.permute(order).contiguous().permute(inverse)


def agree_but_for_ones(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, others, strict=True))


def _strides_of_all(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...] | None:
    """The strides that operands of one shape share, if they have no gaps; strides along a size of 1 need not agree."""
    if 0 in shape:  # which is contiguous whatever the strides
        return contiguous_strides(shape)
    for format_strides in (contiguous_strides(shape), _channels_last_strides(shape)):
        if format_strides is not None and all(
            agree_but_for_ones(shape, strides, format_strides) for _, strides in operands
        ):
            return format_strides
    first = tuple(operands[0][1])
    if all(tuple(strides) == first for _, strides in operands) and _is_dense(shape, first):
        return first
    return None


def _channels_last_strides(shape: Sequence[int]) -> tuple[int, ...] | None:
    if len(shape) != 4:
        return None
    n, h, w, c = contiguous_strides([shape[0], shape[2], shape[3], shape[1]])
    return n, c, h, w


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each place between the first and the last holds one element."""
    step = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s != 1):
        if stride != step:
            return False
        step *= size
    return True


def _fastest_first(shape: Sequence[int], operands: Sequence[Layout]) -> list[int]:
    """Dimensions from the fastest on: an insertion sort, as comparisons that tell nothing make the order partial."""
    everywhere = [_broadcast(shape, layout) for layout in operands]
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            sign = _compare(shape, everywhere, order[before], order[at])
            if sign > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif sign < 0:
                break
    return order


def _broadcast(shape: Sequence[int], layout: Layout) -> list[int]:
    own, strides = layout
    inner = shape[len(shape) - len(own) :]
    stretched = [0 if a == 1 and b != 1 else t for a, b, t in zip(own, inner, strides, strict=True)]
    return [0] * (len(shape) - len(own)) + stretched


def _compare(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """1 if dimension a is slower than b, -1 if it is faster, 0 if no operand tells."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0
