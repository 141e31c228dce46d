"""Calls of functions of torch.optim: the setup of an optimizer's state, and updates that read no data.

Counterpart: torch/_dynamo/variables/optimizer.py OptimizerVariable
Differs: `_init_group` is interpreted like other code. The state that it makes in the first step is a result of that step's graph,
and the next step is captured again, with the state as inputs. Nothing is written to the optimizer while it is captured. What
eager computes with Python's floats, the graph computes in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import group_tensors, value_for_optimizer
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.recognition import defined_in, is_setup_of_optimizer
from refimpl.capture.rules.rule_table import RuleTable
from refimpl.capture.values import ConstantValue, DictValue, ObjectValue, SequenceValue, TensorValue

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

OPTIMIZER_RULES = RuleTable()
_LEFT_OUT = "_torchdynamo_orig_callable"  # of a function that another compiler leaves out: the function inside
# Updates that read a tensor of the state to take a branch, unless they are capturable. Not radam: its branch depends on
# roundings, and `capturable` computes in float32 what it otherwise computes with Python's floats.
_READING = ("asgd",)
_WITHOUT_FLOAT64 = ("mps",)


@OPTIMIZER_RULES.of(value_for_optimizer)
def _value(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The number in a tensor with one element, such as the number of steps: eager reads it as a float of Python."""
    value = domain.state.realize(args[0] if args else kwargs["x"])
    is_read = isinstance(value, TensorValue) and value.fake.is_floating_point() and not value.fake.requires_grad
    if not is_read or value.fake.dim() or value.fake.device.type in _WITHOUT_FLOAT64:
        return value
    number = domain.state.operator("to", [value, ConstantValue(torch.float64)], {}, kind="call_method")
    if isinstance(number, TensorValue):
        domain.state.read_numbers.add(number.node)
    return number


@OPTIMIZER_RULES.of(group_tensors)
def _grouped(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lists of tensors, grouped by device and dtype. Breaks the graph for several groups, whose order is that of a hash table
    of C++.
    """
    lists = [domain.elements(each) for each in domain.elements(args[0])]
    with_indices = len(args) > 1 and domain.constant_of(args[1], "with_indices")
    first = [domain.state.realize(item) for item in lists[0]] if lists and not kwargs else []
    kinds = {(item.fake.device, item.fake.dtype) for item in first if isinstance(item, TensorValue)}
    is_whole = all(isinstance(item, TensorValue) for item in first) and all(len(each) == len(first) for each in lists)
    if len(kinds) != 1 or not is_whole:
        raise GraphBreak("call_of_native_code", what="_group_tensors_by_device_and_dtype")
    key = SequenceValue(tuple, [ConstantValue(part) for part in kinds.pop()])
    grouped = SequenceValue(list, [SequenceValue(list, list(each)) for each in lists])
    indices = SequenceValue(list, [ConstantValue(index) for index in range(len(first) if with_indices else 0)])
    return DictValue({domain.hash_key(key): (key, SequenceValue(tuple, [grouped, indices]))})


def setup_inside(domain: SymbolicDomain, function: ObjectValue) -> Any:
    """The `_init_group` inside of what torch's own capture puts in its place, once that is loaded; None for other functions."""
    inner = function.object.__dict__.get(_LEFT_OUT)
    if inner is None or not is_setup_of_optimizer(function.object):
        return None
    way = KeptSource(function.object, "_init_group") if function.source is None else function.source
    return domain.state.wrap(inner, AttributeSource(way, _LEFT_OUT))


def without_reads(target: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call, with `capturable=True` for an update that would read the tensor of the number of steps.
    Only the call changes, not the parameter group.
    """
    is_read = "capturable" in kwargs and target.__name__ in _READING and defined_in(target).startswith("torch.optim.")
    return {**kwargs, "capturable": ConstantValue(True)} if is_read else kwargs
