"""Verdicts on counts: graph breaks, recompiles, kernels.

The same program has the same counts, so any change is one, unless the case's history shows that they vary.
"""

from __future__ import annotations

from collections.abc import Sequence

from results.speed.verdicts import SpeedVerdict, Word


def judge_count(base: int | None, head: int | None, history: Sequence[int | None] = ()) -> SpeedVerdict:
    """The verdict on one count of one case. More is worse. `history`: earlier runs, oldest first, without base.

    Runs in which the count went up and down again show that it varies. A count that changed once, and stayed, does not.
    """
    if base is None or head is None:
        return SpeedVerdict(word=Word.NOT_ENOUGH_DATA, reason=f"not counted in {'base' if base is None else 'head'}")
    effect = head / base if base else None
    if base == head:
        return SpeedVerdict(word=Word.SAME, reason=f"{head}, as before", effect=effect)
    seen = [count for count in (*history, base) if count is not None]
    if _comes_back(seen) and min(seen) <= head <= max(seen):
        return SpeedVerdict(
            word=Word.SAME, reason=f"{head}, was {base}: it varies from {min(seen)} to {max(seen)}", effect=effect
        )
    word = Word.WORSE if head > base else Word.BETTER
    return SpeedVerdict(word=word, reason=f"{head}, was {base}", effect=effect)


def _comes_back(counts: Sequence[int]) -> bool:
    """Whether some value was left and reached again."""
    runs = [count for i, count in enumerate(counts) if i == 0 or count != counts[i - 1]]
    return len(set(runs)) < len(runs)
