"""The table of decompositions beside eager and beside PyTorch's table: `python -m refimpl.tests.decompositions.compare`.

Every overload of the table is called on samples of PyTorch's operator database (forward and backward, in several memory
layouts, with special values) and on hand-written ones. Printed, and written with `--write`, is one line per overload on which
somebody differs from eager, and figures over all of them. Errors are distances from the same call in float64, in units of the
result type's eps times its largest element.

    --dtype float32,bfloat16   types to try (default: float32,float16,bfloat16,complex64,int64,bool)
    --samples 8 --limit 8      samples per operator, calls per overload and type
    --only softmax             overloads whose name holds this
    --write                    rewrite results/data/cpu-torch-2.13.0/decompositions.md
"""

from __future__ import annotations

import argparse
import collections
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._decomp import decomposition_table as torch_table

from refimpl._torch import OpOverload
from refimpl.tests.decompositions.calls import (
    Call,
    calls_of_database,
    foreach_calls,
    variant_calls,
)
from refimpl.tests.decompositions.changes import changed_calls
from refimpl.tests.decompositions.samples import direct_calls
from refimpl.tests.decompositions.verdicts import Expected, Verdict, expect, judge
from refimpl.trace.decompositions import CORE_OPS, decomposition_table

aten = torch.ops.aten
PAGE = Path(__file__).resolve().parents[3] / "results" / "data" / "cpu-torch-2.13.0" / "decompositions.md"
DTYPES = "float32,float16,bfloat16,complex64,int64,bool"


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A call on which eager is not followed, and why. `source` is a part of the call's source."""

    overload: OpOverload
    source: str
    reason: str


_READS_MEMORY = "eager reads the memory of its arguments as if they were contiguous; autograd sees to it that they are"
_OUT_KEPT = "eager does not resize `out` for inputs without dimensions, and leaves it empty or unwritten"
_READING_MEMORY = (
    aten._weight_norm_interface.default,
    aten._weight_norm_interface_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
)
_OVERFLOWS = "which partial results overflow is up to the order, and to a compiler that fuses products and sums"
_BY_DIFFERENCES = (
    "differences from the mean are nearer to the truth than eager's x * factor + (bias - mean * factor), whose products are NaN "
    "for infinite factors; statistics of infinite and of the largest numbers depend on the order"
)
_OF_THE_FORWARD = "the arguments are results of the forward op, which with such values give NaN or are no such numbers"
ACCEPTED: tuple[Accepted, ...] = (
    *(
        Accepted(overload=overload, source=layout, reason=_READS_MEMORY)
        for overload in _READING_MEMORY
        for layout in ("gapped", "reordered", "stepped")
    ),
    *(
        Accepted(overload=overload, source="values", reason=_OVERFLOWS)
        for overload in (
            aten.addbmm.default,
            aten.addr.default,
            aten.linalg_cross.default,
            aten.mv.default,
            aten._log_softmax_backward_data.default,
            aten._softmax_backward_data.default,
            aten.reflection_pad3d_backward.default,
            aten.upsample_bicubic2d_backward.default,
            aten.upsample_bilinear2d_backward.default,
            aten.upsample_trilinear3d_backward.default,
            aten._trilinear.default,
        )
    ),
    *(
        Accepted(overload=overload, source="values", reason=_OF_THE_FORWARD)
        for overload in (
            aten.batch_norm_backward.default,
            aten.native_batch_norm_backward.default,
            aten.native_group_norm_backward.default,
            aten.native_layer_norm_backward.default,
            aten.log_sigmoid_backward.default,
        )
    ),
    *(
        Accepted(overload=overload, source="values", reason=_BY_DIFFERENCES)
        for overload in (
            aten.native_batch_norm.default,
            aten.native_group_norm.default,
            aten.native_layer_norm.default,
            aten._batch_norm_no_update.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_functional.default,
            aten._native_batch_norm_legit_no_training.default,
        )
    ),
    Accepted(
        overload=aten.binary_cross_entropy.default,
        source="values",
        reason="eager's kernel for a CPU reads what it is given, and raises for numbers that are no probabilities",
    ),
    Accepted(
        overload=aten._softmax_backward_data.default,
        source="expanded",
        reason="of equal gradients nothing is left but what eager's order of the sum rounds to",
    ),
    Accepted(overload=aten.min.default, source="zero values", reason="which zero is the least is up to the order"),
    Accepted(
        overload=aten.binary_cross_entropy.out,
        source="into",
        reason="eager keeps unreduced losses in `out` before it has their size: what fits in is all that is averaged",
    ),
    Accepted(overload=aten.binary_cross_entropy_backward.grad_input, source="into an empty out", reason=_OUT_KEPT),
    Accepted(
        overload=aten.hardsigmoid_backward.default,
        source="",
        reason="eager multiplies by a sixth that is rounded to float32, in float64 as well",
    ),
    Accepted(
        overload=aten.hardsigmoid_backward.grad_input,
        source="",
        reason="eager multiplies by a sixth that is rounded to float32, in float64 as well",
    ),
    Accepted(
        overload=aten.logit_backward.default,
        source="special values",
        reason="for NaN eager gives 0 in its vectorised loop and NaN in its scalar loop",
    ),
)


@dataclass
class ComparisonState:
    """What has been seen of one overload."""

    ours: collections.Counter[str] = field(default_factory=collections.Counter)
    theirs: collections.Counter[str] = field(default_factory=collections.Counter)
    error: float = 0.0
    eager_error: float = 0.0
    their_error: float = 0.0
    closer: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    theirs_wrong: list[str] = field(default_factory=list)
    left: set[OpOverload] = field(default_factory=set)

    @property
    def judged(self) -> int:
        """Calls on which our rule gave a result."""
        return sum(count for status, count in self.ours.items() if status not in ("declined", "invalid"))


def accepted_reason(call: Call) -> str | None:
    """Why this call need not agree with eager, if so."""
    return next((a.reason for a in ACCEPTED if a.overload is call.overload and a.source in call.source), None)


def all_calls(
    dtypes: Sequence[torch.dtype], *, samples: int, limit: int, only: str = ""
) -> Iterator[tuple[Call, Expected]]:
    """Every call to judge, with what eager does with it; variants that eager refuses are left out."""
    table = {overload for overload in decomposition_table if only in str(overload)}

    base = calls_of_database({*decomposition_table, *CORE_OPS}, dtypes, samples=samples, limit=limit)
    for dtype in dtypes:
        base += list(direct_calls(dtype))
        base += [call for overload in table if "_foreach" in str(overload) for call in foreach_calls(overload, dtype)]
    for call in base:
        is_functional = not any(a.alias_info is not None for a in call.overload._schema.arguments)
        plain = expect(call)
        if plain.error is not None:
            continue
        if call.overload in table:
            yield call, plain
            for changed in changed_calls(call, is_elementwise=torch.Tag.pointwise in call.overload.tags):
                yield changed, expect(changed)
        if is_functional and isinstance(plain.result, (torch.Tensor, tuple)):
            for variant in variant_calls(call, plain.result):
                wanted = expect(variant) if variant.overload in table else None
                if wanted is not None and wanted.error is None:
                    yield variant, wanted


def compare(
    dtypes: Sequence[torch.dtype],
    *,
    samples: int,
    limit: int,
    only: str = "",
    with_torch: bool = False,
) -> dict[OpOverload, ComparisonState]:
    """Judges our rule, and torch's if asked, on every call."""
    states: dict[OpOverload, ComparisonState] = collections.defaultdict(ComparisonState)
    their_core: Mapping[Any, Callable[..., Any]] = core_aten_decompositions() if with_torch else {}
    for call, expected in all_calls(dtypes, samples=samples, limit=limit, only=only):
        state = states[call.overload]
        rule = decomposition_table[call.overload]
        verdict = judge(call, expected, decomposition_table, rule, is_measured=with_torch)
        _note_ours(state, call, verdict)
        their_rule = torch_table.get(call.overload) if with_torch else None
        if their_rule is not None and verdict.status == "pass":
            theirs = judge(call, expected, their_core, their_rule, is_measured=True)
            _note_theirs(state, call, verdict, theirs)
    return states


def _note_ours(state: ComparisonState, call: Call, verdict: Verdict) -> None:
    reason = accepted_reason(call) if verdict.status not in ("pass", "declined") else None
    state.ours["accepted" if reason else verdict.status] += 1
    state.left |= verdict.left
    if reason:
        state.accepted.append(f"{reason} ({verdict.status}: {verdict.detail})")
    elif verdict.status not in ("pass", "declined"):
        state.wrong.append(f"{verdict.status}: {verdict.detail} [{call.describe()}]")
    elif verdict.status == "pass" and not math.isnan(verdict.error):
        state.error = max(state.error, verdict.error)
        state.eager_error = max(state.eager_error, verdict.eager_error)


def _note_theirs(state: ComparisonState, call: Call, ours: Verdict, theirs: Verdict) -> None:
    state.theirs[theirs.status] += 1
    if theirs.status not in ("pass", "declined"):
        state.theirs_wrong.append(f"{theirs.status}: {theirs.detail} [{call.describe()}]")
    if math.isfinite(theirs.error):
        state.their_error = max(state.their_error, theirs.error)
        # Within a rounding of each other neither is closer.
        if abs(ours.error - theirs.error) > 0.5 and max(ours.error, theirs.error) > 1.5 * min(ours.error, theirs.error):
            state.closer["refimpl" if ours.error < theirs.error else "torch"] += 1


def page(states: Mapping[OpOverload, ComparisonState], what: str) -> str:
    """The document: figures, then one line per overload on which something differs."""
    names = sorted(states, key=str)
    functional = [o for o in decomposition_table if not any(a.alias_info for a in o._schema.arguments)]
    totals = collections.Counter[str]()
    theirs = collections.Counter[str]()
    for overload in names:
        totals.update(states[overload].ours)
        theirs.update(states[overload].theirs)
    both = [o for o in names if states[o].theirs]
    closer = collections.Counter[str]()
    for overload in set(both) & set(functional):
        counts = states[overload].closer
        if counts["refimpl"] != counts["torch"]:
            closer["refimpl" if counts["refimpl"] > counts["torch"] else "torch"] += 1
    wrong = sum(count for status, count in totals.items() if status not in ("pass", "declined", "accepted"))
    theirs_wrong = sum(count for status, count in theirs.items() if status not in ("pass", "declined"))
    lines = [
        "# Decompositions: refimpl's table beside eager and beside PyTorch's",
        "",
        "Made by `python -m refimpl.tests.decompositions.compare --write`; do not edit.",
        f"{what} Errors are distances from the same call in float64, in eps of the result type times its largest element.",
        "",
        "| figure | value |",
        "|---|---|",
        f"| overloads with a rule | {len(decomposition_table)} ({len(functional)} functional or views, the others in-place, "
        "`out=` and foreach variants) |",
        f"| of them judged on at least one call | {sum(states[o].judged > 0 for o in names)} |",
        f"| core ops that rules end in | {len(CORE_OPS)} |",
        f"| calls judged | {totals.total()} |",
        f"| calls that agree with eager | {totals['pass']} |",
        f"| calls a rule declines, so that the op stays | {totals['declined']} |",
        f"| calls that differ from eager | {wrong} |",
        f"| calls that differ for a reason given below | {totals['accepted']} |",
        f"| overloads that PyTorch's table has as well | {len(both)} |",
        f"| of their calls, those where PyTorch's rule differs from eager | {theirs_wrong} of {theirs.total()} |",
        f"| functional overloads on which refimpl is closer to float64 | {closer['refimpl']} |",
        f"| functional overloads on which PyTorch's rule is closer | {closer['torch']} |",
        "",
        "## Where PyTorch's rule differs from eager",
        "",
        "Eager and refimpl agree on these calls, in values, dtype, shape, strides, aliasing and mutation.",
        "",
        "| overload | calls | what differs | first |",
        "|---|---|---|---|",
    ]
    for overload in both:
        state = states[overload]
        if state.theirs_wrong:
            kinds = ", ".join(sorted({text.partition(":")[0] for text in state.theirs_wrong}))
            lines.append(
                f"| `{overload}` | {len(state.theirs_wrong)} of {state.theirs.total()} | {kinds} | "
                f"{_cell(state.theirs_wrong[0])} |"
            )
    lines += ["", "## Where refimpl and PyTorch differ in accuracy", ""]
    lines += [
        "| overload | calls | worst eager | worst refimpl | worst PyTorch | closer, in calls |",
        "|---|---|---|---|---|---|",
    ]
    for overload in both:
        state = states[overload]
        if state.closer and overload in functional:  # variants repeat it
            counts = ", ".join(f"{who} {count}" for who, count in sorted(state.closer.items()))
            lines.append(
                f"| `{overload}` | {state.theirs.total()} | {state.eager_error:.3g} | {state.error:.3g} | "
                f"{state.their_error:.3g} | {counts} |"
            )
    lines += ["", "## Where refimpl does not follow eager", "", "| overload | calls | why |", "|---|---|---|"]
    for overload in names:
        state = states[overload]
        for texts in (state.accepted, state.wrong):
            if texts:
                lines.append(f"| `{overload}` | {len(texts)} | {_cell(texts[0])} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default=DTYPES)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dtypes = [getattr(torch, name) for name in options.dtype.split(",")]
    states = compare(dtypes, samples=options.samples, limit=options.limit, only=options.only, with_torch=True)
    what = (
        f"PyTorch {torch.__version__}, {platform.machine()} CPU; {options.dtype.replace(',', ', ')}; "
        f"--samples {options.samples} --limit {options.limit}."
    )
    text = page(states, what)
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
