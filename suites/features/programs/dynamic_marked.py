"""The program says itself that it is dynamic; sizes grow, shrink, and become equal to one another."""

import torch

PROGRAM = {"tags": ("shapes", "guards"), "dynamic": True, "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"


def program(x, y):
    scores = x @ y.t()
    return torch.softmax(scores, dim=-1), scores.shape[0] * scores.shape[1]


def inputs(call):
    rows, columns = ((3, 5), (6, 2), (4, 4), (1, 3))[call]
    return (torch.randn(rows, 4, device=DEVICE), torch.randn(columns, 4, device=DEVICE)), {}
