"""What campaigns on AOT autograd's decompositions, and on capture, have found: rows of the table of regressions. Torch-free."""

from __future__ import annotations

from suites.regressions.rows import Regression, differs

FUZZED_AOT: tuple[Regression, ...] = (
    differs(
        "fuzzed/foreach_add_to_each_other",
        "`_foreach_add_([a, b], [b, a])` adds what both were before; eager adds one after the other",
        first_wrong="aot_eager",
        where="functionalization: what a list operator reads is taken from before all its writes",
        status="fail_accuracy",
    ),
    differs(
        "fuzzed/foreach_of_one_tensor_twice",
        "`_foreach_exp_([a, a])` is one exponential; eager takes two, one after the other",
        first_wrong="aot_eager",
        where="functionalization: what a list operator reads is taken from before all its writes",
        status="fail_accuracy",
    ),
    differs(
        "fuzzed/strides_of_interpolate",
        "nearest interpolation along one dimension of a permuted tensor is permuted; eager's is contiguous",
        first_wrong="aot_eager",
        where="decomposition of upsample_nearest1d: an index, which keeps the layout of what it reads",
        status="fail_stride",
    ),
    differs(
        "fuzzed/inherited_attribute_shadowed",
        "a class gets an attribute between the calls that it had from its base: the base's is used on",
        first_wrong="dynamo",
        where="capture: that the classes before the base have no such attribute is no guard",
        status="fail_guard",
    ),
    differs(
        "fuzzed/hook_before_write",
        "an argument is given a hook, used, and written: the hook is not run",
        first_wrong="dynamo",
        where="capture: hooks on arguments are registered after the graph has run",
        status="fail_grad",
    ),
    differs(
        "fuzzed/checkpoint_draws_without_gradient",
        "a checkpointed function draws random numbers, and nothing has a gradient: refused",
        first_wrong="aot_eager",
        where="activation checkpointing: a pass for graphs with a backward of their own also sees graphs of inference",
        status="fail_to_run",
    ),
    differs(
        "fuzzed/prod_gradient_of_infinity",
        "the gradient of prod of one infinite element is NaN in eager, and a number compiled",
        first_wrong="aot_eager",
        where="joint graph: under fake tensors autograd's formula for prod has no division; refimpl's graph has one",
        status="fail_grad",
    ),
    differs(
        "fuzzed/strides_of_numpy",
        "what NumPy computes from an array that overlaps itself is contiguous; compiled it is not",
        first_wrong="dynamo",
        where="capture: NumPy's calls are torch's",
        status="fail_stride",
    ),
    differs(
        "fuzzed/as_strided_out_of_bounds",
        "the program catches the error of an as_strided beyond the memory: it reaches the caller",
        first_wrong="dynamo",
        where="fake tensors: bounds of as_strided are not looked at",
        status="fail_to_run",
    ),
    differs(
        "fuzzed/cond_dynamic",
        "linalg.cond by the Frobenius norm with dynamic shapes: raises",
        first_wrong="dynamo",
        where="fake tensors: the kernel of linalg.cond asks for numel()",
        status="fail_to_run",
    ),
    differs(
        "fuzzed/as_strided_beside_written_windows",
        "a transposed result is written through unfold: an as_strided view of it has other elements",
        first_wrong="aot_eager",
        where="functionalization: the inverse of unfold is contiguous, and as_strided counts places in memory",
        status="fail_accuracy",
    ),
)
