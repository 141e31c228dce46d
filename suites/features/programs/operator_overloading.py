"""A class with arithmetic, comparison, indexing, length, iteration and call operators."""

# pyright: reportOperatorIssue=false

import torch

PROGRAM = {"tags": ("classes",)}
DEVICE = "cpu"


class Pair:
    """Two tensors that act together."""

    def __init__(self, left, right):
        self.left = left
        self.right = right

    def __add__(self, other):
        return Pair(self.left + other, self.right + other)

    __radd__ = __add__

    def __matmul__(self, other):
        return Pair(self.left @ other.right, self.right @ other.left)

    def __getitem__(self, index):
        return (self.left, self.right)[index]

    def __len__(self):
        return 2

    def __iter__(self):
        yield self.left
        yield self.right

    def __call__(self, function):
        return Pair(function(self.left), function(self.right))

    def __bool__(self):
        return self.left.shape == self.right.shape


def program(x, y):
    pair = 1 + Pair(x, y) @ Pair(y, x)
    pair = pair(torch.relu)
    return list(pair), pair[0] - pair[-1], len(pair), bool(pair)


def inputs(call):
    return (torch.randn(2, 2, device=DEVICE), torch.randn(2, 2, device=DEVICE)), {}
