"""The names that callers of upstream's tracer know: they do here what they do there."""

from __future__ import annotations

import importlib
import inspect
import operator
import threading
from typing import Any

import pytest
import torch
from torch.fx.experimental import proxy_tensor as upstream
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import refimpl
from refimpl.errors import NoTraceRunning, NotTracked
from refimpl.symbolic.fake_inputs import fake_input, fake_int, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.recording_mode import RecordingMode
from refimpl.trace.tracing import current_trace
from refimpl.upstream import proxy_tensor

MODES = ("real", "fake", "symbolic")
IS_NEWEST = torch.__version__ >= "2.13"  # of those that refimpl's signatures follow
Tensor = torch.Tensor
aten = torch.ops.aten
SIGMOID = {aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp())}


def _targets(graph: torch.fx.Graph | torch.fx.GraphModule) -> list[object]:
    graph = graph.graph if isinstance(graph, torch.fx.GraphModule) else graph
    return [node.target for node in graph.nodes if node.op == "call_function"]


def _resolve(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


# ----------------------------------------------------------------------------------------------------- the names


def test_every_public_name_of_upstream_s_module_is_there() -> None:
    """PX-49"""
    assert set(upstream.__all__) <= set(proxy_tensor.__all__)


@pytest.mark.parametrize("name", sorted(refimpl.SUBSTITUTIONS))
def test_a_substitute_takes_the_parameters_of_what_it_stands_for(name: str) -> None:
    ours, theirs = _resolve(refimpl.SUBSTITUTIONS[name]), _resolve(name)
    if name.endswith("py_sym_types"):
        assert ours == theirs
    elif not callable(theirs):
        assert type(ours) is type(theirs)
    elif inspect.isbuiltin(theirs):  # of C++ functions the documentation begins with the parameters
        assert len(inspect.signature(ours).parameters) == str(theirs.__doc__).partition(") ->")[0].count(":")
    else:
        mine, upstream_s = (list(inspect.signature(one).parameters) for one in (ours, theirs))
        if name.startswith("torch.fx."):  # parameters were added at the end
            assert (mine if IS_NEWEST else mine[: len(upstream_s)]) == upstream_s
        else:  # versions of torch differ in the last options of AOT autograd
            assert mine == upstream_s or mine[: 4 if IS_NEWEST else 3] == upstream_s[: 4 if IS_NEWEST else 3]


def test_the_node_of_a_symbolic_number_is_told_from_others() -> None:
    """PX-04"""
    graph = refimpl.make_fx(lambda x: x.new_zeros(x.shape[0]), tracing_mode="symbolic")(torch.ones(3)).graph
    assert [proxy_tensor.is_sym_node(node) for node in graph.nodes] == [False, True, False, False]
    with pytest.raises(AssertionError, match="should have meta"):
        proxy_tensor.is_sym_node(object())


def test_a_fake_signature_has_as_many_parameters_as_it_is_told() -> None:
    """PX-02"""
    fixed = proxy_tensor.fake_signature(lambda *xs: sum(xs), 3)
    assert list(inspect.signature(fixed).parameters) == ["arg0", "arg1", "arg2"]
    assert fixed(1, 2, 3) == 6


def test_a_size_is_flattened_to_ints_with_their_positions_and_comes_back_as_a_tuple() -> None:
    """PX-01"""
    leaves, spec = pytree.tree_flatten(torch.Size([1, 2]))
    assert leaves == [1, 2]
    assert type(pytree.tree_unflatten(leaves, spec)) is tuple
    paths, _ = pytree.tree_flatten_with_path(torch.Size([1, 2]))
    assert [path for path, _ in paths] == [(pytree.SequenceKey(0),), (pytree.SequenceKey(1),)]


# --------------------------------------------------------------------------------------------- modes, decomposing


def test_the_recording_mode_is_found_where_it_records() -> None:
    """PX-45"""
    seen: list[Any] = []

    def program(x: Tensor) -> Tensor:
        mode = proxy_tensor.get_proxy_mode()
        seen.append(mode)
        assert mode is proxy_tensor.get_innermost_proxy_mode()
        assert mode in proxy_tensor.get_torch_dispatch_modes()
        with proxy_tensor.disable_proxy_modes_tracing() as disabled:
            assert disabled is mode
            assert proxy_tensor.get_proxy_mode() is None
            (x * 3).sum()
        return x + 1

    assert proxy_tensor.get_proxy_mode() is None
    assert _targets(refimpl.make_fx(program)(torch.ones(2))) == [aten.add.Tensor]
    assert isinstance(seen[0], RecordingMode)
    assert proxy_tensor.get_proxy_mode() is None
    assert proxy_tensor.get_torch_dispatch_modes() == []


def test_only_the_innermost_of_two_modes_is_found() -> None:
    """PX-30"""
    modes: list[Any] = []

    def inner(x: Tensor) -> Tensor:
        modes.append(proxy_tensor.get_proxy_mode())
        return x.cos()

    def outer(x: Tensor) -> Tensor:
        modes.append(proxy_tensor.get_proxy_mode())
        refimpl.make_fx(inner)(x)
        modes.append(proxy_tensor.get_proxy_mode())
        return x.sin()

    refimpl.make_fx(outer)(torch.ones(2))
    assert modes[0] is modes[2]
    assert modes[1] is not modes[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_table_holds_inside_of_its_block_and_blocks_nest(mode: str) -> None:
    """PX-03"""
    other = {aten.sigmoid.default: lambda x: x.tanh()}

    def program(x: Tensor) -> Tensor:
        with proxy_tensor.decompose(SIGMOID):
            with proxy_tensor.decompose(other):
                x = x.sigmoid()
            with pytest.raises(ZeroDivisionError), proxy_tensor.decompose(None):
                raise ZeroDivisionError
            x = x.sigmoid()
        return x.sigmoid()

    targets = _targets(refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2)))
    assert targets[0] is aten.tanh.default
    assert aten.exp.default in targets
    assert targets[-1] is aten.sigmoid.default
    assert targets.count(aten.sigmoid.default) == 1


def test_decompose_outside_of_a_trace_is_an_error() -> None:
    with pytest.raises(NoTraceRunning, match="make_fx"), proxy_tensor.decompose(SIGMOID):
        pass


def test_one_op_can_be_decomposed_by_hand() -> None:
    """PX-45"""

    class ByHand(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            mode = proxy_tensor.get_proxy_mode()
            assert mode is not None
            result = proxy_tensor.maybe_handle_decomp(mode, func, args, kwargs or {})
            seen.append(result is NotImplemented)
            return func(*args, **(kwargs or {})) if result is NotImplemented else result

    seen: list[bool] = []

    def program(x: Tensor) -> Tensor:
        with ByHand():
            return x.sigmoid() + 1

    targets = _targets(refimpl.make_fx(program, decomposition_table=SIGMOID)(torch.ones(2)))
    assert aten.exp.default in targets
    assert aten.sigmoid.default not in targets
    assert seen == [False, True]


# -------------------------------------------------------------------------------------------- isolated, interpreted


@pytest.mark.parametrize("mode", MODES)
def test_an_isolated_trace_leaves_no_mark(mode: str) -> None:
    """PX-46"""
    inner: list[torch.fx.GraphModule] = []

    def program(x: Tensor) -> Tensor:
        def isolated(a: Tensor, *, factor: float) -> Tensor:
            return torch.zeros(()) + a.sin() * factor

        inner.append(proxy_tensor.get_isolated_graphmodule(isolated, (x,), {"factor": 2.0}))
        return x.cos()

    assert _targets(refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2))) == [aten.cos.default]
    assert aten.sin.default in _targets(inner[0])
    x = torch.randn(2)
    torch.testing.assert_close(inner[0]([x, 2.0]), x.sin() * 2)


def test_an_isolated_trace_takes_a_mode_and_a_table() -> None:
    isolated = proxy_tensor.get_isolated_graphmodule(torch.sigmoid, (torch.ones(3),), {}, "symbolic", SIGMOID)
    assert aten.exp.default in _targets(isolated)
    torch.testing.assert_close(isolated([torch.zeros(5)]), torch.full((5,), 0.5))


def test_keyword_arguments_become_one_list() -> None:
    """PX-34"""
    wrapped, leaves = proxy_tensor.wrapper_and_args_for_make_fx(
        lambda a, *, b: a[0] - b["x"], ([torch.ones(2)],), {"b": {"x": torch.full((2,), 3.0)}}
    )
    assert len(leaves) == 2
    assert refimpl.make_fx(wrapped)(leaves)(leaves).tolist() == [-2.0, -2.0]


def test_a_graph_is_decomposed_into_another() -> None:
    """PX-33"""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": torch.sigmoid(x * self.weight), "b": x}

    module = Module()
    traced = refimpl.make_fx(module)(torch.randn(3))
    graph = torch.fx.Graph()
    x = torch.randn(3)
    expected = module(x)
    result = proxy_tensor.DecompositionInterpreter(traced, graph, decomposition_table=SIGMOID).run(x)
    torch.testing.assert_close(result, expected)
    graph.lint()
    assert aten.exp.default in _targets(graph)
    assert aten.sigmoid.default not in _targets(graph)
    assert [node.name for node in graph.find_nodes(op="placeholder")] == ["x_1"]
    decomposed = torch.fx.GraphModule(traced, graph)
    torch.testing.assert_close(decomposed(x), expected)
    assert decomposed._param_constant0 is module.weight
    assert _get_current_dispatch_mode_stack() == []


def test_the_interpreter_gives_the_graph_that_upstream_s_gives() -> None:
    traced = torch_make_fx(lambda x: torch.sigmoid(x) + torch.cumsum(x, 0))(torch.randn(3))
    graphs = [torch.fx.Graph(), torch.fx.Graph()]
    proxy_tensor.DecompositionInterpreter(traced, graphs[0], SIGMOID).run(torch.randn(3))
    upstream.DecompositionInterpreter(traced, graphs[1], SIGMOID).run(torch.randn(3))
    # Upstream's records the making of its own metadata too.
    expected = [target for target in _targets(graphs[1]) if target is not aten.empty_strided.default]
    assert _targets(graphs[0]) == expected


def test_only_chosen_nodes_are_decomposed() -> None:
    traced = refimpl.make_fx(lambda x: (x.sigmoid() + 1).sigmoid())(torch.randn(3))
    chosen = traced.graph.find_nodes(op="call_function", target=aten.sigmoid.default)[1]
    selected = proxy_tensor.selective_decompose(
        traced,
        torch.randn(3),
        decomposition=SIGMOID,
        should_decompose=lambda node: node is chosen,
        trace_joint_graph=False,
    )
    targets = _targets(selected)
    assert targets[:2] == [aten.sigmoid.default, aten.add.Tensor]
    assert targets.count(aten.sigmoid.default) == 1
    assert aten.exp.default in targets
    x = torch.randn(3)
    torch.testing.assert_close(selected(x), traced(x))


def test_the_inputs_of_a_joint_graph_keep_their_names() -> None:
    def joint(primals: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        return [primals[0].sigmoid(), tangents[0] * primals[0]]

    inputs = ([torch.randn(2)], [torch.randn(2)])
    traced = refimpl.make_fx(joint)(*inputs)
    selected = proxy_tensor.selective_decompose(
        traced, *inputs, decomposition=SIGMOID, should_decompose=lambda node: True, trace_joint_graph=True
    )
    assert [node.name for node in selected.graph.find_nodes(op="placeholder")] == ["primals_1", "tangents_1"]
    torch.testing.assert_close(selected(*inputs), joint(*inputs))


@pytest.mark.parametrize("is_operator_chosen", (True, False))
def test_nodes_are_chosen_inside_of_branches_too(is_operator_chosen: bool) -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda a: a.sigmoid(), lambda a: a.sigmoid() + 1, (x,))

    traced = refimpl.make_fx(program)(torch.tensor(True), torch.randn(2))
    chosen = traced.get_submodule("false_graph_0")

    def should_decompose(node: torch.fx.Node) -> bool:
        if node.target is torch.ops.higher_order.cond:
            return is_operator_chosen
        return node.graph.owning_module is chosen

    selected = proxy_tensor.selective_decompose(
        traced,
        torch.tensor(True),
        torch.randn(2),
        decomposition=SIGMOID,
        should_decompose=should_decompose,
        trace_joint_graph=False,
    )
    branches = [selected.get_submodule(name) for name in ("true_graph_0", "false_graph_0")]
    is_decomposed = [aten.exp.default in _targets(branch) for branch in branches]  # pyright: ignore[reportArgumentType]
    assert is_decomposed == [is_operator_chosen, True]
    x = torch.randn(2)
    for p in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(selected(p, x), traced(p, x))


# ---------------------------------------------------------------------------------------------- tracer and proxies


def _traced_in_steps(f: Any, inputs: tuple[Any, ...]) -> torch.fx.GraphModule:
    tracer = proxy_tensor.PythonKeyTracer()
    mode = proxy_tensor.ProxyTorchDispatchMode(tracer, "real")
    with mode:
        return proxy_tensor.dispatch_trace(proxy_tensor.wrap_key(f, inputs, tracer, False), tracer=tracer)


def test_a_function_is_traced_in_upstream_s_steps() -> None:
    """PX-24, PX-25"""

    def program(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        return x.sin() + y, 3, None

    inputs = (torch.randn(2), torch.randn(2))
    graph_module = _traced_in_steps(program, inputs)
    graph_module.graph.lint()
    assert type(graph_module).__name__ == "program"
    value, three, nothing = graph_module(*inputs)
    torch.testing.assert_close(value, inputs[0].sin() + inputs[1])
    assert (three, nothing) == (3, None)


def test_two_uses_of_a_size_have_one_node_in_upstream_s_steps() -> None:
    """PX-24"""
    fake_mode, real = symbolic_fake_mode(), torch.randn(4, 3)
    with fake_mode:
        x = fake_input(real, fake_mode, fake_mode.shape_env, "x")  # pyright: ignore[reportArgumentType]
        tracer = proxy_tensor.PythonKeyTracer()
        mode = proxy_tensor.ProxyTorchDispatchMode(tracer, "symbolic")

        def program(x: Tensor) -> tuple[Any, ...]:
            return x.new_zeros(x.shape[0], 2), x.new_ones(x.shape[0]), x.shape[0]

        with mode:
            graph_module = proxy_tensor.dispatch_trace(
                proxy_tensor.wrap_key(program, (x,), tracer, False), tracer=tracer
            )
    assert _targets(graph_module).count(aten.sym_size.int) == 1
    zeros, ones, size = graph_module(torch.randn(7, 3))
    assert (zeros.shape, ones.shape, size) == ((7, 2), (7,), 7)


def test_wrap_key_asks_for_as_many_proxies_as_inputs() -> None:
    """PX-25"""
    wrapped = proxy_tensor.wrap_key(lambda x: x, (torch.ones(2),), proxy_tensor.PythonKeyTracer(), False)
    with pytest.raises(AssertionError, match="2 proxies for 1 inputs"):
        wrapped(1, 2)


def test_the_tracer_finds_parameters_by_name_and_inlines_modules() -> None:
    """PX-21"""
    captured = torch.nn.Parameter(torch.ones(2))

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return x * self.linear.weight + captured

    tracer = proxy_tensor.PythonKeyTracer()
    module = Module()
    graph = tracer.trace(module)
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["linear.weight", "_param_constant0"]
    assert module._param_constant0 is captured
    with pytest.raises(AssertionError, match="is not constant"):
        tracer.create_arg(_a_symint())


def test_parameters_that_a_function_uses_are_its_graph_s_own() -> None:
    """PX-21"""
    linear = torch.nn.Linear(2, 2)
    graph_module = refimpl.make_fx(lambda x: linear(x))(torch.ones(1, 2))
    assert [node.target for node in graph_module.graph.find_nodes(op="get_attr")] == [
        "_param_constant0",
        "_param_constant1",
    ]
    assert graph_module._param_constant0 is linear.weight


def _a_symint() -> torch.SymInt:
    return fake_int(5, ShapeEnv(), "n")


@pytest.mark.parametrize("mode", MODES)
def test_slots_say_what_is_tracked(mode: str) -> None:
    """PX-05, PX-11"""
    stranger = torch.ones(1)

    def program(x: Tensor, y: Tensor) -> Tensor:
        recording = proxy_tensor.get_proxy_mode()
        assert recording is not None
        tracer = recording.tracer
        slot = proxy_tensor.get_proxy_slot(x, tracer)
        assert slot.proxy.node.op == "placeholder"
        assert slot.constant is None
        assert proxy_tensor.get_proxy_slot(x, tracer, None, lambda s: s.proxy.node.name) == "x_1"
        assert proxy_tensor.has_proxy_slot(x, tracer)
        assert not proxy_tensor.has_proxy_slot(stranger, tracer)
        assert proxy_tensor.get_proxy_slot(stranger, tracer, 7) == 7
        assert proxy_tensor.fetch_object_proxy(tracer, stranger) is stranger
        with pytest.raises(RuntimeError, match="is not tracked with proxy for"):
            proxy_tensor.get_proxy_slot(stranger, tracer)
        if mode == "symbolic":
            size = proxy_tensor.get_proxy_slot(x.shape[0], tracer).force()
            assert size.node.target is aten.sym_size.int
            assert proxy_tensor.fetch_sym_proxy(tracer)(x.shape[0]).node is size.node
            with pytest.raises(NotTracked):
                proxy_tensor.get_proxy_slot(_a_symint(), tracer)
        proxy_tensor.set_proxy_slot(x, tracer, proxy_tensor.get_proxy_slot(y, tracer))
        return x.sin()

    graph = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(3), torch.ones(3)).graph
    (sin,) = graph.find_nodes(op="call_function", target=aten.sin.default)
    assert str(sin.args[0]) == "y_1"


def test_a_number_keeps_the_node_it_had_first() -> None:
    """PX-05"""

    def program(x: Tensor, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0])

    graph = refimpl.make_fx(program, tracing_mode="symbolic")(torch.ones(3), torch.ones(3)).graph
    (size,) = graph.find_nodes(op="call_function", target=aten.sym_size.int)
    assert str(size.args[0]) == "x_1"


def test_a_number_that_folded_is_a_plain_argument() -> None:
    """PX-11"""

    def program(x: Tensor) -> Tensor:
        n = x.shape[0]
        torch._check(n == 3)
        return x.new_zeros(n * 2) if n == 3 else x

    graph = refimpl.make_fx(program, tracing_mode="symbolic")(torch.ones(3)).graph
    (zeros,) = graph.find_nodes(op="call_function", target=aten.new_zeros.default)
    assert zeros.args[1] == [6]


def test_a_number_made_while_nothing_was_recorded_is_made_again_if_it_can_be() -> None:
    """PX-31"""

    def program(x: Tensor) -> Tensor:
        with proxy_tensor.disable_proxy_modes_tracing():
            n = x.shape[0] * 2
        return x.new_zeros(n)

    graph_module = refimpl.make_fx(program, tracing_mode="symbolic")(torch.ones(3))
    assert graph_module(torch.ones(5)).shape == (10,)

    def failing(x: Tensor) -> Tensor:
        with proxy_tensor.disable_proxy_modes_tracing():
            n: Any = x.sum().to(torch.int64).item()
        return x + n

    with pytest.raises(RuntimeError, match="is not tracked with proxy for"):
        refimpl.make_fx(failing, tracing_mode="symbolic")(torch.ones(3))


@pytest.mark.parametrize("mode", ("real", "symbolic"))
def test_a_tree_of_results_is_tracked_place_by_place(mode: str) -> None:
    """PX-10"""

    def program(x: Tensor) -> tuple[Any, ...]:
        recording = proxy_tensor.get_proxy_mode()
        assert recording is not None
        tracer = recording.tracer
        with proxy_tensor.disable_proxy_modes_tracing():
            made = {"pair": (x.sin(), [x.cos()]), "number": 3}
            proxy = tracer.create_proxy("call_function", _made, (tracer.unwrap_proxy(x),), {})
            tracked = proxy_tensor.track_tensor_tree(made, proxy, constant=None, tracer=tracer)
        assert tracked is made
        return made["pair"][0] + 1, made["pair"][1][0]

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2))
    items = graph_module.graph.find_nodes(op="call_function", target=operator.getitem)
    assert [node.args[1] for node in items] == ["pair", 0, 1, 0, "number"]
    assert all(isinstance(node.meta["val"], Tensor) for node in (items[1], items[3]))
    x = torch.randn(2)
    torch.testing.assert_close(graph_module(x), (x.sin() + 1, x.cos()))


def _made(x: Tensor) -> dict[str, Any]:
    return {"pair": (x.sin(), [x.cos()]), "number": 3}


def test_lazy_values_are_worked_out_once() -> None:
    """PX-08"""
    calls: list[int] = []
    thunk = proxy_tensor.thunkify(proxy_tensor.PythonKeyTracer(), calls.append, 1)
    assert calls == []
    thunk.force()
    thunk.force()
    assert calls == [1]


@pytest.mark.parametrize("program", [lambda x: x.sum().to(torch.int64).item(), lambda x: x.nonzero().shape[0]])
def test_a_number_found_in_data_is_bound_where_it_comes_from(program: Any) -> None:
    """PX-47"""

    def grow(x: Tensor) -> Tensor:
        n = program(x)
        torch._check(n >= 0)
        return x.new_zeros(n)

    graph_module = refimpl.make_fx(grow, tracing_mode="symbolic")(torch.ones(3))
    bound = [node for node in graph_module.graph.nodes if node.meta.get("unbacked_bindings")]
    assert len(bound) == 1
    ((symbol, path),) = bound[0].meta["unbacked_bindings"].items()
    assert str(symbol).startswith("u")
    value = pytree.key_get(bound[0].meta["val"], path) if path else bound[0].meta["val"]
    assert value.node.expr == symbol
    assert graph_module(torch.ones(5)).shape == (5,)


# -------------------------------------------------------------------------------------------------------- hygiene


def test_threads_trace_without_each_other() -> None:
    barrier = threading.Barrier(2, timeout=30)
    graphs: dict[str, list[object]] = {}

    def trace(name: str, op: Any) -> None:
        def program(x: Tensor) -> Tensor:
            barrier.wait()
            y = op(x)
            barrier.wait()
            return y

        graphs[name] = _targets(refimpl.make_fx(program)(torch.ones(2)))

    threads = [threading.Thread(target=trace, args=args) for args in (("a", torch.sin), ("b", torch.cos))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert graphs == {"a": [aten.sin.default], "b": [aten.cos.default]}


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_in_an_inner_step_leaves_no_mode_and_no_trace(mode: str) -> None:
    """PX-50"""

    def failing(x: Tensor) -> Tensor:
        with proxy_tensor.decompose(SIGMOID):
            proxy_tensor.get_isolated_graphmodule(lambda y: y / [], (x,), {})
        return x

    with pytest.raises(TypeError):
        refimpl.make_fx(failing, tracing_mode=mode)(torch.ones(2))
    assert current_trace() is None
    assert _get_current_dispatch_mode_stack() == []
    assert torch.is_autocast_cache_enabled()
    assert _targets(refimpl.make_fx(torch.sigmoid, tracing_mode=mode)(torch.ones(2))) == [aten.sigmoid.default]


@pytest.mark.parametrize("mode", MODES)
def test_upstream_s_tracer_inside_of_a_trace_records_for_itself(mode: str) -> None:
    """PX-48"""
    inner: list[torch.fx.GraphModule] = []

    def program(x: Tensor) -> Tensor:
        inner.append(torch_make_fx(lambda y: y.cos() + 1)(x))
        return x.sin()

    targets = _targets(refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2)))
    # Upstream describes its inputs with its mode off, by an op that any mode around it sees.
    assert [target for target in targets if target is not aten.empty_strided.default] == [aten.sin.default]
    assert _targets(inner[0]) == [aten.cos.default, aten.add.Tensor]


def test_a_trace_inside_of_upstream_s_tracer_records() -> None:
    """PX-48"""
    inner: list[torch.fx.GraphModule] = []
    torch_make_fx(lambda x: inner.append(refimpl.make_fx(lambda y: y.cos() + 1)(x)) or x.sin())(torch.ones(2))
    assert _targets(inner[0]) == [aten.cos.default, aten.add.Tensor]
