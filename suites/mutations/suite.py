"""MutationsSuite: one group a theme, PROGRAMS_PER_THEME programs in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.errors import UsageError
from suites.base import Selection, SuiteProgram
from suites.mutations import DEFAULT_SUBJECTS, DESCRIPTION, DTYPES, NAME, TAGS
from suites.mutations.generate import recipes
from suites.mutations.statements import FAMILIES

PROGRAMS_PER_THEME = 400
QUICK_PER_THEME = 5


class MutationsSuite:
    """Groups are themes. A program's name is its theme and the number it was generated from; there is no dtype axis.

    `max_samples` thins out a theme evenly. The default sweep takes the first QUICK_PER_THEME: programs are drawn
    independently of one another, so that the first are as good as any, and the others need not be generated.
    """

    name: str = NAME
    description: str = DESCRIPTION
    tags: Mapping[str, str] = TAGS
    dtypes: tuple[str, ...] = DTYPES
    default_subjects: tuple[str, ...] = DEFAULT_SUBJECTS

    def groups(self, selection: Selection) -> list[str]:
        return [
            theme
            for theme in FAMILIES
            if selection.may_want_group(theme) and (not selection.tags or theme in selection.tags)
        ]

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError for a theme that does not exist."""
        if group not in FAMILIES:
            raise UsageError(seen=f"theme {group!r}", expected=f"one of {', '.join(FAMILIES)}", do="name one of these")
        count = QUICK_PER_THEME if selection.quick else PROGRAMS_PER_THEME
        step = max(1, count // selection.max_samples) if selection.max_samples else 1
        taken = 0
        for position, (number, recipe) in enumerate(recipes(group, count)):
            name = f"{group}/{number:05d}"
            direction = "backward" if recipe.is_differentiated else "forward"
            is_wanted = not selection.directions or direction in selection.directions
            if position % step or not is_wanted or not selection.wants(group=group, name=name):
                continue
            if selection.max_samples and taken >= selection.max_samples:
                return
            taken += 1
            yield SuiteProgram(
                program=recipe.to_program(name=name, seed=number % 1000),
                group=group,
                direction=direction,
                tags=(group,),
                timeout_s=60.0,
            )
