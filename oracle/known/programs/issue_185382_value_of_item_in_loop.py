"""A loop reads a number from a tensor (`count.item()`) and gives it to `addcdiv_`.

After the third step AOT autograd's cache returns the graph of an earlier step, which holds the number of that step.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "mutation")}
DEVICE = "cpu"


def step(weight, mean, square, count):
    count.add_(1)
    done = count.item()
    first, second = 1 - 0.9**done, 1 - 0.999**done
    weight.addcdiv_(mean, square / second, value=-0.1 / first)


def program(weight, mean):
    weight, count = weight.clone(), torch.zeros((), device=weight.device)
    for _ in range(5):
        step(weight, mean, mean + 1, count)
    return weight


def inputs(call):
    return (torch.ones(4, device=DEVICE), torch.full((4,), 0.5, device=DEVICE)), {}
