"""Find out by running its kernel whether an operator rounds, selects elements, leaves its domain or writes undeclared arguments.

Counterpart: none

The kernel runs on stand-ins, tensors of the call's sizes with other numbers, in the call's dtype and in float64. If it rounds,
the two results differ; if it copies, compares or selects, they are equal. Facts are cached by operator, literals, and the sizes
and dtypes of the tensors.

A stand-in has smaller numbers of the same signs as the call's operand, so that probabilities stay probabilities. Zeros become
small positive numbers. Integers and bools are the call's own, so that indices stay valid.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from oracle.dtypes import ARITHMETIC_COMPLEX, ARITHMETIC_FLOATS, COMPLEX, SIGNED_FLOAT8
from oracle.program.clone import bytes_of

_HAVE_NO_WIDER = (torch.float64, torch.complex128)
# No dtype is wider than float64: if a call has float64 tensors, all its dtypes are replaced by narrower ones for the trial.
_NARROWER = {
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
    torch.float32: torch.bfloat16,
}
_WIDE_SPREAD, _SMALL_SPREAD = 15 / 16, 1 / 16  # share by which stand-ins are smaller than the call's numbers, at most
_NO_OPERAND, _ANY, _ZERO = 0, 1, 2  # source of a result that is no operand, one of several equal operands, or zero
_CORNER = 16  # elements tried along a dimension of a pointwise operator
_MOST_PLACED = 1 << 18  # with more operand elements, the sources of results are not searched
_LARGE = 1 << 20  # with more operand elements, only the most important facts are found
_CHUNK = 1 << 16  # elements that operations on large tensors take at a time
_FEW = 8  # with fewer result elements, sums may be exact by chance
_LARGEST_INTEGER = 3  # of integer stand-ins
_LARGE_LITERAL = 2.0**10
_MOST_REMEMBERED = 1 << 14
_FLOATS = ARITHMETIC_FLOATS | COMPLEX | SIGNED_FLOAT8
_COMPUTE = ARITHMETIC_FLOATS | ARITHMETIC_COMPLEX
_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """Facts about one operator for tensors of given sizes and dtypes, and given literals."""

    exact: tuple[bool, ...]  # for each float result, mutated arguments first: the kernel computes the same in float64
    is_ring: bool = False  # computes sums and products: of integers it computes the same in float64
    moves: bool = False  # each result element is an operand element, or its negative, whatever the values (`flip`)
    chooses: bool = False  # each result element is an operand element, and values decide which (`sort`)
    chooses_zero: bool = False  # 0 may be chosen too, though it is no operand (`relu`)
    has_domain: bool = False  # some values of ordinary size lead to NaN, an infinity or an error
    # Other operands of the same sign do not, so that rounding an operand may cross the domain's edge.
    has_edge: bool = False
    negates: bool = False  # moves elements, some of which change their sign (`neg`) or lose it (`abs`)
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of all results
    # Mutated arguments that the schema does not declare, as leaf numbers.
    undeclared_writes: frozenset[int] = frozenset()
    terms: float = 1.0  # number of elements of one operand that a result element depends on

    @property
    def is_exact(self) -> bool:
        return all(self.exact)


_FACTS: dict[Any, KernelFacts] = {}


def facts_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KernelFacts:
    """The operator's facts for a call like this one. Changes neither the arguments nor the random generators."""
    leaves, spec = tree_flatten((args, kwargs))
    if torch.Tag.pointwise in func.tags:
        leaves = [
            _corner(leaf) if isinstance(leaf, Tensor) and leaf.layout is torch.strided else leaf for leaf in leaves
        ]
    key = (func, spec, tuple(map(_described, leaves)))
    if key not in _FACTS:
        if len(_FACTS) >= _MOST_REMEMBERED:
            _FACTS.clear()
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        with (
            torch.random.fork_rng(devices=_devices(leaves)) if is_random else contextlib.nullcontext(),
            torch.no_grad(),
        ):
            _FACTS[key] = _Trial(func, leaves, spec).facts()
    return _FACTS[key]


def own_errors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, is_own: bool = False
) -> list[Tensor | None]:
    """For each float result, its kernel's errors against float64, with errors of at most an epsilon set to 0.

    None for a complex result, and for one without larger errors. Errors of float64 kernels are taken to be those of float32 on
    the same operands, scaled to float64. `result` is the operator's result for these arguments, which do not change.
    With `is_own` it is what the kernel gave for them, unchanged, and the kernel need not run in their dtype once more.
    """
    floats = [leaf for leaf in tree_leaves(result) if is_plain_float(leaf)]
    leaves, spec = tree_flatten((args, kwargs))
    trial = _Trial(func, leaves, spec)
    if not trial.floats or trial.written or torch.Tag.nondeterministic_seeded in func.tags:
        return [None] * len(floats)
    narrow, wide = trial.on_operands(floats if is_own and not trial.narrower and trial.has_dense_operands() else None)
    if narrow is None or wide is None or not len(narrow) == len(wide) == len(floats):
        return [None] * len(floats)
    errors: list[Tensor | None] = []
    for out, mine, its in zip(floats, narrow, wide, strict=True):
        if out.is_complex() or out.shape != its.shape or out.dtype not in ARITHMETIC_FLOATS:
            errors.append(None)
            continue
        errors.append(_errors_above_epsilon(mine, its, out.dtype))
    return errors


def _errors_above_epsilon(mine: Tensor, its: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Distances of `mine` from `its`, which is in float64; 0 where they are at most an epsilon. None if all are."""
    eps = torch.finfo(mine.dtype).eps
    errors, has_any = torch.empty_like(mine, dtype=dtype), False
    for narrow, wide, found in in_chunks(mine, its, errors):
        error = torch.sub(wide, narrow).abs_().nan_to_num_(0.0, 0.0, 0.0)
        is_larger = error > wide.abs().mul_(eps)
        has_any = has_any or bool(is_larger.any())
        found.copy_(error.mul_(is_larger).mul_(torch.finfo(dtype).eps / eps))
    return errors if has_any else None


def in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Large tensors of the same dense strides as flat chunks in the order of their memory, which fit the cache; others whole."""
    first = tensors[0]
    is_dense = torch.ops.aten.is_non_overlapping_and_dense(first)
    if first.numel() <= _CHUNK or not is_dense or any(one.stride() != first.stride() for one in tensors):
        yield tensors
        return
    flat = [one.as_strided((one.numel(),), (1,), one.storage_offset()) for one in tensors]
    for start in range(0, first.numel(), _CHUNK):
        yield tuple(one[start : start + _CHUNK] for one in flat)


def _corner(leaf: Tensor) -> Tensor:
    """The first few elements along each dimension, which suffice for a pointwise operator."""
    if max(leaf.shape, default=0) <= _CORNER or leaf.is_quantized or leaf.is_nested:
        return leaf
    return leaf.detach()[tuple(slice(_CORNER) for _ in leaf.shape)]


def _described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.layout
    return type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _devices(leaves: Sequence[Any]) -> list[torch.device]:
    return list({leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type != "cpu"})


class _Trial:
    """Runs one operator on stand-ins. Used once."""

    def __init__(self, func: Any, leaves: Sequence[Any], spec: TreeSpec) -> None:
        self.func, self.leaves, self.spec = func, leaves, spec
        self.floats = [at for at, leaf in enumerate(leaves) if is_plain_float(leaf)]
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)} | {
            leaf for leaf in leaves if isinstance(leaf, torch.dtype)
        }
        self.narrower = _NARROWER if dtypes & {*_HAVE_NO_WIDER} else {}
        written = [
            argument.name for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write
        ]
        args, kwargs = tree_unflatten(list(range(len(leaves))), spec)
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        self.written = [at for name in written for at in tree_leaves(given.get(name)) if isinstance(at, int)]
        self.undeclared: frozenset[int] = frozenset()
        self.literal = _rounded
        self.watches_writes = True  # finds arguments that the kernel changes although its schema does not say so
        # Of a large call: the first stand-ins and the results on them, which the count of terms needs again.
        self.tried: tuple[list[Tensor], list[Tensor] | None] | None = None
        self.is_large = sum(leaves[at].numel() for at in self.floats) > _LARGE

    def facts(self) -> KernelFacts:
        exact = self._exactness()
        if exact is None:
            return KernelFacts(exact=(False,), has_domain=True, undeclared_writes=self.undeclared)
        if all(exact):
            return self._of_exact(exact)
        is_ring, is_finite = self._of_integers()
        if self.is_large:
            return KernelFacts(
                exact=tuple(exact),
                is_ring=is_ring,
                has_domain=not is_ring,  # sums and products are defined everywhere
                undeclared_writes=self.undeclared,
                terms=self._terms(is_ring=is_ring),
            )
        signs = [self._is_defined(sign) for sign in (1.0, -1.0)]
        return KernelFacts(
            exact=tuple(exact),
            is_ring=is_ring,
            has_domain=not is_finite or any(False in found for found in signs),
            has_edge=any(len(found) > 1 for found in signs),
            bounds=self._bounds(),
            undeclared_writes=self.undeclared,
            terms=1.0 if torch.Tag.pointwise in self.func.tags else self._terms(is_ring=is_ring),
        )

    # -- stand-ins

    def _numbers(
        self, seed: int, *, spread: float = _WIDE_SPREAD, scale: float = 1.0, first: float = 1.0
    ) -> list[Tensor]:
        """A stand-in for each float leaf. `first` is a factor of the first leaf's numbers."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        for count, at in enumerate(self.floats):
            leaf = self.leaves[at].detach().resolve_conj().resolve_neg()
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            value = real.to("cpu", torch.float64).contiguous()
            chance = torch.rand(value.shape, generator=generator, dtype=torch.float64)
            mantissa, exponent = torch.frexp(value)
            number = torch.ldexp(mantissa, exponent.clamp_(-8, 8)).mul_((chance * -spread).add_(1.0))
            is_number = value.isfinite().logical_and_(value != 0)
            if not bool(is_number.all()):
                number = torch.where(is_number, number, chance.div_(2.0).add_(0.01))
            factor = scale * (first if count == 0 else 1.0)
            made.append(self._like(leaf, number if factor == 1.0 else number.mul_(factor)))
        return made

    def _integers(self, seed: int = 0, sign: float | None = None) -> list[Tensor]:
        """A stand-in of small integers for each float leaf; with a `sign`, all have that sign and none is 0."""
        generator = torch.Generator().manual_seed(seed)
        lowest = -_LARGEST_INTEGER if sign is None else 1
        made = []
        for leaf in (self.leaves[at] for at in self.floats):
            shape = (*leaf.shape, 2) if leaf.is_complex() else leaf.shape
            integers = torch.randint(lowest, _LARGEST_INTEGER + 1, shape, generator=generator)
            made.append(self._like(leaf, integers * (sign or 1)))
        return made

    def _like(self, leaf: Tensor, value: Tensor) -> Tensor:
        """The numbers on the leaf's device, in the leaf's dtype or the narrower one that replaces it."""
        value = torch.view_as_complex(value.double().contiguous()) if leaf.is_complex() else value
        return value.to(leaf.device, self.narrower.get(leaf.dtype, leaf.dtype))

    def has_dense_operands(self) -> bool:
        """Whether copies of the float operands have their strides, so that the kernel does the same with them."""
        return all(
            leaf.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(leaf)
            for leaf in (self.leaves[at] for at in self.floats)
        )

    def on_operands(self, known: list[Tensor] | None = None) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Results on the call's own operands and literals, in their dtype (or the narrower one) and in float64.

        `known`: the results in their dtype.
        """
        self.literal, self.watches_writes = _unchanged, False
        operands = [self.leaves[at].detach() for at in self.floats]
        known = None if known is None else [leaf if leaf.dtype in _COMPUTE else leaf.float() for leaf in known]
        return self._both([operand.to(self.narrower.get(operand.dtype, operand.dtype)) for operand in operands], known)

    # -- runs

    def _run(
        self, numbers: Sequence[Tensor], dtypes: Callable[[torch.dtype], torch.dtype] | None = None
    ) -> list[Tensor] | None:
        """The float results on these numbers, mutated arguments first; None if the kernel raises. `dtypes` maps each dtype."""
        dtypes = dtypes or (lambda dtype: self.narrower.get(dtype, dtype))
        leaves: list[Any] = [None if is_plain_float(leaf) else self._literal(leaf, dtypes) for leaf in self.leaves]
        for at, number in zip(self.floats, numbers, strict=True):
            leaves[at] = number.to(dtypes(self.leaves[at].dtype), copy=True)
        before = [leaves[at].clone() for at in self.floats if self.watches_writes]
        args, kwargs = tree_unflatten(leaves, self.spec)
        try:
            result = self.func(*args, **kwargs)
        except _REFUSALS:
            return None
        self.undeclared |= {
            at
            for at, old in zip(self.floats if self.watches_writes else (), before, strict=True)
            if at not in self.written and not torch.equal(bytes_of(old), bytes_of(leaves[at]))
        }
        found = {id(leaf): leaf for leaf in [*(leaves[at] for at in self.written), *tree_leaves(result)]}
        floats = [leaf.detach() for leaf in found.values() if is_plain_float(leaf)]
        return [leaf if leaf.dtype in _COMPUTE else leaf.float() for leaf in floats]

    def _literal(self, leaf: Any, dtypes: Callable[[torch.dtype], torch.dtype]) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone() if leaf.layout is torch.strided and not leaf.is_quantized else leaf
        if isinstance(leaf, torch.dtype):
            return dtypes(leaf)
        return self.literal(leaf) if isinstance(leaf, float) else leaf

    def _both(
        self, numbers: Sequence[Tensor], known: list[Tensor] | None = None
    ) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        narrow = self._run(numbers) if known is None else known
        if narrow is None:
            return None, None
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)  # the dtype of results computed from integers
            return narrow, self._run(numbers, _widest)
        finally:
            torch.set_default_dtype(default)

    # -- facts

    def _exactness(self) -> list[bool] | None:
        """Whether each float result is exact. None if the kernel raises or returns no finite number for all stand-ins."""
        exact: list[bool] | None = None
        for number, numbers in enumerate(self._draws()):
            narrow, wide = self._both(numbers)
            if self.is_large and number == 0:
                self.tried = numbers, narrow
            if narrow is None or wide is None or len(narrow) != len(wide):
                continue
            if any(result.numel() and not bool(result.isfinite().any()) for result in narrow):
                continue
            same = [_is_same(a, b) for a, b in zip(narrow, wide, strict=True)]
            exact = same if exact is None else [a and b for a, b in zip(exact, same, strict=False)]
            if not any(exact) or self.is_large or (number >= 3 and all(result.numel() >= _FEW for result in narrow)):
                break
        return exact

    def _draws(self) -> Iterator[list[Tensor]]:
        yield self._numbers(0)
        yield self._numbers(1, spread=_SMALL_SPREAD)
        if self._is_elementwise():  # its elements do not affect each other, so numbers of any size may be mixed
            yield self._uniform(4.0, 12.0, 1.0)
            yield self._uniform(4.0, 12.0, -1.0)
        yield self._numbers(3)
        yield self._numbers(4)

    def _of_exact(self, exact: list[bool]) -> KernelFacts:
        """Facts of an exact operator: whether values decide which operand elements its results come from."""
        if not 0 < sum(self.leaves[at].numel() for at in self.floats) <= _MOST_PLACED:
            return KernelFacts(exact=tuple(exact), undeclared_writes=self.undeclared)
        self.narrower = {
            dtype: _single(dtype) for dtype in _FLOATS
        }  # precise enough that a stand-in's numbers all differ
        draws = [self._numbers(0), [_rolled(number) for number in self._numbers(0)], self._numbers(0, first=2.0**-6)]
        if self._is_elementwise():
            draws += [self._numbers(0, scale=scale) for scale in (-1.0, 2.0**6, 2.0**-6)]
        known = [places for places in map(self._places, draws) if places is not None]
        if not known or any(bool((place == _NO_OPERAND).any()) for place in known):
            return KernelFacts(exact=tuple(exact), undeclared_writes=self.undeclared)
        first = known[0].abs()
        is_same = all(
            other.shape == first.shape and bool(((other.abs() == first) | (other == _ANY) | (first == _ANY)).all())
            for other in known
        )
        return KernelFacts(
            exact=tuple(exact),
            moves=is_same,
            negates=any(bool((place < 0).any()) for place in known),
            chooses=not is_same,
            chooses_zero=any(bool((place == _ZERO).any()) for place in known),
            undeclared_writes=self.undeclared,
        )

    def _is_elementwise(self) -> bool:
        """Whether each result has the operands' broadcast shape."""
        results = self._run(self._numbers(0))
        try:
            shape = torch.broadcast_shapes(*(self.leaves[at].shape for at in self.floats))
        except RuntimeError:
            return torch.Tag.pointwise in self.func.tags
        return all(result.shape == shape for result in results or ())

    def _places(self, numbers: Sequence[Tensor]) -> Tensor | None:
        """For each result element, the operand element equal to it, counted from 3, or minus that if it is its negative."""
        results = self._run(numbers, _single)
        if results is None:
            return None
        literals = [float(self._literal(leaf, _single)) for leaf in self.leaves if _is_number(leaf)]
        operands = torch.cat([*map(_flat, numbers), torch.tensor(literals, dtype=torch.float64)])
        operands = operands.float().double()  # rounded as in the kernel's operands
        values, order = operands.abs().sort()
        wanted = torch.cat([_flat(result) for result in results] or [operands[:0]])
        low, high = (torch.searchsorted(values, wanted.abs(), right=right) for right in (False, True))
        source = order[low.clamp_max(values.numel() - 1)]
        places = torch.where(high - low == 1, source + 3, _ANY)
        places = torch.where(operands[source].sign() == wanted.sign(), places, -places)
        return torch.where(wanted == 0, _ZERO, torch.where(high > low, places, _NO_OPERAND))

    def _of_integers(self) -> tuple[bool, bool]:
        """Whether it computes the same in float64 for small integers, and whether all those results are finite."""
        self.literal = _small
        is_ring = is_finite = True
        for seed in range(4):
            narrow, wide = self._both(self._integers(seed))
            if narrow is None or wide is None or len(narrow) != len(wide):
                is_ring = is_finite = False
                break
            is_finite = is_finite and _are_finite(wide)
            is_ring = is_ring and all(map(_is_same, narrow, wide))
            if all(result.numel() >= _FEW for result in narrow):
                break
        self.literal = _rounded
        return is_ring and is_finite, is_finite

    def _is_defined(self, sign: float) -> set[bool]:
        """Whether operands of one sign give numbers: {True}, {False}, or both if some do and others do not."""
        found: set[bool] = set()
        small, large = (self._uniform(low, high, sign) for low, high in ((0.1, 0.9), (4.0, 12.0)))
        for numbers, is_whole in (
            (small, False),
            (large, False),
            (self._integers(0, sign), True),
            (self._integers(1, sign), True),
        ):
            results = self._run(numbers, _widest)
            if results is None:
                found.add(False)
                continue
            for result in results:
                is_number = result.isfinite() if is_whole else ~result.isnan()
                found |= set(is_number.unique().tolist())
        return found

    def _uniform(self, low: float, high: float, sign: float) -> list[Tensor]:
        generator = torch.Generator().manual_seed(5)
        made = []
        for leaf in (self.leaves[at] for at in self.floats):
            shape = (*leaf.shape, 2) if leaf.is_complex() else leaf.shape
            chance = torch.rand(shape, generator=generator)
            made.append(self._like(leaf, sign * (low + (high - low) * chance)))
        return made

    def _bounds(self) -> tuple[float, float]:
        """The lower and upper bound of results, if -1, 0 or 1 is one for operands of any size."""
        found = [self._run(self._numbers(0, first=factor)) for factor in (1.0, 2.0**7, -(2.0**7))]
        results = [
            result for results in found for result in results or () if result.numel() and not result.is_complex()
        ]
        if None in found or len(results) != len(found):
            return -math.inf, math.inf
        lowest = min(float(result.double().nan_to_num(0.0).min()) for result in results)
        highest = max(float(result.double().nan_to_num(0.0).max()) for result in results)
        low = 0.0 if lowest >= 0 else -1.0 if lowest >= -1 else -math.inf
        high = 0.0 if highest <= 0 else 1.0 if highest <= 1 else math.inf
        return low, high

    def _terms(self, *, is_ring: bool) -> float:
        """Number of operand elements that a result element depends on: a mean, found by changing single operand elements.

        For sums it is at least the largest such number, which is the sum of operands that are all 1.
        """
        if self.tried is None:
            numbers = self._numbers(0)
            self.tried = numbers, self._run(numbers)
        numbers, plain = self.tried
        most = 1.0
        if plain is None:
            return most
        for at, number in enumerate(numbers):
            ends = () if self.is_large else (0, number.numel() - 1)
            for position in {number.numel() // 2, *ends} if number.numel() > 1 else ():
                flat = number.clone(memory_format=torch.contiguous_format).reshape(-1)
                flat[position] *= 2
                other = self._run([*numbers[:at], flat.reshape(number.shape), *numbers[at + 1 :]])
                for mine, its in zip(plain, other or (), strict=False):
                    if mine.shape == its.shape and mine.numel():
                        most = max(most, float((mine != its).sum()) * number.numel() / mine.numel())
        ones = self._run([torch.ones_like(number) for number in numbers]) if is_ring else None
        sums = [float(result.abs().nan_to_num(0.0, 0.0, 0.0).max()) for result in ones or () if result.numel()]
        return max([most, *sums])


def is_plain_float(value: Any) -> bool:
    """Whether the value is a strided float tensor of a dtype that converts to others."""
    return (
        isinstance(value, Tensor)
        and value.dtype in _FLOATS
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_nested
    )


def _unchanged(literal: float) -> float:
    return literal


def _rounded(literal: float) -> float:
    """The literal rounded so that every dtype holds it, since a kernel may convert it to its operands' dtype."""
    rounded = torch.tensor(literal).bfloat16().item()
    return rounded if math.isfinite(rounded) else literal


def _small(literal: float) -> float:
    """2 in place of a literal with which sums and products of small integers are not exact."""
    return literal if abs(literal) < _LARGE_LITERAL else 2.0


def _widest(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def _single(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point else torch.complex64 if dtype.is_complex else dtype


def _is_same(narrow: Tensor, wide: Tensor) -> bool:
    if narrow.shape != wide.shape:
        return False
    number = narrow.to(wide.dtype)
    return bool(((number == wide) | (number.isnan() & wide.isnan())).all())


def _are_finite(results: Sequence[Tensor]) -> bool:
    return all(bool(result.isfinite().all()) for result in results)


def _rolled(number: Tensor) -> Tensor:
    return number.reshape(-1).roll(1).reshape(number.shape)


def _flat(number: Tensor) -> Tensor:
    """The tensor in float64 on the CPU; a complex number becomes its two parts."""
    number = torch.view_as_real(number.resolve_conj()) if number.is_complex() else number
    return number.detach().cpu().double().reshape(-1)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
