"""What a node's `meta` says of its value.

Counterpart: torch/fx/experimental/proxy_tensor.py extract_val, set_meta
Differs: in real mode `meta["val"]` of a strided tensor is a tensor on the meta device, with the true device in
`meta["device"]`; upstream makes a fake tensor under a fresh FakeTensorMode per node, which is more than half of its time.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor, TensorMetadata

_ANY_DIM = (torch.contiguous_format,)
_MEMORY_FORMATS = {
    4: (torch.contiguous_format, torch.channels_last),
    5: (torch.contiguous_format, torch.channels_last_3d),
}


def describe(node: torch.fx.Node, value: Any) -> None:
    """Set `val`, and for tensors `tensor_meta` and `device`. Runs with recording off.

    `val` is a snapshot: a later in-place change of the tensor's metadata does not show in it. It is None for tensors
    that have no strides (sparse, nested, mkldnn).
    """
    if isinstance(value, torch.Tensor):
        node.meta["val"] = _snapshot(value)
        node.meta["device"] = value.device
        if _has_strides(value):
            node.meta["tensor_meta"] = _tensor_metadata(value)
    elif isinstance(value, (list, tuple)):
        node.meta["val"] = type(value)(_snapshot(v) if isinstance(v, torch.Tensor) else v for v in value)
    else:
        node.meta["val"] = value


def _has_strides(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _tensor_metadata(tensor: torch.Tensor) -> TensorMetadata:
    """Made here, since the function of fx that makes it asks torch.fx.experimental whether a size is symbolic."""
    formats = _MEMORY_FORMATS.get(tensor.dim(), _ANY_DIM)
    return TensorMetadata(
        shape=tensor.shape,
        dtype=tensor.dtype,
        requires_grad=tensor.requires_grad,
        stride=tensor.stride(),
        memory_format=next((f for f in formats if tensor.is_contiguous(memory_format=f)), None),
        is_quantized=tensor.is_quantized,
        qparams=_quantizer(tensor) if tensor.is_quantized else {},
    )


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


def _snapshot(tensor: torch.Tensor) -> torch.Tensor | None:
    if isinstance(tensor, FakeTensor):
        with tensor.fake_mode:
            return tensor.detach()
    if not _has_strides(tensor) or tensor.is_quantized:
        return None
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
