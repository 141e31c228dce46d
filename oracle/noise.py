"""Rounding noise: Monte Carlo arithmetic on aten operators, to see which results eager itself does not determine.

Another order of summation, another fusion, another library call move each intermediate result by about one unit in the
last place. Running eager a few times with every inexact operator moved by that much shows which elements of the result
follow: comparisons that flip, indices that swap, quotients that blow up. Those are not findings.

Counterpart: Monte Carlo arithmetic (D. S. Parker, 1997), as in Verificarlo (Denis, de Oliveira Castro, Petit, 2016).
Differs: the grain is the aten operator, not the floating-point instruction; operators that are exact functions of their
inputs (`oracle.exact_ops`) are left alone, so a comparison of exact inputs never flips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from oracle.composite import call_parts, is_composite
from oracle.exact_ops import (
    BOUNDED_DOMAIN_OPS,
    BOUNDED_RESULTS,
    CHOOSES_AMONG,
    CONVERTS_BFLOAT16,
    CONVERTS_FIRST,
    EXACT_OPS,
    FIRST_INPUT_MOVES,
    FIRST_RESULT_MOVES,
    INPUTS_STAY,
    INTERPOLATES,
    KEEPS_SIGN_OF_NAN,
    LOGARITHMS_OF_SUMS,
    RING_OPS,
    ROUNDED_AS_FIRST_INPUT,
    SATURATED_AT,
    SATURATES,
    WINDOWS,
)
from oracle.magnitudes import MAGNITUDES, with_open_magnitudes
from oracle.partial_sums import (
    BACKWARD_OF_NORMS,
    LINEAR_SUMS,
    OF_ROWS,
    with_open_overflows,
    with_open_parameter_gradients,
    with_open_rows,
    with_open_statistics,
)
from oracle.reduction_length import noise_factor

_FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    if hasattr(torch, name)
)
_MOST_EXPANDED = 1 << 20  # elements of an expanded tensor that are written out
_SIGNED_ZEROS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_MOVABLE = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, *_FLOAT8}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpKind:
    """What the noise does with one aten overload."""

    is_exact: bool
    chooses_among: str = (
        ""  # "elements", "elements and bounds", "elements and zero": which of 0 and -0 it gives is open
    )
    keeps_sign_of_nan: bool = False
    converts_bfloat16: bool = False  # by way of float32, which keeps no sign of NaN
    moves_inputs: bool = False
    moves_first_input: bool = False
    moves_first_result: bool = False  # and no other
    is_ring: bool = False
    interpolates: bool = False
    is_window: bool = False
    converts_first: bool = False
    is_logarithm_of_sum: bool = False
    is_linear_sum: bool = False
    is_magnitude: bool = False
    is_of_rows: bool = False
    is_backward_of_norm: bool = False
    saturates: int | None = None  # where the argument of the sigmoid function in it stands
    bounds: tuple[float, float] | None = None  # of the results, all of which are moved
    rounds_as_first_input: bool = False
    accumulates: bool = False  # adds up: the sign of a zero is that of an order, a starting value, a mask
    written: tuple[int | str, ...] = ()  # positions or names of the arguments the op writes to
    returns_written: bool = False


class RoundingNoise(TorchDispatchMode):
    """Within it, every inexact aten operator is moved by relative noise, uniform within one epsilon of the dtype.

    Copies of the float inputs and the float outputs of such an operator are each multiplied by
    1 + `scale` * eps * uniform(-1, 1), element by element, and rounded; of long sums by more (`oracle.reduction_length`).
    Zeros, infinities and NaNs stay, but for the signs of zeros that were added up, or chosen among zeros of both signs, and
    those of NaN that were computed: positive under seed 0, negative under 1, either after that. Nothing finite becomes
    infinite, other than sums that overflow in another order (`oracle.partial_sums`).
    Active in the backward pass as well, if that runs inside.

    Of `scale` 0 nothing moves, and everything else is as under noise: operators read copies, and what they return is one.

    Equal seeds give equal results for equal programs. The noise has generators of its own: the global ones are untouched.
    Sparse, quantised and float4 tensors are not moved.
    """

    def __init__(self, seed: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.seed = seed
        self.scale = scale
        self.moved_ops = 0  # how many calls were moved: 0 says that the program is exact
        self._factor = 1.0  # of the operator at hand
        self._flips_zeros = False  # likewise, and of its results only
        self._parts_largest = False  # likewise, and of its arguments only
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _PLAIN_TYPES for kind in types):
            return NotImplemented  # the subclass computes with plain tensors, which come back here
        if is_composite(func):
            with self:
                return call_parts(func, args, kwargs)
        kind = _kind_of(func)
        if kind.is_exact or _is_exact_call(func, args, kwargs):
            is_open = self.scale and kind.chooses_among and _has_both_zeros((args, kwargs), kind.chooses_among)
            result = func(*args, **kwargs)
            if is_open:
                result = self._with_either_zero(result, is_written=bool(kind.written))
            if kind.is_magnitude and self.scale:
                result = with_open_magnitudes(func, args, result)
            return self._with_either_nan(result, kind) if self.scale else result
        if kind.converts_first and self.scale:
            args = _converted(args, kwargs)
        if (kind.is_ring or kind.rounds_as_first_input) and _is_small_integer_arithmetic((args, kwargs)):
            result = func(*args, **kwargs)
            return self._with_open_zeros(result, kind) if self.scale else result
        self.moved_ops += 1
        if kind.rounds_as_first_input and self.scale:
            return self._moved_as_first_input(func, args, kwargs, is_written=bool(kind.written))
        self._factor = noise_factor(func, args, kwargs)
        self._flips_zeros = False
        self._parts_largest = kind.is_linear_sum or kind.moves_first_input
        if kind.moves_first_input:
            args = (self._moved_input(args[0]), *args[1:])
        if kind.moves_inputs:
            kept = _memory_of_written_lists(args, kwargs, kind)
            result = func(*self._moved_inputs(args, kind, kept), **self._moved_inputs(kwargs, kind, kept))
        else:
            result = func(*args, **kwargs)
        if kind.is_linear_sum and self.scale:
            result = with_open_overflows(func, args, kwargs, result)
        if kind.moves_first_input and self.scale:
            result = with_open_statistics(func, args, result)
        if kind.is_magnitude and self.scale:
            result = with_open_magnitudes(func, args, result)
        if kind.is_of_rows and self.scale:
            result = with_open_rows(func, args, result)
        if kind.is_backward_of_norm and self.scale:
            result = with_open_parameter_gradients(func, args, result)
        self._flips_zeros, self._parts_largest = kind.accumulates, False
        for where in kind.written:
            target = args[where] if isinstance(where, int) and where < len(args) else kwargs.get(where)  # pyright: ignore
            for tensor in tree_leaves(target):
                if _is_movable(tensor):
                    tensor.copy_(_inside(self._moved(tensor), kind))
        if kind.returns_written:
            return result
        if kind.interpolates and self.scale and isinstance(result, torch.Tensor):
            result = self._moved_by_coordinates(result, args[0])
        if kind.saturates is not None and self.scale and _is_movable(result):
            return self._moved_by_saturation(self._moved(result), args[kind.saturates], args[0])
        if kind.is_logarithm_of_sum and self.scale and _is_movable(result):
            return self._moved_by_unit(self._moved(result))
        if kind.is_window and self.scale and _is_movable(result) and not kind.written:
            shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
            return result.add_(shift, alpha=torch.finfo(result.dtype).eps * self.scale)
        if kind.moves_first_result:
            return (self._moved(result[0]), *result[1:])
        inputs = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        return tree_map(
            lambda out: _inside(self._moved(out), kind) if _is_movable(out) and id(out) not in inputs else out, result
        )

    def _with_open_zeros(self, result: Any, kind: _OpKind) -> Any:
        """The result of an exact sum: nothing moves but the signs of zeros. What is written in place stays as it is."""
        if (
            not kind.accumulates
            or kind.written
            or not _is_movable(result)
            or result.dtype in _FLOAT8
            or result.is_complex()
        ):
            return result
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        return torch.where(result == 0, torch.copysign(torch.zeros_like(result), shift), result)

    def _with_either_zero(self, result: Any, *, is_written: bool) -> Any:
        """The result of a choice among numbers that are 0 and -0: each zero in it becomes the one or the other."""

        def flipped(out: Any) -> Any:
            if not isinstance(out, torch.Tensor) or out.dtype not in _SIGNED_ZEROS:
                return out
            shift = torch.empty_like(out).uniform_(-1.0, 1.0, generator=self._generator(out.device))
            return _put(out, torch.where(out == 0, torch.copysign(torch.zeros_like(out), shift), out), is_written)

        return tree_map(flipped, result)

    def _with_either_nan(self, result: Any, kind: _OpKind) -> Any:
        """The result of an exact operator: unless it is told, each NaN in it gets the one sign or the other."""
        if kind.keeps_sign_of_nan and not kind.converts_bfloat16:
            return result
        dtypes = {torch.bfloat16} if kind.keeps_sign_of_nan else _SIGNED_ZEROS

        def flipped(out: Any) -> Any:
            if not _is_movable(out) or out.dtype not in dtypes or not bool(out.isnan().any()):
                return out
            shift = torch.empty_like(out).uniform_(-1.0, 1.0, generator=self._generator(out.device))
            return _put(out, self._with_signs_of_nan(out, out, shift), bool(kind.written))

        return tree_map(flipped, result)

    def _with_signs_of_nan(self, moved: torch.Tensor, source: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """`moved` where `source` is a number, else NaN of the sign that this run gives it; `shift` is of both signs."""
        signs = torch.full_like(shift, 1.0 - 2.0 * self.seed) if self.seed < 2 else shift
        return torch.where(source.isnan(), torch.copysign(source, signs), moved)

    def _moved_by_coordinates(self, result: torch.Tensor, source: Any) -> torch.Tensor:
        """Moved by what an epsilon of the largest coordinate makes of the range of the values between which it lies.

        Coordinates of half types are float32. Where nothing was found (0), nothing moves.
        """
        if not _is_movable(result) or not _is_movable(source) or result.is_complex() or source.numel() == 0:
            return result
        finite = source.detach().double().nan_to_num(0.0, 0.0, 0.0)
        reach = float(finite.max().clamp_min(0.0) - finite.min().clamp_max(0.0))
        extent = max([*result.shape[2:], *source.shape[2:]], default=1)
        eps = torch.finfo(torch.float64 if result.dtype is torch.float64 else torch.float32).eps
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        moved = result.detach() + (shift.double() * (reach * extent * eps * self.scale)).to(result.dtype)
        return torch.where(result.isfinite() & moved.isfinite() & (result != 0), moved, result)

    def _moved_by_unit(self, result: torch.Tensor) -> torch.Tensor:
        """Moved, in place, by what an epsilon of 1 is; below zero where it is zero, to zero under every other seed where it is no
        more than that. Half types are computed in float32."""
        if result.is_complex():
            return result
        eps = torch.finfo(torch.float64 if result.dtype is torch.float64 else torch.float32).eps
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        unit = eps * self.scale * self._factor
        shift = torch.where(result == 0, -shift.abs(), shift) * unit
        if self.seed % 2 == 0:
            shift = torch.where((result.abs() <= unit) & (result != 0), -result, shift)
        return result.add_(torch.where(result.isfinite(), shift, 0.0))

    def _moved_by_saturation(self, result: torch.Tensor, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Moved, in place, by what an epsilon of the sigmoid function in it makes of the result; of the gradient, `first`, the
        function's derivative 1 - t * t has the factor x (1 + x * x)."""
        size = x.detach().abs().clamp_max(SATURATED_AT)
        if first is not x:
            size = first.detach().abs() * (1 + size * (1 + size * size) / 2)
        eps = torch.finfo(torch.float64 if result.dtype is torch.float64 else torch.float32).eps
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        shift = shift * size * (eps * self.scale)
        is_inside = result.isfinite() & (x.abs() <= SATURATED_AT)
        return result.add_(torch.where(is_inside, shift, 0.0))

    def _moved_as_first_input(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_written: bool
    ) -> Any:
        """The result, moved by noise of the first argument's size; in place where the operator is."""
        first = args[0].detach().clone() if isinstance(args[0], torch.Tensor) else args[0]  # before it is written to
        result = func(*args, **kwargs)
        if (
            not _is_movable(result)
            or result.dtype in _FLOAT8
            or (isinstance(first, torch.Tensor) and not _is_movable(first))
        ):
            return result
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        size = first.abs() if isinstance(first, torch.Tensor) else abs(first)
        moved = result + shift * (size * (torch.finfo(result.dtype).eps * self.scale))
        moved = self._with_signs_of_nan(torch.where(result == 0, result, moved), result, shift)
        return result.copy_(moved) if is_written else moved.as_strided(result.shape, result.stride())

    def _moved_inputs(self, values: Any, kind: _OpKind, kept: frozenset[int]) -> Any:
        """`values` (args or kwargs) with moved copies of the float tensors that the op only reads, but for those in `kept`
        memory."""
        if isinstance(values, dict):
            return {
                name: value if name in kind.written else self._moved_input(value, kept)
                for name, value in values.items()
            }
        return tuple(
            value if position in kind.written else self._moved_input(value, kept)
            for position, value in enumerate(values)
        )

    def _moved_input(self, value: Any, kept: frozenset[int] = frozenset()) -> Any:
        if isinstance(value, torch.Tensor):
            return self._moved(value) if _is_movable(value) and _memory(value) not in kept else value
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return type(value)([self._moved_input(item, kept) for item in value])
        return value

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A moved copy with the same sizes and strides."""
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if _is_dense(tensor):
            moved = self._moved_dense(tensor)
            if moved.stride() != tensor.stride():  # sizes 0 and 1 leave the stride open, and kernels choose their own
                moved = moved.as_strided(tensor.shape, tensor.stride())
            return moved
        if self.seed % 2 and 0 in tensor.stride() and tensor.numel() < _MOST_EXPANDED:
            return self._moved_dense(
                tensor.contiguous()
            )  # every second run: what is one element in memory is moved apart
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if extent <= 4 * tensor.numel():  # expanded or padded: move the memory under it, and look at it the same way
            flat = tensor.as_strided((extent,), (1,), tensor.storage_offset())
            return self._moved_dense(flat).as_strided(tensor.shape, tensor.stride(), 0)
        if 0 in tensor.stride():
            return tensor
        result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return result.copy_(self._moved_dense(tensor.contiguous()))

    def _moved_dense(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.scale:
            return tensor.clone()
        if tensor.dtype.is_complex:
            return torch.view_as_complex(self._moved_dense(torch.view_as_real(tensor)))
        info = torch.finfo(tensor.dtype)
        wide = tensor.float() if tensor.dtype in _FLOAT8 else tensor
        shift = torch.empty_like(wide).uniform_(-1.0, 1.0, generator=self._generator(tensor.device))
        moved = torch.addcmul(
            wide, wide, shift.mul_(info.eps * self.scale * self._factor)
        )  # x + x*shift rounds without bias
        # Infinities and NaN stay. Nothing finite becomes one, nor lets the operator overflow: masks are made as
        # (1 - mask) * finfo.min, and 1 + eps times the smallest number would be -inf. The bound is positive for every eps: loud
        # noise of a long sum in bfloat16 is as large as the value.
        # Nothing but conversions reads float8, and 8 eps are all of its range.
        room = 0.0 if tensor.dtype in _FLOAT8 else 8.0 * info.eps * max(1.0, self.scale * self._factor)
        limit = info.max / (1.0 + room)
        if self._parts_largest:  # it and its negative are added up to a rounding of one of them, not to 0
            moved = torch.where(moved.abs() > limit, torch.copysign(limit * (1.0 - shift.abs()), wide), moved)
        moved = torch.where(wide.abs() <= info.max, moved.clamp(-limit, limit), wide)
        moved = torch.copysign(moved, wide)  # -0.0 + 0.0 is 0.0
        if self._flips_zeros:
            moved = torch.where(wide == 0, torch.copysign(torch.zeros_like(wide), shift), moved)
        return self._with_signs_of_nan(moved, wide, shift).to(tensor.dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            # another stream than the program's own numbers of the same seed, or the noise would follow the data
            seed = (self.seed + 1) * 0x9E3779B97F4A7C15 % 2**63
            self._generators[device] = torch.Generator(device=device).manual_seed(seed)
        return self._generators[device]


def _inside(moved: torch.Tensor, kind: _OpKind) -> torch.Tensor:
    """Back to where results of the operator end; complex ones have no ends."""
    if kind.bounds is None or moved.is_complex():
        return moved
    return _put(moved, moved.clamp(*kind.bounds), is_written=False)


def _put(out: torch.Tensor, value: torch.Tensor, is_written: bool) -> torch.Tensor:
    """The value: in the memory of the result that a call writes, else with its strides. A result with gaps stays."""
    if is_written:
        return out.copy_(value)
    if value.stride() == out.stride():
        return value
    return value.as_strided(out.shape, out.stride()) if _is_dense(out) else out


_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_NORM_ORDER_AT = {"aten::linalg_vector_norm": 1, "aten::norm": 1, "aten::_cdist_forward": 2, "aten::_cdist_backward": 3}
_KINDS: dict[Any, _OpKind] = {}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _memory_of_written_lists(args: tuple[Any, ...], kwargs: dict[str, Any], kind: _OpKind) -> frozenset[int]:
    """What an operator on lists writes, one tensor after the other: those that come later may read it."""
    values = [*enumerate(args), *kwargs.items()]
    lists = [value for where, value in values if where in kind.written and isinstance(value, (list, tuple))]
    return frozenset(_memory(leaf) for leaf in tree_leaves(lists) if _is_movable(leaf))


def _kind_of(func: Any) -> _OpKind:
    kind = _KINDS.get(func)
    if kind is None:
        kind = _KINDS[func] = _classify(func)
    return kind


def _classify(func: Any) -> _OpKind:
    schema = getattr(func, "_schema", None)
    if schema is None:  # higher-order operators run their bodies through this mode
        return _OpKind(is_exact=True, keeps_sign_of_nan=True)
    namespace, _, full_name = schema.name.partition("::")
    name = full_name.rstrip("_") if not full_name.endswith("__") else full_name
    is_view = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    # attention and recurrent kernels take a dropout probability, mostly zero; their masks do not depend on the values
    is_random = torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name and "rnn" not in name
    if is_view or is_random:
        return _OpKind(is_exact=True, keeps_sign_of_nan=True)
    written: list[int | str] = []
    position = 0
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name)
            if not argument.kwarg_only:
                written.append(position)
        position += 0 if argument.kwarg_only else 1
    keeps_sign_of_nan = namespace == "aten" and name in KEEPS_SIGN_OF_NAN
    if namespace == "aten" and name in EXACT_OPS:
        return _OpKind(
            is_exact=True,
            chooses_among=CHOOSES_AMONG.get(name, ""),
            keeps_sign_of_nan=keeps_sign_of_nan,
            converts_bfloat16=name in CONVERTS_BFLOAT16,
            is_magnitude=name in MAGNITUDES and not written,
            written=tuple(written),
        )
    return _OpKind(
        is_exact=False,
        chooses_among=CHOOSES_AMONG.get(name, "") if namespace == "aten" else "",
        keeps_sign_of_nan=keeps_sign_of_nan,
        # operators of other libraries may write to what their schema calls read-only
        moves_inputs=namespace == "aten" and name not in BOUNDED_DOMAIN_OPS and name not in INPUTS_STAY,
        moves_first_input=namespace == "aten" and name in FIRST_INPUT_MOVES,
        moves_first_result=namespace == "aten" and name in FIRST_RESULT_MOVES,
        is_ring=name in RING_OPS,
        interpolates=namespace == "aten" and name in INTERPOLATES,
        is_window=namespace == "aten" and name in WINDOWS,
        accumulates=torch.Tag.pointwise not in func.tags,
        converts_first=namespace == "aten" and name in CONVERTS_FIRST,
        is_logarithm_of_sum=namespace == "aten" and name in LOGARITHMS_OF_SUMS and not written,
        is_linear_sum=namespace == "aten" and name in LINEAR_SUMS and not written,
        bounds=BOUNDED_RESULTS.get(name) if namespace == "aten" else None,
        saturates=SATURATES.get(name) if namespace == "aten" and not written else None,
        is_magnitude=namespace == "aten" and name in MAGNITUDES and not written,
        is_of_rows=namespace == "aten" and name in OF_ROWS and not written,
        is_backward_of_norm=namespace == "aten" and name in BACKWARD_OF_NORMS and not written,
        rounds_as_first_input=namespace == "aten" and name in ROUNDED_AS_FIRST_INPUT,
        written=tuple(written),
        returns_written=bool(schema.returns) and all(result.alias_info is not None for result in schema.returns),
    )


def _converted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of an operator that begins with a conversion to another float dtype, after that."""
    dtype = kwargs.get("dtype")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or args[0].layout is not torch.strided:
        return args
    return args if args[0].dtype == dtype else (args[0].detach().to(dtype), *args[1:])


def _has_both_zeros(values: Any, among: str) -> bool:
    """Whether the float tensors, and the bounds or zero that they are compared with, hold 0 and -0."""
    has_positive, has_negative = among == "elements and zero", False
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            if leaf.dtype not in _SIGNED_ZEROS or leaf.layout is not torch.strided:
                continue
            zeros = leaf == 0
            signs = leaf.signbit()
            has_positive = has_positive or bool((zeros & ~signs).any())
            has_negative = has_negative or bool((zeros & signs).any())
        elif among == "elements and bounds" and isinstance(leaf, (int, float)) and leaf == 0:
            has_negative = has_negative or math.copysign(1.0, leaf) < 0
            has_positive = has_positive or math.copysign(1.0, leaf) > 0
    return has_positive and has_negative


def _is_exact_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Operators that are exact for some arguments only."""
    name = func._schema.name
    if name in ("aten::div", "aten::div_", "aten::divide", "aten::divide_"):
        return kwargs.get("rounding_mode") is not None
    if name in ("aten::_to_copy", "aten::to"):
        source, target = args[0].dtype, kwargs.get("dtype") or args[0].dtype
        return not source.is_floating_point or not target.is_floating_point or _holds(target, source)
    if name in _NORM_ORDER_AT:  # a maximum; the backward pass looks for the elements that are equal to it
        order = args[_NORM_ORDER_AT[name]] if len(args) > _NORM_ORDER_AT[name] else 2
        return order in (0, float("inf"), -float("inf"))
    if name == "aten::pow" and len(args) > 1 and isinstance(args[1], (int, float)):
        return args[1] in (0, 1)
    if name in ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"):
        return not (args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    if name in ("aten::scatter_reduce", "aten::scatter_reduce_", "aten::index_reduce", "aten::index_reduce_"):
        return (args[4] if len(args) > 4 else kwargs.get("reduce")) in ("amax", "amin")
    return False


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of `narrow` is one of `wide`."""
    if wide == narrow:
        return True
    a, b = torch.finfo(wide), torch.finfo(narrow)
    return a.eps <= b.eps and a.max >= b.max and a.tiny <= b.tiny


def _is_small_integer_arithmetic(values: Any) -> bool:
    """Whether all numbers are integers so small that sums of products of them are exact in any order."""
    bound, count, eps = 1.0, 1, 0.0
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            if not _is_movable(leaf):
                if leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.layout is not torch.strided:
                    return False
                leaf = leaf.to(torch.float64)
            elif leaf.dtype.is_complex or leaf.dtype in _FLOAT8:
                return False
            else:
                eps = max(eps, torch.finfo(leaf.dtype).eps)
            if leaf.numel():
                if not bool((leaf == leaf.trunc()).all()):
                    return False
                bound *= max(1.0, float(leaf.abs().max()))
                count = max(count, leaf.numel())
        elif (isinstance(leaf, float) and not leaf.is_integer()) or isinstance(leaf, complex):
            return False
    return bound * count * eps <= 1.0


def _is_movable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in _MOVABLE
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_nested
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)
