"""The suites of PyTorch's test files. Add a row for a new part of the reference implementation."""

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
    parts: tuple[str, ...] = ("graphs",)
    """Parts of `refimpl.SUBSTITUTION_PARTS` that are entry points: the denominator is what depends on them."""
    companions: tuple[str, ...] = ()
    """Parts that are substituted together with these, and do not raise in the stand-in pass: settings, markers, counters."""


_CAPTURE_HARNESS = ("torch._dynamo.test_case", "torch._dynamo.testing")
_CAPTURE_NEEDS = (
    "torch.compile",
    "torch._dynamo.optimize",
    "torch._dynamo.optimize_assert",
    "torch._dynamo.export",
    "torch._dynamo.explain",
)


def _of_capture(name: str, description: str) -> ConformanceSuite:
    """A suite of upstream's tests of capture: one file."""
    return ConformanceSuite(
        name=f"dynamo_{name}",
        description=description,
        files=(f"dynamo/test_{name}.py",),
        needs=_CAPTURE_NEEDS,
        harness=_CAPTURE_HARNESS,
        parts=("graphs", "capture"),
        companions=("capture companions",),
    )


def _of_operators(name: str, description: str, file: str) -> ConformanceSuite:
    """A suite of upstream's tests of higher-order operators: one file, which traces, compiles, captures and exports."""
    return ConformanceSuite(
        name=name,
        description=description,
        files=(file,),
        needs=("torch.fx.experimental.proxy_tensor.make_fx", *_CAPTURE_NEEDS),
        harness=_CAPTURE_HARNESS,
        parts=("graphs", "capture", "export"),
        companions=("capture companions", "export companions"),
    )


def _of_export(name: str, description: str, file: str | None = None) -> ConformanceSuite:
    """A suite of upstream's tests of export: one file, which may take its tests from another."""
    return ConformanceSuite(
        name=f"export_{name}",
        description=description,
        files=(f"export/{file or f'test_{name}'}.py",),
        needs=("torch.export.export",),
        harness=_CAPTURE_HARNESS,
        parts=("graphs", "capture", "export"),
        companions=("capture companions", "export companions"),
    )


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
    _of_capture("misc", "capture: all kinds of programs, guards, recompiles, settings"),
    _of_capture("functions", "capture: functions, arguments, closures, builtins and containers"),
    _of_capture("modules", "capture: torch.nn.Module, hooks, OptimizedModule"),
    _of_capture("repros", "capture: programs that were reported as wrong"),
    _of_capture("export", "capture: export with the signature of the function"),
    _of_capture("subgraphs", "capture: graph breaks, and what continues after them"),
    _of_capture("unspec", "capture: numbers that are not burned in"),
    _of_capture("ctx_manager", "capture: context managers"),
    _of_capture("aot_autograd", "capture with AOT autograd behind it"),
    _of_capture("higher_order_ops", "capture: cond, map, while_loop, wrap, transforms of torch.func"),
    _of_capture("subclasses", "capture: tensor subclasses and modes of torch functions"),
    _of_capture("autograd_function", "capture: torch.autograd.Function"),
    _of_capture("activation_checkpointing", "capture: torch.utils.checkpoint, with policies"),
    _of_capture("hooks", "capture: hooks on tensors and modules"),
    _of_capture("decorators", "capture: disable, graph_break, mark_dynamic and others"),
    _of_capture("recompiles", "capture: what compiles again, and what need not"),
    _of_capture("optimizers", "capture: steps of optimizers"),
    _of_capture("modes", "capture: modes of torch functions and of dispatch"),
    _of_capture("error_messages", "capture: messages of errors and of graph breaks"),
    _of_capture("callback", "capture: functions that are called when a compilation starts and ends"),
    _of_operators("control_flow", "cond, map, scan, while_loop and associative_scan", "functorch/test_control_flow.py"),
    _of_operators("checkpoint_policies", "what the partitioner saves, by memory budget", "functorch/test_ac.py"),
    _of_operators("invoke_subgraph", "regions that are compiled once", "higher_order_ops/test_invoke_subgraph.py"),
    _of_operators("with_effects", "operators whose order is kept by tokens", "higher_order_ops/test_with_effects.py"),
    _of_export(
        "default", "export: signatures, state, sizes, constraints, in the mode that is the default", "test_export"
    ),
    _of_export("nonstrict", "export: the same tests, not strict where they do not say", "test_export_nonstrict"),
    _of_export("strict", "export: the same tests, strict where they do not say", "test_export_strict"),
    _of_export("retraceability", "export: the same tests, of what was exported once more"),
    _of_export(
        "training_ir_to_run_decomp", "export: the same tests, decomposed", "test_export_training_ir_to_run_decomp"
    ),
    _of_export("serdes", "export: the same tests, of what was saved and loaded"),
    _of_export("unflatten", "export: modules made of exported programs"),
    _of_export("verifier", "export: what a verifier refuses"),
    _of_export("converter", "export: programs of TorchScript"),
    _of_export("draft_export", "export: what is reported instead of raised"),
    _of_export("experimental", "export: parts of it that may change"),
    _of_export("hop", "export: higher-order operators of the operator database"),
    _of_export("passes", "export: passes over exported programs"),
    _of_export("serialize", "export: what is written to a file, and read again"),
    _of_export("strict_export_v2", "export: the same tests, by a newer form of capture"),
    _of_export("torchbind", "export: script objects"),
)
SUITES: dict[str, ConformanceSuite] = {row.name: row for row in _ROWS}


def find_suite(name: str) -> ConformanceSuite:
    """Raises UsageError for an unknown name."""
    if name not in SUITES:
        raise UsageError(seen=f"--suite {name}", expected=f"one of {', '.join(SUITES)}", do="name one of these")
    return SUITES[name]
