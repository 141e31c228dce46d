"""What a campaign on inductor with another seed has found: rows of the table of regressions. Torch-free."""

from __future__ import annotations

from suites.regressions.rows import Regression, differs

FUZZED_INDUCTOR: tuple[Regression, ...] = (
    differs(
        "139789/arguments_come_to_share",
        "two arguments, one of them written, share their memory from the second call on: the other one is read as before",
        first_wrong="aot_eager",
        where="guards: that arguments did not overlap is no guard",
        status="fail_guard",
    ),
    differs(
        "fuzzed/view_with_grad_under_no_grad",
        "a view of an argument is made under enable_grad, called under no_grad: a leaf, whose gradient goes nowhere",
        first_wrong="aot_eager",
        where="runtime: views of arguments are made again in the mode of the call",
        status="fail_metadata",
    ),
    differs(
        "fuzzed/huber_loss_of_nothing",
        "the mean huber_loss of no elements, with a gradient: raises ZeroDivisionError",
        first_wrong="aot_eager",
        where="decomposition of huber_loss_backward: 1 / a.numel()",
        status="fail_to_run",
    ),
    differs(
        "fuzzed/zeta_not_differentiated",
        "zeta of an argument with a gradient, which nobody asks for: refused",
        first_wrong="aot_eager",
        where="joint graph: backward is traced in the first call, whether or not it is ever run",
        status="fail_to_run",
    ),
    differs(
        "fuzzed/channel_shuffle_of_one_group",
        "channel_shuffle with one group is a view of its argument; eager's is a copy",
        first_wrong="aot_eager_decomp_partition",
        where="decomposition of channel_shuffle: a reshape, which copies only what it must",
        status="fail_alias",
    ),
    differs(
        "fuzzed/layer_norm_overflows",
        "layer_norm of numbers whose squares overflow is 0; eager's is NaN, and double precision has 1",
        first_wrong="aot_eager_decomp_partition",
        where="decomposition of native_layer_norm, as of native_group_norm: the inverse square root of an infinite variance",
        status="fail_accuracy",
    ),
    differs(
        "fuzzed/rrelu_of_positive_numbers",
        "rrelu of positive numbers in training draws random numbers; eager draws none",
        first_wrong="aot_eager_decomp_partition",
        where="decomposition of rrelu_with_noise: a number for each element, negative or not",
        status="fail_rng",
    ),
    differs(
        "fuzzed/strides_of_binary_cross_entropy",
        "binary_cross_entropy of a transposed and a contiguous tensor is contiguous; eager's is transposed",
        first_wrong="aot_eager_decomp_partition",
        where="decompositions that do not keep eager's strides",
        status="fail_stride",
    ),
    differs(
        "184694/shared_arguments_from_cache",
        "what was compiled for arguments apart comes out of the cache for arguments that share memory",
        first_wrong="inductor",
        where="AOTAutograd's cache: which arguments share memory is not in the key",
        status="fail_guard",
    ),
    differs(
        "198119/avg_pool_ceil_gradient",
        "the gradient of avg_pool2d with ceil_mode: a window over the edge is divided by the kernel's size, not its own",
        first_wrong="inductor",
        where="lowering of avg_pool2d_backward",
        status="fail_grad",
    ),
    differs(
        "198183/atanh_near_zero",
        "atanh of small numbers has few digits, and none below 6e-8",
        first_wrong="inductor",
        where="vectorised CPU kernel: log((1 + x) / (1 - x)) / 2",
        status="fail_accuracy",
    ),
    differs(
        "189803/expm1_near_zero",
        "expm1 of small numbers has few digits, and none below 6e-8",
        first_wrong="inductor",
        where="vectorised CPU kernel: exp(x) - 1",
        status="fail_accuracy",
    ),
    differs(
        "197893/sum_with_zeros",
        "`return a + zeros` of an argument is the argument itself; eager's is a copy",
        first_wrong="inductor",
        where="joint graph: operations that change nothing are removed, whether or not their result is returned",
        status="fail_alias",
    ),
    differs(
        "fuzzed/two_clones_returned",
        "two clones of one value are returned: one object twice",
        first_wrong="inductor",
        where="post-grad: clones of a value that is not returned itself are removed, all of them",
        status="fail_alias",
    ),
    differs(
        "fuzzed/views_of_result_apart",
        "two parts of what was computed from a transposed tensor are returned: each has memory of its own",
        first_wrong="inductor",
        where="layout of outputs: a view whose strides are not those that were expected is copied",
        status="fail_alias",
    ),
    differs(
        "fuzzed/float8_slice_gradient",
        "the gradient of a slice of float8 numbers: raises",
        first_wrong="inductor",
        where="lowering of slice_backward: a mask and float8 numbers have no common dtype",
        status="fail_to_run",
    ),
)
