"""The registry of suites, for `list` and `--suite`. Does not import torch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType

import suites.exports
import suites.features
import suites.models
import suites.opinfo
import suites.recorded
import suites.regressions
import suites.transformers
from oracle.errors import UsageError
from suites.base import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEntry:
    """The facts about a suite that need no torch. `path` is "module:class"."""

    name: str
    description: str
    tags: Mapping[str, str]
    dtypes: tuple[str, ...]
    default_subjects: tuple[str, ...]
    quick_subjects: tuple[str, ...]  # used in the default sweep, in which the user names no suite
    path: str
    only_when_named: bool  # no part of the default sweep, nor of `--suite all`


def _entry(module: ModuleType) -> SuiteEntry:
    return SuiteEntry(
        name=module.NAME,
        description=module.DESCRIPTION,
        tags=module.TAGS,
        dtypes=tuple(module.DTYPES),
        default_subjects=tuple(module.DEFAULT_SUBJECTS),
        quick_subjects=tuple(module.QUICK_SUBJECTS),
        path=module.SUITE_PATH,
        only_when_named=getattr(module, "ONLY_WHEN_NAMED", False),
    )


SUITES: dict[str, SuiteEntry] = {
    entry.name: entry
    for entry in map(
        _entry,
        (
            suites.opinfo,
            suites.models,
            suites.features,
            suites.regressions,
            suites.exports,
            suites.transformers,
            suites.recorded,
        ),
    )
}
ALL_SUITES = tuple(name for name, entry in SUITES.items() if not entry.only_when_named)


def modules_of(suites: Iterable[str]) -> tuple[str, ...]:
    """The modules that workers for these suites import, to be imported before they are forked. OpInfo's takes 1 to 3 s."""
    return tuple(SUITES[name].path.partition(":")[0] for name in suites if name in SUITES)


REPLACED = {
    "mutations": "`torch-oracle fuzz --focus views` draws such programs"
}  # removed suites -> what replaces them


def find_suite(name: str) -> SuiteEntry:
    """Raises UsageError for an unknown name, with similar names or a replacement."""
    if name in SUITES:
        return SUITES[name]
    if name in REPLACED:
        raise UsageError(
            seen=f"suite {name!r}, which was removed", expected=f"one of {', '.join(SUITES)}", do=REPLACED[name]
        )
    near = difflib.get_close_matches(name, SUITES, n=1)
    raise UsageError(
        seen=f"suite {name!r}",
        expected=f"one of {', '.join(SUITES)}",
        do=f"did you mean {near[0]!r}?" if near else "`torch-oracle list suites` shows them",
    )


def load_suite(name: str) -> Suite:
    """Import the suite itself; in a worker, since suites import torch."""
    module_name, _, attribute = find_suite(name).path.partition(":")
    return getattr(importlib.import_module(module_name), attribute)()
