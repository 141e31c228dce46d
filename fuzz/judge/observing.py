"""Records the aten overloads that a program calls in eager, and what the compiler did with it.

`prepare_process` makes judging thousands of small programs cheap, without changing a verdict.
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

# Dynamo's counters of events; others count lookups.
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
    """A dispatch mode that records the names of the overloads that are called."""

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
    """The last steps of torch.compile, if it is the subject: reasons of graph breaks, passes, lowerings."""
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
    """The subject of a task's payload, loaded once, after `prepare_process`."""
    return _prepared(json.dumps(data, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _prepared(spec_json: str) -> Subject:
    spec = SubjectSpec.from_json(json.loads(spec_json))
    subject = load(spec)
    prepare_process(spec)
    return subject


def prepare_process(spec: SubjectSpec) -> None:
    """Prepare a worker once: no unused measurements, no warnings, lowerings recorded.

    Compilers make many reference cycles, and many objects that stay, so that Python's automatic garbage collections take a tenth
    of the time. They are switched off; `collect_garbage` runs after each range of programs.
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
    """Collect garbage after a range of programs, and freeze what survives (the compiler itself, its caches).

    The compilers' caches grow with every program: after some thousands a collection that visits them took most of the time. The
    pool replaces a worker that has grown too much.
    """
    gc.collect()
    gc.freeze()


def _skip_collections() -> None:
    """Dynamo collects garbage after every graph: skip that."""
    config: Any = importlib.import_module("torch._dynamo.config")
    if hasattr(config, "run_gc_after_compile"):
        config.run_gc_after_compile = False


def _skip_guard_timing() -> None:
    """Dynamo times the guards of every graph after flushing the processor's caches, half the cost of a small graph: skip that."""
    guards: Any = torch._dynamo.guards
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = _no_latency


def _no_latency(*args: Any) -> float:
    return 0.0


def _skip_configuration_logs() -> None:
    """Dynamo writes its configuration as JSON into an unused metric for every graph: skip that."""
    for name in _CONFIGURATION_LOGS:
        if hasattr(torch._dynamo.utils, name):
            setattr(torch._dynamo.utils, name, _no_log)


def _no_log(*args: Any) -> None:
    return None


def _skip_texts_of_cache_keys() -> None:
    """Inductor hashes and prints the parts of every graph's cache key again for a debug log: skip that."""
    pickler: Any = getattr(importlib.import_module("torch._inductor.codecache"), "FxGraphCachePickler", None)
    if pickler is not None and hasattr(pickler, "debug_lines"):
        pickler.debug_lines = _no_lines


@functools.cache
def _skip_texts_of_graphs() -> None:
    """AOT autograd prints every graph for a log: skip that."""
    printed: Callable[..., str] = torch.fx.GraphModule.print_readable

    @functools.wraps(printed)
    def print_readable(self: torch.fx.GraphModule, print_output: bool = True, *args: Any, **options: Any) -> str:
        if not print_output and options.get("expanded_def"):
            return ""
        return printed(self, print_output, *args, **options)

    torch.fx.GraphModule.print_readable = print_readable


@functools.cache
def _keep_dtype_rules() -> None:
    """Inductor fills its table of result dtypes again for every lookup: keep the filled table."""
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
        if [sizes] != filled:  # an operation was added in the meantime
            fill(self)
            filled[:] = [sizes]

    handler.__init__ = fill_once


def _no_lines(*args: Any) -> list[str]:
    return []


def _share_empty_random_state() -> None:
    """AOT autograd makes a dozen empty tensors for every graph, in place of a random state: share one."""
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
    """The first line of a reason, without names and numbers of the program."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return re.sub(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\b\d+\b", "#", first)[:80]
