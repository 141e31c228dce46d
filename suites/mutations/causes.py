"""Why torch's `aot_eager` is wrong on generated programs: causes, and which kinds of failure come from which. Torch-free.

Written by hand: programs of every kind of failure were made small (`suites.mutations.minimise`), read, and run step by step.
Of a small kind every program was looked at; of a large one, some: it may have causes that are not named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason. `regressions`: programs of that suite which show it; none where eager's own meaning is in doubt."""

    word: str
    stage: str
    line: str
    regressions: tuple[str, ...] = ()


def _cause(word: str, stage: str, line: str, *regressions: str) -> Cause:
    return Cause(word=word, stage=stage, line=line, regressions=regressions)


CAUSES: tuple[Cause, ...] = (
    # ------------------------------------------------------------------- arguments that share memory: the synthetic base
    _cause(
        "base-replay",
        "synthetic base",
        "a returned view of an argument is made again with the argument's views, but from the base",
        "found/alias_of_written_base_squeezed",
        "found/narrow_of_transposed_alias",
        "found/as_strided_of_expanded_alias",
    ),
    _cause(
        "base-identity",
        "synthetic base",
        "an argument that is returned comes back as another view of the base",
        "found/written_base_returned",
    ),
    _cause(
        "base-tangents",
        "synthetic base",
        "tangents are counted for the arguments, updates for the base",
        "found/written_view_and_base_no_results",
    ),
    _cause(
        "base-hidden-write",
        "synthetic base",
        "a write under no_grad to one argument is taken for one that autograd sees",
        "found/no_grad_write_beside_view",
    ),
    _cause("base-leaf", "synthetic base", "refused: a leaf beside a view of it", "found/view_of_leaf_beside_leaf"),
    _cause(
        "base-no-grad-views",
        "synthetic base",
        "arguments are made again under no_grad, where autograd forbids what the caller's views allow",
        "found/view_beside_written_base_no_grad",
    ),
    _cause(
        "base-unrelated",
        "synthetic base",
        "refused: aliases that autograd does not know as views of one another",
        "found/detached_alias_beside_view",
    ),
    _cause("base-dtypes", "synthetic base", "refused: aliases of several dtypes", "found/real_part_beside_complex"),
    _cause(
        "base-conjugate",
        "synthetic base",
        "a conjugate of an argument is made again without its conjugate bit",
        "found/conjugate_beside_written_argument",
    ),
    _cause(
        "base-view-function",
        "synthetic base",
        "a leaf is made again as a view that has no function to repeat it",
        "found/detached_leaf_beside_view",
    ),
    _cause(
        "base-as-strided",
        "functionalization",
        "refused: a written view chain with as_strided after its beginning; arguments made from a base begin with one",
        "found/as_strided_of_alias_is_written",
    ),
    # ----------------------------------------------------------------------------------------------- functionalization
    _cause(
        "conjugate-bit",
        "functionalization",
        "the value has a conjugate or negative bit and its wrapper has none, or the other way round",
        "found/conjugated_argument_written",
        "found/write_through_conjugate",
    ),
    _cause(
        "memory-around",
        "functionalization",
        "the value of an argument has no memory around it for as_strided to reach",
        "found/as_strided_around_argument",
    ),
    _cause(
        "reshape-copies",
        "functionalization",
        "reshape decides by the strides of the functional value whether it is a view",
        "found/write_through_ravel_of_overlapping_view",
    ),
    _cause(
        "functional-layout",
        "functionalization",
        "an in-place result takes the layout of the functional operator: strides, order of random numbers, later views",
        "found/strides_of_masked_fill",
        "found/view_after_transpose_is_written",
    ),
    _cause("inverse-of-unfold", "functionalization", "writes zero into gaps", "198102/gapped_unfold_mutation"),
    _cause(
        "unfold-refused",
        "functionalization",
        "refused: writes through unfold, also where nothing overlaps",
        "found/unfold_with_one_window_written",
    ),
    _cause(
        "inverse-of-expand",
        "functionalization",
        "adds the sum of differences: NaN of infinities, wrong where a place is written more than once, none of booleans",
        "found/expanded_infinity_written",
    ),
    _cause(
        "overlapping-argument",
        "functionalization",
        "elements of an argument that share a place are copied from and to it as if each had its own",
        "found/expanded_argument_filled",
        "found/overlapping_rows_written",
    ),
    _cause(
        "stale-view-function",
        "autograd on fake and functional tensors",
        "views are repeated by functions that know nothing of shapes changed in place; on plain tensors, by their strides",
        "found/squeezed_view_expanded",
        "found/unsqueezed_view_written",
        "found/transposed_in_place_beside_view",
    ),
    _cause(
        "reshaped-base",
        "output aliases",
        "a view is made again from a base whose shape was changed in place since",
        "found/slice_of_result_reshaped_in_place",
    ),
    _cause("foreach-copy", "joint graph", "`_foreach_copy` has no derivative", "found/foreach_copy_of_argument"),
    _cause("dead-random", "dead code", "random operators that nobody reads are removed", "found/dead_random_write"),
    # --------------------------------------------------------------------------------------------- set_ and `.data = ...`
    _cause(
        "set-frozen",
        "functionalization",
        "refused: a write to memory that set_ has handed on",
        "found/data_set_to_view_then_written",
    ),
    _cause(
        "set-after-write",
        "analysis, runtime epilogue",
        "refused: a write and set_ of one argument; where it is not refused, the write is lost",
        "found/data_set_after_write",
        "found/data_set_elsewhere_after_write",
    ),
    _cause(
        "set-same-memory",
        "analysis",
        "set_ to memory that the tensor has already changes neither shape nor strides",
        "found/data_set_to_part_of_itself",
    ),
    _cause(
        "set-result-shape",
        "functionalization",
        "a result that was set_ keeps the shape from before for its views",
        "found/set_result_viewed",
    ),
    _cause(
        "set-unwrapped-update",
        "runtime epilogue",
        "an update of the shape alone is not wrapped as the epilogue expects",
        "found/data_of_view_and_leaf_exchanged",
    ),
    _cause(
        "set-to-written",
        "functionalization",
        "a result that was set_ to an argument which is written is no alias of it",
        "found/set_to_written_argument",
    ),
    _cause(
        "set-then-update",
        "runtime epilogue",
        "an update is copied to the memory that an argument has in the end, not to the memory that was written",
        "found/alias_set_then_written",
    ),
    _cause(
        "set-inference",
        "capture, output aliases",
        "in inference mode, set_ and `.data =` do not make an inference tensor",
        "found/inference_data_given_to_argument",
        "found/inference_result_set_to_argument",
    ),
    _cause(
        "set-with-history",
        "joint graph",
        "`.data =` of another shape in a tensor with a history. Eager differentiates it by the old shape or refuses, as the"
        " operators happen to be: no regression is kept",
    ),
    # ------------------------------------------------------------------------------------------ joint graph and runtime
    _cause(
        "output-position",
        "joint graph",
        "an output that is an argument takes the place of another argument's update",
        "found/output_among_updated_arguments",
    ),
    _cause(
        "shape-before-update",
        "runtime epilogue",
        "the argument takes shape and strides of the functional value first, and values are then copied to what these cover",
        "found/strides_changed_after_write",
        "found/transposed_after_write",
    ),
    _cause(
        "hidden-write-to-leaf-view",
        "runtime epilogue",
        "a write through detach() is copied as one that autograd sees, unless the argument is a leaf itself",
        "found/write_through_detach_of_view_of_leaf",
    ),
    _cause(
        "saved-argument",
        "partitioner",
        "an argument is saved for backward and then written by the epilogue",
        "found/argument_saved_then_written",
    ),
    _cause(
        "one-backward",
        "runtime",
        "backward through one result checks what was saved for the others",
        "found/saved_result_written_after_break",
    ),
    _cause(
        "joint-all-updates",
        "joint graph",
        "every update is differentiated while tracing, also what eager never asks for and would refuse",
        "found/factor_written_after_use",
    ),
    _cause(
        "zero-gradient",
        "runtime",
        "a zero gradient where there is none",
        "found/overwritten_argument_without_gradient",
    ),
    _cause(
        "overlapping-tangent",
        "runtime",
        "a tangent is copied into the strides of its output, where elements share a place",
        "found/unfold_of_result_differentiated",
    ),
    _cause(
        "detached-output",
        "output aliases",
        "a detached argument that was written with a differentiable value gets no tangent",
        "found/detached_argument_written_and_returned",
    ),
    _cause(
        "multi-output-view",
        "output aliases",
        "a part of a written argument (chunk, split, unbind) has memory of its own",
        "found/chunk_of_written_argument",
    ),
    _cause(
        "one-object",
        "capture, output aliases",
        "one object returned twice is two, also by a graph that breaks off: what is then done to one is not done to the other",
        "found/same_view_returned_twice",
    ),
    _cause(
        "custom-function-result",
        "runtime",
        "results of a compiled graph are views of a custom autograd function's, and may not be written",
        "found/result_written_after_break",
    ),
    _cause(
        "enabled-under-no-grad",
        "analysis",
        "the history of an argument written under enable_grad inside no_grad is not seen",
        "found/written_with_grad_under_no_grad",
    ),
    _cause(
        "enabled-in-inference",
        "capture, analysis",
        "enable_grad inside inference mode is traced outside of it",
        "found/enable_grad_in_inference_mode",
    ),
    # ------------------------------------------------------------------------------------------------------------ capture
    _cause(
        "restart-drops-write",
        "capture",
        "a restart for Python scalars removes writes to float64 tensors without dims",
        "found/float64_scalar_written",
    ),
    _cause(
        "changed-fake-argument",
        "capture",
        "a fake argument that tracing gave a history is compared with the real one",
        "found/argument_gets_history_beside_view",
    ),
    _cause(
        "no-grad-view-across-break",
        "capture",
        "a view made and written under no_grad is looked at with gradients enabled after a graph break",
        "found/view_without_gradient_after_break",
    ),
    _cause("data-read-once", "capture", "`.data` read twice is one object", "found/data_read_twice"),
    # ---------------------------------------------------------------------------------------------- eager is in doubt
    _cause(
        "eager-view-without-history",
        "analysis",
        "eager says that a view requires a gradient because its base does, but gives it no history (a view under no_grad, or"
        " one older than requires_grad_()): no regression is kept",
    ),
    _cause(
        "eager-as-strided-gradient",
        "output aliases",
        "as_strided of a slice reaches beside the slice; eager gives a gradient there after a write to the base, and none"
        " before it: no regression is kept",
    ),
)

_MODIFIED = (
    "fail_to_run: RuntimeError: one of the variables needed for gradient computation has been modified by an inplace"
    " operation: "
)
# Beginning of a kind of failure, as `suites.mutations.buckets` words it -> causes, the likeliest first. The longest holds.
BUCKETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fail_to_run: AssertionError: outs_to_grad length": ("base-tangents",),
        "fail_rng: generator state": ("dead-random",),
        "fail_to_run: AssertionError: incorrect out shape after application of ViewMeta": ("base-replay",),
        "fail_accuracy: output## differs": (
            "base-replay",
            "reshape-copies",
            "inverse-of-unfold",
            "inverse-of-expand",
            "functional-layout",
            "base-conjugate",
            "memory-around",
            "set-same-memory",
        ),
        "fail_grad: grad of inputs# differs": ("zero-gradient", "detached-output", "eager-view-without-history"),
        "fail_to_run: RuntimeError: During torch.compile, encountered a mutation on a view chain": ("base-as-strided",),
        "fail_to_run: AssertionError: aot_autograd# does not yet handle input mutations on views with different": (
            "base-dtypes",
        ),
        _MODIFIED: ("joint-all-updates", "saved-argument", "one-backward"),
        _MODIFIED + "[torch.FloatTensor #], which i": (
            "joint-all-updates",
            "saved-argument",
        ),
        "fail_to_run: AssertionError: aot_autograd# does not yet handle non-differentiable view input mutations": (
            "base-unrelated",
        ),
        "fail_to_run: AssertionError: any_leaf=True != all_leaf=False": ("base-leaf",),
        "fail_accuracy: output# differs": (
            "base-replay",
            "functional-layout",
            "restart-drops-write",
            "inverse-of-expand",
            "base-conjugate",
        ),
        "fail_to_run: RuntimeError: as_strided_scatter: sizes": ("memory-around",),
        _MODIFIED + "[torch.FloatTensor #] is at ve": (
            "saved-argument",
            "one-backward",
        ),
        "fail_to_run: RuntimeError: While executing unfold, functionalization encountered": ("unfold-refused",),
        "fail_to_run: IndexError: Dimension out of range": ("base-replay", "reshaped-base", "stale-view-function"),
        "fail_to_run: RuntimeError: cannot mutate tensors with frozen storage": ("set-frozen",),
        "fail_mutation: args## differs": (
            "output-position",
            "inverse-of-unfold",
            "functional-layout",
            "inverse-of-expand",
            "set-same-memory",
        ),
        "fail_alias: output# does not share its object with output#, but should": ("one-object",),
        "fail_mutation: inputs## differs": (
            "inverse-of-unfold",
            "shape-before-update",
            "base-conjugate",
            "functional-layout",
            "set-then-update",
            "set-same-memory",
            "set-after-write",
            "restart-drops-write",
        ),
        "fail_to_run: RuntimeError: shape '#' is invalid for input of size": (
            "base-replay",
            "set-result-shape",
            "stale-view-function",
        ),
        "fail_alias: output does not share its object with args#, but should": ("base-identity",),
        "fail_to_run: RuntimeError: a view of a leaf Variable that requires grad is being used": (
            "hidden-write-to-leaf-view",
        ),
        "fail_alias: output# does not share its object with args#, but should": ("base-identity",),
        "fail_alias: output# does not share the storage of args#, but should": ("multi-output-view", "set-to-written"),
        "fail_grad: grad of inputs## differs": (
            "one-object",
            "base-hidden-write",
            "overlapping-tangent",
            "eager-as-strided-gradient",
        ),
        "fail_to_run: RuntimeError: The size of tensor a # must match the size of tensor b #": ("output-position",),
        "fail_to_run: RuntimeError: The expanded size of the tensor # must match the existing size": ("base-replay",),
        "fail_metadata: output#.shape is #, but should be #": (
            "shape-before-update",
            "set-same-memory",
            "set-result-shape",
            "one-object",
        ),
        "fail_alias: output does not share the storage of args#, but should": ("multi-output-view", "set-to-written"),
        "fail_to_run: AssertionError: Encountered a set_ on a graph input": ("set-after-write",),
        "fail_mutation: args#.shape differs": ("set-same-memory",),
        "fail_to_run: RuntimeError: unsupported operation: more than one element of the written-to tensor": (
            "overlapping-argument",
        ),
        "fail_to_run: RuntimeError: setStorage: sizes": ("memory-around",),
        "fail_metadata: output.is_leaf is True, but should be False": ("base-identity",),
        "fail_to_run: RuntimeError: expand(torch.FloatTensor{#}, size=#)": ("base-replay",),
        "fail_alias: output#.stride# in the storage it shares is": ("base-replay", "inverse-of-unfold"),
        "fail_to_run: RuntimeError: Subtraction, the `-` operator, with two bool tensors": ("inverse-of-expand",),
        "fail_to_run: RuntimeError: derivative for _foreach_copy_ is not implemented": ("foreach-copy",),
        "fail_metadata: output.shape is #, but should be #": ("set-result-shape", "set-same-memory"),
        "fail_to_run: RuntimeError: permute(sparse_coo)": ("base-replay",),
        "fail_alias: output# does not share the storage of output#, but should": ("multi-output-view",),
        "fail_to_run: torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call": (
            "stale-view-function",
            "custom-function-result",
            "enabled-in-inference",
        ),
        "fail_to_run: RuntimeError: a leaf Variable that requires grad is being used in an in-place operation": (
            "hidden-write-to-leaf-view",
        ),
        "fail_to_run: RuntimeError: The expanded size of the tensor # isn't allowed": ("base-replay",),
        "fail_metadata: output#.is_leaf is True, but should be False": ("base-identity",),
        "fail_accuracy: output differs": ("restart-drops-write",),
        "fail_to_run: RuntimeError: expand: the requested shape has too few dimensions!": ("stale-view-function",),
        "fail_mutation: inputs#.shape differs": ("set-same-memory",),
        "fail_to_run: torch._dynamo.exc.InternalTorchDynamoError: RuntimeError: A view was created in inference": (
            "no-grad-view-across-break",
        ),
        "fail_stride: output.stride# is": ("functional-layout",),
        "fail_metadata: output.requires_grad is False, but should be True": (
            "enabled-under-no-grad",
            "eager-view-without-history",
        ),
        "fail_to_run: RuntimeError: A view was created in no_grad mode and its base or another view of its base": (
            "base-no-grad-views",
        ),
        _MODIFIED + "[torch.DoubleTensor #] is at v": (
            "one-backward",
            "saved-argument",
        ),
        _MODIFIED + "[torch.DoubleTensor #], which": (
            "saved-argument",
            "joint-all-updates",
        ),
        "fail_to_run: RuntimeError: new_fn INTERNAL ASSERT FAILED": ("base-view-function",),
        "fail_to_run: RuntimeError: more than one element of the written-to tensor": ("overlapping-argument",),
        "fail_to_run: RuntimeError: maximum size for tensor at dimension": ("base-replay",),
        "fail_to_run: RuntimeError: output with shape # doesn't match the broadcast shape": ("output-position",),
        "fail_to_run: AssertionError: False != True": ("changed-fake-argument",),
        "fail_alias: output.stride# in the storage it shares is": ("base-replay",),
        "fail_alias: output#.storage_offset in the storage it shares is": ("base-replay",),
        "fail_to_run: IndexError: select#: index # out of range": ("base-replay",),
        "fail_to_run: RuntimeError: Function torch::autograd::CopySlices returned an invalid gradient": (
            "stale-view-function",
        ),
        "fail_to_run: RuntimeError: Output # of CompiledFunction is a view and is being modified inplace": (
            "custom-function-result",
        ),
        "fail_to_run: RuntimeError: invalid gradient at index # - got #": ("stale-view-function",),
        _MODIFIED + "[CPUBoolType #] is at version": ("joint-all-updates",),
        "fail_to_run: AssertionError: expected TensorAlias, got": ("set-unwrapped-update",),
        "fail_to_run: RuntimeError: Function CompiledFunctionBackward returned an invalid gradient": (
            "set-with-history",
        ),
        "fail_mutation: args#.is_inference differs": ("set-inference",),
        "fail_alias: output shares the storage of args#, but should not": ("set-then-update",),
        "fail_metadata: output.is_inference is False, but should be True": ("set-inference",),
        "fail_metadata: output.requires_grad is True, but should be False": ("enabled-in-inference",),
        "fail_to_run: RuntimeError: A view was created in no_grad mode and is being modified": ("base-no-grad-views",),
        "fail_alias: output# shares its object with output#, but should not": ("data-read-once",),
        "fail_to_run: ValueError: Cannot view a tensor with shape torch.Size(#) and strides": ("functional-layout",),
        "fail_to_run: RuntimeError: Output # of Permute is a view and is being modified inplace": (
            "custom-function-result",
        ),
        _MODIFIED + "[CPUComplexFloatType #], which": ("joint-all-updates",),
        "fail_to_run: torch._dynamo.exc.InternalTorchDynamoError: RuntimeError: A view was created in no_grad mode": (
            "no-grad-view-across-break",
        ),
        "fail_stride: output#.stride# is": ("functional-layout",),
        "fail_to_run: RuntimeError: view_as_real doesn't work on unresolved conjugated tensors": ("conjugate-bit",),
        "fail_metadata: output#.is_neg is True, but should be False": ("conjugate-bit",),
        "fail_to_run: RuntimeError: Tensor must have a last dimension of size": ("base-replay",),
        "fail_metadata: output#.requires_grad is False, but should be True": ("eager-view-without-history",),
        "fail_metadata: output#.requires_grad is True, but should be False": ("eager-view-without-history",),
    }
)
