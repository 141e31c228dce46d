"""What each regression must be reported as, per subject, on torch 2.13, x86 CPU. Torch-free.

The ladder is cumulative: what a rung gets wrong, the rungs above it get wrong too, unless said otherwise below.
Subjects that trace once (export) are held to a program only where it was reported for them: what they do when the
program's surroundings change afterwards is theirs to document.
"""

from __future__ import annotations

from suites.regressions.table import REGRESSIONS, Regression

LADDER = ("dynamo", "aot_eager", "inductor")

# Where a higher rung ends otherwise than the rung that first goes wrong; a None says that nothing is promised.
_EXCEPTIONS: dict[str, dict[str, str | None]] = {
    # Inductor has a generator of its own.
    "found/dead_random_write": {"inductor": "pass"},
    # Inductor has a lowering of its own.
    "fuzzed/strides_of_grid_sampler": {"inductor": "pass"},
    # Inductor's kernels read memory and do not ask for the tensor's class.
    "193932/subclass_as_argument": {"inductor": "pass"},
    # Inductor has a decomposition of its own.
    "fuzzed/dropout_of_everything": {"inductor": "pass"},
    # Inductor's graph has no copy of the argument left.
    "fuzzed/cast_under_no_grad": {"inductor": "pass"},
    # Inductor has a lowering of its own.
    "fuzzed/layer_norm_of_nothing": {"inductor": "pass"},
    "fuzzed/slice_backward_broadcasts": {"inductor": "pass"},
    "fuzzed/as_strided_of_leaf_under_no_grad": {"inductor": "pass"},
    # AOTAutograd's partitioner keeps the generator's state for what it computes again.
    "102450/checkpoint_draws_again": {"aot_eager": "pass", "inductor": "pass"},
    # Nothing is written in place after functionalization.
    "fuzzed/foreach_lerp_backward": {"aot_eager": "pass", "inductor": "pass"},
    # Inductor checks the argument's shape.
    "found/data_set_elsewhere_after_write": {"inductor": "fail_to_run"},
    # Inductor's kernel reads the memory as well.
    "fuzzed/max_pool1d_negated": {"inductor": "pass"},
    # Inductor hands the result out itself, not a view of it.
    "found/result_written_after_break": {"inductor": "pass"},
    # The knapsack sees Inductor's decomposed graph, and spares the mask in it.
    "190758/dropout_memory_budget": {"inductor": None},
    # Wrong values, or an assertion when a compiled graph of another layout comes out of the cache on disk.
    "178680/shared_base_offset_changes": {"inductor": None},
    # Both placeholders are one value whichever way it is exported.
    "139805/export_same_tensor_twice": {"export[strict=false]": "fail_guard"},
    # Strict export names the parameter through the list.
    "163303/parameter_in_list": {"export": "pass"},
}


def _expected(row: Regression) -> dict[str, str]:
    if row.kind == "untried":
        return {}
    verdicts: dict[str, str | None] = dict.fromkeys(LADDER, "pass")
    if row.kind == "differs":
        verdicts[row.first_wrong] = row.status
        if row.first_wrong in LADDER:
            for subject in LADDER[LADDER.index(row.first_wrong) :]:
                verdicts[subject] = row.status
        elif (
            row.first_wrong == "aot_eager_decomp_partition"
        ):  # beside the ladder: Inductor takes the same decompositions
            verdicts["inductor"] = row.status
    verdicts.update(_EXCEPTIONS.get(row.name, {}))
    return {subject: status for subject, status in verdicts.items() if status is not None}


EXPECTED: dict[str, dict[str, str]] = {row.name: verdicts for row in REGRESSIONS if (verdicts := _expected(row))}
"""Program name -> subject -> status word. Programs nobody has measured are absent."""
