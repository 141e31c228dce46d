"""Cases that rows of the contracts name beside the one which the row's first test shows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._C._functorch import get_interpreter_stack
from torch.autograd import forward_ad

import refimpl
from refimpl.aot.export.view_and_mutation import MutationType, run_functionalized_fw_and_collect_metadata
from refimpl.aot.options import AOTConfig
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.capture.entry_points.contexts import OptimizeContext
from refimpl.capture.entry_points.reset import remove_from_cache
from refimpl.capture.public.errors import UserError
from refimpl.capture.public.same import same
from refimpl.export import Dim, ExportedProgram, InputKind, OutputKind, export
from refimpl.export.traced_program import FakeProgram
from refimpl.export.verifier import SpecViolationError, verify_metadata, verify_placeholder_names
from refimpl.pipeline import compile_aot
from refimpl.tests.aot.kept_graphs import Compiler
from refimpl.tests.contracts.contract_backend import Backend, backend, nothing_is_left, plus_one
from refimpl.tests.export.modules import EverythingModule, Losing, Mutating, Normalised, Tied
from refimpl.tests.graphs import placeholders_of, targets_of
from refimpl.trace.proxies import PythonKeyTracer, set_meta
from refimpl.upstream import predicates, proxy_tensor, small
from refimpl.upstream.measuring import torchscript

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor
aten = torch.ops.aten
MODES = ("real", "fake", "symbolic")
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])

# ------------------------------------------------------------------------------------------------------------- tracing


def test_the_types_of_symbolic_numbers() -> None:
    """PX-04"""
    assert proxy_tensor.py_sym_types == (torch.SymInt, torch.SymFloat, torch.SymBool)


def test_the_value_of_a_node_with_several_results_is_rebuilt_and_each_is_a_snapshot() -> None:
    """PX-06"""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        left, right = x.split([1, 2])
        left.t_()
        return left, right

    for mode in MODES:
        graph = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(3, 4)).graph
        (split,) = (node for node in graph.nodes if "split" in node.name)
        assert isinstance(split.meta["val"], (list, tuple))
        assert [tuple(value.shape) for value in split.meta["val"]] == [(1, 4), (2, 4)]


@pytest.mark.parametrize("mode", MODES)
def test_two_literals_are_compared_while_tracing(mode: str) -> None:
    """PX-15"""

    def program(x: Tensor) -> Tensor:
        return x.sin() if torch.equal(torch.tensor(3), torch.tensor(3)) else x.cos()

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2))
    assert aten.sin.default in targets_of(graph_module)
    assert aten.equal.default not in targets_of(graph_module)


def _by_operator(x: Tensor) -> Tensor:
    return x * (torch.tensor(3) * x.shape[0]).item()


def _in_place(x: Tensor) -> Tensor:
    count = torch.tensor(3)
    count.mul_(x.shape[0])
    return x * count.item()


def _in_a_shape(x: Tensor) -> Tensor:
    return x * torch.tensor([3]).expand(x.shape[0]).sum().item()


@pytest.mark.parametrize("program", [_by_operator, _in_place, _in_a_shape])
def test_what_is_computed_of_a_literal_and_a_size_is_no_constant(program: Callable[[Tensor], Tensor]) -> None:
    """PX-20"""
    traced = refimpl.make_fx(program, tracing_mode="symbolic")(torch.ones(2))
    compiled = compile_aot(program, dynamic=True)
    for call in (traced, compiled):
        for size in (2, 4):
            assert call(torch.ones(size)).tolist() == [3.0 * size] * size


def test_one_times_a_size_is_the_size() -> None:
    """PX-32"""
    graph_module = refimpl.make_fx(lambda x: x.new_ones(1 * x.shape[0]), tracing_mode="symbolic")(torch.ones(3))
    assert targets_of(graph_module) == [aten.sym_size.int, aten.new_ones.default]


def test_an_integer_among_the_inputs_is_a_symbol_in_symbolic_mode_only() -> None:
    """PX-41"""
    for mode, factor in (("real", 3.0), ("fake", 3.0), ("symbolic", 5.0)):
        graph_module = refimpl.make_fx(lambda x, n: x * n, tracing_mode=mode)(torch.ones(2), 3)
        assert graph_module(torch.ones(2), 5).tolist() == [factor] * 2, mode
    is_true = refimpl.make_fx(lambda x, n: x * n, tracing_mode="symbolic")(torch.ones(2), True)
    assert is_true(torch.ones(2), True).tolist() == [1.0, 1.0]


def test_a_number_of_elements_is_a_product_of_sizes() -> None:
    """PX-42"""
    trace = refimpl.make_fx(lambda x: x.new_zeros(x.numel()), tracing_mode="symbolic")
    graph_module = trace(torch.ones(3, 4))
    assert aten.sym_numel.default not in targets_of(graph_module)
    assert graph_module(torch.ones(5, 6)).shape == (30,)


def test_writes_stay_in_a_graph_or_leave_it_by_their_class() -> None:
    """AO-46"""

    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
        a.mul_(2)
        b.data.add_(1)
        c.t_()
        return [a + b + d]

    args = [torch.ones(2, 2) for _ in range(4)]
    for keeps, of_data in ((False, MutationType.MUTATED_OUT_GRAPH), (True, MutationType.MUTATED_IN_GRAPH)):
        collect = run_functionalized_fw_and_collect_metadata(function, flat_args_descs=None, keep_input_mutations=keeps)
        kinds = [info.mutation_type for info in collect(*args).input_info]
        assert kinds[:2] == [of_data, of_data]
        assert kinds[2:] == [MutationType.MUTATED_OUT_GRAPH, MutationType.NOT_MUTATED]


@pytest.mark.parametrize("is_same_first", [True, False])
def test_one_tensor_in_two_places_has_a_graph_of_its_own(backend: Backend, is_same_first: bool) -> None:
    """AO-28: the guards are capture's."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    compiled = refimpl.compile(function, backend=lambda module, inputs: aot_module_simplified(module, inputs, backend))
    for is_same in (is_same_first, not is_same_first) * 2:
        x = torch.ones(2)
        y = x if is_same else torch.full((2,), 5.0)
        assert compiled(x, y).tolist() == [4.0 if is_same else 7.0] * 2
    assert backend.n == 2


def test_every_field_of_upstreams_configuration_is_accepted() -> None:
    """AO-40"""
    config = AOTConfig(aot_autograd_arg_pos_to_source=[], enable_log=False, cache_key="key")
    assert config.cache_key == "key"


def test_columns_of_a_matrix_whose_memory_crosses_are_no_aliases() -> None:
    """AO-47"""
    compiler = Compiler()
    x = torch.ones(3, 4)
    out = compiler.function(lambda a, b: a.mul_(2) + b)(x[:, :2], x[:, 2:])
    assert out.tolist() == [[3.0, 3.0]] * 3
    assert x.tolist() == [[2.0, 2.0, 1.0, 1.0]] * 3
    assert len(placeholders_of(compiler.graph("inference"))) == 2
    shared = Compiler()
    y = torch.ones(4)
    assert shared.function(lambda a, b: a.mul_(2) + b)(y[:3], y[1:]).tolist() == [4.0, 4.0, 3.0]
    assert len(placeholders_of(shared.graph("inference"))) == 1


def test_metadata_of_a_quantized_tensor_has_its_parameters() -> None:
    """PX-07"""
    graph = fx.Graph()
    tracer = PythonKeyTracer()
    tracer.graph = graph
    proxy = fx.Proxy(graph.placeholder("x"), tracer)
    set_meta(proxy, torch.quantize_per_tensor(torch.ones(2), 0.5, 3, torch.quint8))
    meta = proxy.node.meta["tensor_meta"]
    assert meta.is_quantized
    assert (meta.qparams["scale"], meta.qparams["zero_point"]) == (0.5, 3)


# ------------------------------------------------------------------------------------------------------------- capture


def test_a_class_of_modules_is_decorated_in_place(backend: Backend) -> None:
    """DY-12"""

    @refimpl.optimize(backend)
    class Shifted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 2

    module = Shifted()
    module.register_forward_hook(lambda _, args, result: result * 3)
    assert type(module) is Shifted
    assert module(torch.ones(2)).tolist() == [9.0, 9.0]
    assert backend.n == 1


def test_an_error_leaves_no_transform_behind(backend: Backend) -> None:
    """DY-12"""

    def program(x: Tensor) -> Tensor:
        refimpl.graph_break()
        return torch.func.vmap(lambda row: {}[row])(x)

    assert get_interpreter_stack() is None
    with pytest.raises(KeyError):
        refimpl.optimize(backend)(program)(torch.ones(2))
    assert get_interpreter_stack() is None


def test_nodes_keep_the_names_of_the_capture(backend: Backend) -> None:
    """DY-28"""

    def program(x: Tensor) -> Tensor:
        return (x.sin() + 1).relu().sin()

    refimpl.optimize(backend)(program)(torch.ones(2))
    module = refimpl.export_graph(program)(torch.ones(2)).graph_module
    names = [[node.name for node in graph.graph.nodes][1:] for graph in (backend.graphs[0], module)]
    assert names[0] == names[1] == ["sin", "add", "relu", "sin_1", "output"]


def test_attributes_of_an_aten_graph_have_values() -> None:
    """DY-38"""
    linear = nn.Linear(2, 2)
    module = refimpl.export_graph(lambda x: linear(x), aten_graph=True)(torch.ones(1, 2)).graph_module
    attributes = module.graph.find_nodes(op="get_attr")
    assert [tuple(node.meta["val"].shape) for node in attributes] == [(2, 2), (2,)]


def test_a_pickled_context_has_all_its_options() -> None:
    """DY-05"""
    context = refimpl.optimize("eager", dynamic=False)
    again: Any = pickle.loads(pickle.dumps(context))
    assert isinstance(again, OptimizeContext)
    for name in ("callback", "first_ctx", "export", "dynamic", "compiler_config"):
        assert getattr(again, name) == getattr(context, name), name


def test_what_is_captured_is_forgotten_by_code_and_by_module(backend: Backend) -> None:
    """DY-07"""
    compiled, module = refimpl.optimize(backend)(plus_one), nn.ReLU()
    of_module = refimpl.optimize(backend)(module)
    for count, forget in ((2, plus_one.__code__), (4, module), (5, compiled)):
        compiled(torch.ones(2))
        of_module(torch.ones(2))
        assert backend.n <= count
        remove_from_cache(forget)
    before = backend.n
    compiled(torch.ones(2))
    assert backend.n == before + 1


def test_sizes_that_a_graph_needs_are_inputs_of_it(backend: Backend) -> None:
    """DY-26"""
    compiled = refimpl.optimize(backend, dynamic=True)(lambda x: x * x.shape[0])
    assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    (graph,) = backend.graphs
    values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
    assert any(isinstance(value, torch.SymInt) for value in values)
    assert len(backend.examples[0]) == len(values)
    assert compiled(torch.ones(5)).tolist() == [5.0] * 5
    assert backend.n == 1


def test_constants_are_arguments_and_results_of_an_export() -> None:
    """DY-31"""

    def program(x: Tensor, n: int, text: str, nothing: None) -> tuple[Any, ...]:
        return x * n, text, nothing, torch.float32, 2.5

    module = refimpl.export_graph(program)(torch.ones(2), 3, "word", None).graph_module
    value, *rest = module(torch.ones(2), 3, "word", None)
    assert value.tolist() == [3.0, 3.0]
    assert rest == ["word", None, torch.float32, 2.5]


def test_the_setup_of_every_optimizer_is_left_out(backend: Backend) -> None:
    """DY-41"""
    refimpl.optimize(backend)
    optimizers = [
        kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and "_init_group" in vars(kind)
    ]
    assert len(optimizers) > 8
    unmarked = [kind for kind in optimizers if not hasattr(vars(kind)["_init_group"], "_torchdynamo_disable")]
    assert unmarked == []


# -------------------------------------------------------------------------------------------------------------- export


def test_the_carrier_of_what_is_traced_is_frozen() -> None:
    """EX-02"""
    parameters = getattr(FakeProgram, "__dataclass_params__")
    assert parameters.frozen


def _targets(program: ExportedProgram) -> set[str]:
    stateful = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
    updated = {OutputKind.BUFFER_MUTATION, OutputKind.GRADIENT_TO_PARAMETER}
    signature = program.graph_signature
    found = [spec.target for spec in signature.input_specs if spec.kind in stateful]
    found += [spec.target for spec in signature.output_specs if spec.kind in updated]
    assert None not in found
    return {str(target) for target in found}


@STRICT
@pytest.mark.parametrize(
    ("make", "args"),
    [
        (EverythingModule, (torch.randn(2, 3), 2)),
        (Normalised, (torch.randn(4, 3),)),
        (Mutating, (torch.ones(3),)),
        (Tied, (torch.randn(2, 3),)),
    ],
)
def test_every_target_is_a_name_of_the_module(make: Callable[[], nn.Module], args: Any, strict: bool) -> None:
    """EX-08"""
    module = make()
    program = export(module, args, strict=strict)
    for each in (program, program.run_decompositions({})):
        assert _targets(each)
        assert _targets(each) <= {*module.state_dict(), *each.constants}


def test_gradients_have_the_names_of_parameters() -> None:
    """EX-08"""
    module = Losing()
    joint = export(module, (torch.randn(4, 3),)).forward_backward(0)
    assert _targets(joint) <= {*module.state_dict(), *joint.constants}


@STRICT
def test_every_kind_of_placeholder_requires_gradients_as_its_tensor_does(strict: bool) -> None:
    """EX-12"""

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trained = nn.Parameter(torch.ones(2))
            self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)
            self.register_buffer("kept", torch.ones(2))
            self.constant = torch.ones(2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * self.trained + self.fixed * self.get_buffer("kept") + self.constant + y

    program = export(Several(), (torch.ones(2, requires_grad=True), torch.ones(2)), strict=strict)
    found = {node.name: node.meta["val"].requires_grad for node in program.graph.find_nodes(op="placeholder")}
    assert found == {
        "p_trained": True, "p_fixed": False, "b_kept": False, "c_constant": False, "x": True, "y": False,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR])
def test_placeholders_of_every_kind_of_state_have_prefixes(kind: InputKind) -> None:
    """EX-33"""
    program = export(EverythingModule(), (torch.ones(2, 3), 3))
    signature = program.graph_signature
    name = next(spec.arg.name for spec in signature.input_specs if spec.kind is kind)
    node = next(node for node in program.graph.nodes if node.name == name)
    signature.replace_all_uses(name, "plain")
    node.name = "plain"
    with pytest.raises(SpecViolationError, match="does not follow spec"):
        verify_placeholder_names(program.graph_module, signature)


def test_a_program_keeps_its_example_inputs_and_its_ranges() -> None:
    """EX-52"""
    x = torch.randn(4, 3)
    program = export(Normalised(), (x,), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    assert args[0] is x
    assert kwargs == {}
    assert [(bounds.lower, bounds.upper) for bounds in program.range_constraints.values()] == [(2, 9)]
    program.validate()


@STRICT
def test_inputs_and_outputs_of_nested_graphs_have_no_stack_either(strict: bool) -> None:
    """EX-57"""

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    program = export(Branching(), (torch.ones(2),), strict=strict)
    verify_metadata(program.graph_module)
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    assert len(graphs) == 3
    ends = [node for graph in graphs for node in graph.nodes if node.op in ("placeholder", "output")]
    assert len(ends) == 6
    assert not any({"nn_module_stack", "stack_trace"} & set(node.meta) for node in ends)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_an_export_that_raises_leaves_the_flags_of_backends(is_enabled: bool) -> None:
    """EX-03"""

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with torch.backends.mkldnn.flags(enabled=is_enabled), torch.backends.nnpack.flags(enabled=is_enabled):
        nnpack = torch._C._get_nnpack_enabled()
        with pytest.raises(UserError):
            export(Branching(), (torch.ones(2),))
        export(nn.Conv2d(1, 1, 1), (torch.ones(1, 1, 2, 2),))
        assert torch.backends.mkldnn.enabled is is_enabled
        assert torch._C._get_nnpack_enabled() is nnpack


@STRICT
def test_keyword_arguments_share_the_fake_mode_and_there_may_be_no_arguments(strict: bool) -> None:
    """EX-07"""

    class Adding(nn.Module):
        def forward(self, x: Tensor, *, y: Tensor) -> Tensor:
            return x + y

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self) -> Tensor:
            return self.weight * 2

    n = Dim("n")
    shapes = {"x": {0: n}, "y": {0: n}}
    program = export(Adding(), (torch.ones(4),), {"y": torch.ones(4)}, dynamic_shapes=shapes, strict=strict)
    values = [node.meta["val"] for node in program.graph.nodes if node.op != "output"]
    assert len({value.fake_mode for value in values}) == 1
    assert len({str(value.shape[0]) for value in values}) == 1
    assert program.module()(torch.ones(7), y=torch.ones(7)).tolist() == [2.0] * 7
    alone = export(Alone(), (), strict=strict)
    assert alone.module()().tolist() == [2.0, 2.0]


# ------------------------------------------------------------------------------------------------------------- helpers


def test_graph_breaks_share_a_checker_that_is_reset() -> None:
    """UT-07"""
    checker = small.graph_break_dup_warning_checker
    checker.reset()
    assert checker.add("a break")
    assert not checker.add("a break")
    checker.reset()
    assert checker.add("a break")
    checker.reset()


def test_the_pair_of_a_dual_number_is_a_named_tuple() -> None:
    """UT-12"""
    with forward_ad.dual_level():
        pair = forward_ad.unpack_dual(forward_ad.make_dual(torch.ones(2), torch.ones(2)))
    assert predicates.is_namedtuple(pair)
    assert predicates.namedtuple_fields(type(pair)) == ["primal", "tangent"]


def test_an_overload_is_a_function_or_a_wrapper() -> None:
    """UT-13"""
    assert predicates.is_function_or_wrapper(aten.sin.default)
    assert not predicates.is_function(3)


def test_modules_views_and_nothing() -> None:
    """UT-14"""
    assert isinstance({}.keys(), small.dict_keys)
    assert small.nothing() is None
    assert list(small.nn_module_new(nn.Linear).parameters()) == []


def test_what_cannot_be_traced_is_scripted() -> None:
    """UT-20"""
    scripted = torchscript(counted, ("text",))
    assert isinstance(scripted, torch.jit.ScriptFunction)
    assert scripted("four") == 4


def counted(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(
    "name",
    [
        "MaskedLMOutput", "Seq2SeqLMOutput", "CausalLMOutputWithCrossAttentions", "LongformerMaskedLMOutput", "Instances",
        "SquashedNormal", "Boxes", "Normal", "TanhTransform", "Foo", "Variable",
    ],
)  # fmt: skip
def test_outputs_of_every_named_class_are_compared_by_their_attributes(name: str) -> None:
    """UT-31"""
    kind = type(name, (), {})

    def made(first: float, second: float) -> Any:
        output: Any = kind()
        vars(output).update(first=torch.tensor(first), second=[torch.tensor(second)])
        return output

    assert same(made(1.0, 2.0), made(1.0, 2.0))
    assert not same(made(1.0, 2.0), made(1.0, 3.0))
    assert not same(made(1.0, 2.0), made(3.0, 2.0))


@pytest.mark.parametrize(("factor", "passes"), [(2.8, True), (3.2, False)])
def test_float16_may_be_as_far_from_fp64_as_bfloat16(factor: float, passes: bool) -> None:
    """UT-34"""
    ref, res = (torch.full((2000,), value, dtype=torch.float16) for value in (1.0, factor))
    assert same(ref, res, torch.zeros(2000, dtype=torch.float64)) is passes
