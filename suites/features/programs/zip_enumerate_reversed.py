"""zip, enumerate with start, reversed, map, filter, any and all over tensors."""

import torch

PROGRAM = {"tags": ("control-flow", "containers")}
DEVICE = "cpu"


def program(x, weights):
    total = torch.zeros_like(x[0])
    for position, (row, weight) in enumerate(zip(x, weights, strict=True), start=1):
        total = total + row * weight * position
    backwards = list(reversed([row.sum() for row in x]))
    large = list(filter(lambda weight: weight > 1, weights))
    doubled = list(map(lambda row: row * 2, x.unbind(0)))  # noqa: C417 - map is what is checked
    return total, backwards, large, doubled, any(weights), all(weights)


def inputs(call):
    return (torch.randn(3, 2, device=DEVICE), [1.0, 0.0, 2.0]), {}
