"""Excuse output sizes and exceptions that depend on rounding.

How many elements are unique, or pass a mask, is decided by comparing rounded numbers. A different order of operations gives
another size, and perhaps an exception where that size does not fit. As with integers (oracle.judge.values), such a difference is
excused if rounding noise causes it in eager. fp64 is used as well: noise can make equal numbers differ but not different ones
equal. It does not excuse alone, since the dtype itself may change a size or raise. Nothing is excused where the dispatch mode
that applies the noise changes eager's result by itself (oracle.judge.trust).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from oracle.judge.evidence import Runs
from oracle.observe.outcome import ExceptionFacts, Outcome, Raised

_Shape = tuple[int, ...]
_NUMBER = re.compile(r"\d+")


def is_rounded_size(eager: _Shape, subject: _Shape, truth: _Shape | None, noise: Iterable[Sequence[_Shape]]) -> bool:
    """Whether each size of the subject is within the range of eager's sizes under noise.

    `noise` yields the shapes under quiet noise, then those under loud noise. `truth`, the shape in fp64, widens the range of a
    size that noise changes.
    """
    if len(subject) != len(eager):
        return False
    seen = [{size} for size in eager]
    for shapes in noise:
        for shape in shapes:
            if len(shape) == len(eager):
                for sizes, size in zip(seen, shape, strict=True):
                    sizes.add(size)
        if truth is not None and len(truth) == len(eager):
            for sizes, size in zip(seen, truth, strict=True):
                sizes |= {size} if len(sizes) > 1 else set()
        if all(min(sizes) <= size <= max(sizes) for sizes, size in zip(seen, subject, strict=True)):
            return True
    return False


def is_rounded_exception(seen: ExceptionFacts, runs: Runs) -> bool:
    """Whether eager raises the same exception in fp64 and under noise. Numbers in the message (mostly sizes) may differ.

    Noise alone is not enough: it may push a value out of an operator's domain.
    """
    if seen.is_out_of_memory or not _raises(runs.truth(), seen) or isinstance(runs.still(), Raised):
        return False
    return any(_raises(run, seen) for run in runs.noise())


def _raises(outcome: Outcome | None, seen: ExceptionFacts) -> bool:
    if not isinstance(outcome, Raised):
        return False
    own = outcome.exception
    return (own.call, own.type_name, _wording(own)) == (seen.call, seen.type_name, _wording(seen))


def _wording(exception: ExceptionFacts) -> str:
    return _NUMBER.sub("0", exception.message)
