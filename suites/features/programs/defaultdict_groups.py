"""defaultdict, Counter and OrderedDict group tensors by a Python key."""

from collections import Counter, OrderedDict, defaultdict

import torch

PROGRAM = {"tags": ("containers",)}
DEVICE = "cpu"


def program(x, labels):
    groups = defaultdict(list)
    for row, label in enumerate(labels):
        groups[label].append(x[row])
    counts = Counter(labels)
    ordered = OrderedDict((label, torch.stack(groups[label]).mean(dim=0)) for label in sorted(groups))
    ordered.move_to_end("a")
    return list(ordered), list(ordered.values()), counts["b"]


def inputs(call):
    return (torch.randn(5, 3, device=DEVICE), ["b", "a", "b", "c", "a"]), {}
