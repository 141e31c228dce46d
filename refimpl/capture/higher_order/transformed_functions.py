"""`torch.autograd.Function.apply` within transforms of torch.func: a node with graphs for the methods that the transforms use.

Counterpart: torch/_functorch/autograd_function.py custom_function_call
Differs: torch's own code calls the graphs at each level, as it calls the program's methods in eager mode. `forward`,
`setup_context`, `backward` and `jvp` are captured once, on slices; a `vmap` method on the tensors below that vmap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd import forward_ad

from refimpl._torch import (
    TransformLayer,
    below_transforms,
    is_wrapped,
    levels_with_gradient,
    mapped_over,
    transform_layers,
    without_autocast,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.higher_order.bodies import flatten
from refimpl.capture.higher_order.function_graphs import FUNCTION, Application, gradient_like, parts_of
from refimpl.capture.higher_order.graph_functions import transformed_function_apply
from refimpl.capture.higher_order.subgraphs import SubGraph, come_out, run_body
from refimpl.capture.values import ConstantValue, NumberValue, SequenceValue, TensorValue, Value, polyfills
from refimpl.capture.values.value import unsupported
from refimpl.trace.composite_kernels import composite_kernels

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_WHAT = "torch.autograd.Function.apply"
_IN_TRANSFORM = "a torch.autograd.Function in a transform of torch.func"


class TransformedApplication(Application):
    """One call of `apply` under at least one transform."""

    def __init__(self, domain: SymbolicDomain, class_: Any, source: Source, given: list[Value]) -> None:
        super().__init__(domain, class_, source, given)
        if class_.setup_context is FUNCTION.setup_context:
            raise GraphBreak("op_raises_on_fake", what="apply", error="RuntimeError")
        self._layers = transform_layers()
        if not {layer.kind for layer in self._layers} <= {"Vmap", "Grad", "Jvp"}:
            unsupported("a torch.autograd.Function in functionalize", self._tensors[0] if self._tensors else given[0])
        self._graph = SubGraph(self._body)  # that of setup_context, in which derivatives find their values
        self._arguments = [self._body.lift(self._state.graph.local(tensor.node)) for tensor in self._tensors]
        self._levels = [
            levels_with_gradient(arg.fake) if isinstance(arg, TensorValue) else frozenset[int]() for arg in given
        ]
        self._needs = self._needs_at_each_level()
        self._needs_gradient = bool(domain.state.backward_of or any(map(any, self._needs)))
        self._context.attributes.pop("needs_input_grad", None)
        self.domain, self.state, self.body, self.layers = domain, domain.state, self._body, self._layers
        self.given, self.tensors, self.method = given, self._tensors, self._function

    def _needs_at_each_level(self) -> list[tuple[bool, ...]]:
        """`needs_input_grad` at the levels at which autograd may run a backward, each once."""
        levels = sorted(frozenset().union(*self._levels))
        return [*dict.fromkeys(tuple(level in each for each in self._levels) for level in levels)]

    def value(self) -> Value:
        """The result of `apply`."""
        rule = self._layer_with_rule()
        mapped, above = None, self._layers
        if rule is None:
            result = self._forward()
        else:
            mapped = _Mapped(self, rule)
            for node in mapped.lifted:
                self._body.local(node)  # all graphs of the node read the same ones
            result, above = mapped.result, self._layers[self._layers.index(rule) + 1 :]
        parts = parts_of(self._domain, result)
        outputs = [part for part in parts if isinstance(part, (TensorValue, NumberValue))]
        if not outputs or any(isinstance(output, NumberValue) for output in outputs):
            unsupported(f"{_IN_TRANSFORM}, without tensors or with numbers as results,", result)
        if rule is None:
            self._check_outputs(outputs)
            others = [part for part in parts if not isinstance(part, TensorValue)]
            if come_out(self._body, others):
                unsupported("torch.autograd.Function that gives tensors in it", others[0])
        settings: dict[str, Any] = {
            "name": self._class.__name__, "generates_vmap_rule": bool(self._class.generate_vmap_rule), "patterns": [],
            "read": [], "saved": 0, "saved_for_forward": 0, "non_differentiable": [], "materialize_grads": True,
            "is_once_differentiable": self._is_once(), "has_rule": self._class.vmap is not FUNCTION.vmap,
        }  # fmt: skip
        graphs = (
            [None, [], None]
            if rule is not None and not _derives(above)
            else self._derivatives(result, outputs, above, settings)
        )
        return self._recorded(result, outputs, graphs, mapped, settings)

    # ------------------------------------------------------------------------------------------------------------ methods

    def _forward(self) -> Value:
        args = [self._function("forward"), SequenceValue(tuple, [*self._given])]
        with self._as_in_a_method():
            return run_body(self._domain, self._body, polyfills.called, args, what=_WHAT)

    @contextlib.contextmanager
    def _as_in_a_method(self) -> Iterator[None]:
        """As in the methods of a Function, autograd sees no operator. Which tensors require grad depends on the level."""
        before = self._state.runs_at_many_levels
        self._state.runs_at_many_levels = True
        try:
            with torch.no_grad(), getattr(forward_ad, "_set_fwd_grad_enabled")(False):
                yield
        finally:
            self._state.runs_at_many_levels = before

    def _derivatives(
        self, result: Value, outputs: list[Any], above: Sequence[TransformLayer], settings: dict[str, Any]
    ) -> list[Any]:
        """The graphs of `setup_context`, of backward and of `jvp`. Notes in the settings what they save and read."""
        self._know_needs(is_jvp=any(layer.kind == "Jvp" for layer in above))
        args = [self._function("setup_context"), self._context, SequenceValue(tuple, [*self._given]), result]
        with self._as_in_a_method():
            run_body(self._domain, self._graph, polyfills.called_to_set_up, args, what=_WHAT, changes=[self._context])
        if self._said("dirty_tensors"):
            unsupported(f"{_IN_TRANSFORM}, which calls mark_dirty,", self._tensors[0])
        self._know_needs(is_jvp=False)
        parts = parts_of(self._domain, result)
        backwards = self._backwards(parts, outputs) if self._needs_gradient else []
        saved, saved_for_forward = self._saved("saved_tensors"), self._saved("saved_for_forward")
        if saved and saved_for_forward and saved != saved_for_forward:
            unsupported("save_for_forward of other tensors than save_for_backward", self._tensors[0])
        derivative = self._jvp(parts, above)
        bodies = [graph for _, graph, _ in backwards] + ([] if derivative is None else [derivative[0]])
        kept = [*dict.fromkeys(node for graph in bodies for node in graph.lifted)]
        held = [node for node in kept if node not in (*saved, *saved_for_forward)]
        self._check_held(held)
        modules = []
        for _, graph, gradients in backwards:
            modules.append(self._arranged(graph, [*saved, *held], gradients))
        jvp = None if derivative is None else self._arranged(derivative[0], [*saved_for_forward, *held], derivative[1])
        read = self._arrange_set_up(outputs)
        set_up = self._graph.module([*saved, *saved_for_forward, *held])
        settings |= {
            "patterns": [pattern for pattern, _, _ in backwards], "read": read, "saved": len(saved),
            "saved_for_forward": len(saved_for_forward), "non_differentiable": self._indices("non_differentiable", outputs),
            "materialize_grads": self._materializes(),
        }  # fmt: skip
        return [set_up, modules, jvp]

    def _know_needs(self, *, is_jvp: bool) -> None:
        """Sets `needs_input_grad` if it is the same wherever the next method runs; otherwise reading it breaks the graph."""
        self._context.attributes.pop("needs_input_grad", None)
        is_known = len(self._needs) <= 1 and not self._state.runs_at_many_levels and not self._state.backward_of
        if is_known and not is_jvp:
            (needs,) = self._needs or [(False,) * len(self._given)]
            self._context.attributes["needs_input_grad"] = SequenceValue(tuple, [ConstantValue(need) for need in needs])

    def _saved(self, name: str) -> list[fx.Node]:
        """The nodes of what the program saved, in the graph of `setup_context`."""
        values = self._said(name)
        for value in values:
            if not isinstance(value, TensorValue):
                unsupported("save_for_backward", value)
        return [*dict.fromkeys(self._graph.local(value.node) for value in values)]

    def _check_held(self, held: list[fx.Node]) -> None:
        """Breaks the graph for a tensor that ctx keeps by itself, if backward runs below a vmap: eager cannot use it there."""
        differentiated = [level for levels in self._levels for level in levels]
        differentiated += [layer.level for layer in self._layers if layer.kind == "Jvp"] + [0] * bool(
            self._state.backward_of
        )
        if not any(layer.kind == "Vmap" and layer.level > min(differentiated, default=0) for layer in self._layers):
            return
        closed_over = {self._body.local(node) for node in self._lifted()}
        for node in held:
            if _is_tensor(node) and self._graph.origin(node) not in closed_over:
                unsupported(f"{_IN_TRANSFORM}, which keeps a tensor without saving it,", self._tensors[0])

    def _lifted(self) -> list[fx.Node]:
        """The nodes of the graph around that the methods read besides the arguments."""
        around = self._state.graph
        given = {around.local(tensor.node) for tensor in self._tensors}
        return [node for node in self._body.lifted if node not in given]

    def _arranged(self, graph: SubGraph, nodes: list[fx.Node], results: list[Any]) -> fx.GraphModule:
        if not {*graph.lifted} <= {*nodes}:
            unsupported("save_for_forward of other tensors than save_for_backward", self._tensors[0])
        graph.arrange(nodes)
        return graph.module(results)

    def _jvp(self, parts: list[Any], above: Sequence[TransformLayer]) -> tuple[SubGraph, list[Any]] | None:
        """The graph of `jvp` and the tangents that it returns; None if no transform calls it, or the program has none."""
        if not any(layer.kind == "Jvp" for layer in above) or self._class.jvp is FUNCTION.jvp:
            return None
        if not self._materializes():
            unsupported("jvp of a torch.autograd.Function with set_materialize_grads(False)", self._tensors[0])
        graph = SubGraph(self._graph)
        tangents = [
            self._tangent(graph, arg) if isinstance(arg, TensorValue) else ConstantValue(None) for arg in self._given
        ]
        attributes = self._context.attributes
        before = attributes.get("saved_tensors")
        attributes["saved_tensors"] = attributes.get("saved_for_forward", SequenceValue(tuple, []))
        state, around = self._state, self._state.graph
        state.graph = self._graph
        try:
            with self._as_in_a_method(), without_autocast():
                args = [self._function("jvp"), self._context, SequenceValue(tuple, [*tangents])]
                result = run_body(
                    self._domain, graph, polyfills.applied_forward, args, what="jvp of a torch.autograd.Function"
                )
        finally:
            state.graph = around
            del attributes["saved_tensors"]
            if before is not None:
                attributes["saved_tensors"] = before
        return graph, self._tangents(graph, parts, parts_of(self._domain, result))

    def _tangent(self, graph: SubGraph, arg: TensorValue) -> TensorValue:
        if not arg.fake.dtype.is_floating_point and not arg.fake.dtype.is_complex:
            unsupported("jvp of a torch.autograd.Function, for which there is no tangent, of", arg)
        fake = gradient_like(self._state, arg)
        value = TensorValue(graph.argument("tangent", fake), fake)
        self._state.by_fake[id(fake)] = value
        return value

    def _tangents(self, graph: SubGraph, parts: list[Any], tangents: list[Any]) -> list[Any]:
        """One node or None for each output that is a tensor."""
        if len(parts) != len(tangents):
            raise GraphBreak("op_raises_on_fake", what="jvp", error="RuntimeError")
        found = []
        for part, tangent in zip(parts, tangents, strict=True):
            if not isinstance(part, TensorValue) and not self._domain.is_none(tangent):
                raise GraphBreak("op_raises_on_fake", what="jvp", error="RuntimeError")
            if isinstance(part, TensorValue):
                found.append(graph.local(tangent.node) if isinstance(tangent, TensorValue) else None)
        return found

    # ------------------------------------------------------------------------------------------------------------ the node

    def _arrange_set_up(self, outputs: list[Any]) -> list[int]:
        """Gives the graph of `setup_context` its inputs in order. Returns the indices of the outputs among them."""
        nodes = [self._body.local(output.node) for output in outputs]
        read = [index for index, node in enumerate(nodes) if node not in self._arguments]
        closed_over = [self._body.local(node) for node in self._lifted()]
        self._graph.arrange([*self._arguments, *(nodes[index] for index in read), *closed_over])
        return read

    def _recorded(
        self, result: Value, outputs: list[Any], graphs: list[Any], mapped: _Mapped | None, settings: dict[str, Any]
    ) -> Value:
        """Adds the node. graphs: those of setup_context, of backward and of jvp."""
        state, around = self._state, self._state.graph
        lifted = self._lifted()
        forward = rule = None
        if mapped is None:
            forward = self._body.module([self._body.local(output.node) for output in outputs])
            self._body.hand_on()
        else:
            rule = mapped.module(lifted)
            settings |= {"in_dims": mapped.in_dims, "out_dims": mapped.out_dims}
        if any(is_wrapped(node.meta["example_value"]) for node in lifted if _is_tensor(node)):
            unsupported(
                f"{_IN_TRANSFORM}, which reads a tensor of the transform that is no argument,", self._tensors[0]
            )
        bodies = [forward, graphs[0], graphs[1], graphs[2], rule]
        nodes = [[around.local(tensor.node) for tensor in self._tensors], lifted]
        fakes = [[node.meta["example_value"] for node in each] for each in nodes]
        try:
            with state.fake_mode, composite_kernels():
                results = transformed_function_apply(*bodies, *fakes, **settings)
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what="apply", error=type(error).__name__) from error
        names = ("fwd_body", "set_up_body", "bwd_body", "jvp_body", "vmap_body")
        attached = [_attached(around, name, body) for name, body in zip(names, bodies, strict=True)]
        node = around.call("call_function", transformed_function_apply, [*attached, *nodes], settings, results)
        made = iter([state.part_of(node, index, part) for index, part in enumerate(results)])
        values = [next(made) if isinstance(part, TensorValue) else part for part in parts_of(self._domain, result)]
        is_tuple = isinstance(result, SequenceValue) and result.class_ is tuple
        return SequenceValue(tuple, values) if is_tuple else values[0]

    # ------------------------------------------------------------------------------------------------------- vmap methods

    def _layer_with_rule(self) -> TransformLayer | None:
        """The innermost vmap over an argument, if the program's class has a `vmap` method for it."""
        if self._class.vmap is FUNCTION.vmap or self._class.generate_vmap_rule:
            return None
        fakes = [tensor.fake for tensor in self._tensors]
        for layer in reversed(self._layers):
            below = [layer.unwrapped(fake) for fake in fakes]
            if any(dim is not None for _, dim in below):
                return layer
            fakes = [fake for fake, _ in below]
        return None


class _Mapped:
    """The program's `vmap` method on the arguments below that vmap, and the slices that it makes.

    result: the outputs as `setup_context` sees them. in_dims, out_dims: of the tensors among the arguments and results.
    """

    def __init__(self, application: TransformedApplication, layer: TransformLayer) -> None:
        if application.state.backward_of:
            unsupported(
                "the vmap method of a torch.autograd.Function, in the backward of another,", application.tensors[0]
            )
        self._state, self._application = application.state, application
        self._graph = SubGraph(self._state.graph)
        index = application.layers.index(layer)
        self.in_dims: list[int | None] = []
        args = [self._argument(arg, application.layers[index:]) for arg in application.given]
        output, dims = self._run(args, layer, index)
        parts = parts_of(application.domain, output)
        if not all(isinstance(part, TensorValue) for part in parts):
            unsupported("the vmap method of a torch.autograd.Function that returns it", output)
        self._nodes = [self._graph.local(part.node) for part in parts]
        if any(node.op == "placeholder" for node in self._nodes) or len({*self._nodes}) < len(self._nodes):
            unsupported(
                "the vmap method of a torch.autograd.Function that returns an argument, or one tensor twice", parts[0]
            )
        self.out_dims = _spread(application.domain, dims, len(parts), is_tuple=parts[0] is not output)
        slices = [self._slices(part, dim, layer) for part, dim in zip(parts, self.out_dims, strict=True)]
        self.result = SequenceValue(tuple, [*slices]) if parts[0] is not output else slices[0]

    def _argument(self, arg: Value, layers: Sequence[TransformLayer]) -> tuple[Value, Value]:
        """The argument below these transforms, and the dimension that the outermost of them runs over."""
        if not isinstance(arg, TensorValue):
            return arg, ConstantValue(None)
        fake, dim = arg.fake, None
        for layer in reversed(layers):
            fake, dim = layer.unwrapped(fake)
        self.in_dims.append(dim)
        value = TensorValue(self._graph.argument(arg.node.name, fake), fake)
        self._state.by_fake[id(fake)] = value
        return value, ConstantValue(dim)

    def _run(self, args: list[tuple[Value, Value]], layer: TransformLayer, depth: int) -> tuple[Any, Any]:
        """What the method returns, with the transforms from `layer` on left for a while: the results, and their dimensions."""
        application, state = self._application, self._state
        info = layer.info
        assert info is not None
        told = SequenceValue(type(info), [self._batch_size(args, info.batch_size), ConstantValue(info.randomness)])
        given = [told, SequenceValue(tuple, [dim for _, dim in args]), *(arg for arg, _ in args)]
        entered_at = state.transforms_at
        try:
            with below_transforms(depth):
                values = [application.method("vmap"), SequenceValue(tuple, given)]
                result = run_body(
                    application.domain,
                    self._graph,
                    polyfills.called,
                    values,
                    what="the vmap method of a torch.autograd.Function",
                )
        finally:
            state.transforms_at = entered_at
        pair = parts_of(application.domain, result)
        if len(pair) != 2:
            raise GraphBreak("op_raises_on_fake", what="vmap", error="RuntimeError")
        return pair[0], pair[1]

    def _batch_size(self, args: list[tuple[Value, Value]], known: Any) -> Value:
        """The number of slices; that of an argument, if it is symbolic."""
        if type(known) is int:
            return ConstantValue(known)
        mapped = [
            (arg, dim.value) for arg, dim in args if isinstance(arg, TensorValue) and isinstance(dim, ConstantValue)
        ]
        return next(self._state.size_of(arg, dim) for arg, dim in mapped if dim is not None)

    def _slices(self, part: TensorValue, dim: int | None, layer: TransformLayer) -> TensorValue:
        """A value for the output as the transforms above that vmap see it. Their methods read it, if there are any."""
        fake = mapped_over(part.fake, dim, layer.level)
        value = TensorValue(self._application.body.argument("output", fake), fake)
        self._state.by_fake[id(fake)] = value
        return value

    @property
    def lifted(self) -> list[fx.Node]:
        """The nodes of the graph around that the method reads besides the arguments."""
        return self._graph.lifted

    def module(self, lifted: list[fx.Node]) -> fx.GraphModule:
        """The graph of the method, as a module that takes the arguments and these nodes of the graph around."""
        self._graph.hand_on()
        self._graph.arrange(lifted)
        return self._graph.module(self._nodes)


def _spread(domain: SymbolicDomain, dims: Any, count: int, *, is_tuple: bool) -> list[int | None]:
    """The dimension of each output, from one for all of them or one for each."""
    leaves, tree = flatten(dims, domain.state.realize)
    found = [domain.constant_of(leaf, "vmap") for leaf in leaves]
    if tree and (not is_tuple or len(tree[2]) != count or any(tree[2])):
        raise GraphBreak("op_raises_on_fake", what="vmap", error="RuntimeError")
    if any(dim is not None and type(dim) is not int for dim in found):
        raise GraphBreak("op_raises_on_fake", what="vmap", error="RuntimeError")
    return found if tree else found * count


def _derives(layers: Sequence[TransformLayer]) -> bool:
    """Whether one of the transforms computes derivatives."""
    return any(layer.kind != "Vmap" for layer in layers)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _attached(graph: Any, name: str, body: Any) -> Any:
    if body is None:
        return None
    return [graph.attach(name, each) for each in body] if isinstance(body, list) else graph.attach(name, body)
