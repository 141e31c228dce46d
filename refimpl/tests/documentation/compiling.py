"""Examples of torch.compile's guides: backends, the FAQ, NumPy, modules and hooks, training, fine-grained control."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from refimpl.tests.documentation.example import Graphs, Page, equal, leaf, raising, same

_GUIDE = "user_guide/torch_compiler"
_AREA = "torch.compile"
start = Page(_AREA, "Getting Started", f"{_GUIDE}/torch.compiler_get_started.html")
tutorial = Page(_AREA, "Introduction to torch.compile", "intermediate/torch_compile_tutorial.html")
backends = Page(_AREA, "Custom Backends", f"{_GUIDE}/torch.compiler_custom_backends.html")
faq = Page(_AREA, "Frequently Asked Questions", f"{_GUIDE}/torch.compiler_faq.html")
fine = Page(_AREA, "TorchDynamo APIs for fine-grained tracing", f"{_GUIDE}/torch.compiler_fine_grain_apis.html")
modules = Page(_AREA, "PyTorch 2.0 NNModule Support", f"{_GUIDE}/torch.compiler_nn_module.html")
backward = Page(_AREA, "torch.compile has different autograd semantics", f"{_GUIDE}/torch.compiler_backward.html")
optimizers = Page(_AREA, "(beta) Compiling the optimizer with torch.compile", "recipes/compiling_optimizer.html")
regional = Page(
    _AREA, "Reducing torch.compile cold start with regional compilation", "recipes/regional_compilation.html"
)
autograd = Page(_AREA, "Compiled Autograd", "intermediate/compiled_autograd_tutorial.html")
attention = Page(_AREA, "Scaled Dot Product Attention", "intermediate/scaled_dot_product_attention_tutorial.html")
hooks = Page(_AREA, "Hooks for autograd saved tensors", "intermediate/autograd_saved_tensors_hooks_tutorial.html")
checkpoints = Page(_AREA, "Activation Checkpointing", "checkpoint.html")


@start
def two_pointwise_calls(api: Any) -> None:
    """cos of sin, forward and backward."""

    def body(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cos(x).exp() + torch.sin(y)

    same(body, api.compile(body, backend="aot_eager"), leaf(6), leaf(6))


@start
def a_model_of_layers(api: Any) -> None:
    """A network with normalisation in training: gradients and running means."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    same(model, api.compile(model, backend="aot_eager"), torch.randn(2, 2, 6, 6))


@tutorial
def a_decorator(api: Any) -> None:
    """compile as a decorator, and a nested call."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    @api.compile(backend="aot_eager", fullgraph=True)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + inner(-x)

    same(lambda x: torch.tanh(x) * 2 + torch.tanh(-x) * 2, outer, leaf(4))


class _Branching(nn.Module):
    """A module whose course depends on data, with a call of a compiled function."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        if x.sum() < 0:
            x = -x
        return torch.relu(x)


@tutorial
def a_module_with_a_branch(api: Any) -> None:
    """A module whose forward breaks the graph."""
    module = _Branching()
    same(module, api.compile(module, backend="aot_eager"), torch.randn(3, 5))


@tutorial
def compile_in_place(api: Any) -> None:
    """Module.compile: the parameters keep their names, as they do not with compile(module)."""
    module = nn.Linear(3, 2)
    wrapped = api.compile(module, backend="eager")
    equal(sorted(wrapped.state_dict()), ["_orig_mod.bias", "_orig_mod.weight"])
    equal(sorted(module.state_dict()), ["bias", "weight"])
    x = torch.randn(4, 3)
    equal(wrapped(x), module(x))


@tutorial
def a_function_of_containers(api: Any) -> None:
    """A list of tensors, a dictionary, and a class of the program."""

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    def body(parts: dict[str, list[torch.Tensor]], scale: Scale) -> dict[str, torch.Tensor]:
        return {name: scale(torch.stack(values).sum(0)) for name, values in parts.items()}

    given = {"a": [torch.ones(2), torch.ones(2)], "b": [torch.zeros(3)]}
    found = api.compile(body, backend="eager", fullgraph=True)(given, Scale(1.5))
    equal(found["a"], torch.full((2,), 3.0))
    equal(list(found), ["a", "b"])


@backends
def a_backend_that_prints(api: Any) -> None:
    """A backend gets the graph and its inputs."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.append(([node.op for node in graph.graph.nodes], [tuple(one.shape) for one in example_inputs]))
        return graph.forward

    compiled = api.compile(lambda x, y: torch.cos(x) - torch.sin(y), backend=backend)
    equal(compiled(torch.zeros(5), torch.zeros(5)), torch.ones(5))
    operations, shapes = seen[0]
    equal(operations, ["placeholder", "placeholder", "call_function", "call_function", "call_function", "output"])
    equal(shapes, [(5,), (5,)])


@backends
def a_backend_for_a_module(api: Any) -> None:
    """The same for a module."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Sigmoid()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(torch.cos(x))

    module, graphs = Small(), Graphs()
    x = torch.randn(5)
    equal(api.compile(module, backend=graphs)(x), module(x))
    equal(len(graphs), 1)


@backends
def a_backend_for_a_program_with_a_branch(api: Any) -> None:
    """Over many calls there are three graphs: before the branch, and one for each way."""
    graphs = Graphs()

    def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = a / (torch.abs(a) + 2)
        if b.sum() < 0:
            b = b * -1
        return x * b

    compiled = api.compile(body, backend=graphs)
    for sign in (1, -1, 1, -1):
        a, b = torch.randn(5), torch.ones(5) * sign
        equal(compiled(a, b), body(a, b))
    equal(len(graphs), 3)


@backends
def a_backend_of_torchscript(api: Any) -> None:
    """A backend that scripts the graph."""

    def scripted(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return torch.jit.script(torch.fx.GraphModule(graph, graph.graph))

    x = torch.randn(4)
    equal(api.compile(lambda x: torch.relu(x) + 2, backend=scripted)(x), torch.relu(x) + 2)


@backends
def a_registered_backend(api: Any) -> None:
    """A backend by its name."""
    calls: list[int] = []

    def documented_backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    api._dynamo.register_backend(documented_backend)
    equal(api.compile(lambda x: x + 2, backend="documented_backend")(torch.ones(2)), torch.full((2,), 3.0))
    equal(calls, [1])


@backends
def backends_in_a_row(api: Any) -> None:
    """lookup_backend gives a backend, tried after one that is not there."""

    def first_that_works(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        for name in ("no_such_backend", "aot_eager"):
            try:
                return api._dynamo.lookup_backend(name)(graph, example_inputs)
            except api._dynamo.exc.InvalidBackend:
                pass
        return graph.forward

    same(lambda x: x.sin() * 2, api.compile(lambda x: x.sin() * 2, backend=first_that_works), leaf(3))


@backends
def a_backend_after_aot_autograd(api: Any) -> None:
    """aot_autograd around a compiler: it gets a forward and a backward graph of aten operators."""
    kinds: list[set[str]] = []

    def compiler(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        kinds.append({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
        return graph.forward

    backend = api._dynamo.backends.common.aot_autograd(fw_compiler=compiler)
    same(lambda x: x.sin() * x, api.compile(lambda x: x.sin() * x, backend=backend), leaf(3))
    assert len(kinds) >= 2
    assert all(name.startswith("aten.") for names in kinds for name in names), kinds


@faq
def one_graph_is_asked_for(api: Any) -> None:
    """fullgraph=True raises at the first break."""

    def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        print("seen")
        return a * b if b.sum() > 0 else a

    with raising(api._dynamo.exc.Unsupported):
        api.compile(body, backend="eager", fullgraph=True)(torch.ones(2), torch.ones(2))


@faq
def breaks_are_explained(api: Any) -> None:
    """explain counts graphs, breaks and operations."""

    def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = a / (torch.abs(a) + 2)
        print("seen")
        if b.sum() < 0:
            b = b * -1
        return x * b

    report = api._dynamo.explain(body)(torch.ones(4), torch.ones(4))
    equal((report.graph_count, report.graph_break_count), (3, 2))
    equal(len(report.break_reasons), 2)


@faq
def only_what_was_compiled_runs(api: Any) -> None:
    """dynamo.run uses compiled graphs, and compiles none."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x + 2, backend=graphs)
    compiled(torch.ones(3))
    frozen = api._dynamo.run(compiled)
    equal(frozen(torch.ones(3)), torch.full((3,), 3.0))
    equal(frozen(torch.ones(4, 4)), torch.full((4, 4), 3.0))
    equal(len(graphs), 1)


@faq
def a_transform_of_a_compiled_function(api: Any) -> None:
    """torch.func.grad of a compiled function."""
    compiled = api.compile(lambda x: torch.sin(x), backend="eager")
    x = torch.tensor(0.5)
    equal(torch.func.grad(lambda x: compiled(x))(x), x.cos())


@faq
def a_gradient_inside(api: Any) -> None:
    """torch.func.grad in a compiled function."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda v: (v.cos() * v).sum())(x)

    x = torch.randn(2, 3)
    equal(api.compile(body, backend="aot_eager", fullgraph=True)(x), x.cos() - x * x.sin())


@faq
def a_vmap_inside(api: Any) -> None:
    """torch.vmap in a compiled function."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row.sum(1) * 2)(x)

    x = torch.randn(2, 3, 4)
    equal(api.compile(body, backend="aot_eager", fullgraph=True)(x), x.sum(2) * 2)


@faq
def a_function_put_into_the_graph(api: Any) -> None:
    """allow_in_graph of a transform."""

    @api._dynamo.allow_in_graph
    def row_sums(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.sum)(x)

    x = torch.randn(2, 3)
    equal(api.compile(lambda x: row_sums(x) + 1, backend="eager", fullgraph=True)(x), x.sum(1) + 1)


@faq
def a_numpy_function(api: Any) -> None:
    """NumPy code gives an array."""

    def body(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sum(x[:, :, None] - y[:, None, :], axis=(-2, -1))

    graphs = Graphs()
    x, y = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    found = api.compile(body, backend=graphs)(x, y)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, body(x, y))
    equal(len(graphs), 1)


@faq
def numpy_between_tensors(api: Any) -> None:
    """tensor -> array -> tensor."""

    def body(x: torch.Tensor) -> torch.Tensor:
        array = np.tanh(x.numpy()) * 2
        return torch.from_numpy(array) + 1

    x = torch.randn(4)
    equal(api.compile(body, backend="eager", fullgraph=True)(x), torch.tanh(x) * 2 + 1)


@faq
def numpy_for_tensors(api: Any) -> None:
    """wrap_numpy: NumPy code that takes and gives tensors, with gradients."""

    def body(x: Any, y: Any) -> Any:
        return np.mean(np.sum(x[:, :, None] * y[:, None, :], axis=(-2, -1)))

    compiled = api.compile(api.compiler.wrap_numpy(body), backend="aot_eager", fullgraph=True)
    x, y = leaf(2, 3), torch.randn(2, 3)
    found = compiled(x, y)
    expected = (x[:, :, None] * y[:, None, :]).sum((-2, -1)).mean()
    equal(found, expected)
    equal(torch.autograd.grad(found, x)[0], torch.autograd.grad(expected, x)[0])


@faq
def numpy_with_a_break(api: Any) -> None:
    """A break between NumPy calls."""
    graph_break = api._dynamo.graph_break

    def body(x: np.ndarray) -> np.ndarray:
        y = np.cos(x) + 1
        graph_break()
        return np.sqrt(y)

    x = np.linspace(0, 1, 5)
    np.testing.assert_allclose(api.compile(body, backend="eager")(x), np.sqrt(np.cos(x) + 1))


@fine
def an_operator_left_out(api: Any) -> None:
    """disallow_in_graph of an operator: it runs between two graphs."""
    graphs = Graphs()
    api._dynamo.disallow_in_graph(torch.asinh)
    try:
        x = torch.randn(3)
        equal(api.compile(lambda x: torch.asinh(x + 1) * 2, backend=graphs)(x), torch.asinh(x + 1) * 2)
    finally:
        api._dynamo.allow_in_graph(torch.asinh)
    equal(len(graphs), 2)


@fine
def a_function_as_one_call(api: Any) -> None:
    """allow_in_graph: the function is one node."""
    graphs = Graphs()

    @api.compiler.allow_in_graph
    def seven(x: torch.Tensor) -> torch.Tensor:
        return x * 7

    equal(api.compile(lambda x: seven(x) + 1, backend=graphs, fullgraph=True)(torch.ones(2)), torch.full((2,), 8.0))
    equal(sum(node.op == "call_function" for node in graphs.graphs[0].graph.nodes), 2)


@fine
def a_result_assumed_constant(api: Any) -> None:
    """assume_constant_result runs the function once, while capturing."""
    calls: list[int] = []

    @api.compiler.assume_constant_result
    def setting() -> int:
        calls.append(1)
        return 4

    compiled = api.compile(lambda x: x * setting(), backend="eager", fullgraph=True)
    equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    equal(calls, [1])


@fine
def a_function_substituted(api: Any) -> None:
    """substitute_in_graph gives Python code for a builtin that capture does not know."""

    @api.compiler.substitute_in_graph(operator.indexOf)
    def index_of(a: Any, b: Any, /) -> int:
        for i, item in enumerate(a):
            if item is b or item == b:
                return i
        raise ValueError("sequence.index(x): x not in sequence")

    def body(x: torch.Tensor, names: list[str]) -> torch.Tensor:
        return x * operator.indexOf(names, "c")

    compiled = api.compile(body, backend="eager", fullgraph=True)
    equal(compiled(torch.ones(2), ["a", "b", "c"]), torch.full((2,), 2.0))


@fine
def who_is_compiling(api: Any) -> None:
    """is_compiling and is_dynamo_compiling in a compiled function, and outside of it; is_exporting is False."""
    names = (api.compiler.is_compiling, api.compiler.is_dynamo_compiling, api.compiler.is_exporting)
    found = api.compile(lambda x: (x, [name() for name in names]), backend="eager")(torch.ones(1))[1]
    equal(found, [True, True, False])
    equal([name() for name in names], [False, False, False])


def _doubled(module: nn.Module, given: Any, output: Any) -> Any:
    return output * 2


@modules
def hooks_of_modules(api: Any) -> None:
    """A forward hook that changes the result, and a hook that changes the arguments, which are there before the first call."""
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module[0].register_forward_hook(_doubled)
    module[1].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    same(module, api.compile(module, backend="aot_eager"), leaf(2, 3))


@modules
def backward_hooks_of_modules(api: Any) -> None:
    """A full backward hook is called with eager's gradients."""
    gradients: list[torch.Tensor] = []
    module = nn.Linear(3, 2)
    module.register_full_backward_hook(lambda _, __, given: gradients.append(given[0].clone()))
    compiled = api.compile(module, backend="aot_eager")
    for run in (module, compiled):
        run(leaf(4, 3)).sum().backward()
    equal(gradients[1], gradients[0])


@backward
def a_result_that_no_loss_reads(api: Any) -> None:
    """One of two results is used: the gradient of what only the other depends on is zero, as torch.compile documents it."""
    a, b = leaf(3), leaf(3)
    first, _ = api.compile(lambda a, b: (a * 2, b * 3), backend="aot_eager")(a, b)
    first.sum().backward()
    equal(a.grad, torch.full((3,), 2.0))
    assert b.grad is None or not b.grad.any()


@backward
def autocast_around_forward(api: Any) -> None:
    """A product in autocast, with its gradients."""
    module = nn.Linear(4, 3)

    def run(module: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x).float().sum()

    compiled = api.compile(lambda x: run(module, x), backend="aot_eager")
    same(lambda x: run(module, x), compiled, leaf(2, 4))


@optimizers
def a_step_of_an_optimizer(api: Any) -> None:
    """optimizer.step compiled: eager's parameters after three steps."""

    def train(compile_it: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.02))
        step = api.compile(optimizer.step, backend="eager") if compile_it else optimizer.step
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            step()
            optimizer.zero_grad()
        return [value.detach() for value in model.parameters()]

    for one, other in zip(train(True), train(False), strict=True):
        equal(one, other)


@regional
def one_graph_for_equal_layers(api: Any) -> None:
    """Each of four equal layers is compiled by itself: one graph serves them all."""
    graphs = Graphs()
    layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)])
    compiled = [api.compile(layer, backend=graphs) for layer in layers]
    x = torch.randn(2, 4)
    expected = x
    for layer in layers:
        expected = layer(expected)
    for layer in compiled:
        x = layer(x)
    equal(x, expected)
    assert len(graphs) <= 4


@autograd
def a_training_step_with_compiled_autograd(api: Any) -> None:
    """compiled_autograd: a whole step in a compiled function, with eager's gradients."""
    model = nn.Linear(5, 5)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    x = torch.ones(3, 5)
    step(x)
    expected = [value.grad.clone() for value in model.parameters() if value.grad is not None]
    model.zero_grad()
    with api._dynamo.config.patch(compiled_autograd=True):
        api.compile(step, backend="aot_eager")(x)
    for value, one in zip(model.parameters(), expected, strict=True):
        equal(value.grad, one)


@attention
def attention_in_a_module(api: Any) -> None:
    """Scaled dot product attention with a causal mask, forward and backward."""

    def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 8)

    same(body, api.compile(body, backend="aot_eager", fullgraph=True), leaf(2, 5, 8), leaf(8, 24))


@hooks
def saved_tensors_are_packed(api: Any) -> None:
    """Hooks around a compiled call: what is packed is unpacked for backward."""
    seen = {"packed": 0, "unpacked": 0}

    def pack(x: torch.Tensor) -> Any:
        seen["packed"] += 1
        return x.numpy(force=True).copy()

    def unpack(x: Any) -> torch.Tensor:
        seen["unpacked"] += 1
        return torch.from_numpy(x)

    def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sin()

    compiled = api.compile(body, backend="aot_eager")
    a, b = leaf(3), leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = compiled(a, b)
    found = torch.autograd.grad(result.sum(), [a, b])
    expected = torch.autograd.grad(body(a, b).sum(), [a, b])
    equal(found[0], expected[0])
    equal(found[1], expected[1])
    assert seen["packed"] > 0
    equal(seen["unpacked"], seen["packed"])


@hooks
def saved_tensors_on_the_processor(api: Any) -> None:
    """save_on_cpu in a compiled function."""

    def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return (a * b).sin() * a

    same(body, api.compile(body, backend="aot_eager"), leaf(3), leaf(3))


@hooks
def hooks_inside_of_a_compiled_function(api: Any) -> None:
    """Hooks that scale what is saved, in a compiled function: eager's values and gradients."""

    def body(a: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2):
            return (a.exp() * a).sum()

    same(body, api.compile(body, backend="aot_eager"), leaf(3))


@checkpoints
def a_checkpointed_block(api: Any) -> None:
    """A checkpointed block with dropout is recomputed with the same mask."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())

    def body(x: torch.Tensor) -> Any:
        return checkpoint(module, x, use_reentrant=False)

    same(body, api.compile(body, backend="aot_eager", fullgraph=True), leaf(3, 4))
