"""Attribute queries become Python values: ndim, numel, strides, contiguity, flags, names of types."""

import torch

PROGRAM = {"tags": ("shapes", "dtype"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x):
    facts = {
        "ndim": x.ndim,
        "numel": x.numel(),
        "contiguous": x.is_contiguous(),
        "strides": list(x.stride()),
        "floating": x.is_floating_point(),
        "complex": torch.is_complex(x),
        "element": x.element_size(),
        "offset": x.storage_offset(),
        "leaf": x.is_leaf,
        "rows": len(x),
    }
    return x * facts["ndim"], facts


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x if call == 0 else x.t()[1:],), {}
