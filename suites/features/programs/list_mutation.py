"""A list argument is appended to, inserted into, extended, sliced and cleared in part."""

import torch

PROGRAM = {"tags": ("containers", "mutation"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(items):
    items.append(items[0] + items[1])
    items.insert(1, items[-1] * 2)
    items.extend(item - 1 for item in items[:2])
    last = items.pop()
    items[0:1] = []
    items.reverse()
    return last, len(items)


def inputs(call):
    return ([torch.randn(2, device=DEVICE) for _ in range(2 + call)],), {}
