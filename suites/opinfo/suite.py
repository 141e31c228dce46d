"""OpInfoSuite: torch's operator database as a suite. Imported in workers only; it loads the whole database."""

from __future__ import annotations

from collections.abc import Iterator

from suites.base import Selection, SuiteProgram
from suites.opinfo.plan import list_groups, list_programs


class OpInfoSuite:
    """Implements `suites.base.Suite`. The default sweep takes the first sample of the first entry of each operator.

    Of compilers that are not torch's own it also takes the first sample with non-contiguous tensors, forward.
    """

    def groups(self, selection: Selection) -> list[str]:
        """Full names of all entries that can hold a selected program. Raises UsageError for unknown words."""
        return list_groups(selection)

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """The selected programs of one entry, in a fixed order. Raises UsageError for unknown words or entry."""
        return list_programs(selection, group)
