"""The table of regressions: what was reported, where it first goes wrong, and how it ends. Torch-free.

Programs that differ today are the known issues of `oracle.known`: their rows are made from the ledger's entries. What stands
here is the rest: what agrees on torch 2.13 (x86 CPU), what was only reported for GPUs ("untried"), and controls.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.known.ledger import load_ledger

# Regression: one row of the table of regressions, and short ways to write one of each kind. Torch-free.


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One row. `name` is the program's."""

    name: str
    issues: tuple[int, ...]  # of pytorch/pytorch; empty for controls without a report, and for what was found here
    line: str
    kind: str  # "differs" | "agrees" | "untried" | "control"
    first_wrong: str = ""  # subject; for "agrees" and "untried" the rung it was reported for
    where: str = ""  # the pass or component, as far as it is known
    status: str = ""  # verdict on `first_wrong`; "" unless it differs
    device: str = "cpu"  # "cuda": planned only there


def differs(name: str, line: str, *, first_wrong: str, where: str, status: str) -> Regression:
    return Regression(
        name=name,
        issues=_issues(name),
        line=line,
        kind="differs",
        first_wrong=first_wrong,
        where=where,
        status=status,
    )


def agrees(name: str, line: str, *, first_wrong: str, where: str) -> Regression:
    return Regression(name=name, issues=_issues(name), line=line, kind="agrees", first_wrong=first_wrong, where=where)


def untried(name: str, line: str, *, where: str) -> Regression:
    return Regression(
        name=name,
        issues=_issues(name),
        line=line,
        kind="untried",
        first_wrong="inductor",
        where=where,
        device="cuda",
    )


def control(name: str, line: str, *issues: int) -> Regression:
    return Regression(name=name, issues=issues, line=line, kind="control")


def _issues(name: str) -> tuple[int, ...]:
    group = name.split("/")[0]
    return (int(group),) if group.isdigit() else ()


def _known() -> list[Regression]:
    """A row for each entry of the ledger, in the order of the programs' names."""
    rows = [
        differs(
            issue.program_name,
            issue.title,
            first_wrong=issue.subject,
            where=issue.where,
            status=issue.statuses[0],
        )
        for issue in load_ledger().issues
    ]
    return sorted(rows, key=lambda row: row.name)


REGRESSIONS: tuple[Regression, ...] = (
    *_known(),
    # ------------------------------------------------------------------------------------------------- agree today
    agrees(
        "108863/conv_bn_weights_changed",
        "conv-bn in eval under no_grad, weights changed between calls",
        first_wrong="inductor",
        where="pre-grad fusion; stale by design with freezing",
    ),
    agrees(
        "176851/class_attribute_changed",
        "a class attribute changes between calls",
        first_wrong="dynamo",
        where="guards",
    ),
    agrees(
        "115774/tensor_attribute_rebound",
        "a tensor attribute is rebound between calls",
        first_wrong="dynamo",
        where="guards",
    ),
    agrees(
        "111785/buffer_slice_rebound",
        "an attribute that is a row of a buffer is rebound, and written",
        first_wrong="dynamo",
        where="guards",
    ),
    agrees(
        "124717/flag_attribute_changed",
        "a bool attribute changes between calls",
        first_wrong="dynamo",
        where="guards",
    ),
    agrees(
        "113875/size_not_equal",
        "`x.size() != (5, 1, 2, 3)`, then exactly that shape",
        first_wrong="dynamo",
        where="shape guards",
    ),
    agrees(
        "185702/stack_of_strided_column",
        "stack of gammaln, erf and xlogy of one column",
        first_wrong="inductor",
        where="CPU strided vector load",
    ),
    agrees(
        "159154/local_buffer_size",
        "einsum, exp, sum in one kernel: local buffer too small",
        first_wrong="inductor",
        where="CPU local buffer",
    ),
    agrees(
        "126848/denormal_product",
        "`x * 2**-124`: denormals flushed, and by eager too after a compile",
        first_wrong="inductor",
        where="process state: flush-to-zero left on",
    ),
    agrees(
        "190764/int32_matmul_edges",
        "int32 `x @ y + x @ z` at the ends of the range",
        first_wrong="inductor",
        where="CPU integer matmul",
    ),
    agrees(
        "93363/inplace_on_strided_view",
        "in-place on `a[0::2]` of a tensor that needs grad",
        first_wrong="aot_eager",
        where="mutation of an input that is a view",
    ),
    agrees(
        "130394/empty_strided_result",
        "empty_strided result loses its strides",
        first_wrong="inductor",
        where="layout of outputs",
    ),
    agrees("93357/cat_then_expand", "cat and expand of a parameter", first_wrong="inductor", where="lowering"),
    agrees("93283/where_broadcast", "where with broadcast operands", first_wrong="inductor", where="lowering"),
    agrees(
        "93377/expand_then_div",
        "expand, then div_ of the base",
        first_wrong="aot_eager",
        where="functionalization",
    ),
    agrees("93829/neg_of_uint8", "neg of a uint8, compared", first_wrong="inductor", where="integer promotion"),
    agrees("95695/ge_of_integers", "ge of integers and 3.5", first_wrong="inductor", where="integer promotion"),
    agrees(
        "98143/masked_fill_reciprocal",
        "masked_fill with a broadcast mask, reciprocal_",
        first_wrong="inductor",
        where="lowering",
    ),
    agrees(
        "168126/triangle_multiplication",
        "bfloat16 triangle multiplication further from fp64 than eager",
        first_wrong="aot_eager",
        where="decomposition and fusion precision; reported for a GPU and 128 channels, here 32",
    ),
    agrees(
        "168186/chunk_then_add",
        "bfloat16 product, chunk, add further from fp64 than eager",
        first_wrong="inductor",
        where="fusion precision; reported for a GPU and 128 channels, here 32",
    ),
    # ------------------------------------------------------------------------------------------------- not measured
    untried(
        "193061/modulated_layer_norms",
        "chained modulated layer norms: one slice of a gradient is stale",
        where="mix-order reduction",
    ),
    untried("175966/arange_times_large", "int64 arange * 10**9 overflows int32", where="index dtype of a value"),
    untried(
        "183901/arange_times_constant", "int64 arange * 1500000000 overflows int32", where="index dtype of a value"
    ),
    untried(
        "186164/floor_divide_by_tensor",
        "int64 floor_divide by a 0-d tensor constant",
        where="type of a constant in AOTInductor's lowering",
    ),
    untried("149278/where_one_argument", "`torch.where(x)` with its output shapes captured", where="unbacked sizes"),
    # ------------------------------------------------------------------------------------------------- controls
    control("control/145268_nearly_equal_comparison", "gt of nearly equal floats: both answers are right", 145268),
    control("control/reduction_order", "float reductions in another order"),
    control("control/random_other_generator", "a random operator under another generator"),
    control("control/nan_in_fp64_too", "NaN where fp64 is NaN too"),
    control("control/denormal_results", "denormals, kept or documented as flushed"),
)
