"""What an operator does with numbers, asked of its kernel: does it round, choose, leave its domain, write what it only reads.

Counterpart: none

The kernel is run on stand-ins: tensors of the call's sizes, with other numbers. It is run in the call's dtype and in float64 on
the same numbers: an operator that rounds gives two results, and one that copies, compares or picks gives one. What is found is
remembered by the operator, its literals, and the sizes and dtypes of its tensors.

Stand-ins are made of the call's own numbers: smaller ones of the same sign, so that probabilities stay probabilities. Zeros
become small positive numbers. Integers and bools are the call's own, so that indices stay valid.
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

from oracle.program.clone import bytes_of

_WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128, torch.complex128: torch.complex128}
_HAVE_NO_WIDER = (torch.float64, torch.complex128)
# Where a call has numbers of float64, all its dtypes are asked about one step narrower.
_NARROWER = {
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
    torch.float32: torch.bfloat16,
}
_WIDE_SPREAD, _SMALL_SPREAD = 15 / 16, 1 / 16  # how much smaller than the call's numbers stand-ins are, at most
_NO_OPERAND, _ANY, _ZERO = 0, 1, 2  # places of results that are no operand, one of several equal ones, zero
_CORNER = 16  # elements along a dimension of a pointwise operator
_MOST_PLACED = 1 << 18  # operands among which places are looked for
_LARGE = 1 << 20  # numbers of operands above which only what matters most is asked
_FEW = 8  # results among which a sum may be exact by chance
_LARGEST_INTEGER = 3  # of stand-ins that are integers
_LARGE_LITERAL = 2.0**10
_MOST_REMEMBERED = 1 << 14
_FLOATS = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    *(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")),
}  # fmt: skip
_ARITHMETIC = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COMPUTE = _ARITHMETIC | {torch.complex64, torch.complex128}
_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What is known of one operator for tensors of given sizes and dtypes, and given literals."""

    exact: tuple[bool, ...]  # of each float result, written ones first: the kernel gives the same numbers in float64
    is_ring: bool = False  # sums and products: of integers it gives the same numbers in float64
    moves: bool = False  # each result is an operand, or its negative, and no number decides which
    chooses: bool = False  # each result is an operand, and numbers decide which
    chooses_zero: bool = False  # 0 is among what is chosen from, though it is no operand
    has_domain: bool = False  # some numbers of ordinary size give NaN, an infinity or an error
    has_edge: bool = False  # and others of the same sign do not: a rounding of an operand may cross this edge
    negates: bool = False  # of those that move: some results have the other sign, or none
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of all results
    writes_unsaid: frozenset[int] = frozenset()  # places, among the leaves of the arguments, that no schema says
    terms: float = 1.0  # how many operands of one tensor an element of a result depends on

    @property
    def is_exact(self) -> bool:
        return all(self.exact)


_FACTS: dict[Any, KernelFacts] = {}


def facts_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KernelFacts:
    """Facts of the operator for a call like this one. Neither arguments nor random generators change."""
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
            _FACTS[key] = _Asked(func, leaves, spec).facts()
    return _FACTS[key]


def own_errors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Tensor | None]:
    """Of each float result the kernel's error against float64 where it is more than an epsilon, else 0, in the result's dtype.

    None of a result without such an element, and of one that is not real. Errors of float64 are those of float32 on the same
    operands, made smaller. `result` is what the operator gives for these arguments; no argument changes.
    """
    floats = [leaf for leaf in tree_leaves(result) if is_plain_float(leaf)]
    leaves, spec = tree_flatten((args, kwargs))
    asked = _Asked(func, leaves, spec)
    if not asked.floats or asked.written or torch.Tag.nondeterministic_seeded in func.tags:
        return [None] * len(floats)
    narrow, wide = asked.on_operands()
    if narrow is None or wide is None or not len(narrow) == len(wide) == len(floats):
        return [None] * len(floats)
    errors: list[Tensor | None] = []
    for out, mine, its in zip(floats, narrow, wide, strict=True):
        if out.is_complex() or out.shape != its.shape or out.dtype not in _ARITHMETIC:
            errors.append(None)
            continue
        error = (mine.double() - its).abs().nan_to_num(0.0, 0.0, 0.0)
        eps = torch.finfo(mine.dtype).eps
        error = torch.where(error > eps * its.abs(), error, 0.0) * (torch.finfo(out.dtype).eps / eps)
        errors.append(error.to(out.dtype) if bool(error.any()) else None)
    return errors


def _corner(leaf: Tensor) -> Tensor:
    """The first few elements along each dimension: an operator on single elements does the same with all."""
    if max(leaf.shape, default=0) <= _CORNER or leaf.is_quantized or leaf.is_nested:
        return leaf
    return leaf.detach()[tuple(slice(_CORNER) for _ in leaf.shape)]


def _described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.layout
    return type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _devices(leaves: Sequence[Any]) -> list[torch.device]:
    return list({leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type != "cpu"})


class _Asked:
    """One operator that is asked. Used once."""

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
        self.unsaid: frozenset[int] = frozenset()
        self.literal = _rounded
        self.is_large = sum(leaves[at].numel() for at in self.floats) > _LARGE

    def facts(self) -> KernelFacts:
        exact = self._exactness()
        if exact is None:
            return KernelFacts(exact=(False,), has_domain=True, writes_unsaid=self.unsaid)
        if all(exact):
            return self._of_exact(exact)
        is_ring, is_finite = self._of_integers()
        if self.is_large:
            return KernelFacts(
                exact=tuple(exact),
                is_ring=is_ring,
                has_domain=True,
                writes_unsaid=self.unsaid,
                terms=self._terms(is_ring=is_ring),
            )
        signs = [self._is_defined(sign) for sign in (1.0, -1.0)]
        return KernelFacts(
            exact=tuple(exact),
            is_ring=is_ring,
            has_domain=not is_finite or any(False in found for found in signs),
            has_edge=any(len(found) > 1 for found in signs),
            bounds=self._bounds(),
            writes_unsaid=self.unsaid,
            terms=1.0 if torch.Tag.pointwise in self.func.tags else self._terms(is_ring=is_ring),
        )

    # -- stand-ins

    def _numbers(
        self, seed: int, *, spread: float = _WIDE_SPREAD, scale: float = 1.0, first: float = 1.0
    ) -> list[Tensor]:
        """For each float leaf, numbers in its own dtype; `first` is a factor of those of the first leaf."""
        generator = torch.Generator().manual_seed(seed)
        made = []
        for count, at in enumerate(self.floats):
            leaf = self.leaves[at].detach().resolve_conj().resolve_neg()
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            value = real.to("cpu", torch.float64).contiguous()
            chance = torch.rand(value.shape, generator=generator, dtype=torch.float64)
            mantissa, exponent = torch.frexp(value)
            value = torch.ldexp(mantissa, exponent.clamp(-8, 8)) * (1 - spread * chance)
            value = torch.where(value.isfinite() & (value != 0), value, 0.01 + chance / 2)
            made.append(self._like(leaf, value * scale * (first if count == 0 else 1.0)))
        return made

    def _integers(self, seed: int = 0, sign: float | None = None) -> list[Tensor]:
        """Small integers for each float leaf, those of one sign without 0."""
        generator = torch.Generator().manual_seed(seed)
        lowest = -_LARGEST_INTEGER if sign is None else 1
        made = []
        for leaf in (self.leaves[at] for at in self.floats):
            shape = (*leaf.shape, 2) if leaf.is_complex() else leaf.shape
            integers = torch.randint(lowest, _LARGEST_INTEGER + 1, shape, generator=generator)
            made.append(self._like(leaf, integers * (sign or 1)))
        return made

    def _like(self, leaf: Tensor, value: Tensor) -> Tensor:
        """The numbers in the dtype that is asked about in the place of the leaf's own."""
        value = torch.view_as_complex(value.double().contiguous()) if leaf.is_complex() else value
        return value.to(leaf.device, self.narrower.get(leaf.dtype, leaf.dtype))

    def on_operands(self) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Results on the call's own numbers, in the dtype that is asked about and in float64; literals stay as they are."""
        self.literal = _unchanged
        operands = [self.leaves[at].detach() for at in self.floats]
        return self._both([operand.to(self.narrower.get(operand.dtype, operand.dtype)) for operand in operands])

    # -- runs

    def _run(
        self, numbers: Sequence[Tensor], dtypes: Callable[[torch.dtype], torch.dtype] | None = None
    ) -> list[Tensor] | None:
        """The float results on these numbers, those written first; `dtypes` maps them. None where the kernel refuses."""
        dtypes = dtypes or (lambda dtype: self.narrower.get(dtype, dtype))
        leaves = [self._literal(leaf, dtypes) for leaf in self.leaves]
        for at, number in zip(self.floats, numbers, strict=True):
            leaves[at] = number.to(dtypes(self.leaves[at].dtype)).clone()
        before = [leaves[at].clone() for at in self.floats]
        args, kwargs = tree_unflatten(leaves, self.spec)
        try:
            result = self.func(*args, **kwargs)
        except _REFUSALS:
            return None
        self.unsaid |= {
            at
            for at, old in zip(self.floats, before, strict=True)
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

    def _both(self, numbers: Sequence[Tensor]) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        narrow = self._run(numbers)
        if narrow is None:
            return None, None
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)  # of what is computed from integers
            return narrow, self._run(numbers, _widest)
        finally:
            torch.set_default_dtype(default)

    # -- questions

    def _exactness(self) -> list[bool] | None:
        """Of each float result. None: the kernel refuses all stand-ins, or gives no number for any."""
        exact: list[bool] | None = None
        for number, numbers in enumerate(self._draws()):
            narrow, wide = self._both(numbers)
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
        if self._is_elementwise():  # each number by itself: no size or sign makes a difference to another
            yield self._uniform(4.0, 12.0, 1.0)
            yield self._uniform(4.0, 12.0, -1.0)
        yield self._numbers(3)
        yield self._numbers(4)

    def _of_exact(self, exact: list[bool]) -> KernelFacts:
        """Whether it moves numbers or chooses among them: by the places, among all operands, that results come from."""
        self.narrower = {dtype: _single(dtype) for dtype in _FLOATS}  # in which all numbers of a stand-in are different
        draws = [self._numbers(0), [_rolled(number) for number in self._numbers(0)], self._numbers(0, first=2.0**-6)]
        if self._is_elementwise():
            draws += [self._numbers(0, scale=scale) for scale in (-1.0, 2.0**6, 2.0**-6)]
        known = [places for places in map(self._places, draws) if places is not None]
        if not known or any(bool((place == _NO_OPERAND).any()) for place in known):
            return KernelFacts(exact=tuple(exact), writes_unsaid=self.unsaid)
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
            writes_unsaid=self.unsaid,
        )

    def _is_elementwise(self) -> bool:
        """Whether each result has the shape that the operands have together."""
        results = self._run(self._numbers(0))
        try:
            shape = torch.broadcast_shapes(*(self.leaves[at].shape for at in self.floats))
        except RuntimeError:
            return torch.Tag.pointwise in self.func.tags
        return all(result.shape == shape for result in results or ())

    def _places(self, numbers: Sequence[Tensor]) -> Tensor | None:
        """For each number of the results the operand that it is, counted from 3, or less than 0 where it is its negative."""
        if not 0 < sum(number.numel() for number in numbers) <= _MOST_PLACED:
            return None
        results = self._run(numbers, _single)
        if results is None:
            return None
        literals = [float(self._literal(leaf, _single)) for leaf in self.leaves if _is_number(leaf)]
        operands = torch.cat([*map(_flat, numbers), torch.tensor(literals, dtype=torch.float64)])
        operands = operands.float().double()  # as the kernel reads them
        values, order = operands.abs().sort()
        wanted = torch.cat([_flat(result) for result in results] or [operands[:0]])
        low, high = (torch.searchsorted(values, wanted.abs(), right=right) for right in (False, True))
        source = order[low.clamp_max(values.numel() - 1)]
        places = torch.where(high - low == 1, source + 3, _ANY)
        places = torch.where(operands[source].sign() == wanted.sign(), places, -places)
        return torch.where(wanted == 0, _ZERO, torch.where(high > low, places, _NO_OPERAND))

    def _of_integers(self) -> tuple[bool, bool]:
        """Whether of small integers it gives the same numbers in float64, and whether all these are finite."""
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
        """All answers to whether a result is a number, of small and large numbers of one sign, and of integers."""
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
        """Those of -1, 0 and 1 beyond which no operands, of any size, give a result."""
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
        """How many operands one element of a result depends on: a mean, counted by changing one operand at a time.

        Of sums the largest number of any element as well: it is what the element is where all operands are 1.
        """
        numbers = self._numbers(0)
        plain, most = self._run(numbers), 1.0
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
    """Whether a strided tensor with numbers of a dtype that others can be converted to."""
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
    """As every dtype holds it: a kernel may convert it to that of its operands."""
    rounded = torch.tensor(literal).bfloat16().item()
    return rounded if math.isfinite(rounded) else literal


def _small(literal: float) -> float:
    """2 in place of what sums and products of small integers cannot be exact with."""
    return literal if abs(literal) < _LARGE_LITERAL else 2.0


def _widest(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else _WIDE.get(dtype, dtype)


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
    """Float64, on the CPU. Of a complex number both parts."""
    number = torch.view_as_real(number.resolve_conj()) if number.is_complex() else number
    return number.detach().cpu().double().reshape(-1)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
