"""`InterpreterLevel`: kernels in Triton's own interpreter, repaired (interpreter_repairs.py).

Counterpart: triton/runtime/interpreter.py
Differs: runs in a worker process unless this process was started with TRITON_INTERPRET=1, before anything imported Triton.
Slow: half a millisecond to one for each program of the grid.
"""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from refimpl.codegen.emulator import AssertionFailed, KernelError
from refimpl.codegen.kernel import Kernel, LevelUnavailable, check_launch
from refimpl.codegen.levels.transport import Launch, read_launches, read_results, write_launches, write_results
from refimpl.codegen.levels.triton_version import language_constant, language_type, require_triton
from refimpl.codegen.levels.worker import Worker, serve

TIMEOUT_S = 300.0
_ENVIRONMENT = "TRITON_INTERPRET"
_worker = Worker("refimpl.codegen.levels.interpreter", interpret=True)


class InterpreterError(KernelError):
    """An error that the interpreter raised in a launch."""


class InterpreterLevel:
    """Runs kernels one program after the other. `timeout_s` bounds one launch in the worker.

    `asserts`: device_assert is checked, as with debugging on; else it does nothing.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S, asserts: bool = False) -> None:
        self.timeout_s = timeout_s
        self.asserts = asserts

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level. Raises InterpreterError, AssertionFailed, or LevelUnavailable if the interpreter cannot run."""
        launch = Launch(kernel, grid, arguments, constants)
        if is_interpreting():
            check_launch(kernel, grid, arguments, constants)
            interpret(launch, asserts=self.asserts)
            return
        (error,) = run_in_interpreter([launch], timeout_s=self.timeout_s, asserts=self.asserts)
        if error is not None:
            raise error


def is_interpreting() -> bool:
    """Whether this process runs kernels in the interpreter. Raises LevelUnavailable if the variable was set after Triton's
    import."""
    wanted = os.environ.get(_ENVIRONMENT, "0").lower() in ("1", "true", "on", "yes")
    loaded = sys.modules.get("triton.language.standard")
    if loaded is None:
        return wanted
    was_interpreting = type(loaded.__dict__["zeros"]).__name__ == "InterpretedFunction"
    if wanted and not was_interpreting:
        raise LevelUnavailable(
            "interpreter", seen=f"{_ENVIRONMENT} was set after Triton was imported, which leaves Triton half interpreted",
            do=f"start the process with {_ENVIRONMENT}=1, or unset it: kernels then run in a process of their own",
        )  # fmt: skip
    return was_interpreting


def check_interpreter() -> None:
    """Raises LevelUnavailable unless launches can run in the interpreter, in this process or another."""
    is_interpreting()
    require_triton("interpreter")


def run_in_interpreter(
    launches: Sequence[Launch], *, timeout_s: float = TIMEOUT_S, asserts: bool = False
) -> list[InterpreterError | AssertionFailed | None]:
    """Run launches one after the other in the worker process; tensors are written in place. Returns each one's error.

    WorkerDied, a LevelUnavailable, if the process crashes or takes longer than `timeout_s`.
    """
    for launch in launches:
        check_launch(launch.kernel, launch.grid, launch.arguments, launch.constants)
    require_triton("interpreter")
    with tempfile.TemporaryDirectory(prefix="kernels-") as name:
        folder = Path(name)
        storages = write_launches(folder, launches)
        _worker.ask({"folder": name, "asserts": asserts}, timeout_s)
        errors = read_results(folder, storages)
    return [None if error is None else _error_of(error) for error in errors]


def _error_of(error: Mapping[str, str]) -> InterpreterError | AssertionFailed:
    if "assertion" in error:
        return AssertionFailed(error["kernel"], error["assertion"])
    return InterpreterError(**error)


def interpret(launch: Launch, *, asserts: bool = False) -> None:
    """Runs one launch in this process, which must be interpreting."""
    repairs = importlib.import_module("refimpl.codegen.levels.interpreter_repairs")
    repairs.repair()
    repairs.Assertions.are_on = asserts
    kernel = launch.kernel
    function = _function(kernel)
    given = iter(launch.arguments)
    values: list[Any] = []
    for parameter in kernel.parameters:
        if parameter.is_constant:
            values.append(language_constant(launch.constants[parameter.name]))
            continue
        value = next(given)
        values.append(value if isinstance(value, torch.Tensor) else repairs.TypedScalar(value, parameter.type))
    if 0 in launch.grid:
        return
    try:
        function[launch.grid](*values)
    except Exception as error:
        cause = str(error.__cause__ or error)
        if isinstance(error.__cause__, AssertionError):
            raise AssertionFailed(kernel.name, cause) from error
        raise InterpreterError(
            kernel.name, seen=f"the interpreter raised {type(error.__cause__ or error).__name__}: {cause}",
            expected="a launch without errors", do="mend the kernel or the launch",
        ) from error  # fmt: skip


_functions: dict[str, Any] = {}


def _function(kernel: Kernel) -> Any:
    if kernel.hash not in _functions:
        file = f"<kernel {kernel.name} {kernel.hash}>"
        linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(keepends=True), file)
        namespace: dict[str, Any] = {"__name__": f"kernel_{kernel.hash}"}
        try:
            exec(compile(textwrap.dedent(kernel.source), file, "exec"), namespace)
        except Exception as error:
            raise InterpreterError(
                kernel.name, seen=f"its module raised {type(error).__name__}: {error}", expected="a module that can be run",
                do="mend the source",
            ) from error  # fmt: skip
        if kernel.name not in namespace:
            raise InterpreterError(
                kernel.name, seen="a module that does not define it", expected="a @triton.jit function of this name",
                do="name the kernel as its function",
            )  # fmt: skip
        _functions[kernel.hash] = namespace[kernel.name]
    return _functions[kernel.hash]


def _answer(request: Mapping[str, Any]) -> Any:
    folder = Path(request["folder"])
    launches, storages = read_launches(folder, language_type)
    errors: list[dict[str, Any] | None] = []
    for launch in launches:
        try:
            interpret(launch, asserts=request["asserts"])
            errors.append(None)
        except InterpreterError as error:
            errors.append(error.as_json())
        except AssertionFailed as error:
            errors.append({"kernel": error.kernel, "assertion": error.message})
    write_results(folder, storages, errors)
    return {"done": len(errors)}


def serve_worker(arguments: list[str]) -> None:
    """The worker process: see Worker."""
    serve(_answer, arguments)
