"""Writes docs/independence.md: what of torch refimpl rests on, how often it is reached, and how it is checked.

    python -m refimpl.tests.upstream_code --write      # measures TABLE, in some minutes
    python docs/tools/independence.py --write | --check   # the page and the sentences of README, from TABLE

`--check` measures nothing. It fails if the page or the sentences between the marks in README are not those of the table.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = "results/data/cpu-torch-2.13.0/independence.csv"
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
    "`suites/conformance/guard.py`: while PyTorch's own tests run, a call from refimpl into a forbidden package ends the test.",
)


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


def page(measured: Measured) -> str:
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
    readme = root / README
    stale = []
    for path, text in (
        (root / PAGE, page(measured)),
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
