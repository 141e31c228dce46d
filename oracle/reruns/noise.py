"""Rounding noise: perturb the operators of eager (Monte Carlo arithmetic) to see which results rounding decides.

A different order of summation, fusion or library moves each intermediate result by about one unit in the last place. A few runs
of eager with every inexact operator perturbed by that much show which elements of the result depend on rounding: comparisons
that flip, indices that swap, quotients near 0/0. A subject that differs there is not wrong.

Counterpart: Monte Carlo arithmetic (D. S. Parker, 1997), as in Verificarlo (Denis, de Oliveira Castro, Petit, 2016).
Differs: perturbs aten operators, not floating-point instructions. Exact operators are not perturbed, so that a comparison of
exact inputs never flips. Running an operator's kernel shows whether it rounds, and by how much (`oracle.reruns.kernel_facts`).
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from oracle.dtypes import ARITHMETIC_COMPLEX, ARITHMETIC_FLOATS, SIGNED_FLOAT8
from oracle.reruns.composite import call_parts, is_composite
from oracle.reruns.kernel_facts import KernelFacts, facts_of, in_chunks, is_plain_float, own_errors
from oracle.reruns.overflows import (
    LINEAR_SUMS,
    MAGNITUDES,
    OF_ROWS,
    largest_magnitude,
    with_open_magnitudes,
    with_open_overflows,
    with_open_parameter_gradients,
    with_open_rows,
    with_open_statistics,
)

_MOST_EXPANDED = 1 << 20  # expanded tensors with fewer elements may be perturbed element by element
_MOVABLE = ARITHMETIC_FLOATS | ARITHMETIC_COMPLEX | SIGNED_FLOAT8

# Documented as a - a.div(b, rounding_mode="floor") * b: eager is exact, but a result by the formula is off by one rounding of
# `a`, however small it is. Only the result is perturbed, by that much, since perturbed inputs would change it by a whole `b`.
_ROUNDED_AS_FIRST_INPUT = frozenset(["remainder"])
_BACKWARD_OF_NORM = re.compile("native_[a-z]+_norm_backward")  # of batches, layers and groups
# With p=inf it is exact, and must stay so: its backward looks for the difference that is equal to the distance.
_DISTANCE = "_cdist_forward"
_MADE_UNINITIALIZED = ("empty", "new_empty")  # prefixes of operators that return uninitialized memory
_CORNER = 4  # elements along each dimension that are looked at before all are
_FREE_TERMS = 16  # a sum of so few terms is within one epsilon in any order
_LARGE = 1 << 20  # elements of a tensor whose noise is taken from a table
_ERRORS = 4.0  # an error of the kernel that is larger than an epsilon is multiplied by this to perturb the result


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpKind:
    """How noise treats an overload, by its schema, its tags and a few names."""

    is_left_alone: bool = False  # views, constants, random numbers, uninitialized memory
    is_window: bool = False
    is_aten: bool = False  # kernels of other libraries are not run on stand-ins: they may have side effects
    converts_first: bool = False  # it may convert its first operand to its `dtype` argument before computing
    accumulates: bool = False  # it adds up, and the sign of a zero sum depends on the order and the starting value
    rounds_as_first_input: bool = False
    is_linear_sum: bool = False
    is_magnitude: bool = False
    is_of_rows: bool = False
    is_backward_of_norm: bool = False
    written: tuple[int | str, ...] = ()  # positions or names of the arguments the op writes to
    returns_written: bool = False


class RoundingNoise(TorchDispatchMode):
    """Under this mode, every inexact aten operator is perturbed by relative noise, uniform within one epsilon of the dtype.

    Copies of such an operator's float inputs, and its float outputs, are multiplied by 1 + `scale` * eps * uniform(-1, 1),
    element by element, and rounded. Long sums get more noise, by the square root of the number of terms, as a running sum has
    such errors (N. J. Higham, The accuracy of floating point summation, 1993), and so does a result whose kernel errs by more
    than an epsilon.

    Zeros, infinities and NaN stay, but for the signs of zeros that were added up or chosen among zeros of both signs, and the
    signs of computed NaN: positive under seed 0, negative under seed 1, random under later seeds. Finite numbers stay finite, but
    for sums that overflow in another order (`oracle.reruns.overflows`). The backward pass is perturbed too if it runs in the
    mode.

    With `scale` 0 nothing is perturbed, but operators read and return copies as they do under noise.

    Equal seeds perturb equal programs equally. The noise has its own generators and leaves the global ones untouched. Sparse,
    quantised and float4 tensors are not perturbed.
    """

    def __init__(self, seed: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.seed = seed
        self.scale = scale
        self.moved_ops = 0  # number of calls perturbed; 0 means that the program is exact
        self._factor = 1.0  # factor of the noise for the current operator
        self._flips_zeros = False  # whether the signs of zeros in its results are random
        self._parts_largest = False  # whether its largest arguments are moved apart from each other
        self._generators: dict[torch.device, torch.Generator] = {}
        self._tables: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _PLAIN_TYPES for kind in types):
            return NotImplemented  # the subclass then calls operators on plain tensors, which this mode perturbs
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
        facts = facts_of(func, args, kwargs) if kind.is_aten else _NOT_TRIED
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
        self._parts_largest = kind.is_linear_sum or bool(facts.undeclared_writes)
        moved_args, moved_kwargs = self._with_moved_inputs(args, kwargs, kind, facts)
        result, is_own = _inside_domain(func, (args, kwargs), (moved_args, moved_kwargs), kind, facts)
        errors: list[torch.Tensor | None] = []
        if self.scale and not kind.written:
            is_own &= kind.is_aten and not facts.undeclared_writes  # another library's kernel may have written to them
            errors = self._errors_of(func, moved_args, moved_kwargs, result, is_own=is_own)
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
        """A window function, perturbed by one ulp of 1.0 also where it is 0, since it is a difference of cosines."""
        result = func(*args, **kwargs)
        self.moved_ops += 1
        if not self.scale or not _is_movable(result):
            return result
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        return result.add_(shift, alpha=torch.finfo(result.dtype).eps * self.scale)

    def _exact(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kind: _OpKind, facts: KernelFacts
    ) -> Any:
        """The result of an exact operator, in which only signs of zeros and of NaN may be random."""
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
        """The arguments, with perturbed copies of those that are only read.

        None is perturbed if that may push an operand out of the operator's domain and the result cannot be corrected afterwards.
        """
        if not kind.is_aten or facts.has_edge or (kind.written and facts.has_domain):
            return args, kwargs
        leaves = tree_leaves((args, kwargs))
        kept = _memory_of_written_lists(args, kwargs, kind) | {_memory(leaves[at]) for at in facts.undeclared_writes}
        return self._moved_inputs(args, kind, kept), self._moved_inputs(kwargs, kind, kept)

    def _with_moved_results(
        self, result: Any, operands: Any, facts: KernelFacts, errors: list[torch.Tensor | None]
    ) -> Any:
        """The results, with the float ones perturbed, but for exact results and operands that are returned."""
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
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, is_own: bool
    ) -> list[torch.Tensor | None]:
        """For each float result, the kernel's errors against float64; None if no error is larger than an epsilon.

        Errors are larger where intermediate values are larger than the result: `log(1 + x)` has the rounding error of 1.
        `is_own`: the result is what the kernel gives for these arguments.
        """
        found = own_errors(func, args, kwargs, result, is_own=is_own)
        return found if self.scale == 1.0 else [None if error is None else error * self.scale for error in found]

    def _moved_by_errors(self, moved: torch.Tensor, out: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """The perturbed result, moved by a few times the kernel's error as well.

        Under even seeds, elements that are no larger than that become 0.
        """
        shifted = torch.empty_like(out)
        is_large = out.numel() >= _LARGE
        for here, before, found, its_error in in_chunks(shifted, moved, out, error):
            unit = _ERRORS * its_error
            if is_large and here.dim() == 1:
                drawn, sign = self._from_table(here)
                torch.addcmul(before, unit, drawn, value=sign, out=here)
            else:
                here.uniform_(-1.0, 1.0, generator=self._generator(out.device)).mul_(unit).add_(before)
            if self.seed % 2 == 0:
                here.masked_fill_(found.abs() <= unit, 0.0)
            is_closed = found.isfinite().logical_and_(unit > 0).logical_not_()
            torch.where(is_closed, before, here, out=here)
        return _put(out, shifted, is_written=False)

    def _with_open_zeros(self, result: Any, kind: _OpKind) -> Any:
        """The result of an exact sum, with random signs of zeros. A result written in place is not changed."""
        if (
            not kind.accumulates
            or kind.written
            or not _is_movable(result)
            or result.dtype in SIGNED_FLOAT8
            or result.is_complex()
        ):
            return result
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        return torch.where(result == 0, torch.copysign(torch.zeros_like(result), shift), result)

    def _with_either_zero(self, result: Any, *, is_written: bool) -> Any:
        """The result of a choice among both 0 and -0, with random signs of zeros."""

        def flipped(out: Any) -> Any:
            if not isinstance(out, torch.Tensor) or out.dtype not in ARITHMETIC_FLOATS:
                return out
            shift = torch.empty_like(out).uniform_(-1.0, 1.0, generator=self._generator(out.device))
            return _put(out, torch.where(out == 0, torch.copysign(torch.zeros_like(out), shift), out), is_written)

        return tree_map(flipped, result)

    def _with_either_nan(self, result: Any, kind: _OpKind, facts: KernelFacts) -> Any:
        """The result of an exact operator, with random signs of NaN unless the operator defines them.

        Copies, negations and the like define the sign of NaN (IEEE 754, 5.5.1). Other operators do not (6.3), and eager's vector
        loops and the scalar loops at their ends differ in it. In bfloat16 even `abs` and `neg` compute in float32.
        """
        if facts.moves and not facts.negates:
            return result
        dtypes = {torch.bfloat16} if facts.moves else ARITHMETIC_FLOATS

        def flipped(out: Any) -> Any:
            if not _is_movable(out) or out.dtype not in dtypes or not bool(out.isnan().any()):
                return out
            shift = torch.empty_like(out).uniform_(-1.0, 1.0, generator=self._generator(out.device))
            return _put(out, self._with_signs_of_nan(out, out, shift), bool(kind.written))

        return tree_map(flipped, result)

    def _with_signs_of_nan(self, moved: torch.Tensor, source: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """`moved` where `source` is a number, else NaN with this run's sign; under later seeds the sign of `shift`."""
        signs = torch.full_like(shift, 1.0 - 2.0 * self.seed) if self.seed < 2 else shift
        return torch.where(source.isnan(), torch.copysign(source, signs), moved)

    def _moved_as_first_input(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_written: bool
    ) -> Any:
        """The result, perturbed by a rounding of the first argument; in place if the operator is."""
        first = args[0].detach().clone() if isinstance(args[0], torch.Tensor) else args[0]  # before it is written to
        result = func(*args, **kwargs)
        if (
            not _is_movable(result)
            or result.dtype in SIGNED_FLOAT8
            or (isinstance(first, torch.Tensor) and not _is_movable(first))
        ):
            return result
        shift = torch.empty_like(result).uniform_(-1.0, 1.0, generator=self._generator(result.device))
        size = first.abs() if isinstance(first, torch.Tensor) else abs(first)
        moved = result + shift * (size * (torch.finfo(result.dtype).eps * self.scale))
        moved = self._with_signs_of_nan(torch.where(result == 0, result, moved), result, shift)
        return result.copy_(moved) if is_written else moved.as_strided(result.shape, result.stride())

    def _moved_inputs(self, values: Any, kind: _OpKind, kept: frozenset[int]) -> Any:
        """`values` (args or kwargs) with perturbed copies of float tensors that the operator only reads.

        Tensors whose memory is in `kept` are not copied.
        """
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
        """A perturbed copy with the same sizes and strides."""
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if _is_dense(tensor):
            moved = self._moved_dense(tensor)
            if moved.stride() != tensor.stride():  # kernels choose the strides of dimensions of sizes 0 and 1
                moved = moved.as_strided(tensor.shape, tensor.stride())
            return moved
        if self.seed % 2 and 0 in tensor.stride() and tensor.numel() < _MOST_EXPANDED:
            # Under odd seeds, expanded elements are perturbed independently.
            return self._moved_dense(tensor.contiguous())
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        # Expanded or padded: perturb the memory it covers, and view that with its strides.
        if extent <= 4 * tensor.numel():
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
        wide = tensor.float() if tensor.dtype in SIGNED_FLOAT8 else tensor
        unit = info.eps * self.scale * self._factor
        # Infinities and NaN stay. Finite numbers stay finite and do not make the operator overflow: masks are made as
        # (1 - mask) * finfo.min, and a number just below that would be -inf. `limit` is positive for every eps: loud noise of a
        # long sum in bfloat16 is as large as the value. float8 needs no room, since only conversions read it.
        room = 0.0 if tensor.dtype in SIGNED_FLOAT8 else 8.0 * info.eps * max(1.0, self.scale * self._factor)
        limit = info.max / (1.0 + room)
        shift = torch.empty_like(wide)
        is_ordinary = unit < 0.5 and largest_magnitude(wide) < limit / (1.0 + 2.0 * unit)  # there is no NaN either
        if is_ordinary and not (self._flips_zeros and bool((wide == 0).any())):
            is_large = wide.numel() >= _LARGE
            for given, moved in in_chunks(wide, shift):
                if is_large and given.dim() == 1:
                    drawn, sign = self._from_table(given)
                    torch.addcmul(given, given, drawn, value=sign * unit, out=moved)
                else:
                    moved.uniform_(-1.0, 1.0, generator=self._generator(tensor.device)).mul_(unit)
                    torch.addcmul(given, given, moved, out=moved)
                torch.copysign(moved, given, out=moved)  # -0.0 + 0.0 is 0.0
            return shift.to(tensor.dtype)
        shift.uniform_(-1.0, 1.0, generator=self._generator(tensor.device)).mul_(unit)
        moved = torch.addcmul(wide, wide, shift)  # x + x*shift rounds without bias
        # Otherwise the largest number and its negative would both be clamped, and add up to exactly 0.
        if self._parts_largest:
            moved = torch.where(moved.abs() > limit, torch.copysign(limit * (1.0 - shift.abs()), wide), moved)
        moved = torch.where(wide.abs() <= info.max, moved.clamp(-limit, limit), wide)
        moved = torch.copysign(moved, wide)  # -0.0 + 0.0 is 0.0
        if self._flips_zeros:
            moved = torch.where(wide == 0, torch.copysign(torch.zeros_like(wide), shift), moved)
        return self._with_signs_of_nan(moved, wide, shift).to(tensor.dtype)

    def _from_table(self, chunk: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Numbers between -1 and 1 for a chunk of a large tensor, and the sign to multiply them by.

        A million numbers are drawn once, and each chunk gets a random part of them and a random sign. Because of the sign,
        numbers of two chunks are uncorrelated though the parts overlap, so a sum over all chunks moves as far as if each
        number had been drawn.
        """
        key = chunk.device, chunk.dtype
        generator = self._generator(chunk.device)
        if key not in self._tables:
            self._tables[key] = torch.empty(_LARGE, dtype=chunk.dtype, device=chunk.device)
            self._tables[key].uniform_(-1.0, 1.0, generator=generator)
        room = _LARGE - chunk.numel() + 1
        place = int(torch.randint(2 * room, (), generator=generator, device=chunk.device))
        start = place // 2
        return self._tables[key][start : start + chunk.numel()], 1.0 if place % 2 else -1.0

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            # Not the program's seed itself: the noise would be correlated with its random data.
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
    """The result, with infinities and NaN where another order of the same sums overflows."""
    if kind.is_linear_sum:
        result = with_open_overflows(func, args, kwargs, result)
    if facts.undeclared_writes:
        result = with_open_statistics(func, moved_args, result)
    if kind.is_magnitude:
        result = with_open_magnitudes(func, args, result)
    if kind.is_of_rows:
        result = with_open_rows(func, args, result)
    if kind.is_backward_of_norm:
        result = with_open_parameter_gradients(func, args, result)
    return result


def _inside(moved: torch.Tensor, out: torch.Tensor, facts: KernelFacts) -> torch.Tensor:
    """The perturbed result, clamped to the bounds of the operator's results (1 for `sin`) where the result itself was inside."""
    low, high = facts.bounds
    if (low, high) == (-math.inf, math.inf) or moved.is_complex() or moved.dtype in SIGNED_FLOAT8:
        return moved
    inside = torch.where((moved < low) & (out >= low), low, torch.where((moved > high) & (out <= high), high, moved))
    return _put(moved, inside, is_written=False)


def _inside_domain(
    func: Any, operands: Any, moved_operands: Any, kind: _OpKind, facts: KernelFacts
) -> tuple[Any, bool]:
    """The result for perturbed operands, or for the operands themselves where perturbing them leaves the operator's domain.

    Also returns whether the whole result is the one for perturbed operands.

    They have left it where a result becomes NaN, or a number instead of NaN or an infinity, unless that is an overflow: then the
    result was, or would be, near the largest number.
    """
    args, kwargs = moved_operands
    if kind.written or not facts.has_domain or not kind.is_aten:
        return func(*args, **kwargs), True
    plain = func(*operands[0], **operands[1])
    try:
        moved = func(*args, **kwargs)
    except RuntimeError:
        return plain, False

    def chosen(mine: Any, its: Any) -> Any:
        if not _is_movable(mine) or mine.shape != its.shape or mine.dtype in SIGNED_FLOAT8:
            return mine
        if not mine.is_complex() and math.isfinite(largest_magnitude(mine)) and math.isfinite(largest_magnitude(its)):
            return mine
        has_overflowed = torch.where(its.isfinite(), its, mine).abs() > torch.finfo(mine.dtype).max / 64
        has_left = (mine.isfinite() != its.isfinite()) & ~(has_overflowed & ~mine.isnan() & ~its.isnan())
        has_left |= mine.isnan() != its.isnan()
        return _put(mine, torch.where(has_left, its, mine), is_written=False) if bool(has_left.any()) else mine

    found = tree_map(chosen, moved, plain)
    return found, all(map(operator.is_, tree_leaves(found), tree_leaves(moved)))


def _put(out: torch.Tensor, value: torch.Tensor, is_written: bool) -> torch.Tensor:
    """The value with the strides of `out`, written into `out` if the call wrote it. An `out` with gaps is returned unchanged."""
    if is_written:
        return out.copy_(value)
    if value.stride() == out.stride():
        return value
    return value.as_strided(out.shape, out.stride()) if _is_dense(out) else out


_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_NOT_TRIED = KernelFacts(exact=(False,))
_KINDS: dict[Any, _OpKind] = {}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _memory_of_written_lists(args: tuple[Any, ...], kwargs: dict[str, Any], kind: _OpKind) -> frozenset[int]:
    """Storages of the tensors that a foreach operator writes one after the other: a later one may read an earlier one."""
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
    if schema is None:  # the mode sees the operators in the body of a higher-order operator
        return _OpKind(is_left_alone=True)
    namespace, _, full_name = schema.name.partition("::")
    name = full_name.rstrip("_") if not full_name.endswith("__") else full_name
    is_view = torch.Tag.inplace_view in func.tags or any(
        result.alias_info is not None and not result.alias_info.is_write for result in schema.returns
    )
    # Attention and recurrent kernels are random because of dropout, mostly zero, whose masks do not depend on the values.
    is_random = torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name and "rnn" not in name
    takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    if namespace == "aten" and name.endswith("_window") and not takes_tensors:
        return _OpKind(is_window=True)
    if is_view or is_random or name.startswith(_MADE_UNINITIALIZED) or not takes_tensors:
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
        is_aten=is_aten,
        converts_first=is_aten
        and name != "_to_copy"
        and any(argument.name == "dtype" for argument in schema.arguments),
        accumulates=torch.Tag.pointwise not in func.tags,
        rounds_as_first_input=is_aten and name in _ROUNDED_AS_FIRST_INPUT,
        is_linear_sum=is_aten and name in LINEAR_SUMS and not written,
        is_magnitude=is_aten and name in MAGNITUDES and not written,
        is_of_rows=is_aten and name in OF_ROWS and not written,
        is_backward_of_norm=is_aten and _BACKWARD_OF_NORM.fullmatch(name) is not None and not written,
        written=tuple(written),
        returns_written=bool(schema.returns) and all(result.alias_info is not None for result in schema.returns),
    )


def _is_exact_distance(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether this is a distance with p=inf, which is the largest difference and exact."""
    return func._schema.name == f"aten::{_DISTANCE}" and args[2] == math.inf


def _reads_packed(args: tuple[Any, ...]) -> bool:
    """Whether an operand is quantised: operators compute with its integers, which noise must not change."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_quantized for leaf in args)


def _converted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments, with the first one converted if the operator would begin by converting it to its `dtype` argument."""
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
    """Whether the operator chooses among both 0 and -0: in tensors, in number arguments, or a zero of its own."""
    has_positive, has_negative = facts.chooses_zero, False
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.dtype in ARITHMETIC_FLOATS and leaf.layout is torch.strided:
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
    """Whether all numbers are integers so small that sums of their products are exact in any order."""
    bound, count, eps = 1.0, 1, 0.0
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            if not _is_movable(leaf):
                if leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.layout is not torch.strided:
                    return False
                leaf = leaf.to(torch.float64)
            elif leaf.dtype.is_complex or leaf.dtype in SIGNED_FLOAT8:
                return False
            else:
                eps = max(eps, torch.finfo(leaf.dtype).eps)
            if leaf.numel():
                corner = leaf[tuple(slice(_CORNER) for _ in leaf.shape)]  # mostly shows a fraction
                if not bool((corner == corner.trunc()).all()):
                    return False
                if not bool((leaf == leaf.trunc()).all()):
                    return False
                bound *= max(1.0, float(leaf.abs().max()))
                count = max(count, leaf.numel())
        elif (isinstance(leaf, float) and not leaf.is_integer()) or isinstance(leaf, complex):
            return False
    return bound * count * eps <= 1.0


def _are_small_integers(result: Any, operands: Any) -> bool:
    """Whether every number of a result is an integer that its dtype holds exactly. A factor from number arguments is allowed."""
    factor = max([1.0, *(abs(leaf) for leaf in tree_leaves(operands) if isinstance(leaf, (int, float)))])
    return all(
        bool((leaf == leaf.trunc()).all()) and bool((leaf.abs() <= factor / torch.finfo(leaf.dtype).eps).all())
        for leaf in tree_leaves(result)
        if _is_movable(leaf) and not leaf.is_complex() and leaf.dtype not in SIGNED_FLOAT8
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
