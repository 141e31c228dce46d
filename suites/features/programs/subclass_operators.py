"""A tensor subclass defines operators as special methods."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Own(torch.Tensor):
    """Adds and indexes in its own way."""

    def __add__(self, other):
        return self.as_subclass(torch.Tensor) * 3 - other

    def __getitem__(self, index):
        return self.as_subclass(torch.Tensor)[index] * 10

    def __len__(self):
        return 77


def program(x):
    own = x.as_subclass(Own)
    return own + 1, own[0], len(own), (own * 2).as_subclass(torch.Tensor)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
