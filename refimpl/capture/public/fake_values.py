"""The results of a captured graph's nodes: on fake tensors, and on real inputs on request.

Counterpart: torch/_dynamo/utils.py set_example_value, get_fake_value, run_node, get_real_value and what they use
Differs: a call takes what it needs from the fields of `Tracer`; graph breaks are those of refimpl.capture.breaks.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.nn.modules.lazy import LazyModuleMixin

from refimpl._torch import (
    SYMBOLIC_TYPES,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    TorchValueRangeError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    pytree,
    upstream_shape_error,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.public.errors import TorchRuntimeError, UserError, UserErrorType
from refimpl.symbolic.fake_inputs import fake_input
from refimpl.symbolic.ranges import EmptyRange
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.symbols import fresh_bindings
from refimpl.trace.composite_kernels import composite_kernels


class Tracer(Protocol):
    """The capture of a graph, as far as these functions need it."""

    @property
    def fake_mode(self) -> FakeTensorMode:
        """The mode of all fake tensors of the graph."""
        ...

    @property
    def nn_modules(self) -> Mapping[str, Any]:
        """The modules that `call_module` and `get_attr` name."""
        ...

    @property
    def real_value_cache(self) -> dict[fx.Node, Any]:
        """The results of nodes that ran on real inputs."""
        ...


# ---------------------------------------------------------------------------------------------------- notes on nodes


def set_example_value(node: fx.Node, example_value: Any) -> None:
    """Sets a node's example value, and notes where it contains unbacked symbols.

    The example value is the live fake: a later write in place changes it. Raises PendingUnbackedSymbolNotFound for an unbacked
    symbol that the call made but that is not in the value.
    """
    node.meta["example_value"] = example_value
    env = _environment_of(example_value)
    if env is not None and env.pending_fresh_unbacked_symbols:
        bindings = fresh_bindings(env, example_value)
        if bindings:
            node.meta["unbacked_bindings"] = bindings


def _environment_of(value: Any) -> ShapeEnv | None:
    if isinstance(value, FakeTensor):
        env: Any = value.fake_mode.shape_env
    elif isinstance(value, SYMBOLIC_TYPES):
        env = getattr(value.node, "shape_env", None)  # a nested int belongs to none
    elif isinstance(value, (tuple, list)):
        return next(filter(None, map(_environment_of, value)), None)
    else:
        return None
    return env if isinstance(env, ShapeEnv) else None


def extract_fake_example_value(node: fx.Node, required: bool = True) -> Any:
    """The fake tensor of a node. Without one, None if it is not required, else GraphBreak."""
    value = node.meta.get("example_value")
    if isinstance(value, FakeTensor):
        return value
    if required:
        raise GraphBreak("op_without_fake_kernel", what=f"node {node.name}")
    return None


def _get_fake_tensor(node: fx.Node) -> FakeTensor:
    """The fake tensor by which tensors are told apart. Raises GraphBreak for a node without one."""
    value = node.meta.get("example_value")
    if not isinstance(value, FakeTensor):
        raise GraphBreak(
            "unsupported_operation",
            what="`is`, which needs tensors without data on both sides,",
            kind=type(value).__name__,
        )
    return value


def ensure_graph_fake(e: Any, tx: Tracer) -> Any:
    """The value itself. Raises AssertionError for a fake tensor of another mode than the graph's."""
    mode = e.fake_mode if isinstance(e, FakeTensor) else None
    assert mode is tx.fake_mode, (
        f"{e!r} belongs to fake mode {mode!r}\n  expected: {tx.fake_mode!r}, that of the graph\n"
        "  what to do: make it with to_fake_tensor(tensor, the graph's mode)"
    )
    return e


def get_fake_values_from_nodes(tx: Tracer, nodes: Any, allow_non_graph_fake: bool) -> Any:
    """A node's arguments, with example values in place of nodes. Numbers and constants stay.

    Raises AssertionError for a fake tensor of another mode, unless that is allowed.
    """

    def visit(node: fx.Node) -> Any:
        if node.op == "call_function" and "example_value" not in node.meta:
            # `get_fake_value` computes the arguments' example values first
            set_example_value(node, get_fake_value(node, tx, allow_non_graph_fake))
        if node.op == "get_attr" and "example_value" not in node.meta:
            return tx.nn_modules[str(node.target)]
        value = node.meta.get("example_value")
        if not allow_non_graph_fake:
            pytree.tree_map_only(FakeTensor, lambda fake: ensure_graph_fake(fake, tx), value)
        return value

    return map_arg(nodes, visit)


# ------------------------------------------------------------------------------------------------------- fake values


def get_fake_value(node: fx.Node, tx: Tracer, allow_non_graph_fake: bool = False) -> Any:
    """A node's result on fake tensors: its example value, or the result of running it.

    A module is copied with fake parameters, a lazy one after it was initialised. Raises GraphBreak if the graph has to end
    before the node, UserError for a contradiction to known facts about sizes, TorchRuntimeError if the call would raise without
    capture too.
    """
    known = node.meta.get("example_value")
    if isinstance(known, FakeTensor):
        return known
    args, kwargs = get_fake_values_from_nodes(tx, (node.args, node.kwargs), allow_non_graph_fake)
    module = None
    if node.op == "call_method" and args and isinstance(args[0], torch.nn.Module):
        args = (deepcopy_to_fake_tensor(args[0], tx.fake_mode), *args[1:])
    if node.op == "call_module":
        module = tx.nn_modules[str(node.target)]
        if issubclass(type(module), LazyModuleMixin) and hasattr(module, "_initialize_hook"):
            module._infer_parameters(module, args)
        module = deepcopy_to_fake_tensor(module, tx.fake_mode)
    try:
        with tx.fake_mode, composite_kernels():
            value = wrap_fake_exception(lambda: run_node(tx, node, args, kwargs, module))
    except GraphBreak:
        raise
    except RuntimeError as error:
        reason = fake_error(error, str(node.target))
        raise as_raised(reason) from (error.__cause__ or error)
    if not allow_non_graph_fake:
        pytree.tree_map_only(torch.Tensor, lambda fake: ensure_graph_fake(fake, tx), value)
    return value


def fake_error(error: BaseException, what: str) -> GraphBreak:
    """The kind of graph break for an error of a call on fake tensors."""
    cause = error if error.__cause__ is None or not isinstance(error, RunFailed) else error.__cause__
    match cause:
        case DataDependentOutputException():
            return GraphBreak("data_dependent_read", what=what)
        case DynamicOutputShapeException():
            return GraphBreak("dynamic_output_shape", what=what)
        case UnsupportedOperatorException() | UnsupportedFakeTensorException():
            return GraphBreak("op_without_fake_kernel", what=what)
        case TorchValueRangeError() | EmptyRange():
            return GraphBreak("outside_of_range", what=what, error=_first_line(cause))
        case TypeError() if "argument" in str(cause):
            return GraphBreak("wrong_arguments", what=what, error=_first_line(cause))
        case _ if isinstance(cause, upstream_shape_error("GuardOnDataDependentSymNode")):
            return GraphBreak("guard_on_data", what=_first_line(cause))
        case _:
            said = _first_line(cause)
            return GraphBreak(
                "op_raises_on_fake", what=what, error=type(cause).__name__, said=f": {said}" if said else said
            )


def as_raised(reason: GraphBreak) -> Exception:
    """The user's error for a graph break that is not allowed; the break itself if it is a limit of capture."""
    match reason.kind.name:
        case _ if reason.operator is not None:
            return reason
        case "op_raises_on_fake":
            return TorchRuntimeError(str(reason))
        case "outside_of_range":
            return UserError(UserErrorType.CONSTRAINT_VIOLATION, str(reason))
        case "guard_on_data":
            return UserError(UserErrorType.ANTI_PATTERN, str(reason), case_name="constrain_as_size_example")
        case _:
            return reason


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def wrap_fake_exception(fn: Callable[[], Any]) -> Any:
    """The result of `fn`. Raises GraphBreak if fake tensors do not support it."""
    try:
        return fn()
    except UnsupportedFakeTensorException as error:
        raise GraphBreak("op_without_fake_kernel", what=_first_line(error)) from error


def deepcopy_to_fake_tensor(obj: Any, fake_mode: FakeTensorMode) -> Any:
    """A deep copy with fake tensors in place of tensors; the same copy each time for one module. `obj` is unchanged."""
    with FakeCopyMode(fake_mode):
        return wrap_fake_exception(lambda: copy.deepcopy(obj))


def to_fake_tensor(t: torch.Tensor, fake_mode: FakeTensorMode) -> Any:
    """The fake tensor of an input, with the symbols it already has in this mode, so that a capture and a trace of its graph use
    one symbol for a size.
    """
    env = fake_mode.shape_env
    if isinstance(env, ShapeEnv):
        return fake_input(t, fake_mode, env, "")
    return fake_mode.from_tensor(t)


# ---------------------------------------------------------------------------------------------------- running a node


class _Current(threading.local):
    node: fx.Node | None = None


_CURRENT = _Current()


class RunFailed(RuntimeError):
    """A node raised an error, which is the cause."""


def get_current_node() -> fx.Node | None:
    """The node that runs in this thread."""
    return _CURRENT.node


@contextlib.contextmanager
def set_current_node(node: fx.Node) -> Iterator[None]:
    """Sets the current node within the block."""
    before, _CURRENT.node = _CURRENT.node, node
    try:
        yield
    finally:
        _CURRENT.node = before


def run_node(tracer: Tracer, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], nnmodule: Any) -> Any:
    """Runs a node on these arguments: a call, a `get_attr`, or for a placeholder its example value.

    nnmodule: the module of a `call_module`. Raises GraphBreak for a missing kernel, RuntimeError that names the call for other
        errors, AssertionError for another kind of node.
    """
    with set_current_node(node):
        try:
            match node.op:
                case "call_function":
                    function: Any = node.target
                    return function(*args, **kwargs)
                case "call_method":
                    return getattr(args[0], str(node.target))(*args[1:], **kwargs)
                case "call_module":
                    assert nnmodule is not None, f"{node.target} is no module\n  expected: the module that is called"
                    return nnmodule(*args, **kwargs)
                case "get_attr":
                    return tracer.nn_modules[str(node.target)]
                case "placeholder":
                    assert "example_value" in node.meta, (
                        f"input {node.name} has no example_value\n  expected: set_example_value before"
                    )
                    return node.meta["example_value"]
                case _:
                    raise AssertionError(f"{node.op}\n  expected: a call, an attribute or an input")
        except (NotImplementedError, UnsupportedFakeTensorException) as error:
            raise GraphBreak("op_without_fake_kernel", what=str(node.target)) from error
        except (AssertionError, GraphBreak):
            raise
        except Exception as error:
            raise RunFailed(
                f"Failed running {node.op} {node.target}(*{tuple(args)}, **{dict(kwargs)}):\n{error}"
            ).with_traceback(error.__traceback__) from error


def get_real_value(node: fx.Node, tracer: Tracer) -> Any:
    """A node's result on the real inputs, which are in the cache for the placeholders. The nodes it needs run as well, each
    once.

    Modules are copied, so that the program's are not written to. Raises TorchRuntimeError if a node raises.
    """
    cache = tracer.real_value_cache
    if node in cache:
        return cache[node]
    args, kwargs = map_arg((node.args, node.kwargs), lambda inner: get_real_value(inner, tracer))
    if node.op == "placeholder":
        grapharg = node.meta.get("grapharg")
        assert grapharg is not None, (
            f"input {node.name} has no example\n  expected: meta['grapharg'], or a value in the cache"
        )
        cache[node] = grapharg.example
        return cache[node]
    module = None
    if node.op == "call_module":
        module = copy.deepcopy(tracer.nn_modules[str(node.target)])
    if node.op == "call_method" and isinstance(args[0], torch.nn.Module):
        args = (copy.deepcopy(args[0]), *args[1:])
    try:
        value = cache[node] = run_node(tracer, node, args, kwargs, module)
    except RuntimeError as error:
        raise TorchRuntimeError(str(error)) from error
    return value
