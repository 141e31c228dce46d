"""Capture: the graphs of a program's call as a torch.compile backend gets them, each with the inputs of its first run.

The graphs have torch functions as operators, and each node knows the line and the module that it comes from.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._dynamo
from torch import fx

from oracle.configure import configured
from oracle.hygiene import restore, rng_digest, seed_everything, snapshot
from oracle.localisation.values.places import Place, input_name, module_names, module_that_calls, place_of, state_names
from oracle.observe import observe
from oracle.program import Program
from oracle.program.build import Instance
from oracle.program.clone import clone_tree, has_plain_storage

_RECOMPILE_LIMIT = 64  # torch's default of 8 is too few for a graph break in a layer of a deep model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedGraph:
    """One graph of a call, with what is needed to run it again."""

    module: fx.GraphModule  # its nodes have no metadata
    inputs: tuple[Any, ...]  # of its first run: a copy, with the same strides, aliases and requires_grad
    grad_mode: str  # as in oracle.program.Call
    places: Mapping[str, Place]  # name of a node -> where it comes from
    labels: Mapping[str, str]  # name of a node that is an input -> its name in the model or in the program
    program: Program  # the whole program
    seed: int
    computed: frozenset[int]  # positions of inputs that autograd has a history of, so that they can be changed in place
    draws: bool = False  # it draws random numbers

    def arguments(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a run on copies of the inputs, which may follow others. Copies have no history, arguments have."""
        first = len(inputs) - len(self.inputs)
        return tuple(value * 1 if at - first in self.computed else value for at, value in enumerate(inputs))


def captured_graphs(make: Callable[[], Instance], call: int, *, options: Mapping[str, Any]) -> list[CapturedGraph]:
    """The graphs of one call of a program's plan, in the order in which they first run.

    Earlier calls run in eager. If the program or the capture raises, these are the graphs up to there. What Dynamo does not
    capture is in none of them. `options` are those of a subject: its `dynamic` counts, else the program's.
    """
    before = snapshot()
    try:
        instance = make()
        if call:
            observe(instance.with_calls(instance.program.calls[:call]))
        return _graphs_of_call(instance, call, options.get("dynamic", instance.program.dynamic))
    finally:
        torch._dynamo.reset()
        restore(before)


def _graphs_of_call(instance: Instance, call: int, dynamic: bool | None) -> list[CapturedGraph]:
    recorder = _Recorder(instance, seed=instance.program.seed + call)
    plan = instance.program.calls[call]
    instance.prepare(call)
    args, kwargs, _ = instance.arguments(*instance.inputs(call))
    target: Any = instance.target
    if isinstance(target, torch.nn.Module):
        target.zero_grad(set_to_none=True)
    torch._dynamo.reset()
    compiled = torch.compile(target, backend=recorder.backend, dynamic=dynamic)
    seed_everything(instance.program.seed + call)
    modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    limit = torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT)
    with configured(instance.program.config), limit, modes.get(plan.grad_mode, torch.enable_grad)():
        # The program's code runs here, and may raise anything. Its graphs up to there can still be looked at.
        with contextlib.suppress(Exception):
            compiled(*args, **kwargs)
    return recorder.graphs


class _Recorder:
    """A Dynamo backend that records every graph at its first run, and runs it as it is. Mutable."""

    def __init__(self, instance: Instance, *, seed: int) -> None:
        self.graphs: list[CapturedGraph] = []
        self._names = module_names(instance)
        self._state = state_names(instance)
        self._program = instance.program
        self._seed = seed

    def backend(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        has_run = False

        def run(*args: Any) -> Any:
            nonlocal has_run
            if has_run:
                return gm.forward(*args)
            has_run = True
            captured = self._captured(
                gm, args, inside=module_that_calls(_locals_outwards(sys._getframe()), self._names)
            )
            before = rng_digest()
            try:
                return gm.forward(*args)
            finally:
                self.graphs.append(replace(captured, draws=rng_digest() != before))

        return run

    def _captured(self, gm: fx.GraphModule, args: tuple[Any, ...], *, inside: str) -> CapturedGraph:
        graph = copy.deepcopy(gm.graph)
        places: dict[str, Place] = {}
        for original, node in zip(gm.graph.nodes, graph.nodes, strict=True):
            places[node.name] = place_of(original, names=self._names, inside=inside)
            node.meta = {}  # it may hold fake tensors, which belong to this capture
        if torch.is_inference_mode_enabled():
            grad_mode = "inference"
        else:
            grad_mode = "grad" if torch.is_grad_enabled() else "no_grad"
        placeholders = [node.name for node in graph.nodes if node.op == "placeholder"]
        given = zip(placeholders, args, strict=True)
        with torch.inference_mode(mode=False):  # an inference tensor would need that mode in every run
            inputs = clone_tree(args)
        return CapturedGraph(
            module=fx.GraphModule(gm, graph),
            inputs=inputs,
            grad_mode=grad_mode,
            places=places,
            labels={name: self._state.get(id(value), input_name(name)) for name, value in given},
            program=self._program,
            seed=self._seed,
            computed=_computed(args),
        )


def _computed(args: tuple[Any, ...]) -> frozenset[int]:
    """Positions of the tensors with a history that share their memory with no other argument."""
    tensors = {at: value for at, value in enumerate(args) if isinstance(value, torch.Tensor)}
    owners = Counter(storage_of(tensor) for tensor in tensors.values())
    return frozenset(at for at, tensor in tensors.items() if not tensor.is_leaf and owners[storage_of(tensor)] == 1)


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's memory: its storage, or the tensor itself if it has none of its own."""
    return tensor.untyped_storage()._cdata if has_plain_storage(tensor) else id(tensor)


def _locals_outwards(frame: types.FrameType | None) -> Iterator[Mapping[str, Any]]:
    """The local variables of a frame and of its callers, from the inside out."""
    while frame is not None:
        yield frame.f_locals
        frame = frame.f_back
