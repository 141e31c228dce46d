"""Describes a node's value in its `meta`: sets `val`, `tensor_meta` and `device`.

Counterpart: torch/fx/experimental/proxy_tensor.py extract_val, snapshot_fake, set_meta
Differs: in real mode all `val`s of a graph belong to one fake mode and are made from sizes and strides; upstream makes a new mode
for every node and converts the tensor under it, which takes more than half of its time. `meta["device"]` is an addition.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import (
    FakeTensor,
    FakeTensorMode,
    TensorMetadata,
    inside_fake_kernel,
    is_traceable_wrapper_subclass,
    set_bits,
    without_dispatch,
)

_ANY_DIM = (torch.contiguous_format,)
_MEMORY_FORMATS = {
    4: (torch.contiguous_format, torch.channels_last),
    5: (torch.contiguous_format, torch.channels_last_3d),
}


def describe(node: torch.fx.Node, value: Any, real_mode: FakeTensorMode | None = None) -> None:
    """Set `val`, and for a tensor also `tensor_meta` and `device`. Runs with recording off.

    `val` is a snapshot, which a later in-place change of the tensor's metadata does not change. Snapshots of fake tensors share
    their storage, so that aliases stay aliases. `real_mode` is the fake mode for snapshots of real tensors. The snapshot of a
    real tensor without strides (sparse, nested, mkldnn) is None.
    """
    meta = node.meta
    if isinstance(value, torch.Tensor):
        meta["val"] = snapshot(value, real_mode)
        meta["device"] = value.fake_device if type(value) is FakeTensor else value.device
        if _has_strides(value):
            meta["tensor_meta"] = _tensor_metadata(value)
    elif isinstance(value, (list, tuple)):
        meta["val"] = type(value)(snapshot(v, real_mode) if isinstance(v, torch.Tensor) else v for v in value)
    else:
        meta["val"] = value


def snapshot(tensor: torch.Tensor, real_mode: FakeTensorMode | None) -> torch.Tensor | None:
    """A fake tensor with the tensor's present metadata; None for a real tensor without strides."""
    if type(tensor) is FakeTensor:
        fake_mode = tensor.fake_mode
        if tensor.layout is torch.strided and not tensor.is_quantized:
            with inside_fake_kernel(fake_mode):
                alias = tensor.detach()
            return FakeTensor(fake_mode, alias, tensor.fake_device)
        with fake_mode:
            return tensor.detach()
    if is_traceable_wrapper_subclass(tensor):
        return tensor.detach()
    if not _has_strides(tensor) or tensor.is_quantized:
        return None
    if real_mode is None:
        raise AssertionError("no fake mode for the snapshot of a real tensor\n  expected: `real_mode`")
    offset = tensor.storage_offset()
    with without_dispatch():
        if offset == 0:
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        else:  # as_strided counts from the beginning of the storage
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            whole = torch.empty((elements,), dtype=tensor.dtype, device="meta")
            meta = whole.as_strided(tensor.shape, tensor.stride(), offset)
        if tensor.is_conj() or tensor.is_neg():
            set_bits(meta, is_conj=tensor.is_conj(), is_neg=tensor.is_neg())
    return FakeTensor(real_mode, meta, tensor.device)


def _has_strides(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _tensor_metadata(tensor: torch.Tensor) -> TensorMetadata:
    """The node's TensorMetadata; fx's own function for it imports torch.fx.experimental."""
    is_quantized = tensor.is_quantized
    return TensorMetadata(
        shape=tensor.shape,
        dtype=tensor.dtype,
        requires_grad=tensor.requires_grad,
        stride=tensor.stride(),
        memory_format=_memory_format(tensor),
        is_quantized=is_quantized,
        qparams=_quantizer(tensor) if is_quantized else {},
    )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format | None:
    """The memory format; None also for symbolic sizes and strides, where asking would record a guard."""
    if any(type(n) is not int for n in tensor.shape) or any(type(n) is not int for n in tensor.stride()):
        return None
    formats = _MEMORY_FORMATS.get(tensor.dim(), _ANY_DIM)
    return next((f for f in formats if tensor.is_contiguous(memory_format=f)), None)


def _quantizer(tensor: torch.Tensor) -> dict[str, Any]:
    scheme = tensor.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"qscheme": scheme, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "qscheme": scheme,
        "scale": tensor.q_per_channel_scales().tolist(),
        "zero_point": tensor.q_per_channel_zero_points().tolist(),
        "axis": tensor.q_per_channel_axis(),
    }
