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
    ConformanceSuite(
        name="aotdispatch",
        description="AOT autograd: mutation, aliases, partitioners, and forward and backward of every operator and module",
        files=("functorch/test_aotdispatch.py",),
        needs=(
            "torch._functorch.aot_autograd.aot_function",
            "torch._functorch.aot_autograd.aot_module",
            "torch._functorch.aot_autograd.aot_module_simplified",
            "torch._functorch.partitioners.default_partition",
            "torch._functorch.partitioners.min_cut_rematerialization_partition",
        ),
    ),
    ConformanceSuite(
        name="mem_efficient_fusion",
        description="common subexpressions of a graph, and the partitioner that recomputes",
        files=("functorch/test_memory_efficient_fusion.py",),
        needs=("torch._functorch.compile_utils.fx_graph_cse", "torch._functorch.compilers.memory_efficient_fusion"),
    ),
    ConformanceSuite(
        name="functionalization",
        description="programs with mutation and views, made functional",
        files=("test_functionalization.py",),
        needs=("torch._to_functional_tensor", "torch._enable_functionalization", "torch._from_functional_tensor"),
    ),
)
SUITES: dict[str, ConformanceSuite] = {row.name: row for row in _ROWS}


def find_suite(name: str) -> ConformanceSuite:
    """Raises UsageError when there is none of this name."""
    if name not in SUITES:
        raise UsageError(seen=f"--suite {name}", expected=f"one of {', '.join(SUITES)}", do="name one of these")
    return SUITES[name]
