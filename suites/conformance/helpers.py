"""Functions of a test file that do, with private means of torch, what a public entry point does: they are replaced as a whole.

`test_functionalization.py` predates `torch.func.functionalize` and says so: it wraps each input into a functional tensor and
takes the results out again, call by call. There is nothing to substitute below the whole. With stock torch the file's own
helper runs; in the other passes the helper calls what stands in for the entry point.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """One function of a test file."""

    name: str
    """As "file.function"."""
    stands_for: str
    """The entry point of upstream, by dotted name."""
    adapt: Callable[[Any], Callable[..., Any]]
    """Makes the helper of what stands in for the entry point."""


def _functionalize(functionalize: Any) -> Callable[..., Any]:
    def helper(function: Callable[..., Any], *, reapply_views: bool, crossref: bool) -> Callable[..., Any]:
        # `crossref` compares upstream's fake kernels with its real ones as it goes: nothing of the entry point.
        run = functionalize(function, remove="mutations" if reapply_views else "mutations_and_views")

        def wrapped(*inputs: Any) -> Any:  # a trace names its inputs after the parameters, here as in the file
            return run(*inputs)

        return wrapped

    return helper


_ROWS = (
    Helper(
        name="test_functionalization._functionalize",
        stands_for="torch.func.functionalize",
        adapt=_functionalize,
    ),
)
HELPERS: dict[str, Helper] = {row.name: row for row in _ROWS}


def replace_helpers(module: types.ModuleType, names: Sequence[str], substitutes: Mapping[str, object]) -> None:
    """Those of `names` that are in this file and whose entry point is substituted."""
    for name in names:
        helper = HELPERS[name]
        file, _, function = name.partition(".")
        if file == module.__name__ and helper.stands_for in substitutes:
            getattr(module, function)  # AttributeError: the file has no such helper, and the row is out of date
            setattr(module, function, helper.adapt(substitutes[helper.stands_for]))
