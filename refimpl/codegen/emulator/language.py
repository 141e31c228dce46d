"""The stand-ins for `triton`, `triton.language` and `libdevice`, and how a module gets them in the place of Triton.

Counterpart: triton/language/__init__.py
"""

from __future__ import annotations

import builtins
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import torch

from refimpl.codegen.emulator import arithmetic, blocks, mathematics, memory, random, reductions, types
from refimpl.codegen.emulator.errors import AssertionFailed, KernelError, NotEmulated
from refimpl.codegen.emulator.jit import JitFunction, autotune, heuristics, jit
from refimpl.codegen.emulator.launching import Options
from refimpl.codegen.emulator.memory import Context
from refimpl.codegen.emulator.values import (
    Diverged,
    Rejected,
    Unsupported,
    Value,
    constant,
    method,
    to_value,
    type_of_number,
)

# ------------------------------------------------------------------------------------------------------------ control flow


def _loop(start: Any, stop: Any = None, step: Any = 1, **options: Any) -> Iterator[Value]:
    """`range` and `tl.range`: the loop variable is a tensor. Variables that the body assigns must keep their types."""
    if stop is None:
        start, stop = 0, start
    bounds = [to_value(bound) for bound in (start, stop, step)]
    type_ = bounds[0].dtype
    for bound in bounds:
        if not isinstance(bound.dtype, types.Type) or not bound.dtype.is_int() or not isinstance(type_, types.Type):
            raise Rejected(f"a loop with a bound of {bound.type}; expected integers")
        type_ = types.promote_integers(type_, bound.dtype)
    assert isinstance(type_, types.Type)
    return _run_loop(builtins.range(*(int(bound) for bound in bounds)), type_, sys._getframe(1))


def _run_loop(numbers: builtins.range, type_: types.Type, frame: FrameType) -> Iterator[Value]:
    before: dict[str, Any] | None = dict(frame.f_locals)
    for number in numbers:
        yield Value(torch.tensor([number], dtype=type_.carrier), type_)
        if before is not None:
            check_carried(before, frame.f_locals)
            before = None


def check_carried(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise Rejected if the loop's first iteration changed the type of a variable."""
    for name, old in before.items():
        new = after.get(name)
        if (
            new is old
            or not isinstance(new, (Value, bool, int, float))
            or not isinstance(old, (Value, bool, int, float))
        ):
            continue
        old_type, new_type = (x.type if isinstance(x, Value) else type_of_number(x) for x in (old, new))
        if old_type != new_type:
            raise Rejected(f"the loop changes {name!r} from {old_type} to {new_type}")


class _WhileState:
    """The local variables before each iteration of a running `while` loop, keyed by frame and loop."""

    seen: dict[tuple[int, int], dict[str, Any]] = {}


def carried(condition: Any, local: dict[str, Any], site: int) -> Any:
    """Whether a `while` loop goes on. Its iterations must keep the types of variables, too."""
    key = (id(sys._getframe(1)), site)
    before = _WhileState.seen.pop(key, None)
    if before is not None:
        check_carried(before, local)
    try:
        goes_on = bool(condition)
    except Diverged:
        _WhileState.seen.clear()
        raise
    if goes_on:
        _WhileState.seen[key] = dict(local)
    return goes_on


def static_range(start: Any, stop: Any = None, step: Any = 1) -> builtins.range:
    for bound in (start, stop, step):
        if isinstance(bound, Value):
            raise Rejected("static_range with a bound that is no constant")
    return builtins.range(start, stop, step) if stop is not None else builtins.range(0, start, step)


def assigned(value: Any) -> Any:
    """The value that an assignment stores: a Python number becomes a tensor."""
    if isinstance(value, Value):
        return value
    if isinstance(value, (bool, int, float)):
        return constant(value)
    if type(value) is tuple:
        return tuple(assigned(item) for item in value)
    return value


def _lazy_and(*parts: Callable[[], Any]) -> Any:
    result: Any = True
    for part in parts:
        value = part()
        if not isinstance(value, Value):
            if not value:
                return value
            result = value if result is True else result
        else:
            result = arithmetic.logical_and(result, value) if isinstance(result, Value) else value
    return result


def _lazy_or(*parts: Callable[[], Any]) -> Any:
    result: Any = False
    for part in parts:
        value = part()
        if not isinstance(value, Value):
            if value:
                return value
            result = value if result is False else result
        else:
            result = arithmetic.logical_or(result, value) if isinstance(result, Value) else value
    return result


def _lazy_not(value: Any) -> Any:
    return arithmetic.logical_not(value) if isinstance(value, Value) else not value


def _has_value(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, Value) for arg in args)


def _builtin_min(*args: Any) -> Any:
    return _folded(arithmetic.minimum, args) if _has_value(args) else builtins.min(*args)


def _builtin_max(*args: Any) -> Any:
    return _folded(arithmetic.maximum, args) if _has_value(args) else builtins.max(*args)


def _folded(function: Callable[[Any, Any], Any], args: tuple[Any, ...]) -> Any:
    result = args[0]
    for arg in args[1:]:
        result = function(result, arg)
    return result


def _builtin_int(x: Any = 0) -> Any:
    if isinstance(x, Value):
        raise Rejected("int() of a tensor; convert with .to")
    return builtins.int(x)


def _builtin_float(x: Any = 0.0) -> Any:
    if isinstance(x, Value):
        raise Rejected("float() of a tensor; convert with .to")
    return builtins.float(x)


def _static_assert(condition: Any, message: str = "") -> None:
    if isinstance(condition, Value):
        raise Rejected("static_assert of a tensor")
    if not condition:
        raise Rejected(f"static_assert failed: {message}" if message else "static_assert failed")


def _device_assert(condition: Any, message: str = "", mask: Any = None) -> None:
    running = Context.running
    if not running.asserts:
        return
    holds = to_value(condition).data != 0
    if mask is not None:
        holds = holds | (to_value(mask).data == 0)
    if not bool(holds.all()):
        raise AssertionFailed(running.kernel, message, running.line())


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _same(x: Any, *args: Any) -> Any:
    return x


def _constexpr(value: Any = None) -> Any:
    """`tl.constexpr`: a constant is its value. Kernels call this, and annotate parameters with it."""
    return value


runtime = SimpleNamespace(
    builtin_range=_loop, builtin_min=_builtin_min, builtin_max=_builtin_max, builtin_abs=arithmetic.abs_,
    builtin_int=_builtin_int, builtin_float=_builtin_float, builtin_len=builtins.len, builtin_print=_nothing,
    assigned=assigned, carried=carried, logical_and=_lazy_and, logical_or=_lazy_or, logical_not=_lazy_not,
    device_assert=_device_assert,
)  # fmt: skip
JitFunction.runtime = runtime


# ------------------------------------------------------------------------------------------------------------------ modules


class MissingMember(Unsupported, AttributeError):
    """Triton has this name, the emulator does not. It is an AttributeError, so that hasattr gives False."""


class StandIn(ModuleType):
    """Stands in for a module of Triton. A name that it lacks raises MissingMember when it is read."""

    def __init__(self, name: str, **members: Any) -> None:
        super().__init__(name)
        self.__dict__.update(members)
        self.__path__ = []  # submodules can be imported

    def __getattr__(self, name: str) -> Any:
        raise MissingMember(f"{self.__name__}.{name}")


def _next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


method("associative_scan")(reductions.associative_scan)
_types = {type_.in_language: type_ for type_ in types.TYPES}


def _functions(module: ModuleType) -> dict[str, Any]:
    """The names that triton.language takes from a module of the emulator: its public functions, `sum_` as `sum`."""
    return {
        name.removesuffix("_"): function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }


_math_members: dict[str, Any] = {
    **mathematics.LANGUAGE, "abs": arithmetic.abs_, "fma": arithmetic.fma, "umulhi": arithmetic.umulhi,
    "div_rn": mathematics.div_rn, "fdiv": mathematics.fdiv,
}  # fmt: skip

libdevice = mathematics.make_libdevice()
libdevice_module = StandIn("triton.language.extra.libdevice", **vars(libdevice))
math_module = StandIn("triton.language.math", **_math_members)
language = StandIn(
    "triton.language",
    **_types, **_functions(random), **_functions(blocks), **_functions(reductions), **_math_members, **memory.ATOMICS,
    view=blocks.reshape,
    load=memory.load, store=memory.store, atomic_cas=memory.atomic_cas, where=arithmetic.where,
    maximum=arithmetic.maximum, minimum=arithmetic.minimum, clamp=arithmetic.clamp, cast=arithmetic.cast,
    add=arithmetic.add, sub=arithmetic.sub, mul=arithmetic.mul, cdiv=arithmetic.cdiv, sigmoid=mathematics.sigmoid,
    PropagateNan=arithmetic.PropagateNan, constexpr=_constexpr, tensor=Value, dtype=types.Type,
    pointer_type=types.PointerType, to_tensor=to_value, range=_loop, static_range=static_range,
    static_assert=_static_assert, static_print=_nothing, device_assert=_device_assert, device_print=_nothing,
    debug_barrier=_nothing, assume=_nothing, multiple_of=_same, max_contiguous=_same, max_constancy=_same,
    math=math_module,
    extra=StandIn(
        "triton.language.extra", libdevice=libdevice_module,
        cuda=StandIn("triton.language.extra.cuda", libdevice=libdevice_module),
    ),
)  # fmt: skip
language.__dict__["core"] = language
language.__dict__["standard"] = language


class Config(SimpleNamespace):
    """A configuration of autotune."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **others: Any) -> None:
        super().__init__(kwargs=kwargs, num_warps=num_warps, num_stages=num_stages, **others)


triton = StandIn(
    "triton", jit=jit, autotune=autotune, heuristics=heuristics, Config=Config, language=language,
    cdiv=lambda x, y: (x + y - 1) // y, next_power_of_2=_next_power_of_2, __version__="3.7.0",
    constexpr_function=_same, JITFunction=JitFunction,
)  # fmt: skip

MODULES: dict[str, ModuleType] = {
    "triton": triton, "triton.language": language, "triton.language.math": math_module, "triton.language.core": language,
    "triton.language.extra": language.extra, "triton.language.extra.libdevice": libdevice_module,
    "triton.language.extra.cuda": language.extra.cuda, "triton.language.extra.cuda.libdevice": libdevice_module,
    "triton.language.standard": language, "triton.language.random": language,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ imports


def run_module(source: str, file: str, kernel: str) -> dict[str, Any]:
    """Run a module's text with `import triton` giving the emulator, and return its namespace. `kernel` is named in errors."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {
        "__name__": file,
        "__file__": file,
        "__builtins__": {**vars(builtins), "__import__": _import},
    }
    try:
        exec(compile(source, file, "exec"), namespace)
    except SyntaxError as error:
        raise KernelError(
            kernel, seen=f"source that is no Python: {error}", expected="a module", do="mend it"
        ) from error
    except Unsupported as error:
        raise NotEmulated(kernel, str(error)) from error
    return namespace


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
) -> ModuleType:
    if name != "triton" and not name.startswith("triton."):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    if name not in MODULES:
        raise Unsupported(f"import {name}")
    return MODULES[name] if fromlist else MODULES["triton"]


@contextmanager
def triton_emulated(*, races: bool = True) -> Iterator[None]:
    """While open, `import triton` gives the emulator. Modules that are imported meanwhile keep it, and their kernels run on it.

    Keep it open for the import only: torch imports Triton as well, and needs the real one.
    """
    JitFunction.options = Options(races=races)
    kept = {name: module for name, module in sys.modules.items() if _is_triton(name)}
    for name in kept:
        del sys.modules[name]
    sys.modules.update(MODULES)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_triton(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_triton(name: str) -> bool:
    return name == "triton" or name.startswith("triton.")
