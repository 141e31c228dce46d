"""Runs one program in eager and compiled, with the torch of its interpreter, and writes down what a caller sees.

Started as `python worker.py FOLDER` in an environment that has torch and numpy alone. It reads FOLDER/request.json, and writes
FOLDER/answer.json and the elements of each tensor as a .npy file of bytes. `triage.advise.asking` copies the modules of `oracle`
that are imported here beside it (SHIPPED); each of them needs torch and numpy only.

Much of what an answer says about the compiler has no public name. Where a version of torch lacks such a name, the answer is null.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import linecache
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo

from oracle.configure import configured
from oracle.errors import UsageError
from oracle.measure import interleaved
from oracle.observe import observe
from oracle.observe.flatten import flatten
from oracle.observe.outcome import CallObservation, ExceptionFacts, Leaf, Outcome, Raised, Returned
from oracle.observe.repeated import repeated_call
from oracle.program import Program
from oracle.program.build import Instance, ProgramLoadError, instantiate
from oracle.program.clone import bytes_of, has_plain_storage

SHIPPED = (
    "oracle/configure.py", "oracle/dtypes.py", "oracle/errors.py", "oracle/hygiene.py", "oracle/measure.py",
    "oracle/observe/__init__.py", "oracle/observe/copies.py", "oracle/observe/flatten.py", "oracle/observe/memory.py",
    "oracle/observe/outcome.py", "oracle/observe/repeated.py", "oracle/observe/shelf.py",
    "oracle/program/__init__.py", "oracle/program/build.py", "oracle/program/clone.py", "oracle/program/encode.py",
    "oracle/program/fills.py", "oracle/program/inputs.py", "oracle/program/other_values.py",
)  # fmt: skip
LEAVES = ("outputs", "inputs_after", "gradients", "module_state")  # fields of CallObservation
_SCALARS = {
    "NoneType": lambda text: None,
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "complex": complex,
}


def main(folder: Path) -> None:
    """Answer the request in a folder. What is known is written before each step, so that a crash leaves it there."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    program = Program.from_json(request["program"])
    keep = functools.partial(_kept, folder)
    answer: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "stage": "eager"}

    def tell(**more: Any) -> None:
        answer.update(more)
        part = folder / "answer.part"
        part.write_text(json.dumps(answer), encoding="utf-8")
        part.replace(folder / "answer.json")

    tell()
    eager = _observed(program)
    tell(eager=written(eager, keep))
    tell(inputs=input_digests(program) if isinstance(eager, Returned) else {}, stage="compiled")
    compile_target = _compiler(request["compile"])
    try:
        with configured(program.config):
            before = _capture_begins()
            compiled = _observed(program, compile_target)
            tell(compiled=written(compiled, keep), capture=_capture(before), stage="speed")
            if isinstance(eager, Returned) and isinstance(compiled, Returned):
                tell(first_s=compiled.calls[0].seconds, **_speed(program, compile_target, request["speed_s"]))
    except UsageError as error:  # an option of the compiler that this version lacks
        tell(compiled=written(_raised(error, "options"), keep))
    tell(stage="end")


def _observed(program: Program, compile_target: Callable[..., Any] | None = None) -> Outcome:
    """The outcome of all calls. A program that cannot be made with this torch raises before its first call."""
    try:
        return observe(instantiate(program), compile_target=compile_target)
    except ProgramLoadError as error:
        return _raised(error.__cause__ or error, "load")


def _raised(error: BaseException, phase: str) -> Raised:
    names = tuple(kind.__qualname__ for kind in type(error).__mro__)
    facts = ExceptionFacts(
        type_name=names[0], ancestry=names, message=str(error), traceback="", call=0, phase=phase
    )  # fmt: skip
    return Raised(exception=facts)


def input_digests(program: Program) -> dict[str, str]:
    """A digest of each tensor that goes in: arguments of every call, and the module's parameters and buffers."""
    instance = instantiate(program)
    target = instance.target
    state = target.state_dict() if isinstance(target, torch.nn.Module) else {}
    found = {f"module.{name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for number in range(len(program.calls)):
        args, kwargs = instance.inputs(number)
        leaves = flatten(args, f"call {number}: args")[0] + flatten(kwargs, f"call {number}: kwargs")[0]
        found.update((leaf.path, leaf.value) for leaf in leaves if isinstance(leaf.value, torch.Tensor))
    return {path: _digest(tensor) for path, tensor in found.items() if has_plain_storage(tensor)}


# ------------------------------------------------------------------------------------------------------------- written

Keep = Callable[[torch.Tensor], str]


def written(outcome: Outcome, keep: Keep) -> dict[str, Any]:
    """An outcome as JSON. A tensor is its facts and the name of the file of its elements, which `keep` writes."""
    assert isinstance(outcome, (Returned, Raised))
    raised = dataclasses.asdict(outcome.exception) if isinstance(outcome, Raised) else None
    return {"calls": [_call(call, keep) for call in outcome.calls], "raised": raised}


def _call(call: CallObservation, keep: Keep) -> dict[str, Any]:
    plain = {"structure": call.structure, "rng_digest": call.rng_digest, "seconds": call.seconds}
    leaves = {name: [_leaf(leaf, keep) for leaf in getattr(call, name)] for name in LEAVES}
    return {**plain, **leaves, "aliases": dataclasses.asdict(call.aliases)}


def _leaf(leaf: Leaf, keep: Keep) -> dict[str, Any]:
    if leaf.facts is None:
        return {"path": leaf.path, "value": _scalar(leaf.value)}
    facts = dataclasses.asdict(leaf.facts)
    if has_plain_storage(leaf.value) and leaf.value.device.type != "meta" and type(leaf.value) is torch.Tensor:
        return {"path": leaf.path, "facts": facts, "file": keep(leaf.value)}
    return {"path": leaf.path, "value": _scalar(f"<tensor whose elements are not compared: {sorted(facts.items())}>")}


def _scalar(value: Any) -> list[str]:
    kind = type(value).__name__
    return [kind, repr(value)] if kind in _SCALARS else ["text", value if isinstance(value, str) else repr(value)]


def scalar(given: list[str]) -> Any:
    """The Python value that `_scalar` has written; what is no number is a text."""
    kind, text = given
    return _SCALARS[kind](text) if kind in _SCALARS else text


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(_bytes(tensor).tobytes(), digest_size=16).hexdigest()


def _kept(folder: Path, tensor: torch.Tensor) -> str:
    name = _digest(tensor)
    path = folder / f"{name}.npy"
    if not path.exists():
        np.save(path, _bytes(tensor))
    return name


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return bytes_of(tensor.cpu()).numpy()


# ------------------------------------------------------------------------------------------------------------ compiler


def _compiler(asked: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """torch.compile with the subject's backend and options, warmed up.

    Otherwise the program would be charged for imports, and for headers that inductor compiles once for all programs.
    """
    backend: Any = asked["backend"]
    is_own = ":" in backend
    if is_own:
        module, _, name = backend.partition(":")
        backend = functools.reduce(getattr, name.split("."), importlib.import_module(module))

    def compile_target(target: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(target, backend=backend, **asked["keywords"])

    with contextlib.suppress(Exception):  # a compiler that does not work is reported when the program is compiled
        trivial = torch.compile(_trivial, backend="eager") if is_own else compile_target(_trivial)
        trivial(torch.ones(2, requires_grad=True)).sum().backward()
    return compile_target


def _trivial(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _capture_begins() -> int | None:
    """Forgets what was compiled, and returns how many graph breaks are listed already."""
    torch._dynamo.reset()
    _asked(lambda: _utils().counters.clear())
    _asked(lambda: _utils().clear_compilation_metrics())
    return _asked(lambda: len(_utils().graph_break_reasons))


def _capture(breaks_before: int | None) -> dict[str, Any]:
    """Graphs, graph breaks and recompiles since `_capture_begins`; null where this version of torch does not tell."""
    return {
        "graphs": _asked(lambda: int(_utils().counters["stats"]["unique_graphs"])),
        "breaks": None
        if breaks_before is None
        else _asked(lambda: _breaks(_utils().graph_break_reasons[breaks_before:])),
        "recompiles": _asked(
            lambda: [m.recompile_reason for m in _utils().get_compilation_metrics() if m.recompile_reason]
        ),
    }


def _utils() -> Any:
    return importlib.import_module("torch._dynamo.utils")


def _asked(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):  # another version of torch
        return None


def _breaks(reasons: Iterable[Any]) -> list[dict[str, Any]]:
    found = []
    for each in reasons:
        if each.graph_break:
            stack = list(each.user_stack)
            last = stack[-1] if stack else None
            place = (
                [last.filename, last.lineno, linecache.getline(last.filename, last.lineno).strip()] if last else None
            )
            found.append({"reason": str(each.reason), "place": place, "depth": len(stack)})
    return found


# --------------------------------------------------------------------------------------------------------------- speed


def _speed(program: Program, compile_target: Callable[..., Any], seconds: float) -> dict[str, float]:
    """Median seconds of a call and its backward in eager and compiled, after the first one."""
    torch._dynamo.reset()
    eager, compiled = (_repeated(instantiate(program), wrap) for wrap in (lambda target: target, compile_target))
    for run in (eager, compiled, compiled):
        run()
    wait = torch.cuda.synchronize if torch.cuda.is_available() else None
    speed = interleaved(eager, compiled, budget_s=seconds, max_pairs=1000, sync=wait)
    return {"eager_s": speed.eager_s, "compiled_s": speed.subject_s}


def _repeated(instance: Instance, wrap: Callable[..., Any]) -> Callable[[], None]:
    instance.prepare(0)
    args, kwargs = instance.inputs(0)
    return repeated_call(instance, wrap(instance.target), args, kwargs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # processes that compile in the background are not waited for
