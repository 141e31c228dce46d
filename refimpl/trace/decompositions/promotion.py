"""The dtypes in which elementwise ops compute and return, and the decorator that applies them to a rule.

Note [Dtypes of elementwise ops] explains the common dtype. Half-precision kernels compute in float32 and round once at the end,
so rules of several steps must do so as well.

Counterpart: torch/_prims_common/wrappers.py elementwise_type_promotion_wrapper, torch/_decomp/decompositions.py type_casts
Differs: for a kind of dtype that the op has no kernel for, a rule returns NotImplemented, so that the op itself raises eager's
error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.layouts import in_layout_of
from refimpl.trace.decompositions.registry import RuleT, aten, rule
from refimpl.trace.dtypes import BOOL, COMPLEX, FLOAT, INT, common_dtype, kind_of, rounded_number

FLOATS = frozenset({FLOAT})
FLOATS_AND_COMPLEX = frozenset({FLOAT, COMPLEX})
NUMBERS = frozenset({INT, FLOAT, COMPLEX})
REALS = frozenset({INT, FLOAT})
REALS_AND_BOOL = frozenset({BOOL, INT, FLOAT})
ANY = frozenset({BOOL, INT, FLOAT, COMPLEX})

_NUMERIC = ("number", "Optional[number]", "float", "Optional[float]")


def computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which kernels compute: float32 for half dtypes, complex64 for complex32, else the dtype itself."""
    is_half = (dtype.is_floating_point and dtype.itemsize == 2) or (dtype.is_complex and dtype.itemsize == 4)
    return torch.promote_types(dtype, torch.float32) if is_half else dtype


def statistics_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of variances and of means computed with them: float64 for floats on a CPU, so that squares neither overflow nor
    underflow; else `computation_dtype`. CPU kernels of normalisation layers have other rules (normalisation.py)."""
    return torch.float64 if follows_cpu(device) and dtype.is_floating_point else computation_dtype(dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part of a complex dtype; other dtypes are returned as they are."""
    return dtype.to_real()


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in that dtype; records no op if it has it."""
    return x if x.dtype is dtype else aten._to_copy.default(x, dtype=dtype)


def pointwise(
    *overloads: OpOverload,
    accepts: frozenset[str] = FLOATS,
    scalars: Sequence[int] = (),
    rounds: Sequence[int] = (),
    result: torch.dtype | None = None,
    integers_become_floats: bool = False,
    is_of_one_dtype: bool = False,
    result_of: int | None = None,
) -> Callable[[RuleT], RuleT]:
    """Register a rule that receives its tensors in the computation dtype, and whose results are cast to the op's result dtype.

    accepts: the kinds of common dtype that the op has kernels for.
    scalars: positions of number arguments that take part in type promotion. They are rounded to half dtypes.
    rounds: positions of other numbers that eager's kernels round to the op's dtype. Bools among numbers become 1 and 0.
    result: the dtype of the result if it is always the same.
    integers_become_floats: bool and integer operands are computed in the default float dtype.
    is_of_one_dtype: tensors of several dtypes are left to the op, which does not return their common dtype.
    result_of: the position of the tensor whose dtype the result has; the op refuses a common dtype that cannot be cast to it.
    """

    arguments = [argument for overload in overloads for argument in overload._schema.arguments]
    numeric = {argument.name for argument in arguments if str(argument.type) in _NUMERIC}
    names = [argument.name for argument in overloads[0]._schema.arguments]
    promoted_numbers = {names[position] for position in scalars} & numeric
    rounded_numbers = {names[position] for position in rounds} & numeric | promoted_numbers

    def decorate(function: RuleT) -> RuleT:
        @functools.wraps(function)
        def promoted(*args: Any, **kwargs: Any) -> Any:
            values = [x for i, x in enumerate(args) if isinstance(x, torch.Tensor) or i in scalars]
            values += [x for x in kwargs.values() if isinstance(x, torch.Tensor)]
            dtype = common_dtype(*values)
            if kind_of(dtype) not in accepts:
                return NotImplemented
            if is_of_one_dtype and len({x.dtype for x in values if isinstance(x, torch.Tensor)}) > 1:
                return NotImplemented
            if integers_become_floats and kind_of(dtype) in (BOOL, INT):
                dtype = torch.get_default_dtype()
            final = result or (dtype if result_of is None else args[result_of].dtype)
            if not torch.can_cast(dtype, final) and result is None:
                return NotImplemented

            def entered(x: Any, name: str) -> Any:
                if name in numeric and isinstance(x, (int, float)) and kind_of(dtype) == FLOAT:
                    return _promoted_number(x, dtype, name in promoted_numbers, name in rounded_numbers)
                return cast(cast(x, dtype), computation_dtype(dtype)) if isinstance(x, torch.Tensor) else x

            positional = [entered(x, name) for name, x in zip(names, args, strict=False)]
            out = function(*positional, **{name: entered(x, name) for name, x in kwargs.items()})
            if out is NotImplemented:
                return NotImplemented
            if isinstance(out, tuple):
                return tuple(cast(x, final) for x in out)
            return in_layout_of(_overload_of(overloads, args), cast(out, final), args, **kwargs)

        return rule(*overloads)(promoted)  # type: ignore[return-value]

    return decorate


def _promoted_number(number: int | float, dtype: torch.dtype, is_promoted: bool, is_rounded: bool) -> int | float:
    """A number as the kernels of a float dtype take it: rounded to half dtypes if `is_rounded`, infinite if it is beyond the
    range of the dtype and takes part in promotion."""
    number = int(number) if isinstance(number, bool) else number
    is_beyond = is_promoted and abs(number) > torch.finfo(dtype).max
    is_narrower = is_rounded and computation_dtype(dtype) is not dtype
    return rounded_number(number, dtype) if is_narrower or is_beyond else number


def _overload_of(overloads: Sequence[OpOverload], args: Sequence[Any]) -> OpOverload:
    """The first overload whose schema has a tensor wherever `args` has one."""

    def takes(overload: OpOverload) -> bool:
        named = zip(overload._schema.arguments, args, strict=False)
        return all("Tensor" in str(argument.type) for argument, x in named if isinstance(x, torch.Tensor))

    return next(filter(takes, overloads))
