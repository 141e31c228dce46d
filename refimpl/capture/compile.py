"""`compile`, `optimize` and `optimize_assert`: wrap functions and modules so that their calls are captured.

Counterpart: torch/__init__.py compile; torch/_dynamo/eval_frame.py optimize, optimize_assert
Differs: nothing is hooked into CPython; only calls through the returned wrapper are captured. The backend "inductor" is refimpl's
code generator and never PyTorch's Inductor; `mode`, which configures that one, is refused. Without a name the backend is "eager".
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from refimpl._torch import is_switched_on
from refimpl.backend_registry import Backend, lookup_backend
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.config import config
from refimpl.capture.entry_points.contexts import Hooks, NullDecorator, OptimizeContext, captured_call
from refimpl.capture.public.errors import InvalidBackend
from refimpl.capture.public.platforms import check_if_dynamo_supported
from refimpl.capture.public.usage import log_api_usage
from refimpl.capture.repro.backend import DebuggedBackend, wrap_backend_debug
from refimpl.errors import BadParameter, UnsupportedByRefimpl


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
) -> Any:
    """The model, captured when it is called.

    model: a function, a bound method, a callable object, or a torch.nn.Module, of which an OptimizedModule is made; None: gives a
        decorator.
    fullgraph: raise Unsupported where capture would stop.
    dynamic: whether sizes are symbols: True from the start, False never, None once they have changed.
    backend: a name of `refimpl.list_backends()`, "module:function", or a callable that gets the graph of every segment with its
        inputs and returns what runs it. Default: "eager". "inductor" is another name of "triton", refimpl's code generator:
        PyTorch's Inductor does not run.
    disable: give the model as it is.
    options: "guard_filter_fn" gets the guards of each graph and says which are kept. The rest goes to the backend, which must
        take a keyword of that name; "triton" and "inductor" take the fields of CodegenOptions.
    recompile_limit: segments of one place, after which calls that fit none of them are run without. Default: the setting.
    isolate_recompiles: share nothing that was captured with other calls of `compile`.

    Raises InvalidBackend for a backend that is none, BadParameter for what is no function or module and for options that the
    backend does not take, UnsupportedByRefimpl for `mode` and `shapes_spec`.
    """
    if shapes_spec is not None or (mode is not None and mode != "default"):
        given = {"mode": mode, "shapes_spec": shapes_spec}
        raise UnsupportedByRefimpl(
            seen=", ".join(f"{key}={value!r}" for key, value in given.items() if value),
            supported="mode=None and shapes_spec=None", do="leave them out",
        )  # fmt: skip
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, options=options, name=name, disable=disable,
            recompile_limit=recompile_limit, isolate_recompiles=isolate_recompiles,
        )  # fmt: skip
    if not callable(model):
        raise BadParameter(
            seen=f"model={model!r}, a {type(model).__name__}", expected="a function or a torch.nn.Module"
        )
    if disable:
        return model
    chosen = "eager" if backend is None else backend
    options = dict(options or {})
    guard_filter_fn = options.pop("guard_filter_fn", None)
    return _optimize(
        _with_backend_options(chosen, options) if options else chosen,
        nopython=fullgraph, dynamic=dynamic, recompile_limit=recompile_limit, guard_filter_fn=guard_filter_fn,
    )(model)  # fmt: skip


def _with_backend_options(backend: str | Backend, options: dict[str, Any]) -> Backend:
    """The backend with the options bound. Raises BadParameter for a backend without an `options` parameter."""
    found = get_compiler_fn(backend)
    parameters = inspect.signature(found).parameters.values()
    if not any(parameter.name == "options" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise BadParameter(
            seen=f"options={options!r} for the backend {backend if isinstance(backend, str) else found!r}",
            expected='a backend that takes `options` as a keyword, such as "triton"',
        )

    @functools.wraps(found)
    def with_them(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        return found(graph_module, example_inputs, options=options)

    return with_them


def compiler_compile(*args: Any, **kwargs: Any) -> Any:
    """`compile`, under the name that torch.compiler gives it."""
    return compile(*args, **kwargs)


def optimize(*args: Any, **kwargs: Any) -> Any:
    """A decorator that captures a function: `optimize(backend="eager", *, nopython=False, guard_export_fn=None,
    guard_fail_fn=None, guard_filter_fn=None, disable=False, dynamic=None, recompile_limit=None)`.

    nopython: one graph, or Unsupported. guard_export_fn gets the guards of each new segment, guard_fail_fn the guard that
        failed, guard_filter_fn says which guards of a new segment are kept.
    With `disable`, with TORCHDYNAMO_DISABLE=1 in the environment, or if torch's switch for capture is off, functions are
    returned unchanged.
    Raises InvalidBackend for an unknown backend.
    """
    return _optimize(*args, **kwargs)


def _optimize(
    backend: str | Backend = "eager",
    *,
    nopython: bool = False,
    guard_export_fn: Callable[[Any], None] | None = None,
    guard_fail_fn: Callable[[Any], None] | None = None,
    disable: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int | None = None,
    guard_filter_fn: Callable[[Any], Any] | None = None,
) -> OptimizeContext | NullDecorator:
    check_if_dynamo_supported()
    is_off = disable or os.environ.get("TORCHDYNAMO_DISABLE", "") == "1"
    if is_off or not is_switched_on("pytorch/compiler:enable_dynamo"):
        return NullDecorator()
    log_api_usage("optimize")
    hooks = Hooks(guard_export_fn, guard_fail_fn, guard_filter_fn)
    rebuild = functools.partial(_rebuilt, backend, dynamic=dynamic)
    return _context(
        backend, fullgraph=nopython, dynamic=dynamic, hooks=hooks, recompile_limit=recompile_limit, rebuild_ctx=rebuild
    )


def _rebuilt(backend: str | Backend, *, dynamic: bool | None) -> OptimizeContext:
    """A context with the same backend for backward graphs, which have no backward graphs of their own. Each is one whole graph
    unless `config.compiled_autograd_kwargs_override` says otherwise. Raises AssertionError for another key of it."""
    chosen = config.compiled_autograd_kwargs_override
    assert set(chosen) <= {"fullgraph"}, (
        f"Only `fullgraph` kwarg override is supported for now, but got {chosen.keys()}\n  expected: {{'fullgraph': bool}}"
    )
    with config.patch(compiled_autograd=False):
        return _context(
            backend, fullgraph=chosen.get("fullgraph", True), dynamic=dynamic, hooks=Hooks(), recompile_limit=None
        )


def optimize_assert(*args: Any, **kwargs: Any) -> Any:
    """`optimize` with `nopython=True`: `optimize_assert(backend, *, hooks=Hooks(None, None), export=False,
    export_constraints=None, dynamic=None, rebuild_ctx=None)`.
    """
    return _optimize_assert(*args, **kwargs)


def _optimize_assert(
    backend: str | Backend,
    *,
    hooks: Hooks = Hooks(),  # noqa: B008 - a tuple
    export: bool = False,
    export_constraints: Any = None,
    dynamic: bool | None = None,
    rebuild_ctx: Callable[[], Any] | None = None,
    recompile_limit: int | None = None,
) -> OptimizeContext:
    return _context(
        backend, fullgraph=True, dynamic=dynamic, hooks=hooks, recompile_limit=recompile_limit, export=export,
        rebuild_ctx=rebuild_ctx,
    )  # fmt: skip


def _context(
    backend: str | Backend, *, fullgraph: bool, dynamic: bool | None, hooks: Hooks, recompile_limit: int | None,
    export: bool = False, rebuild_ctx: Callable[[], Any] | None = None,
) -> OptimizeContext:  # fmt: skip
    found: Any = get_compiler_fn(backend)
    config_of = getattr(found, "get_compiler_config", None)
    return OptimizeContext(
        found, getattr(found, "backend_ctx_ctor", contextlib.nullcontext), first_ctx=True, fullgraph=fullgraph,
        export=export, dynamic=dynamic, compiler_config=None if config_of is None else config_of(), hooks=hooks,
        recompile_limit=recompile_limit, rebuild_ctx=rebuild_ctx,
    )  # fmt: skip


def get_compiler_fn(compiler_fn: Any) -> DebuggedBackend:
    """A backend, by its name, by an object's `compiler_name`, or a callable, as `config.repro_after` wants it.

    Raises InvalidBackend for an unknown name, and for what is no backend; AssertionError for a `compiler_name` that is no name.
    """
    if isinstance(compiler_fn, DebuggedBackend):
        return compiler_fn
    name = getattr(compiler_fn, "compiler_name", compiler_fn if isinstance(compiler_fn, str) else None)
    assert name is None or isinstance(name, str), f"compiler_name={name!r} of {compiler_fn!r}\n  expected: a name"
    if callable(compiler_fn):
        return wrap_backend_debug(compiler_fn, name)
    if name is None:
        raise InvalidBackend(
            seen=f"backend={compiler_fn!r}, a {type(compiler_fn).__name__}",
            expected="a name, or a callable of (GraphModule, example inputs)",
        )
    try:
        return wrap_backend_debug(lookup_backend(name), name)
    except BadParameter as error:
        raise InvalidBackend(seen=str(error).partition("\n")[0], expected=_expected(error)) from error


def _expected(error: BadParameter) -> str:
    return str(error).partition("expected: ")[2]


def with_options(model: Callable[..., Any], options: CaptureOptions) -> Callable[..., Any]:
    """The model as a captured function, with options that the caller keeps alive."""
    return captured_call(model, options)
