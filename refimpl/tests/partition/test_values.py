"""Both partitioners give what the joint graph gives: on programs written down here, and on random ones."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.aot.partition import min_cut_rematerialization_partition, partition_options
from refimpl.tests.partition.joint_graphs import PARTITIONERS, PROGRAMS, assert_same_values, joint_of, x


def attention(q, k, v):
    weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v


def views(a, b):
    first, second = (a @ b).chunk(2, 0)
    return first.t() @ second.relu(), a.view(-1)[:8].exp()


def unused_and_integers(a, b, index):
    return a.sin()[index], index + 1


MORE_PROGRAMS = {
    **PROGRAMS,
    "attention": (attention, (x(2, 4, 4), x(2, 4, 4), x(2, 4, 4))),
    "convolution": (lambda a, w: F.relu(F.conv2d(a, w)).mean((2, 3)), (x(2, 3, 6, 6), x(4, 3, 3, 3))),
    "views": (views, (x(), x())),
    "max": (lambda a: a.max(dim=1).values * a.sum(1), (x(),)),
    "an input is an output": (lambda a, b: (a * b, a), (x(), x())),
    "an input without gradient": (unused_and_integers, (x(), x(), torch.tensor([1, 0]))),
    "a constant": (lambda a: a * torch.tensor(3.0) + torch.ones(4).cumsum(0), (x(),)),
    "twice the same": (lambda a: a.sin() * 2 + a.sin() * 2, (x(),)),
}


@pytest.mark.fractional
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", MORE_PROGRAMS)
def test_forward_and_backward_give_what_the_joint_graph_gives(name: str, symbolic: bool, partitioner: Any) -> None:
    """Contract AO-45."""
    function, primals = MORE_PROGRAMS[name]
    joint = joint_of(function, *primals, symbolic=symbolic)
    assert_same_values(joint, partitioner(joint.module, None, num_fwd_outputs=joint.outputs))


class Replaced(torch.autograd.Function):
    """The gradient of its argument is its argument, as it is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, *_):
        return ctx.saved_tensors


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(
    "function", [Replaced.apply, lambda a: Replaced.apply(a.t()), lambda a: torch.cummin(a[:0], 0)[0]]
)
def test_the_gradient_is_an_input_that_is_written_to(function: Any, partitioner: Any) -> None:
    joint = joint_of(function, x(), mutated=[0])
    assert_same_values(joint, partitioner(joint.module, None, num_fwd_outputs=joint.outputs))


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_gradient_of_nothing_is_an_input_that_is_written_to(partitioner: Any) -> None:
    joint = joint_of(lambda a: torch.cummin(a, 0), x(0), mutated=[0])
    assert_same_values(joint, partitioner(joint.module, None, num_fwd_outputs=joint.outputs))


def random_program(seed: int) -> Any:
    """A function of three 4 by 4 tensors that returns some of what it computes; each value is 4 by 4."""
    generator = random.Random(seed)
    steps = [(generator.choice(list(STEPS)), generator.random(), generator.random()) for _ in range(14)]
    returned = [generator.random() for _ in range(3)]

    def program(a, b, c):
        values = [a, b, c]

        def pick(number: float) -> torch.Tensor:
            return values[int(number * len(values))]

        for step, first, second in steps:
            values.append(STEPS[step](pick(first), pick(second)))
        return values[-1] + values[0], *[pick(0.3 + 0.7 * number) for number in returned]

    return program


STEPS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b / 4,
    "sin": lambda a, b: a.sin(),
    "tanh": lambda a, b: a.tanh(),
    "relu": lambda a, b: a.relu(),
    "transpose": lambda a, b: a.t(),
    "reshape": lambda a, b: a.reshape(2, 8).sin().view(4, 4),
    "rows": lambda a, b: torch.cat([a[:2], b[2:]]),
    "split": lambda a, b: torch.stack(a.unbind(1), 0) + b.chunk(2, 1)[0].repeat(1, 2),
    "softmax": lambda a, b: a.softmax(0),
    "norm": lambda a, b: F.layer_norm(a, [4]) * b,
    "max": lambda a, b: a.max(1, keepdim=True).values + b,
    "dropout": lambda a, b: F.dropout(a, 0.5),
    "noise": lambda a, b: a + torch.rand_like(b),
    "mean": lambda a, b: a.mean(0, keepdim=True) * b,
    "detach": lambda a, b: a.detach() * b,
    "strided": lambda a, b: b * a.as_strided((4, 4), (1, 4)) if a.is_contiguous() else b,
    "scatter": lambda a, b: a.slice_scatter(b[:2], 0, 1, 3),
}


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """Some inputs are written to between forward and backward, and are full of NaN then."""
    mutated = [[], [0], [0, 1]][seed % 3]
    torch.manual_seed(seed)
    joint = joint_of(random_program(seed), x(), x(), x(), mutated=mutated)
    for partitioner in PARTITIONERS:
        assert_same_values(joint, partitioner(joint.module, None, num_fwd_outputs=joint.outputs))
    for budget in (0.0, 0.4):
        with partition_options(memory_budget=budget):
            graphs = min_cut_rematerialization_partition(joint.module, None, num_fwd_outputs=joint.outputs)
        assert_same_values(joint, graphs)
