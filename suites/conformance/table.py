"""The suites: which of PyTorch's test files are run. A later part of the reference implementation adds a row."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceSuite:
    """One row: some test files of a PyTorch source tree that exercise the same entry points."""

    name: str
    description: str
    files: tuple[str, ...]
    """Below the tree's `test` folder. All must exist: a tree without one is refused."""
    needs: tuple[str, ...]
    """Upstream names without whose counterpart the suite says nothing; where one is missing the run is exploratory."""
    harness: tuple[str, ...] = ()
    """Modules of the installed torch's test harness through which the files use entry points."""
    classes: tuple[str, ...] = ()
    """Only these test classes, as globs; all if empty."""


_ROWS = (
    ConformanceSuite(
        name="proxy_tensor",
        description="make_fx in real, fake and symbolic mode, on hand-written programs and on every operator",
        files=("test_proxy_tensor.py",),
        needs=("torch.fx.experimental.proxy_tensor.make_fx",),
        harness=("torch.testing._internal.optests.make_fx",),
    ),
    ConformanceSuite(
        name="dynamic_shapes",
        description="symbolic integers, floats and booleans, and the shape environment they live in",
        files=("test_dynamic_shapes.py",),
        needs=("torch.fx.experimental.symbolic_shapes.ShapeEnv",),
    ),
)
SUITES: dict[str, ConformanceSuite] = {row.name: row for row in _ROWS}


def find_suite(name: str) -> ConformanceSuite:
    """Raises UsageError when there is none of this name."""
    if name not in SUITES:
        raise UsageError(seen=f"--suite {name}", expected=f"one of {', '.join(SUITES)}", do="name one of these")
    return SUITES[name]
