"""What eager's kernels ask of the dtypes of their operands where fake kernels, and rules that convert, do not.

A call that breaks such a condition is left to the operator, which raises what eager raises.

Counterpart: the checks in kernels, aten/src/ATen/native/mixed_data_type.h among them
Differs: one table; decompositions and kernels ask it before they take a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.dtypes import BOOL, COMPLEX, FLOAT, INT, kind_of
from refimpl.trace.refusals.operand_numbers import numbers_fit

# By the name of an operand: its dtype. Operands that are not given, lists and numbers other than truth values are left out.
Dtypes = Mapping[str, torch.dtype]
Condition = Callable[[Dtypes], bool]

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
_FLOATS = (*_HALF, *_WIDE)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMMON = frozenset([torch.bool, *_INTEGERS, *_FLOATS, torch.complex64, torch.complex128])
_PLACES = (torch.int32, torch.int64)


def operands_fit(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operands have dtypes that the operator's kernel takes together, as far as the table here says, and hold the
    numbers. An operand is anything with a dtype."""
    condition = CONDITIONS.get(func)
    return (condition is None or condition(_dtypes(func, args, kwargs))) and numbers_fit(func, args, kwargs)


def are_common(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors, those in lists as well, and what is asked for are of dtypes that most kernels know."""
    for operand in (*args, *kwargs.values()):
        for x in operand if isinstance(operand, (list, tuple)) else (operand,):
            dtype = x if isinstance(x, torch.dtype) else getattr(x, "dtype", None)
            if isinstance(dtype, torch.dtype) and dtype not in _COMMON:
                return False
    return True


def _dtypes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dtypes:
    operands = [argument.name for argument in func._schema.arguments if str(argument.type) != "bool"]
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
    found = {name: _dtype_of(given.get(name)) for name in operands}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def _dtype_of(operand: Any) -> torch.dtype | None:
    dtype = torch.bool if isinstance(operand, bool) else getattr(operand, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def _same(names: str = "") -> Condition:
    """Operands of these names, all where none are given, are of one dtype."""
    wanted = names.split()
    return lambda dtypes: len({dtypes[name] for name in wanted or dtypes if name in dtypes}) <= 1


def _one_of(name: str, *allowed: torch.dtype) -> Condition:
    return lambda dtypes: name not in dtypes or dtypes[name] in allowed


def _first_is(*kinds: str) -> Condition:
    """The first operand is of one of these kinds."""
    return lambda dtypes: all(kind_of(dtype) in kinds for dtype in list(dtypes.values())[:1])


def _first_of(*allowed: torch.dtype) -> Condition:
    """The first operand is of one of these dtypes."""
    return lambda dtypes: all(dtype in allowed for dtype in list(dtypes.values())[:1])


def _no_truth_values(dtypes: Dtypes) -> bool:
    return torch.bool not in dtypes.values()


def _wider(name: str, *, than: str) -> Condition:
    """What is kept in float32 of half types, and in the dtype of the others."""
    return lambda dtypes: dtypes[name] is (torch.float32 if dtypes[than] in _HALF else dtypes[than])


def _reals(dtypes: Dtypes) -> bool:
    return all(kind_of(dtype) in (INT, FLOAT) for dtype in dtypes.values())


def _all_of(*conditions: Condition) -> Condition:
    return lambda dtypes: all(condition(dtypes) for condition in conditions)


def _parameters(names: str, *, are_alike: bool) -> Condition:
    """Parameters and statistics of a norm are of the input's dtype, or float32 beside an input of a half type. `are_alike`: all
    of them the same; statistics that a forward saves need not be."""
    wanted = names.split()

    def condition(dtypes: Dtypes) -> bool:
        own = {dtypes[name] for name in wanted if name in dtypes}
        x = dtypes["input"]
        allowed = {x, torch.float32} if x in _HALF else {x}
        return own <= allowed and not (are_alike and len(own) > 1)

    return condition


def _norm(names: str) -> Condition:
    return _all_of(_first_is(FLOAT), _parameters(names, are_alike=True))


def _norm_backward(names: str) -> Condition:
    return _all_of(_first_is(FLOAT), _same("grad_out input"), _parameters(names, are_alike=False))


_OF_ONE_DTYPE = (
    aten._prelu_kernel.default,
    aten._prelu_kernel_backward.default,
    aten.addbmm.default,
    aten.addmv.default,
    aten.baddbmm.default,
    aten.binary_cross_entropy_backward.default,
    aten.gelu_backward.default,
    aten.huber_loss_backward.default,
    aten.lerp.Scalar,
    aten.lerp.Tensor,
    aten.linalg_cross.default,
    aten.log_sigmoid_backward.default,
    # These take several dtypes, and their results are not of the common one.
    aten._fused_rms_norm.default,
    aten._fused_rms_norm_backward.default,
    aten.addr.default,
    aten.rrelu_with_noise.default,
    aten.rrelu_with_noise_backward.default,
)
_FLOATS_OF_ONE_DTYPE = (
    aten._adaptive_avg_pool2d_backward.default,
    aten._adaptive_avg_pool3d_backward.default,
    aten._log_softmax_backward_data.default,
    aten._softmax_backward_data.default,
    aten._weight_norm_interface.default,
    aten.glu_backward.default,
)
_OF_FLOATS = (
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten._upsample_nearest_exact1d_backward.default,
    aten._upsample_nearest_exact2d_backward.default,
    aten._upsample_nearest_exact3d_backward.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    aten.affine_grid_generator.default,
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
_NEAREST = (
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
)
_OF_NUMBERS = (
    aten.abs.default,
    aten.ceil.default,
    aten.dot.default,
    aten.floor.default,
    aten.index_reduce.default,
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.relu.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    aten.round.default,
    aten.trace.default,
    aten.trunc.default,
)
_BATCH_NORMS = (
    aten._batch_norm_no_update.default,
    aten._batch_norm_with_update.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.native_batch_norm.default,
)
_PADDING_BACKWARD = tuple(
    getattr(aten, f"{kind}_pad{count}d_backward").default
    for kind in ("reflection", "replication")
    for count in (1, 2, 3)
)
_OF_STATISTICS = "weight running_mean running_var save_mean"

CONDITIONS: Mapping[Any, Condition] = {
    **dict.fromkeys(_OF_ONE_DTYPE, _same()),
    **dict.fromkeys(_FLOATS_OF_ONE_DTYPE, _all_of(_first_is(FLOAT), _same())),
    **dict.fromkeys(_PADDING_BACKWARD, _all_of(_first_is(FLOAT, COMPLEX), _same())),
    **dict.fromkeys(_OF_FLOATS, _first_is(FLOAT)),
    **dict.fromkeys(_NEAREST, _first_of(*_FLOATS, torch.uint8)),
    **dict.fromkeys(_OF_NUMBERS, _first_is(INT, FLOAT, COMPLEX)),
    **dict.fromkeys((aten.avg_pool2d.default, aten.avg_pool3d.default), _first_of(*_FLOATS, torch.int64)),
    aten.avg_pool2d_backward.default: _all_of(_first_of(*_FLOATS, torch.int64), _same()),
    aten.avg_pool3d_backward.default: _all_of(_first_of(*_WIDE, torch.int64), _same()),
    **dict.fromkeys((aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim_dtype), _first_is(FLOAT)),
    **dict.fromkeys((aten.col2im.default, aten.im2col.default), _first_is(BOOL, FLOAT, COMPLEX)),
    **dict.fromkeys((aten.polar.default, aten._cdist_forward.default), _all_of(_first_of(*_WIDE), _same())),
    **dict.fromkeys(_BATCH_NORMS, _norm("weight bias running_mean running_var")),
    **dict.fromkeys((aten.native_layer_norm.default, aten.native_group_norm.default), _norm("weight bias")),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar), _no_truth_values),
    **dict.fromkeys(
        (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default),
        _all_of(_same("self weight"), _one_of("target", torch.uint8, torch.int64)),
    ),
    **dict.fromkeys(
        (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default),
        _all_of(_same("grad_output self weight total_weight"), _one_of("target", torch.uint8, torch.int64)),
    ),
    aten._trilinear.default: _all_of(_first_is(INT, FLOAT, COMPLEX), _same()),
    aten._weight_norm_interface_backward.default: _all_of(
        _first_is(FLOAT), _same("grad_w saved_v saved_g"), _wider("saved_norms", than="grad_w")
    ),
    aten.native_batch_norm_backward.default: _norm_backward(f"{_OF_STATISTICS} save_invstd"),
    aten.batch_norm_backward.default: _norm_backward(f"{_OF_STATISTICS} save_var"),
    aten.native_layer_norm_backward.default: _norm_backward("mean rstd weight bias"),
    aten.native_group_norm_backward.default: _norm_backward("mean rstd weight"),
    aten.index_add.default: _one_of("index", *_PLACES),
    aten.index_select.default: _one_of("index", *_PLACES),
    aten.index_copy.default: _one_of("index", torch.int64),
    aten.index_fill.int_Scalar: _one_of("index", torch.int64),
    aten.index_fill.int_Tensor: _one_of("index", torch.int64),
    aten.bitwise_not.default: _first_is(BOOL, INT),
    **dict.fromkeys((aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.isin.Scalar_Tensor), _reals),
    aten.put.default: _one_of("index", torch.int64),
    aten.special_log_ndtr.default: lambda dtypes: dtypes["self"] not in _HALF,
    aten.take.default: _one_of("index", torch.int64),
    aten.multilabel_margin_loss_forward.default: _one_of("target", torch.int64),
}
