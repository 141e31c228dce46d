"""addcdiv_ whose value depends on .item(): from the third step of the loop on, the compiled code uses an earlier value."""

import torch

PROGRAM = {"tags": ("differs", "inductor", "graph-break", "mutation")}
DEVICE = "cpu"


def step(weight, numerator, denominator, count):
    count.add_(1)
    rate = 0.1 / count.item()
    weight.addcdiv_(numerator, denominator, value=rate)


def program(weight, numerator):
    weight, count = weight.clone(), torch.zeros((), device=weight.device)
    for _ in range(4):
        step(weight, numerator, numerator + 1, count)
    return weight


def inputs(call):
    return (torch.ones(4, device=DEVICE), torch.full((4,), 0.5, device=DEVICE)), {}
