"""Finds composite ops that may mutate an argument or return an alias of one; functionalization must decompose these.

Counterpart: FunctionalTensor.maybe_aliasing_or_mutating_ops and _should_decompose_because_unsafe_op in torch/_subclasses
Differs: knows more ops whose schemas do not say so: einsum, meshgrid, type_as and others.
"""

from __future__ import annotations

import functools

from refimpl._torch import OpOverload

# Composite ops that may alias an argument although their schemas have no alias annotations. Whether they do depends on the call
# (dropout does if `train` is False), so no single run of a kernel tells.
_UNANNOTATED = frozenset(
    {
        "_batch_norm_impl_index", "alpha_dropout", "alpha_dropout_", "atleast_1d", "atleast_2d", "atleast_3d", "batch_norm",
        "broadcast_tensors", "cartesian_prod", "combinations", "conj_physical", "dropout", "einsum", "feature_alpha_dropout",
        "feature_dropout", "instance_norm", "meshgrid", "pad", "type_as", "unsafe_chunk",
    }
)  # fmt: skip


@functools.cache
def may_share_memory(func: OpOverload) -> bool:
    """Whether a result may alias an argument, or an argument may be mutated."""
    schema = func._schema
    if schema.name.removeprefix("aten::") in _UNANNOTATED:
        return True
    return schema.is_mutable or any(argument.alias_info is not None for argument in schema.arguments)
