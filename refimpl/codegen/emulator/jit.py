"""`triton.jit`, `triton.autotune` and `triton.heuristics`: decorators whose functions the emulator launches or calls.

Counterpart: triton/runtime/jit.py JITFunction; triton/runtime/autotuner.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import Any

import torch

from refimpl.codegen.emulator.errors import KernelError, WouldNotCompile
from refimpl.codegen.emulator.launching import Options, launch
from refimpl.codegen.emulator.rewriting import RewriteError, rewrite
from refimpl.codegen.emulator.types import POINTER_TYPES, SIGNATURE_TYPES, integer_range

_LAUNCH_OPTIONS = frozenset(
    {
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "enable_fp_fusion",
        "warmup",
        "stream",
        "debug",
        "sanitize_overflow",
    }
)


class JitFunction:
    """A kernel, `kernel[grid](...)`, or a function that kernels call."""

    runtime: Any = None  # what rewritten text refers to; set by language.py, which knows this class
    options = Options()  # of launches by `kernel[grid]`
    watchers: list[
        Callable[[str, tuple[int, ...], dict[str, Any]], None]
    ] = []  # told of each launch: name, grid, arguments
    around: list[Callable[[], AbstractContextManager[Any]]] = []  # open while a launch runs
    largest = 0

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __repr__(self) -> str:
        return f"JitFunction({self.__name__})"

    @cached_property
    def _rewritten(self) -> tuple[Callable[..., Any], bool]:
        try:
            return rewrite(self.fn, self.runtime)
        except RewriteError as error:
            raise WouldNotCompile(self.__name__, str(error)) from error

    @property
    def emulated(self) -> Callable[..., Any]:
        return self._rewritten[0]

    @property
    def may_diverge(self) -> bool:
        return self._rewritten[1] or any(other.may_diverge for other in self._called if other is not self)

    @cached_property
    def _called(self) -> list[JitFunction]:
        code, scope = self.emulated.__code__, self.emulated.__globals__
        return [scope[name] for name in code.co_names if isinstance(scope.get(name), JitFunction)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.emulated(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def run(*args: Any, **kwargs: Any) -> None:
            self.run(*args, grid=grid, **kwargs)

        return run

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @property
    def arg_names(self) -> list[str]:
        return list(self.signature.parameters)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Values by parameter name, defaults included. Raises KernelError if the arguments do not fit the signature."""
        kept = {
            name: value
            for name, value in kwargs.items()
            if name in self.signature.parameters or name not in _LAUNCH_OPTIONS
        }
        try:
            bound = self.signature.bind(*args, **kept)
        except TypeError as error:
            raise KernelError(
                self.__name__, seen=f"a launch with arguments that do not fit: {error}",
                expected=f"{self.__name__}{self.signature}", do="mend the launch",
            ) from error  # fmt: skip
        bound.apply_defaults()
        return dict(bound.arguments)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        values = self.bind(args, kwargs)
        sizes: Any = grid(values) if callable(grid) else grid
        sizes = (sizes,) if isinstance(sizes, int) else tuple(int(size) for size in sizes)
        for watch in self.watchers:
            watch(self.__name__, sizes, values)
        typed = {name: self._typed(name, value) for name, value in values.items()}
        with ExitStack() as stack:
            for around in self.around:
                stack.enter_context(around())
            launch(self, self.__name__, sizes, typed, self.options)

    def _typed(self, name: str, value: Any) -> tuple[str, Any]:
        """The parameter's type as Triton's signatures write it, and the value."""
        annotation = self.signature.parameters[name].annotation
        if (
            value is None
            or isinstance(value, (str, tuple))
            or "constexpr" in getattr(annotation, "__name__", str(annotation))
        ):
            return "constexpr", value
        if isinstance(value, torch.Tensor):
            if value.dtype not in POINTER_TYPES:
                raise KernelError(
                    self.__name__, seen=f"a tensor of {value.dtype} for {name!r}",
                    expected=", ".join(str(dtype) for dtype in POINTER_TYPES), do="use a dtype that the emulator has",
                )  # fmt: skip
            return POINTER_TYPES[value.dtype], value
        if isinstance(value, bool):
            return "i1", value
        if isinstance(value, int):
            for kind in ("i32", "i64", "u64"):
                low, high = integer_range(SIGNATURE_TYPES[kind])
                if low <= value <= high:
                    return kind, value
        if isinstance(value, float):
            return "fp32", value
        return "constexpr", value


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`@triton.jit`, with or without options. They are ignored: they tune compiled code only."""
    return JitFunction(fn) if fn is not None else JitFunction


class Tuned(JitFunction):
    """A kernel under `@triton.autotune` or `@triton.heuristics`, which add arguments to its launches."""

    def __init__(self, inner: JitFunction, decide: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__(inner.fn)
        self.inner, self.decide = inner, decide

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        names = self.inner.arg_names
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        decided = {name: value for name, value in self.decide(given).items() if name not in given}
        self.inner.run(*args, grid=grid, **kwargs, **decided)


def autotune(configs: Sequence[Any], key: Sequence[str] = (), **options: Any) -> Callable[[JitFunction], Tuned]:
    """`@triton.autotune`: takes the first configuration, since speed is not measured here."""

    def decorate(inner: JitFunction) -> Tuned:
        return Tuned(inner, lambda given: dict(configs[0].kwargs) if configs else {})

    return decorate


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[JitFunction], Tuned]:
    def decorate(inner: JitFunction) -> Tuned:
        return Tuned(inner, lambda given: {name: rule(given) for name, rule in values.items()})

    return decorate
