"""sorted and list.sort with key and reverse, min and max with key, over Python values."""

import torch

PROGRAM = {"tags": ("containers",)}
DEVICE = "cpu"


def program(named):
    by_size = sorted(named.items(), key=lambda item: (item[1].numel(), item[0]))
    names = [name for name, _ in by_size]
    names.sort(key=str.lower, reverse=True)
    largest = max(named, key=lambda name: named[name].shape[0])
    return names, largest, [tensor * position for position, (_, tensor) in enumerate(by_size)]


def inputs(call):
    sizes = {"b": 3, "A": 1, "c": 3, "D": 2}
    return ({name: torch.randn(size, device=DEVICE) for name, size in sizes.items()},), {}
