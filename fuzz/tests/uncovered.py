"""OpInfo entries that no specification covers, with the reason. A test checks that the list is complete and has no stale rows."""

from __future__ import annotations

from collections.abc import Mapping

_UNDEFINED = "the elements are not initialised: its result has no meaning until something is written"
_SPARSE = "sparse tensors are not drawn"
_CHOICE = "the result is unique up to signs or rotations only: a program that goes on with it has no one meaning"
_FACTORS = "takes the packed factors of another operator, which a drawn tensor is not"
_DEVICE = "not on the CPU"

UNCOVERED: Mapping[str, str] = {
    "_batch_norm_with_update": "what it returns for the backward pass is for one kernel only",
    "_chunk_cat": "eager reads out of bounds (and may crash) for tensors without elements or dimensions",
    "_segment_reduce": "internal, without a stable signature",
    "broadcast_shapes": "takes and returns no tensors",
    "chalf": "complex32 has few kernels on the CPU",
    "empty": _UNDEFINED,
    "empty_like": _UNDEFINED,
    "empty_permuted": _UNDEFINED,
    "empty_strided": _UNDEFINED,
    "new_empty": _UNDEFINED,
    "new_empty_strided": _UNDEFINED,
    "resize_": _UNDEFINED,
    "resize_as_": _UNDEFINED,
    "geqrf": _CHOICE,
    "hash_tensor": "a hash of the bits: it shows every rounding that is allowed",
    "histogramdd": "returns a list beside a tensor",
    "istft": "eager checks the overlap of windows: needs the output of stft",
    "jiterator_2inputs_2outputs": _DEVICE,
    "jiterator_4inputs_with_extra_args": _DEVICE,
    "jiterator_binary": _DEVICE,
    "jiterator_binary_return_by_ref": _DEVICE,
    "jiterator_unary": _DEVICE,
    "linalg.eig": _CHOICE,
    "linalg.eigh": _CHOICE,
    "linalg.eigvals": "the order of complex eigenvalues is not specified",
    "linalg.householder_product": _FACTORS,
    "linalg.ldl_solve": _FACTORS,
    "linalg.lu_solve": _FACTORS,
    "linalg.qr": _CHOICE,
    "linalg.svd": _CHOICE,
    "lu": "deprecated; torch.linalg.lu_factor is covered",
    "lu_solve": _FACTORS,
    "lu_unpack": _FACTORS,
    "nn.functional.fractional_max_pool3d": "as its two-dimensional form, which is covered",
    "nn.functional.linear_cross_entropy": "not in every version of torch that is supported",
    "nn.functional.max_unpool1d": "indices of overlapping windows meet in one place: which one stays is not defined",
    "nn.functional.max_unpool2d": "see max_unpool1d",
    "nn.functional.max_unpool3d": "see max_unpool1d",
    "nn.functional.multi_head_attention_forward": "a composite of operators that are covered, with twenty arguments",
    "ormqr": _FACTORS,
    "pca_lowrank": "random, and unique up to signs only",
    "qr": _CHOICE,
    "sparse.mm": _SPARSE,
    "sparse.sampled_addmm": _SPARSE,
    "svd": _CHOICE,
    "svd_lowrank": "random, and unique up to signs only",
    "to_sparse": _SPARSE,
    "torch._scaled_mm": "of float8 matrices in layouts that few machines have a kernel for",
    "torch._scaled_mm_v2": "see torch._scaled_mm",
    "torch.ops.aten._efficient_attention_forward": _DEVICE,
    "torch.ops.aten._flash_attention_forward": _DEVICE,
}
