"""Rounding noise: Monte Carlo arithmetic on aten operators, to see which results eager itself does not determine.

Another order of summation, another fusion, another library call move each intermediate result by about one unit in the
last place. Running eager a few times with every inexact operator moved by that much shows which elements of the result
follow: comparisons that flip, indices that swap, quotients that blow up. Those are not findings.

Counterpart: Monte Carlo arithmetic (D. S. Parker, 1997), as in Verificarlo (Denis, de Oliveira Castro, Petit, 2016).
Differs: the grain is the aten operator, not the floating-point instruction; operators that are exact functions of their
inputs are left alone, so a comparison of exact inputs never flips. Which operators round, and by how much, is asked of their
kernels (`oracle.reruns.kernel_facts`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from oracle.reruns.composite import call_parts, is_composite
from oracle.reruns.kernel_facts import KernelFacts, facts_of, is_plain_float, own_errors
from oracle.reruns.magnitudes import MAGNITUDES, with_open_magnitudes
from oracle.reruns.partial_sums import (
    BACKWARD_OF_NORMS,
    LINEAR_SUMS,
    OF_ROWS,
    with_open_overflows,
    with_open_parameter_gradients,
    with_open_rows,
    with_open_statistics,
)

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

# Documented as a - a.div(b, rounding_mode="floor") * b: exact in eager, but a result that follows the formula is off by one
# rounding of `a`, however small the result. Only the result is moved, by that much; moved inputs would jump by a whole `b`.
_ROUNDED_AS_FIRST_INPUT = frozenset(["remainder"])
# Distances by the largest difference: their backward looks for the difference that is equal to it.
_DISTANCE = "_cdist_forward"
_MADE_UNWRITTEN = ("empty", "new_empty")  # names of operators whose results nobody has written begin so
_FREE_TERMS = 16  # so few terms are within one epsilon in any order
_ERRORS = 4.0  # how many times the error that one run of a kernel shows is moved, where it is more than an epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpKind:
    """What the schema of an aten overload says, and what is proven of it by name."""

    is_left_alone: bool = False  # views, constants, random numbers, memory that nobody has written
    is_window: bool = False
    may_be_asked: bool = False  # kernels of other libraries may do more than compute
    converts_first: bool = False  # its first operand is converted to the dtype asked for: this is what is added up
    accumulates: bool = False  # adds up: the sign of a zero is that of an order, a starting value, a mask
    rounds_as_first_input: bool = False
    is_linear_sum: bool = False
    is_magnitude: bool = False
    is_of_rows: bool = False
    is_backward_of_norm: bool = False
    written: tuple[int | str, ...] = ()  # positions or names of the arguments the op writes to
    returns_written: bool = False


class RoundingNoise(TorchDispatchMode):
    """Within it, every inexact aten operator is moved by relative noise, uniform within one epsilon of the dtype.

    Copies of the float inputs and the float outputs of such an operator are each multiplied by
    1 + `scale` * eps * uniform(-1, 1), element by element, and rounded; of long sums by more: one running sum errs by about the
    square root of the number of its terms (N. J. Higham, The accuracy of floating point summation, 1993). A result whose kernel
    errs by more than an epsilon moves by that. What rounds, and what a result depends on, is asked of the kernel.
    Zeros, infinities and NaNs stay, but for the signs of zeros that were added up, or chosen among zeros of both signs, and
    those of NaN that were computed: positive under seed 0, negative under 1, either after that. Nothing finite becomes
    infinite, other than sums that overflow in another order (`oracle.reruns.partial_sums`).
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
        if kind.is_left_alone:
            return func(*args, **kwargs)
        if kind.is_window:
            return self._window(func, args, kwargs)
        if kind.converts_first and self.scale:
            args = _converted(args, kwargs)
        facts = facts_of(func, args, kwargs) if kind.may_be_asked else _UNASKED
        is_exact = facts.is_exact or _is_exact_distance(func, args) or _reads_packed(args)
        if is_exact and not kind.rounds_as_first_input:
            return self._exact(func, args, kwargs, kind, facts)
        if (facts.is_ring or kind.rounds_as_first_input) and _is_small_integer_arithmetic((args, kwargs)):
            result = func(*args, **kwargs)
            if kind.written or _are_small_integers(result, (args, kwargs)):
                return self._with_open_zeros(result, kind) if self.scale else result
        self.moved_ops += 1
        if kind.rounds_as_first_input and self.scale:
            return self._moved_as_first_input(func, args, kwargs, is_written=bool(kind.written))
        self._factor = max(1.0, math.sqrt(facts.terms / _FREE_TERMS))
        self._flips_zeros = False
        self._parts_largest = kind.is_linear_sum or bool(facts.writes_unsaid)
        moved_args, moved_kwargs = self._with_moved_inputs(args, kwargs, kind, facts)
        result = _inside_domain(func, (args, kwargs), (moved_args, moved_kwargs), kind, facts)
        errors = self._errors_of(func, moved_args, moved_kwargs, result) if self.scale and not kind.written else []
        if self.scale:
            result = _with_open_elements(func, args, kwargs, moved_args, kind, facts, result)
        self._flips_zeros, self._parts_largest = kind.accumulates, False
        for where in kind.written:
            target = args[where] if isinstance(where, int) and where < len(args) else kwargs.get(where)  # pyright: ignore
            for tensor in tree_leaves(target):
                if _is_movable(tensor):
                    tensor.copy_(_inside(self._moved(tensor), tensor, facts))
        if kind.returns_written:
            return result
        return self._with_moved_results(result, (args, kwargs), facts, errors)

    def _window(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A window function is a difference of cosines: it moves by a rounding of 1, also where it is 0."""
        result = func(*args, **kwargs)
        self.moved_ops += 1
        if not self.scale or not _is_movable(result):
            return result
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        return result.add_(shift, alpha=torch.finfo(result.dtype).eps * self.scale)

    def _exact(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kind: _OpKind, facts: KernelFacts
    ) -> Any:
        """The result of an operator that rounds nothing. The sign of a zero may be a choice, and that of NaN is open."""
        is_open = self.scale and facts.chooses and _has_both_zeros(func, args, kwargs, facts)
        result = func(*args, **kwargs)
        if not self.scale:
            return result
        if is_open:
            result = self._with_either_zero(result, is_written=bool(kind.written))
        if kind.is_magnitude:
            result = with_open_magnitudes(func, args, result)
        return self._with_either_nan(result, kind, facts)

    def _with_moved_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: _OpKind, facts: KernelFacts
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with moved copies of what is only read. All stay if what is written would be NaN where a moved operand
        leaves the operator's domain."""
        if not kind.may_be_asked or facts.has_edge or (kind.written and facts.has_domain):
            return args, kwargs
        leaves = tree_leaves((args, kwargs))
        kept = _memory_of_written_lists(args, kwargs, kind) | {_memory(leaves[at]) for at in facts.writes_unsaid}
        return self._moved_inputs(args, kind, kept), self._moved_inputs(kwargs, kind, kept)

    def _with_moved_results(
        self, result: Any, operands: Any, facts: KernelFacts, errors: list[torch.Tensor | None]
    ) -> Any:
        """Each float result moved, but for those that are exact, and the operands among them."""
        read = {id(leaf) for leaf in tree_leaves(operands) if isinstance(leaf, torch.Tensor)}
        leaves, spec = tree_flatten(result)
        floats = [at for at, leaf in enumerate(leaves) if is_plain_float(leaf)]
        exact = facts.exact if len(facts.exact) == len(floats) else (False,) * len(floats)
        for number, at in enumerate(floats):
            out = leaves[at]
            if exact[number] or not _is_movable(out) or id(out) in read:
                continue
            error = errors[number] if number < len(errors) else None
            moved = self._moved(out)
            leaves[at] = _inside(moved if error is None else self._moved_by_errors(moved, out, error), out, facts)
        return tree_unflatten(leaves, spec)

    def _errors_of(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[torch.Tensor | None]:
        """Of each float result the error of the kernel against float64, in the result's dtype; None where it is no more than an
        epsilon anywhere. What a kernel computes on the way may be larger than what it gives: log(1 + x) has the error of 1.
        """
        found = own_errors(func, args, kwargs, result)
        return [None if error is None else error * self.scale for error in found]

    def _moved_by_errors(self, moved: torch.Tensor, out: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Moved by a few times the error as well. What is no larger than its error is 0 under every other seed."""
        shift = torch.empty_like(out).uniform_(-1.0, 1.0, generator=self._generator(out.device))
        unit = _ERRORS * error
        shift = shift * unit
        if self.seed % 2 == 0:
            shift = torch.where(out.abs() <= unit, -moved, shift)
        return _put(out, torch.where(out.isfinite() & (unit > 0), moved + shift, moved), is_written=False)

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

    def _with_either_nan(self, result: Any, kind: _OpKind, facts: KernelFacts) -> Any:
        """The result of an exact operator. Noise draws the sign of each NaN in it, unless the operator defines that sign.

        Copies, negations and the like define it (IEEE 754, 5.5.1). For anything else it is open (6.3), and eager's
        vector loops and the scalar ones at their ends differ in it. Of bfloat16 all that computes goes by way of float32.
        """
        if facts.moves and not facts.negates:
            return result
        dtypes = {torch.bfloat16} if facts.moves else _SIGNED_ZEROS

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


def _with_open_elements(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    moved_args: tuple[Any, ...],
    kind: _OpKind,
    facts: KernelFacts,
    result: Any,
) -> Any:
    """The result, with an infinity or NaN where another order of the same sums gives one."""
    if kind.is_linear_sum:
        result = with_open_overflows(func, args, kwargs, result)
    if facts.writes_unsaid:
        result = with_open_statistics(func, moved_args, result)
    if kind.is_magnitude:
        result = with_open_magnitudes(func, args, result)
    if kind.is_of_rows:
        result = with_open_rows(func, args, result)
    if kind.is_backward_of_norm:
        result = with_open_parameter_gradients(func, args, result)
    return result


def _inside(moved: torch.Tensor, out: torch.Tensor, facts: KernelFacts) -> torch.Tensor:
    """A moved result back to where results of the operator end, if it was there; complex ones have no ends."""
    low, high = facts.bounds
    if (low, high) == (-math.inf, math.inf) or moved.is_complex() or moved.dtype in _FLOAT8:
        return moved
    inside = torch.where((moved < low) & (out >= low), low, torch.where((moved > high) & (out <= high), high, moved))
    return _put(moved, inside, is_written=False)


def _inside_domain(func: Any, operands: Any, moved_operands: Any, kind: _OpKind, facts: KernelFacts) -> Any:
    """The result for moved operands; where these leave the operator's domain, that for the operands themselves.

    Moved operands have left it where a result becomes NaN, or a number in place of NaN or an infinity, and has not overflowed: it
    was, or would be, far from the largest number.
    """
    args, kwargs = moved_operands
    if kind.written or not facts.has_domain or not kind.may_be_asked:
        return func(*args, **kwargs)
    plain = func(*operands[0], **operands[1])
    try:
        moved = func(*args, **kwargs)
    except RuntimeError:
        return plain

    def chosen(mine: Any, its: Any) -> Any:
        if not _is_movable(mine) or mine.shape != its.shape or mine.dtype in _FLOAT8:
            return mine
        has_overflowed = torch.where(its.isfinite(), its, mine).abs() > torch.finfo(mine.dtype).max / 64
        has_left = (mine.isfinite() != its.isfinite()) & ~(has_overflowed & ~mine.isnan() & ~its.isnan())
        has_left |= mine.isnan() != its.isnan()
        return _put(mine, torch.where(has_left, its, mine), is_written=False) if bool(has_left.any()) else mine

    return tree_map(chosen, moved, plain)


def _put(out: torch.Tensor, value: torch.Tensor, is_written: bool) -> torch.Tensor:
    """The value: in the memory of the result that a call writes, else with its strides. A result with gaps stays."""
    if is_written:
        return out.copy_(value)
    if value.stride() == out.stride():
        return value
    return value.as_strided(out.shape, out.stride()) if _is_dense(out) else out


_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_UNASKED = KernelFacts(exact=(False,))
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
        return _OpKind(is_left_alone=True)
    namespace, _, full_name = schema.name.partition("::")
    name = full_name.rstrip("_") if not full_name.endswith("__") else full_name
    is_view = torch.Tag.inplace_view in func.tags or any(
        result.alias_info is not None and not result.alias_info.is_write for result in schema.returns
    )
    # attention and recurrent kernels take a dropout probability, mostly zero; their masks do not depend on the values
    is_random = torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name and "rnn" not in name
    takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    if namespace == "aten" and name.endswith("_window") and not takes_tensors:
        return _OpKind(is_window=True)
    if is_view or is_random or name.startswith(_MADE_UNWRITTEN) or not takes_tensors:
        return _OpKind(is_left_alone=True)
    written: list[int | str] = []
    position = 0
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name)
            if not argument.kwarg_only:
                written.append(position)
        position += 0 if argument.kwarg_only else 1
    is_aten = namespace == "aten"
    return _OpKind(
        may_be_asked=is_aten,
        converts_first=is_aten
        and name != "_to_copy"
        and any(argument.name == "dtype" for argument in schema.arguments),
        accumulates=torch.Tag.pointwise not in func.tags,
        rounds_as_first_input=is_aten and name in _ROUNDED_AS_FIRST_INPUT,
        is_linear_sum=is_aten and name in LINEAR_SUMS and not written,
        is_magnitude=is_aten and name in MAGNITUDES and not written,
        is_of_rows=is_aten and name in OF_ROWS and not written,
        is_backward_of_norm=is_aten and name in BACKWARD_OF_NORMS and not written,
        written=tuple(written),
        returns_written=bool(schema.returns) and all(result.alias_info is not None for result in schema.returns),
    )


def _is_exact_distance(func: Any, args: tuple[Any, ...]) -> bool:
    """Of the order infinity: the largest difference."""
    return func._schema.name == f"aten::{_DISTANCE}" and args[2] == math.inf


def _reads_packed(args: tuple[Any, ...]) -> bool:
    """Whether an operand is quantised: what is computed from it is told by its integers."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_quantized for leaf in args)


def _converted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of an operator that begins with a conversion to another float dtype, after that."""
    dtype = kwargs.get("dtype")
    if (
        not isinstance(dtype, torch.dtype)
        or not dtype.is_floating_point
        or not args
        or not isinstance(args[0], torch.Tensor)
    ):
        return args
    if args[0].layout is not torch.strided or args[0].dtype == dtype:
        return args
    return (args[0].detach().to(dtype), *args[1:])


def _has_both_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], facts: KernelFacts) -> bool:
    """Whether what is chosen from holds 0 and -0: tensors, bounds that are numbers, and a zero of the operator's own."""
    has_positive, has_negative = facts.chooses_zero, False
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.dtype in _SIGNED_ZEROS and leaf.layout is torch.strided:
            zeros = leaf == 0
            signs = leaf.signbit()
            has_positive = has_positive or bool((zeros & ~signs).any())
            has_negative = has_negative or bool((zeros & signs).any())
    declared = zip(func._schema.arguments, args, strict=False)
    named = ((argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs)
    for argument, value in (*declared, *named):
        if "number" in str(argument.type) and isinstance(value, (int, float)) and value == 0:
            has_negative = has_negative or math.copysign(1.0, value) < 0
            has_positive = has_positive or math.copysign(1.0, value) > 0
    return has_positive and has_negative


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


def _are_small_integers(result: Any, operands: Any) -> bool:
    """Whether every number of a result is an integer that its dtype tells from its neighbours. Factors that are no tensors do not
    count."""
    factor = max([1.0, *(abs(leaf) for leaf in tree_leaves(operands) if isinstance(leaf, (int, float)))])
    return all(
        bool((leaf == leaf.trunc()).all()) and bool((leaf.abs() <= factor / torch.finfo(leaf.dtype).eps).all())
        for leaf in tree_leaves(result)
        if _is_movable(leaf) and not leaf.is_complex() and leaf.dtype not in _FLOAT8
    )


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
