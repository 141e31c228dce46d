"""The cases that changed between two runs: what became of each, and a sequence of them that holds few texts in memory.

In a run in which most cases fail, each has a symptom of its own. So only the kind and the planned places of the changed cases are
kept, and their texts are read, some hundred at once, when they are asked for.
"""

from __future__ import annotations

import operator
import re
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, overload

from oracle.verdict import Status, Verdict
from results.outcomes import NOT_COMPARABLE


class ChangeKind(str, Enum):
    """How one case changed. The value is the word in tables and JSON."""

    NEW_FAILURE = "new failure"  # a finding in head that is none in base, or is not in base
    MISSING_ROW = "missing row"  # in base but not planned in head, or planned in head without a record
    NO_LONGER_COMPARED = "no longer compared"  # judged in base, not comparable in head
    CHANGED_SYMPTOM = "changed symptom"  # fails in both, differently; or a failure that became known, or the reverse
    STILL_FAILING = "still failing"  # fails in both with the same symptom
    FIXED = "fixed"  # a finding in base, passes in head
    NEW_ROW = "new row"  # not in base, or not compared there; no finding
    UNCHANGED = "unchanged"

    @property
    def is_regression(self) -> bool:
        """Whether a comparison with this kind of change exits with 1."""
        return self in (ChangeKind.NEW_FAILURE, ChangeKind.MISSING_ROW, ChangeKind.NO_LONGER_COMPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """One case in both runs. A status is None if the case is not planned in that run."""

    case_id: str
    kind: ChangeKind
    base_status: str | None
    head_status: str | None
    base_symptom: str = ""
    head_symptom: str = ""
    head_frequency: str = ""  # of a finding that head ran again: "in 1 of 3 runs"
    is_flaky: bool = False  # whether it then did not fail each time


class RowText(NamedTuple):
    """The part of a comparison that concerns one planned case of one run."""

    case_id: str
    status: str
    symptom: str
    reruns: tuple[str, ...] = ()  # of a finding that was run again


def kind_of(base_status: str | None, head_status: str | None, base_symptom: str, head_symptom: str) -> ChangeKind:
    """The two statuses of a case. A status is None if the case is not planned in that run."""
    if head_status is None or Status(head_status).is_absent:
        return ChangeKind.MISSING_ROW
    new = _as_judged(head_status)
    if base_status is None or (old := _as_judged(base_status)).is_absent:
        # Base has no result for it, so a failure in head counts as new.
        return ChangeKind.NEW_FAILURE if new.is_finding else ChangeKind.NEW_ROW
    if new.is_finding and not old.is_finding:
        return ChangeKind.NEW_FAILURE
    if new.is_finding:
        is_alike = old is new and (
            base_symptom == head_symptom or symptom_key(base_symptom) == symptom_key(head_symptom)
        )
        return ChangeKind.STILL_FAILING if is_alike else ChangeKind.CHANGED_SYMPTOM
    if new in NOT_COMPARABLE:
        return ChangeKind.UNCHANGED if old in NOT_COMPARABLE else ChangeKind.NO_LONGER_COMPARED
    if old.is_finding or old is Status.KNOWN:
        return (
            ChangeKind.UNCHANGED
            if old is new
            else ChangeKind.FIXED
            if new is Status.PASS
            else ChangeKind.CHANGED_SYMPTOM
        )
    if old in NOT_COMPARABLE:
        return ChangeKind.NEW_ROW
    return ChangeKind.UNCHANGED if old is new else ChangeKind.CHANGED_SYMPTOM


def _as_judged(word: str) -> Status:
    """The status, where `xpass` counts as a pass: the subject has not changed if the ledger expected a failure."""
    status = Status(word)
    return Status.PASS if status is Status.XPASS else status


_MEASURED: Final = re.compile(
    r"0x[0-9a-fA-F]+"  # addresses
    r"|[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+"  # measured numbers, not shapes and indices
    r"|line \d+"
)


def symptom_key(symptom: str) -> str:
    """A symptom without the parts that vary between runs for the same bug: addresses, floats, line numbers."""
    return _MEASURED.sub("#", symptom)


# ------------------------------------------------------------------------------------------------- places and texts

NOT_PLANNED: Final = -1  # the place of a case in a run that did not plan it
_KINDS: Final = tuple(ChangeKind)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_BLOCK: Final = 500  # cases whose texts are read at once


class Places:
    """The planned places of cases in base and head, in the order in which a comparison lists them."""

    def __init__(self) -> None:
        self.base = array("i")
        self.head = array("i")
        self.kinds = bytearray()

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, base: int | None, head: int | None, kind: ChangeKind = ChangeKind.UNCHANGED) -> None:
        self.base.append(NOT_PLANNED if base is None else base)
        self.head.append(NOT_PLANNED if head is None else head)
        self.kinds.append(_NUMBERS[kind])

    def kind(self, at: int) -> ChangeKind:
        return _KINDS[self.kinds[at]]

    def chosen(self, which: Callable[[int], bool]) -> Places:
        """The places at the indices for which `which` is true."""
        found = Places()
        for at in filter(which, range(len(self))):
            found._append(self, at)
        return found

    def in_planned_order(self) -> Places:
        """Base's planned order, then the cases that only head has, in its order."""
        places = zip(self.base, self.head, strict=True)
        keys = array("q", (planned_order(old, new) for old, new in places))
        if all(map(operator.le, keys, islice(keys, 1, None))):
            return self
        found = Places()
        for at in sorted(range(len(keys)), key=keys.__getitem__):
            found._append(self, at)
        return found

    def _append(self, other: Places, at: int) -> None:
        self.base.append(other.base[at])
        self.head.append(other.head[at])
        self.kinds.append(other.kinds[at])


def planned_order(base: int, head: int) -> int:
    """A key that sorts cases in base's planned order, and those that only head has behind them."""
    return base if base != NOT_PLANNED else (1 << 40) + head


ReadTexts = Callable[[Sequence[int], Sequence[int]], tuple[dict[int, RowText], dict[int, RowText]]]
"""Reads the rows at these places of base and at these of head, by place."""


class Changes(Sequence[CaseChange]):
    """The changed cases of a comparison, in planned order. Their texts are read anew each time that they are asked for."""

    def __init__(self, places: Places, read: ReadTexts, flaky: Set[int] = frozenset()) -> None:
        self._places = places
        self._read = read
        self._flaky = flaky  # places in head of the findings that did not fail each time

    @property
    def places(self) -> Places:
        return self._places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> CaseChange: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CaseChange]: ...
    def __getitem__(self, index: int | slice) -> CaseChange | Sequence[CaseChange]:
        if isinstance(index, slice):
            return list(self._changes(range(len(self))[index]))
        return next(self._changes([range(len(self))[index]]))

    def __iter__(self) -> Iterator[CaseChange]:
        return self._changes(range(len(self)))

    def of_kind(self, kind: ChangeKind) -> Changes:
        kinds, wanted = self._places.kinds, _NUMBERS[kind]
        return self._restricted(lambda at: kinds[at] == wanted)

    def flaky(self) -> Changes:
        """The findings that head ran again and that did not fail each time."""
        if not self._flaky:
            return Changes(Places(), self._read)
        head = self._places.head
        return self._restricted(lambda at: head[at] in self._flaky)

    def _restricted(self, which: Callable[[int], bool]) -> Changes:
        return Changes(self._places.chosen(which), self._read, self._flaky)

    def _changes(self, indices: Sequence[int]) -> Iterator[CaseChange]:
        places = self._places
        for first in range(0, len(indices), _BLOCK):
            block = indices[first : first + _BLOCK]
            olds, news = self._read([places.base[at] for at in block], [places.head[at] for at in block])
            for at in block:
                yield _change(places.kind(at), olds.get(places.base[at]), news.get(places.head[at]))


def _change(kind: ChangeKind, base: RowText | None, head: RowText | None) -> CaseChange:
    known = base or head
    assert known is not None
    again = None
    if head is not None and head.reruns and Status(head.status).is_finding:
        again = Verdict(status=Status(head.status), reruns=head.reruns)  # counted as in `gate` and `show`
    return CaseChange(
        case_id=known.case_id,
        kind=kind,
        base_status=base.status if base else None,
        head_status=head.status if head else None,
        base_symptom=base.symptom if base else "",
        head_symptom=head.symptom if head else "",
        head_frequency=again.frequency if again else "",
        is_flaky=again is not None and again.is_flaky,
    )


class CaseIds(Sequence[str]):
    """The ids of cases, given by their places in the plan. They are read from the database when they are asked for."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        found = self._changes[index]
        return found.case_id if isinstance(found, CaseChange) else [change.case_id for change in found]

    def __iter__(self) -> Iterator[str]:
        return (change.case_id for change in self._changes)
