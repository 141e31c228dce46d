"""What a worker sees of a program beside the verdict: aten overloads in eager, and what the compiler did.

Also what makes judging thousands of small programs cheap without changing a verdict (`prepare_process`).
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._decomp.decompositions_for_rng
import torch._dynamo.guards
import torch._dynamo.utils
from torch._dynamo.utils import counters as dynamo_counters
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.builds.simplifying import remember_simplified
from oracle.hygiene import restore, snapshot
from oracle.observe import observe
from oracle.program import Program
from oracle.program.build import ProgramLoadError, instantiate
from oracle.subjects.base import Subject
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec

# Counters of dynamo that say what happened, other than how often something was looked up.
_COUNTED = ("inductor", "aot_autograd", "custom_backend")
_UNINTERESTING = re.compile(r"cache|benchmark|autotun")
_CONFIGURATION_LOGS = (
    "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
    "_compiler_config_for_logging",
    "_functorch_config_for_logging",
)
_GC_THRESHOLD = 150_000
_lowered: set[str] = set()


class AtenOverloads(TorchDispatchMode):
    """Names of the overloads that are called while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def aten_features(program: Program) -> list[str]:
    """The overloads that eager calls, backward included. One more run in eager."""
    before = snapshot()
    mode = AtenOverloads()
    try:
        observe(instantiate(program), around_call=lambda: mode)
    except ProgramLoadError:
        return []
    finally:
        restore(before)
    return [f"aten:{name}" for name in sorted(mode.names)]


def compiler_features(spec: SubjectSpec) -> list[str]:
    """What the subject has just done, for subjects that are torch.compile: reasons of graph breaks, passes, lowerings."""
    if spec.kind not in ("torch_compile", "backend"):
        return []
    found = [f"break:{_reason(text)}" for text in dynamo_counters["graph_break"]]
    for group in _COUNTED:
        found += [
            f"pass:{group}.{name}"
            for name, count in dynamo_counters[group].items()
            if count and not _UNINTERESTING.search(name)
        ]
    found += [f"lowering:{name}" for name in _lowered]
    _lowered.clear()
    return sorted(set(found))


def prepared_subject(data: Mapping[str, Any]) -> Subject:
    """The subject of a task's payload, loaded once, in a process that is prepared for it."""
    return _prepared(json.dumps(data, sort_keys=True))


@functools.lru_cache(maxsize=4)
def _prepared(spec_json: str) -> Subject:
    spec = SubjectSpec.from_json(json.loads(spec_json))
    subject = load(spec)
    prepare_process(spec)
    return subject


def prepare_process(spec: SubjectSpec) -> None:
    """Once in a worker: no measurements that nobody reads, no warnings that nobody sees, lowerings noted.

    Compilers make many cycles, and many objects that stay: Python's own rhythm of collections is a tenth of the time. Ranges
    collect themselves (`collect_garbage`).
    """
    gc.set_threshold(_GC_THRESHOLD, 10, 10)
    warnings.simplefilter("ignore")
    for name in ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _skip_guard_timing()
    _skip_configuration_logs()
    _share_empty_random_state()
    _skip_texts_of_graphs()
    _skip_collections()
    if spec.kind == "torch_compile" and spec.options.get("backend") == "inductor":
        _note_lowerings()
        _skip_texts_of_cache_keys()
        remember_simplified()
        _keep_dtype_rules()


def collect_garbage() -> None:
    """After a range of programs. What survives stays (the compiler itself, its caches): it is not walked again.

    The compilers' caches grow with every program: after some thousands of them a walk took most of the time. A worker that
    has grown too much is replaced by its pool.
    """
    gc.collect()
    gc.freeze()


def _skip_collections() -> None:
    """Dynamo collects garbage after every graph."""
    config: Any = importlib.import_module("torch._dynamo.config")
    if hasattr(config, "run_gc_after_compile"):
        config.run_gc_after_compile = False


def _skip_guard_timing() -> None:
    """Dynamo times the guards of every graph, after flushing the processor's caches: half the cost of a small graph."""
    guards: Any = torch._dynamo.guards
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = _no_latency


def _no_latency(*args: Any) -> float:
    return 0.0


def _skip_configuration_logs() -> None:
    """Dynamo writes all its configuration as JSON into a metric that goes nowhere, for every graph."""
    for name in _CONFIGURATION_LOGS:
        if hasattr(torch._dynamo.utils, name):
            setattr(torch._dynamo.utils, name, _no_log)


def _no_log(*args: Any) -> None:
    return None


def _skip_texts_of_cache_keys() -> None:
    """Inductor hashes and prints the parts of every graph's cache key once more, for a debug log."""
    pickler: Any = getattr(importlib.import_module("torch._inductor.codecache"), "FxGraphCachePickler", None)
    if pickler is not None and hasattr(pickler, "debug_lines"):
        pickler.debug_lines = _no_lines


@functools.cache
def _skip_texts_of_graphs() -> None:
    """AOT autograd prints every graph, with its definitions written out, for a log."""
    printed: Callable[..., str] = torch.fx.GraphModule.print_readable

    @functools.wraps(printed)
    def print_readable(self: torch.fx.GraphModule, print_output: bool = True, *args: Any, **options: Any) -> str:
        if not print_output and options.get("expanded_def"):
            return ""
        return printed(self, print_output, *args, **options)

    torch.fx.GraphModule.print_readable = print_readable


@functools.cache
def _keep_dtype_rules() -> None:
    """Inductor has one table of the dtypes that operations give, and fills it again whenever it asks for one."""
    module: Any = importlib.import_module("torch._inductor.dtype_propagation")
    handler: Any = getattr(module, "DtypePropagationOpsHandler", None)
    tables: Any = (
        importlib.import_module("torch._inductor.utils"),
        importlib.import_module("torch._inductor.codegen.common"),
    )
    names = ("op_dtype_propagation_rules", "pointwise_overrides_data")
    if handler is None or not hasattr(handler, "_instance") or not all(map(hasattr, tables, names)):
        return
    fill: Callable[[Any], None] = handler.__init__
    filled: list[tuple[int, ...]] = []

    @functools.wraps(fill)
    def fill_once(self: Any) -> None:
        sizes = (id(self), *(len(getattr(table, name)) for table, name in zip(tables, names, strict=True)))
        if [sizes] != filled:  # an operation was added since
            fill(self)
            filled[:] = [sizes]

    handler.__init__ = fill_once


def _no_lines(*args: Any) -> list[str]:
    return []


def _share_empty_random_state() -> None:
    """AOT autograd makes a dozen empty tensors for every graph, in place of a random state that is not functionalized."""
    state: Any = getattr(torch._decomp.decompositions_for_rng, "PhiloxState", None)
    if state is not None and hasattr(state, "reset"):
        state.reset = _reset_random_state


_EMPTY = torch.tensor(())


def _reset_random_state(self: Any) -> None:
    self.seed = self.base_offset = _EMPTY
    self.relative_offset = 0
    self.offset_advanced_at_least_once = False


@functools.cache
def _note_lowerings() -> None:
    lowering: Any = importlib.import_module("torch._inductor.graph").GraphLowering
    original: Callable[..., Any] = lowering.call_function

    @functools.wraps(original)
    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        _lowered.add(str(target))
        return original(self, target, args, kwargs)

    lowering.call_function = call_function


def _reason(text: str) -> str:
    """The first line of a reason, without what is the program's own."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return re.sub(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\b\d+\b", "#", first)[:80]
