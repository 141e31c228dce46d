"""What a node's `meta` says of its value.

Counterpart: torch/fx/experimental/proxy_tensor.py extract_val, snapshot_fake, set_meta
Differs: in real mode all fake tensors of a graph belong to one mode and are made from sizes; upstream makes a new
mode, and runs a conversion under it, for every node, which is more than half of its
time. The true device stands in `meta["device"]` too.
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
    """Set `val`, and for tensors `tensor_meta` and `device`. Runs with recording off.

    `val` is a snapshot: a later in-place change of the tensor's metadata does not show in it. Snapshots of fake tensors share
    their storage, so that what was an alias looks like one. `real_mode` owns the snapshots of real tensors; those that have
    no strides (sparse, nested, mkldnn) have None.
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
    """A fake tensor that is like the tensor now."""
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
        raise AssertionError("a real tensor is described: expected the mode that owns the snapshots of real tensors")
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
    """Made here, since the function of fx that makes it asks torch.fx.experimental whether a size is symbolic."""
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
    """None too where symbolic sizes do not say it: asking would record a guard that the program does not need."""
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
