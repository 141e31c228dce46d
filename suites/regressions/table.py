"""The table of regressions: what was reported, where it first goes wrong, and how it ends on torch 2.13, x86 CPU. Torch-free.

`first_wrong` is a subject: the lowest rung that shows it. `status` is the verdict from that rung on.
Measured with torch 2.13.0+cpu; what has only been reported for GPUs is "untried".
"""

from __future__ import annotations

from suites.regressions.found import FOUND
from suites.regressions.fuzzed import FUZZED
from suites.regressions.fuzzed_aot import FUZZED_AOT
from suites.regressions.fuzzed_inductor import FUZZED_INDUCTOR
from suites.regressions.rows import Regression, agrees, control, differs, untried

REGRESSIONS: tuple[Regression, ...] = (
    # ------------------------------------------------------------------------------------------------- differ today
    differs(
        "197829/shifted_slice_copy",
        "`x[1:] = x[:-1].clone(); return x` reads what it overwrites",
        first_wrong="inductor",
        where="post-grad: no-op removal drops the clone, then the scatter is reinplaced",
        status="fail_accuracy",
    ),
    differs(
        "197895/float_floor_division",
        "`1.0 // 0.1` gives 10, eager and Python 9",
        first_wrong="inductor",
        where="lowering of floor division as floor(a / b)",
        status="fail_accuracy",
    ),
    differs(
        "183894/argmin_of_transpose",
        "`x.t().contiguous().argmin()` counts in memory order",
        first_wrong="inductor",
        where="CPU index of argmin and argmax reductions",
        status="fail_accuracy",
    ),
    differs(
        "190758/dropout_memory_budget",
        "with an activation memory budget of 0.1, backward draws a fresh dropout mask",
        first_wrong="aot_eager",
        where="partitioner: the knapsack recomputes a random operator",
        status="fail_grad",
    ),
    differs(
        "190717/dropout_budget_zero",
        "with an activation memory budget of 0, backward draws a fresh dropout mask",
        first_wrong="aot_eager",
        where="partitioner: budget 0 saves inputs only",
        status="fail_grad",
    ),
    differs(
        "197859/dict_shadows_submodule",
        "`object.__setattr__(m, 'inner', module)` after the first call: the old submodule runs on",
        first_wrong="dynamo",
        where="guards: no guard that __dict__ does not shadow a submodule",
        status="fail_guard",
    ),
    differs(
        "139805/export_same_tensor_twice",
        "exported on `(x, x)`, both placeholders are one value",
        first_wrong="export",
        where="export, strict and not strict: example inputs that are one object",
        status="fail_guard",
    ),
    differs(
        "163303/parameter_in_list",
        "a parameter read through a plain list becomes a constant and gets no gradient",
        first_wrong="export[strict=false]",
        where="non-strict export: constants lifted before state is matched",
        status="fail_grad",
    ),
    differs(
        "197860/method_code_replaced",
        "a method's __code__ is replaced between the calls",
        first_wrong="dynamo",
        where="guards: no code guard on a method found on the type",
        status="fail_guard",
    ),
    differs(
        "198094/scatter_into_overwritten_input",
        "`y = slice_scatter(x, s); x.zero_(); return y` returns zeros",
        first_wrong="inductor",
        where="post-grad: scatter reinplaced into an input that is overwritten later",
        status="fail_accuracy",
    ),
    differs(
        "198102/gapped_unfold_mutation",
        "in-place through an unfold view with gaps zeroes the gaps",
        first_wrong="aot_eager",
        where="functionalization: inverse of unfold",
        status="fail_accuracy",
    ),
    differs(
        "175154/interpolate_nearest_unchanged",
        "nearest interpolation by 1.3 of two columns repeats the first",
        first_wrong="aot_eager",
        where="decomposition of upsample_nearest",
        status="fail_accuracy",
    ),
    differs(
        "178680/shared_base_offset_changes",
        "two inputs of one storage; the second call has another offset and writes the old one",
        first_wrong="aot_eager",
        where="synthetic base: the layout of inputs within their storage is not guarded",
        status="fail_guard",
    ),
    *FOUND,
    *FUZZED,
    *FUZZED_INDUCTOR,
    *FUZZED_AOT,
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
