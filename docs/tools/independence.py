"""Writes docs/independence.md: what of torch refimpl rests on, how often it is reached, and how it is checked.

    python -m refimpl.tests.upstream_code --write      # measures TABLE, in some minutes
    python -m refimpl.tests.poisoned_kernels --write   # measures POISON_TABLE
    python docs/tools/independence.py --write | --check   # the page and the sentences of README, from both

`--check` measures nothing. It fails if the page or the sentences between the marks in README are not those of the tables.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = "results/data/cpu-torch-2.13.0/independence.csv"
POISON_TABLE = "results/data/cpu-torch-2.13.0/independence-poison.csv"
PAGE = "docs/independence.md"
README = "README.md"
_PLACE = re.compile(r"<!-- independence -->.*?<!-- /independence -->", re.DOTALL)
_WIDTH = 130
_SHOWN = 8  # functions of a part that are listed
_METADATA = (
    "`torch-oracle metadata` runs every operator on fake and on real tensors and compares the results "
    "([differences](../results/data/cpu-torch-2.13.0/metadata-opinfo.md))"
)
_AT_OTHER_SIZES = (
    "graphs run at other sizes than those of the trace and are compared with eager mode (`refimpl/tests/trace/`)"
)
_AS_EAGER = "eager mode is defined by it: graphs and their gradients are compared with eager mode in all tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of torch: what it is for refimpl, and what would show a mistake in it."""

    is_what: str
    decides: str
    checked_by: str


PARTS: Mapping[str, Part] = {
    "Python decompositions": Part(
        is_what="`torch._decomp`, as kernels of fake tensors",
        decides="shapes, strides, dtypes",
        checked_by=_METADATA,
    ),
    "Python references": Part(
        is_what="`torch._refs` and `torch._prims`, as kernels of fake tensors",
        decides="shapes, strides, dtypes",
        checked_by=_METADATA,
    ),
    "meta kernels": Part(
        is_what="`torch._meta_registrations`", decides="shapes, strides, dtypes", checked_by=_METADATA
    ),
    "helpers of Python kernels": Part(
        is_what="`torch._prims_common`", decides="shapes, strides, dtypes", checked_by=_METADATA
    ),
    "fake tensors": Part(is_what="`FakeTensorMode`", decides="shapes, strides, dtypes, devices", checked_by=_METADATA),
    "symbolic numbers": Part(
        is_what="operators of `torch.SymInt`, and functions of `symbolic_shapes` that kernels of fake tensors call; "
        "the shape environment and its guards are refimpl's",
        decides="expressions of sizes",
        checked_by=_AT_OTHER_SIZES,
    ),
    "higher-order operators": Part(
        is_what="operators such as `cond`, as objects that nodes name",
        decides="nothing: refimpl traces and runs them by its own rules",
        checked_by="`refimpl/tests/trace/test_higher_order.py` and others compare with eager mode",
    ),
    "function transforms": Part(
        is_what="helpers of `autograd.Function`", decides="nothing", checked_by="the run-time watch lists them by name"
    ),
    "compilers": Part(
        is_what="questions whether a compiler runs (`torch.compiler.is_exporting`, `torch._disable_dynamo`), asked by torch",
        decides="nothing",
        checked_by="the run-time watch lists them by name",
    ),
    "dispatcher": Part(
        is_what="operator objects, dispatch modes, registrations of custom operators",
        decides="which kernel of an operator runs",
        checked_by=_AS_EAGER,
    ),
    "autograd in Python": Part(
        is_what="`torch.autograd`: functions, grad modes, calls of the engine",
        decides="what is differentiated",
        checked_by=_AS_EAGER,
    ),
    "graph classes": Part(
        is_what="`torch.fx` without `experimental`: graphs, nodes, code of graph modules",
        decides="how a graph is kept and run",
        checked_by="graphs are run and compared with eager mode in all tests",
    ),
    "pytrees": Part(
        is_what="`torch.utils._pytree`",
        decides="order of leaves",
        checked_by="results are compared with eager mode, containers too",
    ),
    "operators": Part(
        is_what="calls of operators of aten that are not composite, on fake and on real tensors",
        decides="values of constants; facts about a kernel that refimpl asks it for",
        checked_by=_AS_EAGER,
    ),
    "C++ composite kernels": Part(
        is_what="kernels that compute an operator by others",
        decides="which operators a graph has",
        checked_by=_AS_EAGER
        + "; `refimpl/tests/trace/test_composite_kernels.py` makes every Python kernel that could stand in for them raise",
    ),
    "C++ derivatives": Part(
        is_what="nodes of autograd that the engine runs in a joint trace",
        decides="which operators a backward graph has",
        checked_by=_AS_EAGER,
    ),
}


WATCHES = (
    "`refimpl/tests/test_independence.py`: a child process traces the corpus in real mode. None of `torch._dynamo`, "
    "`_functorch`, `_inductor`, `export`, `fx.experimental`, `_refs`, `_decomp` and `_prims` may run there, but for "
    "what a fake tensor asks `torch.compiler` about itself.",
    "`refimpl/tests/aot/test_independence.py`, `refimpl/tests/export/test_independence.py`: compiles and exports, whose fake "
    "tensors run Python kernels. Of Dynamo, AOT autograd, Inductor and export only helpers that are listed by name may run.",
    "`refimpl/tests/test_upstream_code.py`: symbolic traces and compiles of the corpus record no operator while a function of "
    "`_refs`, `_decomp`, `_prims` or a meta kernel runs.",
    "`refimpl/tests/trace/test_composite_kernels.py`: Python kernels of composite operators raise, and traces are right all the "
    "same.",
    "`refimpl/tests/test_poisoned_kernels.py`: a sample of the kernels below is made wrong in child processes; no value changes.",
    "`suites/conformance/guard.py`: while PyTorch's own tests run, a call from refimpl into a forbidden package ends the test.",
)


POISONS: Mapping[str, str] = {"raises": "raises", "shape": "gives another shape", "dtype": "gives another dtype"}
# What changes while a kernel is wrong, in the words of POISON_TABLE.
CHANGES: Mapping[str, str] = {
    "nothing": "the graph is the same, with the same shapes, strides and dtypes noted in it",
    "metadata": "the graph is the same, but shapes, strides or dtypes that are noted in it differ; its values are eager's",
    "graph": "another graph, with the values of eager",
    "refused": "an error while the graph is made",
    "fails when it runs": "another graph, which raises",
    "values": "another graph, which gives other values than eager and says nothing",
}
NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoned:
    """What changed while the kernels of a part were wrong in one way: the kernels that were reached, and runs by change."""

    kernels: int
    changes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonTable:
    """All kernels by part, and what changed, by part and poison."""

    kernels: Mapping[str, int]
    found: Mapping[tuple[str, str], Poisoned]

    @property
    def runs(self) -> int:
        return sum(sum(one.changes.values()) for one in self.found.values())

    @property
    def wrong_values(self) -> int:
        return sum(one.changes.get("values", 0) for one in self.found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A function of torch: how often it ran, and how many operators were recorded while it was the innermost Python kernel."""

    function: str
    calls: int
    recorded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The table: what was run, and what was reached, by part."""

    runs: Mapping[str, int]
    parts: Mapping[str, Sequence[Reached]]

    @property
    def recorded(self) -> int:
        return sum(function.recorded for functions in self.parts.values() for function in functions)


def read_table(path: Path) -> Measured:
    """Raises ValueError for a part that has no description here."""
    runs: dict[str, int] = {}
    parts: dict[str, list[Reached]] = {name: [] for name in PARTS}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["part"] == "run":
                runs[row["function"]] = int(row["calls"])
            elif row["part"] not in parts:
                raise ValueError(f"{path.name} has a part {row['part']!r} that PARTS does not describe")
            else:
                parts[row["part"]].append(
                    Reached(function=row["function"], calls=int(row["calls"]), recorded=int(row["recorded operators"]))
                )
    return Measured(runs=runs, parts=parts)


def read_poison_table(path: Path) -> PoisonTable:
    """Raises ValueError for a change or a poison that has no description here."""
    names: dict[str, set[str]] = {}
    reached: dict[tuple[str, str], set[str]] = {}
    changes: dict[tuple[str, str], Counter[str]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            names.setdefault(row["part"], set()).add(row["kernel"])
            if row["changed"] == NOT_REACHED:
                continue
            if row["changed"] not in CHANGES or row["poison"] not in POISONS:
                raise ValueError(f"{path.name} has {row['poison']!r}, {row['changed']!r}, which are not described")
            key = row["part"], row["poison"]
            reached.setdefault(key, set()).add(row["kernel"])
            changes.setdefault(key, Counter())[row["changed"]] += 1
    return PoisonTable(
        kernels={part: len(found) for part, found in names.items()},
        found={key: Poisoned(kernels=len(reached[key]), changes=changes[key]) for key in sorted(changes)},
    )


def poison_section(table: PoisonTable) -> list[str]:
    """What changes if a Python kernel of torch is wrong."""
    reached = sum(
        max((one.kernels for (part, _), one in table.found.items() if part == name), default=0)
        for name in table.kernels
    )
    values = f"{table.wrong_values} of these runs" if table.wrong_values else "None of these runs"
    lines = [
        "## What changes if a Python kernel is wrong",
        "",
        _wrapped(
            f"torch registers {sum(table.kernels.values())} Python functions as meta kernels or decompositions of operators. "
            f"`python -m refimpl.tests.poisoned_kernels --write` makes each of the {reached} that the corpus and OpInfo reach "
            "wrong, one at a time, in a process of its own: the kernel raises, or each new tensor that it gives is one larger in "
            "its last dimension, or has another dtype. The programs that reach it most directly, in two of four ways (a trace "
            "with fake or with symbolic sizes, a compile, an export), are made again, compared with themselves, run, and "
            f"compared with eager mode: {table.runs} runs. {values} gave values other than eager's. "
            f"[The table](../{POISON_TABLE}) has each kernel."
        ),
        "",
        f"| part | kernel | kernels | {' | '.join(CHANGES)} |",
        f"|---|---|---:|{'---:|' * len(CHANGES)}",
    ]
    for part in table.kernels:
        for poison, is_what in POISONS.items():
            one = table.found.get((part, poison))
            if one is not None:
                numbers = " | ".join(str(one.changes.get(change, 0)) for change in CHANGES)
                lines.append(f"| {part} | {is_what} | {one.kernels} | {numbers} |")
    return [*lines, "", *(_wrapped(f"* *{change}*: {is_what}", indent="  ") for change, is_what in CHANGES.items()), ""]


def summary(measured: Measured) -> str:
    """What README says too."""
    count = sum(number for kind, number in measured.runs.items() if kind != "refused")
    recorded = f"{measured.recorded} operators" if measured.recorded else "No operator"
    return (
        "`refimpl` rests on PyTorch's dispatcher and operators, its autograd, its composite kernels and derivatives in C++, the "
        "graph classes of `torch.fx` and pytrees; for shapes, strides and dtypes also on its fake tensors, whose kernels are "
        "partly in Python, and on parts of its symbolic numbers: it shares their bugs. "
        f"{recorded} of a graph came from a Python kernel of PyTorch in {count} traces and compiles."
    )


def page(measured: Measured, poison: PoisonTable) -> str:
    """The text of the page."""
    runs = measured.runs
    lines = [
        "# What of PyTorch refimpl rests on",
        "",
        _wrapped(
            "Made by `docs/tools/independence.py`; do not edit. The [decision](adr/0001-independence.md) says what refimpl may "
            "use. This page says what it does use, how often, and what would show a mistake in it."
        ),
        "",
        _wrapped(summary(measured)),
        "",
        _wrapped(
            f"The [table](../{TABLE}) holds every function that ran. `python -m refimpl.tests.upstream_code --write` measures it "
            f"on a fixed sample: {runs.get('trace', 0)} symbolic traces of the corpus, {runs.get('compile', 0)} programs "
            f"compiled for sizes that vary, with their backward, and {runs.get('operator', 0)} operators of OpInfo, traced with "
            f"gradients. {runs.get('refused', 0)} more ended in an error and count up to there. Functions of Python are seen by "
            "a profile function, the last three parts by PyTorch's profiler, which names no overloads."
        ),
        "",
        "| part | what it is | decides | functions | calls | operators recorded | checked by |",
        "|---|---|---|---:|---:|---:|---|",
        *(_row(name, measured.parts[name]) for name in PARTS),
        "",
        _wrapped(
            "*Operators recorded*: how many entered a graph while a Python kernel of that part ran. Such a kernel would decide "
            "what the graph computes; one that only gives fake tensors their shapes records none."
        ),
        "",
        "## What is watched",
        "",
        *(_wrapped(f"* {watch}", indent="  ") for watch in WATCHES),
        "",
        *poison_section(poison),
        "## Functions that ran most often",
        "",
        "| part | functions and calls |",
        "|---|---|",
    ]
    for name in PARTS:
        most = sorted(measured.parts[name], key=lambda function: (-function.calls, function.function))[:_SHOWN]
        shown = ", ".join(f"`{function.function}` {function.calls}" for function in most)
        lines.append(f"| {name} | {shown or 'none'} |")
    return "\n".join(lines) + "\n"


def _row(name: str, functions: Sequence[Reached]) -> str:
    part = PARTS[name]
    calls, recorded = (sum(getattr(function, field) for function in functions) for field in ("calls", "recorded"))
    return f"| {name} | {part.is_what} | {part.decides} | {len(functions)} | {calls} | {recorded} | {part.checked_by} |"


def _wrapped(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, width=_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def with_sentences(text: str, measured: Measured) -> str:
    """README's text with these sentences between its marks. Raises ValueError if it has no marks."""
    if not _PLACE.search(text):
        raise ValueError(f"{README} has no <!-- independence --> marks")
    sentences = _wrapped(f"  {summary(measured)} [The figures](docs/independence.md).", indent="  ")
    place = f"<!-- independence -->\n{sentences}\n  <!-- /independence -->"
    return _PLACE.sub(lambda _: place, text)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail unless the page and README agree with the table")
    action.add_argument("--write", action="store_true", help="write both from the table")
    options = parser.parse_args(arguments)
    measured = read_table(root / TABLE)
    poison = read_poison_table(root / POISON_TABLE)
    readme = root / README
    stale = []
    for path, text in (
        (root / PAGE, page(measured, poison)),
        (readme, with_sentences(readme.read_text(encoding="utf-8"), measured)),
    ):
        if options.write:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(root)))
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}: run docs/tools/independence.py --write (make fix does)\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
