"""The graphs of one call of `torch.autograd.Function.apply`: forward, and a backward for each pattern of missing gradients.

Counterpart: torch/_dynamo/variables/higher_order_ops.py AutogradFunctionApplyVariable
"""

from __future__ import annotations

import itertools
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from refimpl._torch import without_autocast
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, Source
from refimpl.capture.higher_order.graph_functions import autograd_function_apply
from refimpl.capture.higher_order.subgraphs import SubGraph, come_out, run_body
from refimpl.capture.values import (
    ConstantValue,
    InstanceValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.classes import in_mro
from refimpl.capture.values.value import unsupported
from refimpl.trace.composite_kernels import composite_kernels

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

FUNCTION: Any = torch.autograd.Function
_MOST_PATTERNS = 2  # outputs that may have no gradient; each doubles the number of backward graphs
_ONCE = once_differentiable(lambda ctx: None).__code__


class Application:
    """One call of `apply` that becomes a node."""

    def __init__(self, domain: SymbolicDomain, class_: Any, source: Source, given: list[Value]) -> None:
        self._domain, self._state = domain, domain.state
        self._class, self._source = class_, source
        self._given = given
        self._tensors = [arg for arg in given if isinstance(arg, TensorValue)]
        self._graph = self._body = SubGraph(self._state.graph)  # what derivatives read, and what forward computes
        self._context = context_for(given)
        self._needs_gradient = needs_gradient(domain, given)
        if domain.state.backward_of:
            del self._context.attributes["needs_input_grad"]  # it is not known
            if class_ in domain.state.backward_of:
                raise GraphBreak("unsupported_operation", what="apply in its own backward", kind=class_.__name__)

    def value(self) -> Value:
        """The result of `apply`."""
        for tensor in self._tensors:
            self._graph.lift(self._state.graph.local(tensor.node))
        result = self._forward()
        parts = parts_of(self._domain, result)
        outputs = [part for part in parts if isinstance(part, (TensorValue, NumberValue))]
        self._check_outputs(outputs)
        others = [part for part in parts if not isinstance(part, (TensorValue, NumberValue))]
        if come_out(self._graph, others):
            unsupported("torch.autograd.Function that gives tensors in it", others[0])
        dirty = self._indices("dirty_tensors", self._tensors)
        backwards = self._backwards(parts, outputs) if self._needs_gradient else []
        kept = [*dict.fromkeys(node for _, graph, _ in backwards for node in graph.lifted)]
        saved = {self._graph.local(value.node) for value in self._saved_tensors()}
        modules = []
        for _, graph, gradients in backwards:
            graph.arrange(kept)
            modules.append(graph.module(gradients))
        forward = self._graph.module([*(self._local(output) for output in outputs), *kept])
        self._graph.hand_on()
        around = self._state.graph
        given = [around.local(tensor.node) for tensor in self._tensors]
        lifted = [node for node in self._graph.lifted if node not in given]
        name = self._class.__name__
        settings = {
            "name": name, "outputs": len(outputs), "patterns": [pattern for pattern, _, _ in backwards],
            "is_saved": [node in saved for node in kept], "dirty": dirty,
            "non_differentiable": self._indices("non_differentiable", outputs),
            "materialize_grads": self._materializes(), "is_once_differentiable": self._is_once(),
        }  # fmt: skip
        operands = [given, lifted]
        made = iter(function_node(self._state, forward, modules, operands, settings))
        values = [next(made) if isinstance(part, (TensorValue, NumberValue)) else part for part in parts]
        is_tuple = isinstance(result, SequenceValue) and result.class_ is tuple
        return SequenceValue(tuple, values) if is_tuple else values[0]

    # ------------------------------------------------------------------------------------------------------------ forward

    def _function(self, name: str) -> Value:
        if static_function(self._class, name) is None:
            raise GraphBreak("call_of_native_code", what=f"{self._class.__qualname__}.{name}")
        return self._domain.load_attr(ObjectValue(self._class, self._source), name)

    def _forward(self) -> Value:
        """The result of `forward` on the arguments."""
        given = SequenceValue(tuple, [*self._given])
        before = [_geometry(tensor.fake) for tensor in self._tensors]
        args: list[Any] = [self._function("forward"), self._context, given]
        polyfill = polyfills.applied_forward
        if self._class.setup_context is not FUNCTION.setup_context:
            args.insert(1, self._function("setup_context"))
            polyfill = polyfills.set_up
        with torch.no_grad():
            result = run_body(
                self._domain, self._graph, polyfill, args, what="torch.autograd.Function.apply", changes=[self._context],
                may_write=lambda: self._said("dirty_tensors"),
            )  # fmt: skip
        if [_geometry(tensor.fake) for tensor in self._tensors] != before:
            unsupported("torch.autograd.Function that gives its argument another shape", self._tensors[0])
        return result

    def _local(self, output: TensorValue | NumberValue) -> Any:
        return self._body.local(output.node if isinstance(output, TensorValue) else self._state.node_of(output))

    def _check_outputs(self, outputs: list[Any]) -> None:
        """Breaks the graph for an output that is neither an argument nor computed in the graph: autograd would change that
        tensor itself.
        """
        nodes = [self._local(output) for output in outputs]
        arguments = {self._body.local(tensor.node) for tensor in self._tensors}
        tensors = [node for node, output in zip(nodes, outputs, strict=True) if isinstance(output, TensorValue)]
        if len({*tensors}) < len(tensors):
            unsupported("torch.autograd.Function that gives one twice", outputs[0])
        if any(node.op == "placeholder" and node not in arguments for node in tensors):
            unsupported("torch.autograd.Function that gives what is no argument", outputs[0])

    def _said(self, name: str) -> list[Any]:
        """The tensors that the program passed to a method of `ctx`."""
        found = self._context.attributes.get(name)
        if found is None:
            return []
        return [self._state.realize(item) for item in found.items if not self._domain.is_none(item)]

    def _saved_tensors(self) -> list[TensorValue]:
        saved = self._said("saved_tensors")
        for value in saved:
            if not isinstance(value, TensorValue):
                unsupported("save_for_backward", value)
        return saved

    def _indices(self, name: str, among: list[Any]) -> list[int]:
        """The indices of the tensors that the program passed to a method of `ctx`. Dirty tensors have to be among them."""
        found = []
        for value in self._said(name):
            places = [index for index, other in enumerate(among) if other is value]
            if not places and name == "dirty_tensors":
                unsupported("mark_dirty of what is no argument", value)
            found += places
        return found

    def _materializes(self) -> bool:
        value = self._context.attributes.get("materialize_grads", ConstantValue(True))
        return bool(self._domain.constant_of(value, "set_materialize_grads"))

    # ----------------------------------------------------------------------------------------------------------- backward

    def _name_of_backward(self) -> str | None:
        """The name of the autograd node; None if there is no backward, which autograd reports when it is needed."""
        for name in ("backward", "vjp"):
            if in_mro(self._class, name) is not in_mro(FUNCTION, name):
                return name
        return None

    def _is_once(self) -> bool:
        function = static_function(self._class, self._name_of_backward() or "backward")
        return function is not None and function.__code__ is _ONCE

    def _backwards(self, parts: list[Any], outputs: list[Any]) -> list[tuple[tuple[bool, ...], SubGraph, list[Any]]]:
        """For each pattern of missing gradients: which outputs have one, the graph, and the gradients it returns."""
        if self._name_of_backward() is None:
            return []
        has_one = [isinstance(output, TensorValue) for output in outputs]
        if self._materializes():
            return [(tuple(has_one), *self._backward(parts, tuple(has_one)))]
        without = self._indices("non_differentiable", outputs)
        has_one = [is_tensor and index not in without for index, is_tensor in enumerate(has_one)]
        if sum(has_one) > _MOST_PATTERNS:
            unsupported("set_materialize_grads(False) with so many outputs", self._tensors[0])
        patterns = [*itertools.product(*((True, False) if may_have else (False,) for may_have in has_one))]
        return [(pattern, *self._backward(parts, pattern)) for pattern in patterns if any(pattern)]

    def _backward(self, parts: list[Any], pattern: tuple[bool, ...]) -> tuple[SubGraph, list[Any]]:
        graph = SubGraph(self._graph)
        has_one = iter(pattern)
        gradients: list[Value] = []
        for index, part in enumerate(parts):
            is_given = isinstance(part, (TensorValue, NumberValue)) and next(has_one)
            if is_given and isinstance(part, TensorValue):
                fake = gradient_like(self._state, part)
                value = TensorValue(graph.argument(f"gradient_{index}", fake), fake)
                self._state.by_fake[id(fake)] = value
                gradients.append(value)
            else:
                gradients.append(ConstantValue(None))
        state, name = self._state, self._name_of_backward() or "backward"
        function = self._function(name)
        if self._is_once():
            inner = getattr(static_function(self._class, name), "__wrapped__")
            function = state.wrap(inner, AttributeSource(AttributeSource(self._source, name), "__wrapped__"))
        around, outer = state.graph, state.backward_of
        state.graph, state.backward_of = self._graph, (*outer, self._class)
        try:
            with torch.no_grad(), without_autocast():
                result = run_body(
                    self._domain, graph, polyfills.applied_forward,
                    [function, self._context, SequenceValue(tuple, gradients)], what="backward of a torch.autograd.Function",
                )  # fmt: skip
        finally:
            state.graph, state.backward_of = around, outer
        return graph, self._gradients(graph, result)

    def _gradients(self, graph: SubGraph, result: Value) -> list[Any]:
        """One node or None for each argument that is a tensor."""
        parts = parts_of(self._domain, result)
        if len(parts) < len(self._given):
            raise GraphBreak("op_raises_on_fake", what="backward", error="RuntimeError")
        found = []
        for part, arg in itertools.zip_longest(parts, self._given):
            is_tensor = isinstance(arg, TensorValue)
            if not self._domain.is_none(part) and not (is_tensor and isinstance(part, TensorValue)):
                raise GraphBreak("op_raises_on_fake", what="backward", error="RuntimeError")
            if is_tensor:
                found.append(graph.local(part.node) if isinstance(part, TensorValue) else None)
        return found


def function_node(
    state: Any, forward: Any, backwards: list[Any], operands: list[Any], settings: dict[str, Any]
) -> list[Value]:
    """The node, and the values of its outputs. operands: nodes of the arguments and of lifted tensors."""
    around = state.graph
    given, lifted = ([node.meta["example_value"] for node in nodes] for nodes in operands)
    try:
        with (
            state.fake_mode,
            composite_kernels(),
        ):  # autograd decides which outputs are views and which require grad
            results = autograd_function_apply(forward, backwards, given, lifted, **settings)
    except Exception as error:
        raise GraphBreak("op_raises_on_fake", what="apply", error=type(error).__name__) from error
    if settings["dirty"]:
        around.has_effects = True
    bodies = [around.attach("fwd_body", forward), [around.attach("bwd_body", module) for module in backwards]]
    node = around.call("call_function", autograd_function_apply, [*bodies, *operands], settings, results)
    return [state.part_of(node, index, part) for index, part in enumerate(results)]


def static_function(class_: Any, name: str) -> FunctionType | None:
    """A static or class method written in Python."""
    found = in_mro(class_, name) if isinstance(class_, type) else None
    function = found.__func__ if isinstance(found, (staticmethod, classmethod)) else None
    return function if isinstance(function, FunctionType) else None


def needs_gradient(domain: SymbolicDomain, given: list[Value]) -> bool:
    """Whether an argument requires grad. Within a backward it may always: there may be a second derivative."""
    if domain.state.backward_of:
        return any(isinstance(arg, TensorValue) for arg in given)
    return torch.is_grad_enabled() and any(map(is_differentiated, given))


def context_for(given: list[Value]) -> InstanceValue:
    context = InstanceValue(polyfills.FunctionContext)
    needed: list[Value] = [ConstantValue(is_differentiated(arg)) for arg in given]
    context.attributes["needs_input_grad"] = SequenceValue(tuple, needed)
    return context


def is_differentiated(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.fake.requires_grad


def parts_of(domain: SymbolicDomain, result: Value) -> list[Any]:
    is_tuple = isinstance(result, SequenceValue) and result.class_ is tuple
    return [domain.state.realize(part) for part in result.items] if is_tuple else [result]  # pyright: ignore


def _geometry(fake: torch.Tensor) -> Any:
    return fake.shape, fake.stride() if fake.layout is torch.strided else fake.layout, fake.dtype


def gradient_like(state: Any, output: TensorValue) -> torch.Tensor:
    """A fake gradient. It has the output's shape; its other properties are not known."""
    fake = output.fake
    if fake.layout is not torch.strided:
        unsupported("a gradient", output)
    with state.fake_mode, torch.no_grad():
        return torch.empty(fake.shape, dtype=fake.dtype, device=fake.device)
