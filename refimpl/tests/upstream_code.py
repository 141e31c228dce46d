"""Which code of torch runs while refimpl works, and which of it decides what a graph computes.

    python -m refimpl.tests.upstream_code --write          # the fixed sample, some minutes of one core
    python -m refimpl.tests.upstream_code --all            # every program and operator, prints totals only

writes `independence.csv`: the functions of torch that ran, with the number of their calls, and the operators that were recorded
in a graph while one of torch's Python kernels ran. A mistake in such a kernel would be a mistake of refimpl. Python functions are
seen by a profile function. Operators, composite kernels and derivatives of C++ are seen by torch's profiler.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch

import refimpl
from refimpl._torch import OpOverloadPacket, pytree
from refimpl.pipeline import compile_aot
from refimpl.tests.corpus import Program, programs_of
from refimpl.trace.graph_builder import GraphBuilder

ROOT = Path(torch.__file__).parent
# The fixed sample: all programs of the trace corpus, and each of these many programs of the AOT corpus and operators of OpInfo.
EVERY_PROGRAM = 3
EVERY_OPERATOR = 5
TABLE = Path(refimpl.__file__).parents[1] / "results" / "data" / "cpu-torch-2.13.0" / "independence.csv"
# Part of torch -> its files. What a part does for refimpl is said in docs/tools/independence.py.
KERNELS = {
    "Python decompositions": ("_decomp/",),
    "Python references": ("_refs/", "_prims/"),
    "meta kernels": ("_meta_registrations.py",),
}
PARTS = {
    **KERNELS,
    "helpers of Python kernels": ("_prims_common/",),
    "fake tensors": ("_subclasses/",),
    "symbolic numbers": ("fx/experimental/",),
    "higher-order operators": ("_higher_order_ops/",),
    "function transforms": ("_functorch/",),
    "compilers": ("_dynamo/", "_inductor/", "_export/", "export/", "compiler/"),
    "dispatcher": ("_ops.py", "_library/", "library.py", "utils/_python_dispatch.py"),
    "autograd in Python": ("autograd/",),
    "graph classes": ("fx/",),
    "pytrees": ("utils/_pytree.py",),
}
# Parts in C++: of them torch's profiler tells the calls.
OPERATORS, COMPOSITES, DERIVATIVES = "operators", "C++ composite kernels", "C++ derivatives"
ALL_PARTS = (*PARTS, OPERATORS, COMPOSITES, DERIVATIVES)
_ENGINE = "autograd::engine::evaluate_function: "
COLUMNS = ("part", "function", "calls", "recorded operators")


def part_of(file: str, parts: dict[str, tuple[str, ...]] = PARTS) -> str | None:
    """The part of torch that a file belongs to."""
    with suppress(ValueError):
        relative = str(Path(file).relative_to(ROOT))
        return next((part for part, prefixes in parts.items() if relative.startswith(prefixes)), None)
    return None


@dataclass
class SeenCode:
    """What ran, by part and `file:function`."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    recorded: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Operators that entered a graph while one of torch's Python kernels ran, by the innermost such kernel."""

    def rows(self) -> list[tuple[str, str, int, int]]:
        order = list(ALL_PARTS)
        keys = sorted({*self.calls, *self.recorded}, key=lambda key: (order.index(key[0]), key[1]))
        return [(*key, self.calls[key], self.recorded[key]) for key in keys]


@contextmanager
def watched(*, counts_calls: bool) -> Iterator[SeenCode]:
    """Watches refimpl within the block. To count calls is slow; recorded operators are always seen."""
    seen = SeenCode()
    parts: dict[str, str | None] = {}

    def key_of(frame: FrameType, known: dict[str, str | None]) -> tuple[str, str] | None:
        file = frame.f_code.co_filename
        if file not in known:
            known[file] = part_of(file)
        part = known[file]
        return None if part is None else (part, f"{Path(file).relative_to(ROOT)}:{frame.f_code.co_name}")

    def profile(frame: FrameType, event: str, _: object) -> None:
        # The bodies of modules and classes are no calls: they run when a module is loaded.
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED and (key := key_of(frame, parts)) is not None:
            seen.calls[key] += 1

    original = GraphBuilder.call

    def call(self: GraphBuilder, *args: Any, **kwargs: Any) -> torch.fx.Node:
        frame = sys._getframe(1)
        while frame is not None:
            key = key_of(frame, parts)
            if key is not None and key[0] in KERNELS:
                seen.recorded[key] += 1
                break
            frame = frame.f_back
        return original(self, *args, **kwargs)

    with mock.patch.object(GraphBuilder, "call", call):
        if counts_calls:
            sys.setprofile(profile)
        try:
            yield seen
        finally:
            sys.setprofile(None)


def is_composite(operator: str) -> bool:
    """Whether C++ computes all overloads of an operator of aten (`aten::matmul`) by other operators. Events name no overload."""
    packet = getattr(torch.ops.aten, operator.removeprefix("aten::"), None)
    found: list[bool] = []
    for overload in packet.overloads() if isinstance(packet, OpOverloadPacket) else ():
        name = operator if overload == "default" else f"{operator}.{overload}"
        with suppress(RuntimeError):  # overloads of TorchScript alone, which the dispatcher does not know
            found.append(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
    return bool(found) and all(found)


@contextmanager
def watched_operators(seen: SeenCode, is_known: dict[str, bool]) -> Iterator[None]:
    """Adds to `seen` the operators and derivatives that torch's profiler sees within the block. `is_known` is a cache."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield
    results = profile.profiler.kineto_results if profile.profiler else None
    for event in results.events() if results else ():
        name = event.name()
        if name.startswith(_ENGINE):
            seen.calls[DERIVATIVES, name.removeprefix(_ENGINE)] += 1
        elif name.startswith("aten::"):
            if name not in is_known:
                is_known[name] = is_composite(name)
            seen.calls[(COMPOSITES, name) if is_known[name] else (OPERATORS, "all that are not composite")] += 1


# ------------------------------------------------------------------------------------------------------------- what is run


def trace_of(program: Program) -> None:
    """A symbolic trace of a program of the corpus."""
    requires_grad = program.with_gradients == (True,)
    refimpl.make_fx(program.build(), tracing_mode="symbolic")(*program.make(requires_grad).arguments)


def compiled_call_of(program: Program) -> None:
    """Compiles a program of the corpus for sizes that vary, with its backward, and calls it."""
    requires_grad = True in program.with_gradients
    compile_aot(program.build(), dynamic=True)(*program.make(requires_grad).arguments)


def case_of_operator(info: Any) -> tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]:
    """A function that calls an operator with its first float32 sample, and what makes its arguments: the sample's tensors.

    The function also gives the gradients, if the operator has them.
    """
    sample = next(iter(info.sample_inputs("cpu", torch.float32, requires_grad=False)))
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(given, spec)
        result = info.op(first, *args, **kwargs)
        ends = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        sources = [tensor for tensor in tensors if tensor.requires_grad]
        if not ends:
            return result
        return result, torch.autograd.grad([end.abs().sum() for end in ends], sources, allow_unused=True)

    def make() -> list[torch.Tensor]:
        tensors = [leaves[place].detach().clone() for place in places]
        if info.supports_autograd:
            tensors = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        return tensors

    return run, make


def trace_of_operator(info: Any) -> None:
    """A symbolic trace of an operator's first float32 sample: all its tensors are arguments, with gradients if it has them."""
    run, make = case_of_operator(info)
    refimpl.make_fx(run, tracing_mode="symbolic")(*make())


def works(*, everything: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """What the table is made of: programs of the corpus and operators of OpInfo, a fixed sample of them or all."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415  takes seconds to import

    for program in programs_of("trace"):
        yield f"trace {program}", lambda program=program: trace_of(program)
    for program in programs_of("aot")[:: 1 if everything else EVERY_PROGRAM]:
        yield f"compile {program}", lambda program=program: compiled_call_of(program)
    operators = sorted((info for info in op_db if torch.float32 in info.dtypes), key=lambda info: info.full_name)
    for info in operators[:: 1 if everything else EVERY_OPERATOR]:
        yield f"operator {info.full_name}", lambda info=info: trace_of_operator(info)


def load_what_torch_loads_later() -> None:
    """Makes torch import what the first fake tensor, trace, compile and profile import, so that it is not counted."""
    importlib.import_module("torch._dynamo")
    for tracing_mode in ("real", "symbolic"):
        refimpl.make_fx(torch.sin, tracing_mode=tracing_mode)(torch.ones(2))
    compile_aot(torch.sin, dynamic=True)(torch.ones(2, requires_grad=True)).sum().backward()
    with watched_operators(SeenCode(), {}):
        torch.ones(2)


def measured(*, everything: bool) -> tuple[SeenCode, Counter[str]]:
    """What ran, and how many traces, compiles and operators ended well, or in an error."""
    ends: Counter[str] = Counter()
    is_known: dict[str, bool] = {}
    load_what_torch_loads_later()
    with watched(counts_calls=True) as seen:
        for name, work in works(everything=everything):
            with watched_operators(seen, is_known):
                try:
                    work()
                    ends[name.split()[0]] += 1
                except Exception:  # refused programs and operators: what ran until then counts as well
                    ends["refused"] += 1
    return seen, ends


def main() -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    what.add_argument("--all", action="store_true", help="run everything, not the fixed sample: takes very long")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    seen, ends = measured(everything=options.all)
    rows = [*(("run", kind, number, 0) for kind, number in ends.items()), *seen.rows()]
    for part in ALL_PARTS:
        of_part = [row for row in rows if row[0] == part]
        calls, recorded = sum(row[2] for row in of_part), sum(row[3] for row in of_part)
        print(f"{part}: {len(of_part)} functions, {calls} calls, {recorded} operators")
    print(dict(ends))
    if options.write:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
