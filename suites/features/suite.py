"""FeaturesSuite: the snippets of suites/features/programs, one group per file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from oracle.program.snippets import Snippet, read_snippets
from suites.base import Selection, SuiteProgram, group_of

_PROGRAMS = Path(__file__).with_name("programs")


@cache
def snippets() -> Mapping[str, Snippet]:
    return read_snippets(_PROGRAMS)


class FeaturesSuite:
    """Groups are features; each holds one program, "<feature>/forward" or "<feature>/backward".

    There is no dtype axis, and `max_samples` has no effect. The default sweep takes all programs, on the two rungs that need no
    C++ compiler, since they test capture.
    """

    def groups(self, selection: Selection) -> list[str]:
        return [
            name
            for name, snippet in snippets().items()
            if selection.may_want_group(name) and _is_wanted(snippet, selection)
        ]

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a group that does not exist."""
        snippet = group_of(snippets(), group, suite="features", what="feature")
        name = f"{group}/{snippet.direction}"
        if _is_wanted(snippet, selection) and selection.wants(group=group, name=name):
            yield SuiteProgram(
                program=snippet.to_program(name=name, device=selection.device),
                group=group,
                direction=snippet.direction,
                tags=snippet.tags,
            )


def _is_wanted(snippet: Snippet, selection: Selection) -> bool:
    has_tag = not selection.tags or any(tag in selection.tags for tag in snippet.tags)
    return has_tag and (not selection.directions or snippet.direction in selection.directions)
