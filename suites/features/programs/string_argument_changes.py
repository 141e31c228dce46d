"""A string argument chooses a function; a dtype and a device come in as arguments as well."""

import torch

PROGRAM = {"tags": ("guards", "strings"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, name, dtype):
    function = getattr(torch, name)
    return function(x).to(dtype), torch.zeros(2, dtype=dtype, device=x.device)


def inputs(call):
    names = ("sin", "exp", "sin")
    dtypes = (torch.float32, torch.float64, torch.int32)
    return (torch.tensor([0.5, 1.0], device=DEVICE), names[call], dtypes[call]), {}
