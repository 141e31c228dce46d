"""Programs whose arguments and results are nested, given back as they are, or no tensors."""

from __future__ import annotations

from typing import Any

import torch

from refimpl.tests.corpus.program import Inputs, Topic, computed, leaves

TOPIC = Topic("containers", "aot")
TWO = computed((3, 4), (3, 4))


@TOPIC.program(leaves((4,)), rooms=("trace", "aot"))
def several_outputs(x):
    values, indices = x.topk(2)
    return values, indices, x.split(2), x.max(dim=0)


def _tree(requires_grad: bool) -> Inputs:
    first, second, third = (torch.randn(size, requires_grad=requires_grad) for size in (2, 2, 3))
    return Inputs([first, second, third], [{"a": first, "b": [second, third]}, 3])


@TOPIC.program(_tree, rooms=("trace", "aot"))
def nested_containers(tree, scale):
    return {"sum": tree["a"] + tree["b"][0], "rest": [tree["b"][1] * scale, (scale, None, "text")]}


@TOPIC.program(leaves((3,), (2,)), rooms=("trace", "aot"))
def returns_input(x, y):
    return x, y.sin(), x


@TOPIC.program(TWO)
def same_result_twice(x: Any, y: Any) -> Any:
    z = x * y
    return z, z, x, {"a": y, "b": [z, 3, None]}


@TOPIC.program(TWO)
def integers_and_floats(x: Any, y: Any) -> Any:
    return x.argmax(0), (x > 0), x * y, x.shape[0]
