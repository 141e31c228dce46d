"""Runs a call plan in eager while it is drawn, and checks that every write and number in it is defined; drops calls that fail."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.draw.definedness import OF_VALUES, Definedness
from fuzz.draw.geometry import overlaps_itself, partly_overlap
from fuzz.draw.scene import REFUSALS, Scene
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.hygiene import seed_everything
from oracle.observe.flatten import flatten
from oracle.program import Call, Program
from oracle.program.build import Instance, ProgramLoadError, instantiate

# Without a context for "grad": entering inference mode with False would turn gradients on inside no_grad.
_GRAD_MODES: dict[str, Any] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


# Operators that compile in eager too, and stop doing so after many functions.
_COMPILES = re.compile(r"torch\.cond\(|higher_order_ops|flex_attention")
_SAME_EVERYWHERE = ("aten::fill_", "aten::zero_")  # they write the same number everywhere


class UndefinedWriteError(Exception):
    """A call writes through memory that overlaps itself, reads memory that it partly overwrites, or writes out of bounds; or its
    numbers are undefined (`fuzz.draw.definedness.OF_VALUES`)."""


_REFUSED = (*REFUSALS, UndefinedWriteError, ProgramLoadError)


class PlanRun:
    """One fresh instance of a program, called call by call as `oracle.observe` does. Calls raise what the program raises."""

    def __init__(self, program: Program) -> None:
        if _COMPILES.search(program.source):
            torch.compiler.reset()  # earlier programs must not influence this one
        self._instance: Instance = instantiate(program)
        self._calls: tuple[Call, ...] = ()
        self.written: tuple[bool, ...] = ()  # for each tensor of the last call's arguments, in order
        self.has_gradients = False  # whether an output of the last call can be differentiated
        self.result: Any = None  # of the last call

    @property
    def namespace(self) -> dict[str, Any]:
        return self._instance.namespace

    def call(self, plan: Call, *, checks_writes: bool = False) -> None:
        """Run the next call, with its backward."""
        self._calls = (*self._calls, plan)
        at = len(self._calls) - 1
        instance = replace(self._instance, program=replace(self._instance.program, calls=self._calls))
        target: Any = instance.target
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            instance.prepare(at)
            args, kwargs = instance.inputs(at)
            if isinstance(target, torch.nn.Module):
                target.zero_grad(set_to_none=True)
            tensors = [leaf.value for leaf in flatten([args, kwargs], "")[0] if isinstance(leaf.value, torch.Tensor)]
            versions = [tensor._version for tensor in tensors]
            args, kwargs, _ = instance.arguments(args, kwargs)
            seed_everything(instance.program.seed + at)
            kinds: set[str] = set()
            with contextlib.ExitStack() as modes:
                modes.enter_context(_GRAD_MODES[plan.grad_mode]())
                if checks_writes:
                    modes.enter_context(_DefinedWrites())
                    modes.enter_context(Definedness(kinds))
                result = target(*args, **kwargs)
            if kinds & OF_VALUES:
                raise UndefinedWriteError(", ".join(sorted(kinds & OF_VALUES)))
            self.result = result
            self.written = tuple(t._version != old for t, old in zip(tensors, versions, strict=True))
            for leaf in flatten([result, args, kwargs], "")[0]:
                if isinstance(leaf.value, torch.Tensor):
                    leaf.value.is_leaf  # noqa: B018 - raises for views whose history is ambiguous: observers ask
            outputs = {id(t): t for t in _differentiable(result)}
            self.has_gradients = bool(outputs)
            if plan.backward and outputs:
                found = [*outputs.values()]
                torch.autograd.backward(found, [torch.ones_like(tensor) for tensor in found])


class _DefinedWrites(TorchDispatchMode):
    """A dispatch mode that raises if an operator's result would depend on the order of its kernel's loop."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return func(*args, **kwargs)
        _check(schema, args, kwargs)
        outputs = [*_tensors([kwargs.get(argument.name) for argument in schema.arguments if argument.is_out])]
        shapes = [tuple(tensor.shape) for tensor in outputs]
        result = func(*args, **kwargs)
        if any(tuple(t.shape) != shape and 0 not in shape for t, shape in zip(outputs, shapes, strict=True)):
            raise UndefinedWriteError(f"{schema.name} resizes an output that has elements, which torch deprecates")
        return result


def _check(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    by_position = dict(zip((argument.name for argument in schema.arguments), args, strict=False))
    written: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    for argument in schema.arguments:
        value = kwargs.get(argument.name, by_position.get(argument.name))
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        (written if is_write else read).extend(_tensors(value))
    for tensor in written:
        if overlaps_itself(tensor) and schema.name not in _SAME_EVERYWHERE:
            raise UndefinedWriteError(f"{schema.name} writes to memory that overlaps itself")
        if any(other is not tensor and partly_overlap(tensor, other) for other in (*read, *written)):
            raise UndefinedWriteError(f"{schema.name} reads what it partly overwrites")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _differentiable(result: Any) -> Iterator[torch.Tensor]:
    for leaf in flatten(result, "")[0]:
        if isinstance(leaf.value, torch.Tensor) and leaf.value.requires_grad:
            yield leaf.value


def accepted(scene: Scene, program: FuzzProgram) -> FuzzProgram | None:
    """The program with the calls of its plan that eager accepts; None if it does not accept the first.

    If backward fails for the results or the written arguments, no call has gradients: a subject that traces forward and backward
    together would have to refuse the program earlier than eager does.
    """
    for candidate in _candidates(scene, program):
        accepted_calls = _number_of_calls_accepted(candidate)
        if accepted_calls == len(candidate.calls):
            return candidate
        if accepted_calls:
            return replace(candidate, calls=candidate.calls[:accepted_calls], expects_raise=False)
    return None


def _candidates(scene: Scene, program: FuzzProgram) -> list[FuzzProgram]:
    """Variants to try: the program itself, without gradients, and with inputs that do not require any."""
    calls = program.calls
    wants_gradients = any(call.grad_mode == "grad" for call in calls) and scene.wants_gradients()
    without = replace(program, calls=tuple(replace(call, backward=False, grad_mode="no_grad") for call in calls))
    plain = replace(program, calls=tuple(replace(call, backward=False, args=_ungraded(call.args)) for call in calls))
    if wants_gradients and not scene.accepts_backward(program.result):
        return [without] if program.is_module else [without, plain]
    return [program, plain]


def _ungraded(tree: Any) -> Any:
    """Specs without `requires_grad`."""
    if isinstance(tree, Mapping):
        return {name: _ungraded(value) for name, value in tree.items() if name != "requires_grad"}
    return [_ungraded(item) for item in tree] if isinstance(tree, list) else tree


def _number_of_calls_accepted(program: FuzzProgram) -> int:
    try:
        run = PlanRun(to_program(program, name="plan"))
    except _REFUSED:
        return 0
    for number, call in enumerate(program.calls):
        try:
            run.call(call, checks_writes=True)
        except UndefinedWriteError:
            return number
        except _REFUSED:
            is_meant = program.expects_raise and number == len(program.calls) - 1
            return number + 1 if is_meant else number
    return len(program.calls)
