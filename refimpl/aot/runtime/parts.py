"""Results of one call that autograd is given in several steps, each with the histories that its own results go on from.

Counterpart: none; upstream's compiled forward is one step. A backward of one result then calls what is behind every input, with
nothing where no gradient arrives: what that has saved is let go, and gone for the backward of another result
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refimpl.aot.analysis.records import ProgramAnalysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`outputs` are indices among the differentiable outputs, `slots` those that have a gradient by one of them."""

    outputs: tuple[int, ...]
    slots: tuple[int, ...]


class PartsState:
    """Of one compiled program, by which of its slots have histories. Results that share what is kept for their gradients stay
    together, and so do those that go on from the same histories."""

    def __init__(self, analysis: ProgramAnalysis, dependences: Sequence[frozenset[int]]) -> None:
        """dependences: of each gradient, the incoming gradients that it depends on."""
        self._parts: list[Part] = []
        self._known: dict[frozenset[int], tuple[Part, ...]] = {}
        if dependences and not analysis.refused and all(dependences):
            self._parts = [_part(tangents, analysis, dependences) for tangents in _components(analysis.freed_together)]
        everywhere = set.intersection(*[set(part.slots) for part in self._parts]) if self._parts else set()
        self._apart = sorted({slot for part in self._parts for slot in part.slots} - everywhere)

    def of_call(self, slots: Sequence[Any]) -> tuple[Part, ...]:
        """Empty if there is but one: always so where all slots that need gradients are leaves."""
        histories = frozenset([i for i in self._apart if slots[i].requires_grad and not slots[i].is_leaf])
        if not histories:
            return ()
        if histories not in self._known:
            self._known[histories] = self._merged(histories)
        return self._known[histories]

    def _merged(self, histories: frozenset[int]) -> tuple[Part, ...]:
        groups: dict[frozenset[int], list[Part]] = {}
        for part in self._parts:
            groups.setdefault(histories.intersection(part.slots), []).append(part)
        if len(groups) == 1:
            return ()
        return tuple(
            Part(
                outputs=tuple(sorted(index for part in group for index in part.outputs)),
                slots=tuple(sorted({slot for part in group for slot in part.slots})),
            )
            for group in groups.values()
        )


def _part(tangents: frozenset[int], analysis: ProgramAnalysis, dependences: Sequence[frozenset[int]]) -> Part:
    outputs = [analysis.differentiable.index(analysis.tangents[one].position) for one in tangents]
    slots = [i for i, g in enumerate(analysis.gradients) if g is not None and dependences[g] & tangents]
    return Part(outputs=tuple(sorted(outputs)), slots=tuple(slots))


def _components(together: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Those that nothing of another is among."""
    found: list[frozenset[int]] = []
    for index, others in enumerate(together):
        joined = frozenset([index]) | others
        apart = [one for one in found if one.isdisjoint(joined)]
        found = [*apart, joined.union(*[one for one in found if not one.isdisjoint(joined)])]
    return found
