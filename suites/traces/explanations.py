"""The table of known differences between our traces and torch's, each with its reason.

A row applies to a difference of its aspect, in its modes, on operators that its globs match, if its pattern is found in the
difference's one-line detail. For "ops" the overloads must also be among those that the row names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from suites.traces import MODES
from suites.traces.records import SECOND_EQUAL, Difference, TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One known difference. `reason` is what the tables print."""

    name: str
    aspects: tuple[str, ...]  # keys of records.ASPECTS
    reason: str
    modes: tuple[str, ...] = MODES
    groups: tuple[str, ...] = ("*",)  # globs on operators or models
    pattern: str = ""  # a regular expression, searched in the detail
    only_ours: frozenset[str] = field(default_factory=frozenset)  # overloads that our graph may call more often
    only_torch: frozenset[str] = field(default_factory=frozenset)
    needs_equal_second: bool = False  # only where the graph was right at the second size
    whole_slices_only: bool = False  # only if all differing slices take the whole of a dimension
    torch_guards: str = ""  # a regular expression, searched in torch's list of guards
    torch_too: bool = False  # only where torch's graph differs from eager in the same way

    def applies(self, row: TraceRow, difference: Difference) -> bool:
        if difference.aspect not in self.aspects or row.mode not in self.modes:
            return False
        if not any(fnmatchcase(row.group, glob) for glob in self.groups):
            return False
        if self.pattern and not re.search(self.pattern, difference.detail):
            return False
        if self.torch_guards and not any(
            text.startswith("torch") and re.search(self.torch_guards, text) for text in row.guards_differ
        ):
            return False
        if self.torch_too and not difference.torch_too:
            return False
        if self.needs_equal_second and row.second != SECOND_EQUAL:
            return False
        if self.whole_slices_only and not _differs_in_whole_slices_only(row):
            return False
        return difference.aspect != "ops" or self._names(row.only_ours, row.only_torch)

    def _names(self, ours: Mapping[str, int], torch: Mapping[str, int]) -> bool:
        return set(ours) <= self.only_ours and set(torch) <= self.only_torch


def _differs_in_whole_slices_only(row: TraceRow) -> bool:
    more = row.only_torch.get(_SLICE, 0) - row.only_ours.get(_SLICE, 0)
    return more == row.whole_slices_torch - row.whole_slices_ours


_SLICE = "aten.slice.Tensor"
_SLICES = frozenset({_SLICE, "aten.slice_backward.default"})

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        name="torch-sparse-compressed",
        aspects=("torch_refuses",),
        groups=("sparse.sampled_addmm", "sparse.mm.reduce"),
        pattern="Sparse CSR tensors do not have strides",
        reason="torch's tracer asks for the strides of every input, which compressed sparse tensors do not have",
    ),
    Explanation(
        name="uint8-interpolation",
        aspects=("values", "second_size"),
        modes=("symbolic",),
        groups=("nn.functional.interpolate.bi*", "nn.functional.upsample_bilinear"),
        pattern=r"fail_accuracy.*elements differ",
        torch_too=True,
        reason=(
            "with symbolic sizes the Python rule of the kernel is traced, which rounds uint8 pixels once in floating point; the "
            "vectorised kernel works in fixed point, and a pixel may be one off. torch's graph is the same"
        ),
    ),
    Explanation(
        name="dropout-of-nothing",
        aspects=("values", "second_size"),
        modes=("symbolic",),
        groups=("nn.functional.dropout",),
        pattern="fail_alias: call 0: output does not share the storage of args",
        torch_too=True,
        reason=(
            "with symbolic sizes the Python rule of dropout is traced, which copies where the kernel returns its input. torch's "
            "graph is the same"
        ),
    ),
    Explanation(
        name="mkldnn-bias-gradients",
        aspects=("values", "second_size"),
        modes=("fake", "symbolic"),
        groups=("lstm",),
        pattern="fail_alias: .* shares the storage of output",
        torch_too=True,
        reason=(
            "torch's fake kernel of mkldnn_rnn_layer_backward gives one tensor for the gradients of both biases, where the real "
            "kernel gives two (a row of the metadata tables): the trace returns one node twice. torch's graph is the same"
        ),
    ),
    Explanation(
        name="lstm-rounding",
        aspects=("second_size",),
        modes=("symbolic",),
        groups=("lstm",),
        pattern="fail_accuracy: .*; 1 of 1024 elements are wrong",
        torch_too=True,
        reason=(
            "one element of a weight's gradient, 1.5e-4 in size, is 3.0e-10 from fp64 where the judge allows 2.9e-10. "
            "torch's graph, of the same operators, gives the same"
        ),
    ),
    Explanation(
        name="whole-slices",
        aspects=("ops",),
        modes=("symbolic",),
        only_torch=_SLICES,
        whole_slices_only=True,
        needs_equal_second=True,
        reason=(
            "indexing leaves out a slice of a whole dimension where the size is known not to exceed the largest integer: our "
            "ranges know it of a quotient of sizes, torch's do not"
        ),
    ),
    Explanation(
        name="size-torch-solved",
        aspects=("ops",),
        modes=("symbolic",),
        groups=("phi3",),
        only_torch=_SLICES | {"aten.alias.default"},
        needs_equal_second=True,
        reason=(
            "torch has replaced the size of the rotary embedding by the number that a guard says it is, so that `q[..., :size]` "
            "is the whole of q, an alias; our graph keeps the size and the slice"
        ),
    ),
    Explanation(
        name="torch-or-without-parentheses",
        aspects=("guards",),
        modes=("symbolic",),
        pattern="our guards refuse what torch's accept",
        torch_guards=r"\|",
        reason=(
            "torch prints a disjunction without parentheses among guards joined by `and`: `a and b or c and d` accepts whatever "
            "satisfies `a and b`, the guards behind it unasked"
        ),
    ),
    Explanation(
        name="fewer-guards",
        aspects=("guards",),
        pattern="our guards accept what torch's refuse",
        needs_equal_second=True,
        modes=("symbolic",),
        reason="torch records a guard that the graph does not need: at the size it refuses, our graph gives eager's result",
    ),
)


def reason_of(row: TraceRow, difference: Difference) -> str | None:
    """The name of the first explanation that applies."""
    return next((one.name for one in EXPLANATIONS if one.applies(row, difference)), None)
