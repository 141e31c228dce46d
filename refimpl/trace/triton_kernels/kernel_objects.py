"""What a Triton kernel is: a function with `@triton.jit`, perhaps within `@triton.autotune` and `@triton.heuristics`; its
parameters, and the grids that it is launched on.

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py TritonHOPifier.call_triton_kernel

`@triton.jit` makes an InterpretedFunction where TRITON_INTERPRET=1 is set, else a JITFunction. Triton is optional: an object can
be a kernel only if the program has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

# Classes of kernels, by the module that defines them. A subclass of the program's may launch in its own way.
FUNCTIONS = {"triton.runtime.jit": "JITFunction", "triton.runtime.interpreter": "InterpretedFunction"}
AROUND = {"Autotuner", "Heuristics"}
AUTOTUNER = "triton.runtime.autotuner"


def is_kernel(value: Any) -> bool:
    """Whether `value[grid](...)` launches a Triton kernel."""
    return is_function(value) or (is_around(value) and is_kernel(value.fn))


def is_function(value: object) -> bool:
    """Whether it is what `@triton.jit` makes of a function."""
    class_ = type(value)
    return class_.__module__ in sys.modules and FUNCTIONS.get(class_.__module__) == class_.__name__


def is_around(value: Any) -> bool:
    """Whether it is an Autotuner or a Heuristics."""
    class_ = type(value)
    return class_.__module__ == AUTOTUNER and class_.__name__ in AROUND


def is_autotuner(value: Any) -> bool:
    """Whether it is an Autotuner."""
    return is_around(value) and type(value).__name__ == "Autotuner"


def layers_of(kernel: Any) -> list[Any]:
    """The kernel and what is within it, the JITFunction or InterpretedFunction last."""
    layers = [kernel]
    while is_around(layers[-1]):
        layers.append(layers[-1].fn)
    return layers


def python_function(kernel: Any) -> FunctionType:
    """The decorated Python function."""
    return layers_of(kernel)[-1].fn


def kernel_name(kernel: Any) -> str:
    """The name of the decorated function."""
    return python_function(kernel).__name__


def parameter_names(kernel: Any) -> list[str]:
    """The names of the kernel's parameters, in order."""
    return list(inspect.signature(python_function(kernel)).parameters)


def constexpr_parameters(kernel: Any) -> frozenset[str]:
    """The names of the parameters that are annotated with `tl.constexpr`."""
    annotations = python_function(kernel).__annotations__
    return frozenset(name for name, kind in annotations.items() if name != "return" and _is_constexpr(kind))


def _is_constexpr(annotation: Any) -> bool:
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2] == "constexpr"


def bound_arguments(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, as the kernel's parameters come, then those that are options such as `num_warps`.

    Raises TypeError for too many positional arguments, and for a parameter that is given twice. Autotuning and heuristics may
    provide those that are missing.
    """
    names = parameter_names(kernel)
    if len(args) > len(names):
        raise TypeError(f"{kernel_name(kernel)}() takes {len(names)} positional arguments, not {len(args)}")
    given = dict(zip(names, args, strict=False))
    twice = given.keys() & kwargs.keys()
    if twice:
        raise TypeError(f"{kernel_name(kernel)}() got several values for {', '.join(sorted(twice))}")
    given.update(kwargs)
    return {**{name: given[name] for name in names if name in given}, **given}


def defaults_of(kernel: Any) -> dict[str, Any]:
    """The defaults of the kernel's parameters, by name."""
    parameters = inspect.signature(python_function(kernel)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def grids_of(layers: Sequence[tuple[bool, Any]], grid: Any, arguments: dict[str, Any]) -> list[Any]:
    """The grid for each configuration of the autotuner, in order; one if there is none.

    layers: the autotuners (True) and heuristics (False) around the kernel, the outermost first. arguments: by name, with the
    defaults of parameters. A grid that is a function gets them together with what configuration and heuristics provide. Capture
    interprets this function too, where the arguments are values of capture.
    """
    metas = [arguments]
    for is_autotuner, layer in layers:
        found = []
        for meta in metas:
            if is_autotuner:
                for config in layer.configs:
                    found.append({**meta, **config.kwargs})
            elif callable(grid):
                for name, function in layer.values.items():
                    meta = {**meta, name: function(meta)}
                found.append(meta)
            else:
                found.append(meta)
        metas = found
    grids = []
    for meta in metas:
        grids.append(grid(meta) if callable(grid) else grid)
    return grids
