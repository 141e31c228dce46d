"""Composite ops that write to an argument, or may give its memory back: graphs that are made functional cannot have them whole.

Counterpart: FunctionalTensor.maybe_aliasing_or_mutating_ops and _should_decompose_because_unsafe_op in torch/_subclasses
Differs: more ops whose schemas do not say so: einsum, meshgrid, type_as and others.
"""

from __future__ import annotations

import functools

from refimpl._torch import OpOverload

# Their schemas promise memory of its own.
_UNANNOTATED = frozenset(
    {
        "_batch_norm_impl_index", "alpha_dropout", "alpha_dropout_", "atleast_1d", "atleast_2d", "atleast_3d", "batch_norm",
        "broadcast_tensors", "cartesian_prod", "combinations", "conj_physical", "dropout", "einsum", "feature_alpha_dropout",
        "feature_dropout", "instance_norm", "meshgrid", "pad", "type_as", "unsafe_chunk",
    }
)  # fmt: skip


@functools.cache
def may_share_memory(func: OpOverload) -> bool:
    """Whether a result may be memory of an argument, or an argument be written to, by the schema or against it."""
    schema = func._schema
    if schema.name.removeprefix("aten::") in _UNANNOTATED:
        return True
    return schema.is_mutable or any(argument.alias_info is not None for argument in schema.arguments)
