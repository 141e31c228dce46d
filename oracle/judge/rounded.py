"""What hangs on rounding besides numbers: sizes, and whether a call raises.

How many elements are unique, or pass a mask, is decided by comparisons of rounded numbers: another order of operations
upstream gives another size, and then perhaps an exception where a size no longer fits. As with integers (oracle.judge.values),
what decides is eager itself under rounding noise. fp64 is asked as well, and tells apart what the program's dtype can hold
apart: noise makes two of what is one, and never one of two. It says nothing alone: a dtype may be part of a size, and a reason
to raise. Nothing counts where the noise's mode without noise makes another program of eager (oracle.judge.trust).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from oracle.judge.evidence import Runs
from oracle.observe.outcome import ExceptionFacts, Outcome, Raised

_Shape = tuple[int, ...]
_NUMBER = re.compile(r"\d+")


def is_rounded_size(eager: _Shape, subject: _Shape, truth: _Shape | None, noise: Iterable[Sequence[_Shape]]) -> bool:
    """Whether each size of the subject lies among those that eager has. `noise` gives shapes in turns: quiet noise, loud noise.

    `truth` widens the range of a size that noise moves.
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
    """Whether eager raises this in fp64 and under noise as well. Numbers in the message, sizes mostly, may be others.

    Noise alone says little, too: it may leave the domain of an operator.
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
