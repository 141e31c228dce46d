"""Captures a program of any size as flat functions of torch calls, by Dynamo with a backend that records its graphs.

Everything that a graph reads becomes an argument: parameters, buffers, inputs, constants. Modules, helpers and Python control
flow are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch._dynamo
import torch.fx

from fuzz.program.structure import FuzzProgram
from fuzz.reduce.from_graph import NotCapturableError, program_of_graph
from fuzz.reduce.live import spec_of
from oracle.errors import UsageError
from oracle.hygiene import seed_everything
from oracle.program import Call
from oracle.program.build import Instance
from oracle.program.clone import clone_tree, has_plain_storage
from oracle.program.inputs import encode

_KEPT_CALLS = 3  # invocations of a graph that are kept: a wrong later call shows with so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One captured graph, with its inputs in each call of the plan that ran it."""

    gm: torch.fx.GraphModule
    invocations: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # number of the call -> copies of the inputs


def recorded(make: Callable[[], Instance], *, dynamic: bool) -> list[Recorded]:
    """The graphs of a program in the order of their capture. `dynamic`: sizes of inputs are inputs as well.

    Raises whatever Dynamo or the program raises in capture; a program that is meant to raise ends with its exception.
    """
    instance = make()
    graphs: list[Recorded] = []
    number = 0

    def record(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = Recorded(gm=gm)
        graphs.append(graph)

        def run(*args: Any) -> Any:
            if number not in graph.invocations and len(graph.invocations) < _KEPT_CALLS:
                graph.invocations[number] = clone_tree(args)
            return gm.forward(*args)

        return run

    torch._dynamo.reset()
    try:
        compiled = torch.compile(instance.target, backend=record, dynamic=dynamic)
        with torch._dynamo.config.patch(specialize_float=True):  # numbers of the program, such as eps, are no inputs
            for number, plan in enumerate(instance.program.calls):
                instance.prepare(number)
                args, kwargs, _ = instance.arguments(*instance.inputs(number))
                seed_everything(instance.program.seed + number)
                with _grad_mode(plan.grad_mode):
                    compiled(*args, **kwargs)
    except Exception:
        if not instance.program.expects_raise or number < len(instance.program.calls) - 1:
            raise
    finally:
        torch._dynamo.reset()
    return graphs


def captured(make: Callable[[], Instance], *, dynamic: bool, is_exact: bool) -> Iterator[FuzzProgram | str]:
    """For each graph its program, or the reason why it has none.

    With `is_exact` the arguments keep all their values; otherwise large tensors are drawn from a similar distribution.
    """
    program = make().program
    if program.policy.describes_outputs:
        yield "its policy describes outputs, and a graph has other outputs"
        return
    for graph in recorded(make, dynamic=dynamic):
        try:
            found = program_of_graph(graph.gm)
            calls = tuple(
                _call(program.calls[number], (*args, *found.constants), is_exact=is_exact)
                for number, args in graph.invocations.items()
            )
        except (NotCapturableError, UsageError, TypeError) as error:
            yield str(error)
            continue
        if calls:
            raises = program.expects_raise and len(program.calls) - 1 in graph.invocations
            yield replace(
                found.program, calls=calls, seed=program.seed, dynamic=program.dynamic, expects_raise=raises,
                policy=program.policy,
            )  # fmt: skip


def _call(plan: Call, values: Sequence[Any], *, is_exact: bool) -> Call:
    return Call(
        args=encode([*values]) if is_exact else specs_like(values),
        backward=plan.backward,
        double_backward=plan.double_backward,
        grad_mode=plan.grad_mode,
    )


def specs_like(values: Sequence[Any]) -> list[Any]:
    """Specs of values: small tensors with their elements, large ones drawn from a similar distribution.

    Tensors that share memory still do, and keep their elements. Raises UsageError for values without a spec.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor) and has_plain_storage(value)]
    users = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    shared = [t for t in tensors if users[t.untyped_storage()._cdata] > 1]
    said = iter(encode(shared))
    specs: list[Any] = []
    for position, value in enumerate(values):
        if any(value is one for one in shared):
            specs.append(next(said))
            continue
        try:
            spec = spec_of(value)
        except TypeError:  # another layout, or no tensor
            spec = encode(value)
        if isinstance(spec, dict) and "seed" in spec.get("fill", {}):
            spec["fill"]["seed"] = position  # so that no two tensors are equal
        specs.append(spec)
    return specs


def _grad_mode(name: str) -> Any:
    if name == "no_grad":
        return torch.no_grad()
    return torch.inference_mode() if name == "inference" else torch.enable_grad()
