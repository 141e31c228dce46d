"""Coverage of campaigns, compared with OpInfo: `python -m benchmarks.measurements.fuzz_coverage CORPUS ... [--csv FILE]`.

Prints how many distinct aten overloads, pairs of operators, dtypes, layouts, lowerings, passes and reasons of graph breaks the
programs of the corpora had; then runs OpInfo's own samples in eager (forward, and backward where there is one) and says how many
of the overloads that these call were reached too, and how many of Inductor's lowerings. `--csv` has a row for each entry of
OpInfo: its overloads, and those that no program reached. Entries that cannot run have the reason.
"""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

from benchmarks.measurements.frame import options_of, write_rows
from fuzz.campaign.corpus import read_json
from fuzz.judge.observing import AtenOverloads

_SAMPLES = 12  # samples of an entry and a dtype; OpInfo's later ones call no other overloads
_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
_SHOWN = (
    ("aten", "aten overloads"),
    ("lowering", "lowerings"),
    ("pass", "passes that fired"),
    ("break", "reasons of graph breaks"),
    ("op", "operators in the programs"),
    ("pair", "pairs of producer and consumer"),
    ("op_dtype", "operators and dtypes"),
    ("op_layout", "operators and layouts"),
    ("dtype", "dtypes of arguments"),
    ("layout", "layouts of arguments"),
    ("rank", "ranks of arguments"),
)


@dataclass(slots=True, kw_only=True)
class Entry:
    """An entry of OpInfo, and the overloads its samples call."""

    name: str
    overloads: set[str] = field(default_factory=set)
    reason: str = ""  # why a sample could not be run


def reached(corpora: Sequence[Path]) -> tuple[Counter[str], int, float]:
    """Features with the number of programs that had each; programs; seconds. Raises UsageError if a folder is no corpus."""
    counts: Counter[str] = Counter()
    programs, wall_s = 0, 0.0
    for corpus in corpora:
        state = read_json(corpus / "state.json")
        counts.update(state["drawn"])
        counts.update(state["reached"])
        programs += sum(state["statuses"].values())
        wall_s += state["wall_s"]
    return counts, programs, wall_s


def entries() -> Iterator[Entry]:
    """Every entry of OpInfo, run in eager."""
    for info in op_db:
        name = info.name if not info.variant_test_name else f"{info.name}.{info.variant_test_name}"
        entry = Entry(name=name)
        for dtype in _DTYPES:
            if dtype in info.supported_dtypes("cpu"):
                _run(info, dtype, entry)
        yield entry


def _run(info: Any, dtype: torch.dtype, entry: Entry) -> None:
    has_gradient = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    try:
        samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=has_gradient), _SAMPLES))
    except Exception as error:  # the samples need something that this build of torch lacks
        entry.reason = f"{type(error).__name__}: {error}"[:200]
        return
    for sample in samples:
        mode = AtenOverloads()
        try:
            with mode:
                result = info.op(sample.input, *sample.args, **sample.kwargs)
                leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
                if leaves:
                    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
        except Exception as error:
            entry.reason = f"{type(error).__name__}: {error}"[:200]
        entry.overloads |= {name for name in mode.names if name.startswith("aten.")}


def table(found: Sequence[Entry], counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each entry."""
    return [
        {
            "entry": entry.name,
            "overloads": len(entry.overloads),
            "reached": sum(f"aten:{name}" in counts for name in entry.overloads),
            "not_reached": " ".join(sorted(name for name in entry.overloads if f"aten:{name}" not in counts)),
            "reason": entry.reason.replace("\n", " "),
        }
        for entry in found
    ]


def known_lowerings() -> set[str]:
    """Overloads for which this PyTorch's Inductor has a lowering of its own."""
    lowerings = importlib.import_module("torch._inductor.lowering").lowerings
    return {str(target) for target in lowerings if isinstance(target, torch._ops.OpOverload)}


def report(counts: Mapping[str, int], found: Sequence[Entry]) -> Iterator[str]:
    """Lines of text."""
    kinds = Counter(name.partition(":")[0] for name in counts)
    yield from (f"{kinds[kind]:6} {what}" for kind, what in _SHOWN)
    of_opinfo = set[str]().union(*(entry.overloads for entry in found))
    seen = {name for name in of_opinfo if f"aten:{name}" in counts}
    more = sum(name.startswith("aten:") for name in counts) - len(seen)
    yield f"OpInfo: {len(seen)} of the {len(of_opinfo)} aten overloads that its samples call, and {more} that they do not"
    every = sum(bool(entry.overloads) and entry.overloads <= seen for entry in found)
    some = sum(bool(entry.overloads & seen) for entry in found)
    yield f"OpInfo: {len(found)} entries; all overloads of {every} reached, some of {some}"
    lowerings = known_lowerings()
    used = {name for name in lowerings if f"lowering:{name}" in counts}
    yield f"lowerings: {len(used)} of the {len(lowerings)} that Inductor has for overloads of operators"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report, and write a row for each entry of OpInfo."""
    parser = options_of(__doc__)
    parser.add_argument("corpus", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    counts, programs, wall_s = reached(options.corpus)
    print(f"{programs} programs, {wall_s / 60:.0f} minutes")
    found = list(entries())
    print(*report(counts, found), sep="\n")
    write_rows(table(found, counts), options.csv)


if __name__ == "__main__":
    main()
