"""Build a program from Python source and input specs: a fresh target and fresh inputs for each run.

Every run gets its own `Instance` with its own namespace, target and inputs, so that no run sees what another run changes
(globals, class attributes, buffers, arguments).
"""

from __future__ import annotations

import builtins
import collections
import functools
import itertools
import linecache
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from oracle.errors import UsageError
from oracle.hygiene import seed_everything
from oracle.program import Call, Program
from oracle.program.inputs import clone_tree, decode_call
from oracle.program.other_values import change_values

# Prefix of the namespaces' names in sys.modules. Each instance has its own name, since Dynamo caches modules by name.
# Observations (oracle.observe) have the prefix only, so that instances can be compared.
PROGRAM_MODULE = "torch_oracle_program"
_KEPT_MODULES = 8  # namespaces of so many instances stay in sys.modules, where dataclasses and pickle look classes up
_numbers = itertools.count()
_module_names: collections.deque[str] = collections.deque()


class ProgramLoadError(Exception):
    """The program's source, target or inputs could not be built. The cause is chained."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """A fresh copy of a program, for one run."""

    program: Program
    namespace: dict[str, Any]
    target: Callable[..., Any]
    device: str

    def with_calls(self, calls: tuple[Call, ...]) -> Instance:
        """The same instance with another call plan."""
        return replace(self, program=replace(self.program, calls=calls))

    def inputs(self, call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh inputs of one call, with the same values, strides, aliasing and requires_grad each time."""
        plan = self.program.calls[call]
        seed_everything(self.program.seed + call)
        if plan.args is not None or plan.kwargs is not None:
            fresh = decode_call(plan, seed=self.program.seed, device=self.device, root=f"call {call}")
        else:
            make_inputs = self.namespace.get("inputs")
            args, kwargs = make_inputs(call) if make_inputs is not None else ((), {})
            fresh = clone_tree((tuple(args), dict(kwargs)))
        if plan.values != "given":
            change_values(fresh, call=call, moves=plan.values == "moved")
        return fresh

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
        """The arguments of a call on these inputs, and whether the program's `derive` made them."""
        derive = self.namespace.get("derive")
        if derive is None:
            return args, kwargs, False
        derived, derived_kwargs = derive(*args, **kwargs)
        return tuple(derived), dict(derived_kwargs), True

    def prepare(self, call: int) -> None:
        """Run the statements that precede a call in the plan, and train() or eval()."""
        plan = self.program.calls[call]
        if plan.before:
            self.namespace["target"] = self.target
            exec(_compiled(plan.before, f"<before call {call} of {self.program.name}>"), self.namespace)
        if plan.training is not None and isinstance(self.target, torch.nn.Module):
            self.target.train(plan.training)


def instantiate(program: Program, *, device: str = "cpu") -> Instance:
    """Execute the source in its own namespace and make the target. Raises ProgramLoadError with the cause chained."""
    seed_everything(program.seed)
    module = types.ModuleType(f"{PROGRAM_MODULE}_{next(_numbers)}")
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    namespace["DEVICE"] = device  # for tensors that the source makes itself
    sys.modules[module.__name__] = module
    _module_names.append(module.__name__)
    while len(_module_names) > _KEPT_MODULES:
        sys.modules.pop(_module_names.popleft(), None)
    try:
        exec(_compiled(program.source, f"<program {program.name}>"), namespace)
        entry: Any = namespace.get("program")
        if not callable(entry):
            raise UsageError(
                seen=f"source of program {program.name!r} without a callable `program`",
                expected="a function `program`, or with is_module a factory of an nn.Module",
                do="define `program` at module level",
            )
        if program.is_module:
            seed_everything(program.seed)
            target: Any = entry()
            if isinstance(target, torch.nn.Module) and device != "cpu":
                target = target.to(device)
        else:
            target = entry
    except Exception as error:
        raise ProgramLoadError(f"{type(error).__name__}: {error}") from error
    return Instance(program=program, namespace=namespace, target=target, device=device)


@functools.lru_cache(maxsize=64)
def _compiled(source: str, filename: str) -> types.CodeType:
    """The code of a source, whose lines are registered for tracebacks and inspect.getsource."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveProgram:
    """A function or module of this process with its inputs, for `oracle.check`.

    All runs call the function itself; a module is deep-copied for each run.
    """

    program: Program
    make_target: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def instantiate(self) -> Instance:
        seed_everything(self.program.seed)

        def inputs(call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return self.args, self.kwargs  # Instance.inputs clones

        return Instance(program=self.program, namespace={"inputs": inputs}, target=self.make_target(), device="cpu")
