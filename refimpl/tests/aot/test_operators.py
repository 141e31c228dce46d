"""Single operators through the whole road: what a sweep over all of them found, one test for each kind of fault."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from refimpl import decomposition_table
from refimpl.aot.analysis.inputs import make_gradients_plain, name_writes
from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.errors import DataDependentFakeRead, UnsupportedByRefimpl
from refimpl.pipeline import compile_aot


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("decompositions", [dict, codegen_decompositions])
@pytest.mark.parametrize("operator", [torch.cov, torch.corrcoef])
def test_literals_that_composite_kernels_read_are_constants(operator, decompositions, dynamic):
    x = torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(operator(x).sin().sum(), x)
    compiled = compile_aot(operator, dynamic=dynamic, decompositions=decompositions())
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sin().sum(), x), expected)


@pytest.mark.parametrize("decompositions", [dict, codegen_decompositions])
def test_what_depends_on_inputs_is_no_constant(decompositions):
    def weighted(x, w):
        return torch.cov(x, fweights=w)

    def written(x):
        return x * x.new_zeros(()).add_(x.sum()).equal(x.new_zeros(()))

    for program, *args in ((weighted, torch.randn(3, 4), torch.tensor([1, 2, 1, 3])), (written, torch.ones(2))):
        with pytest.raises(DataDependentFakeRead):
            compile_aot(program, decompositions=decompositions())(*args)


@pytest.mark.parametrize("partition", ["min_cut", "default", None])
def test_recurrent_layers_keep_the_workspace_of_their_backward(partition):
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    x = torch.randn(3, 2, 4)
    wanted = list(lstm.parameters())
    expected = torch.autograd.grad(lstm(x)[0].sin().sum(), wanted)
    actual = torch.autograd.grad(compile_aot(lstm, partition=partition)(x)[0].sin().sum(), wanted)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_sparse_products_have_gradients_or_are_refused(reduce):
    sparse = torch.eye(3).to_sparse_csr().requires_grad_()
    dense = torch.randn(3, 4, requires_grad=True)

    def program(a, b):
        return torch.sparse.mm(a, b, reduce)

    if reduce.startswith("a"):
        with pytest.raises(UnsupportedByRefimpl, match=f"reduced by {reduce}"):
            compile_aot(program)(sparse, dense)
    else:
        expected = torch.autograd.grad(program(sparse, dense).sin().sum(), dense)
        actual = torch.autograd.grad(compile_aot(program)(sparse, dense).sin().sum(), dense)
        torch.testing.assert_close(actual, expected)


def test_captured_inputs_may_be_sparse_and_have_a_history():
    def program(x):
        return x.coalesce() * 2, x.to_dense().sin()

    found = []
    for function in (program, with_options(program, CaptureOptions(backend=aot_eager))):
        x = torch.eye(3).requires_grad_()
        sparse, dense = function((x * 3).to_sparse())
        (sparse.to_dense().sum() + dense.sum()).backward()
        found.append((sparse.to_dense(), dense, x.grad))
    torch.testing.assert_close(*found)


def test_outputs_may_be_sparse():
    sparse = torch.eye(3).to_sparse_csr().requires_grad_()
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))

    def run(fn):
        return torch.autograd.grad(fn(sparse, a, b).to_dense().sin().sum(), (a, b))

    torch.testing.assert_close(run(compile_aot(torch.sparse.sampled_addmm)), run(torch.sparse.sampled_addmm))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_are_no_tensors(dynamic):
    def program(x):
        return x.shape, {"size": (x.shape[1:], x * 2)}, NotImplemented, torch.finfo(x.dtype).dtype, x.device, range(2)

    x = torch.ones(2, 3)
    actual, expected = compile_aot(program, dynamic=dynamic)(x), program(x)
    torch.testing.assert_close(actual[1]["size"][1], expected[1]["size"][1])
    assert type(actual[0]) is torch.Size
    assert type(actual[1]["size"][0]) is torch.Size
    assert actual[0] == expected[0]
    assert actual[1]["size"][0] == expected[1]["size"][0]
    assert actual[2:] == expected[2:]


def _half_of_it(a):
    a *= 0.5
    a.as_strided_((2,), (2,), 1)
    return a


def _smaller(a):
    a.mul_(3)
    a.resize_(2)
    return a + 1


def _turned(a):
    a.mul_(3).t_()
    return a * 2


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [_half_of_it, _smaller, _turned])
def test_what_was_written_stays_written_where_the_geometry_changes(program, dynamic, has_gradient):
    if program is _smaller and has_gradient:
        pytest.skip("eager does not resize what requires a gradient")

    def run(fn):
        leaf = torch.arange(8.0, requires_grad=has_gradient)
        base = leaf * 1
        out = fn(base.as_strided((2, 2), (2, 1), 1) if not has_gradient else base[1:5].view(2, 2).clone())
        return (base, out, *(torch.autograd.grad(out.sin().sum(), leaf) if has_gradient else ()))

    torch.testing.assert_close(run(compile_aot(program, dynamic=dynamic)), run(program))


def test_gradients_of_outputs_whose_size_depends_on_data():
    def program(x, repeats):
        return torch.repeat_interleave(x, repeats, dim=1)

    x, repeats = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([0, 1, 2])
    expected = torch.autograd.grad(program(x, repeats).sin().sum(), x)
    actual = torch.autograd.grad(compile_aot(program)(x, repeats).sin().sum(), x)
    torch.testing.assert_close(actual, expected)


def test_with_symbolic_sizes_integers_are_what_they_are():
    def program(x, stop):
        for index in range(3):
            x = x + index
            if index == stop:
                return x, isinstance(stop, int)
        return x * 10, isinstance(stop, int)

    compiled = compile_aot(program, dynamic=True)
    for stop in (1, 5, 0, 2):
        torch.testing.assert_close(compiled(torch.ones(3), stop), program(torch.ones(3), stop))


@pytest.mark.parametrize("has_gradient", [False, True])
def test_with_symbolic_sizes_inputs_that_share_memory(has_gradient):
    def program(a, b):
        a.mul_(10)
        return b + a.sum(), a.view(-1)

    compiled = compile_aot(program, dynamic=True)
    for cut in (5, 3, 5):

        def run(fn, cut=cut):
            base = torch.arange(8.0, requires_grad=has_gradient) * 1
            return fn(base[:cut], base[3:]), base

        torch.testing.assert_close(run(compiled), run(program))


def test_composite_ops_whose_kernels_check_values():
    x, window = torch.randn(9, 5, dtype=torch.complex64, requires_grad=True), torch.hann_window(16)

    def program(x, window):
        return torch.istft(x, n_fft=16, window=window)

    expected = torch.autograd.grad(program(x, window).sin().sum(), x)
    actual = torch.autograd.grad(compile_aot(program)(x, window).sin().sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["dropout", "one_hot", "max_pool1d", "interpolate", "means"])
def test_aliases_and_strides_of_kernels_that_look_for_data(name, dynamic):
    programs = {
        "dropout": lambda x, y: (torch.nn.functional.dropout(x, training=False), torch.dropout(x, p=0.0, train=True)),
        "one_hot": lambda x, y: (torch.nn.functional.one_hot(y.t(), 8),),
        "max_pool1d": lambda x, y: (torch.nn.functional.max_pool1d(x.t(), 2, padding=1), torch.max_pool1d(x.t(), 2)),
        "interpolate": lambda x, y: (
            torch.nn.functional.interpolate(x.reshape(2, 2, 4).transpose(0, 1), scale_factor=1.5),
            torch.nn.functional.interpolate(x.reshape(2, 2, 4).transpose(0, 1), size=3, mode="nearest-exact"),
        ),
        "means": lambda x, y: (
            torch.nn.functional.interpolate(x.reshape(2, 2, 4).transpose(1, 2), 3, None, "area"),
            torch.nn.functional.interpolate(x.reshape(2, 2, 4).transpose(1, 2), scale_factor=0.5, mode="area"),
        ),
    }
    program = programs[name]
    x, y = torch.arange(16.0).reshape(4, 4), torch.arange(8).reshape(4, 2)
    results, expected = compile_aot(program, dynamic=dynamic)(x, y), program(x, y)
    torch.testing.assert_close(results, expected)
    assert [(r.stride(), r is x) for r in results] == [(e.stride(), e is x) for e in expected]


@pytest.mark.fractional
@pytest.mark.parametrize("p", [0.5, 1.0])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru by batch", "rnn", "attention", "heads"])
def test_dropout_within_a_composite_op(kind, dynamic, p):
    if kind == "lstm" and dynamic and torch.__version__ < "2.13":
        pytest.skip("torch's decomposition of lstm gives states of projections a dimension too many, until torch 2.13")
    torch.manual_seed(0)
    modules = {
        "lstm": torch.nn.LSTM(4, 4, 3, dropout=p, bidirectional=True, proj_size=2),
        "gru by batch": torch.nn.GRU(4, 4, 2, dropout=p, batch_first=True),
        "rnn": torch.nn.RNN(4, 4, 2, dropout=p, bias=False, bidirectional=True),
        "heads": torch.nn.MultiheadAttention(4, 2, dropout=p),
    }

    def program(x):
        if kind == "attention":
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)
        if kind == "heads":
            return modules[kind](x, x, x)[0]
        values, states = modules[kind](x)
        return values, *states

    found = []
    for function in (program, compile_aot(program, dynamic=dynamic)):
        torch.manual_seed(5)
        x = torch.randn(3, 4, 4, requires_grad=True)
        results = pytree.tree_leaves(function(x))
        found.append((results, torch.autograd.grad([r.sin().sum() for r in results], x), torch.rand(1)))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_places_of_a_split_are_read_when_the_program_runs(dynamic):
    def program(x, places):
        first = torch.tensor_split(x, tensor_indices_or_sections=places, dim=-1)
        return [part * 2 for part in (*first, *x.tensor_split(places, 1))]

    x = torch.arange(12.0).reshape(2, 6)
    compiled = with_options(program, CaptureOptions(backend=aot_eager, fullgraph=True, dynamic=dynamic))
    for places in ([1, 3], [4, 2], [-5, 9]):
        expected, actual = (function(x, torch.tensor(places)) for function in (program, compiled))
        assert [part.tolist() for part in actual] == [part.tolist() for part in expected]
    with pytest.raises(RuntimeError, match="guard_on_data"):
        compiled(x, torch.tensor(2))


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradient_of_the_frames_of_an_expanded_tensor(dynamic, center):
    def program(x):
        return torch.stft(x, 8, None, None, None, center, return_complex=True), x.stft(
            8, center=center, return_complex=True
        )

    compiled = compile_aot(program, dynamic=dynamic)
    for size in (10, 12):
        found = []
        for function in (program, compiled):
            x = torch.arange(2.0).unsqueeze(1).expand(2, size).detach().requires_grad_()
            frames, again = function(x)
            found.append((frames, *torch.autograd.grad((frames + 2 * again).abs().square().sum(), x)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_that_asks_for_the_layout_of_a_result_takes_eager_modes_branch(dynamic):
    def program(x):
        pooled, nearest = torch.nn.functional.max_pool1d(x, 2), torch.nn.functional.interpolate(x, scale_factor=1.5)
        return pooled * (2 if pooled.is_contiguous() else 3), nearest * (2 if nearest.is_contiguous() else 3)

    x = torch.arange(24.0).reshape(3, 2, 4).transpose(0, 1)
    compiled = with_options(program, CaptureOptions(backend=aot_eager, dynamic=dynamic, fullgraph=True))
    torch.testing.assert_close(compiled(x), program(x))


def test_normal_numbers_of_a_tensor_that_is_not_row_by_row():
    found = []
    for function in (torch.Tensor.normal_, compile_aot(lambda x: x.normal_())):
        torch.manual_seed(3)
        x = torch.zeros(6, 3).t()
        function(x)
        found.append((x, torch.rand(1)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_dropout_of_a_tensor_that_is_not_row_by_row():
    def program(x):
        return torch.nn.functional.dropout(x), torch.nn.functional.alpha_dropout(x.sin(), training=True)

    found = []
    for function in (program, compile_aot(program)):
        torch.manual_seed(3)
        found.append((*function(torch.ones(6, 4).t()), torch.rand(1)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("table", [{}, decomposition_table])
@pytest.mark.parametrize("largest", [torch.inf, torch.nan, 3.0])
def test_only_the_largest_elements_get_a_gradient_that_is_not_finite(largest, table, dynamic):
    def program(x):
        return x.max().sin() + (x.square().min() - 1).rsqrt()

    x = torch.tensor([1.0, largest, 2.0, largest], requires_grad=True)
    compiled = compile_aot(program, dynamic=dynamic, decompositions=table)
    actual, expected = (torch.autograd.grad(f(x), x) for f in (compiled, program))
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("table", [{}, codegen_decompositions()])
@pytest.mark.parametrize("function", [torch.max, torch.min, torch.median, torch.nanmedian])
def test_one_element_s_gradient_is_row_major_and_stays_with_it_if_it_is_not_finite(
    function: Callable[..., Any], table: dict[Any, Any], is_inside: bool, dynamic: bool
) -> None:
    def program(x: Any) -> Any:
        return (function(x) - 3).abs().sqrt()

    def gradient(x: Any) -> Any:
        return torch.autograd.grad(program(x), x)[0]

    compiled = compile_aot(gradient if is_inside else program, dynamic=dynamic, decompositions=table)
    for images in (torch.full((2, 3, 4, 5), 3.0), torch.full((2, 3, 4, 5), 1.0)):
        images[0, 1, 2, 3] = 3.0
        x = images.to(memory_format=torch.channels_last).requires_grad_()
        actual = compiled(x) if is_inside else torch.autograd.grad(compiled(x), x)[0]
        expected = gradient(x)
        torch.testing.assert_close(actual, expected, equal_nan=True)
        assert actual.stride() == expected.stride() == (60, 20, 5, 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shape", "p"), [((3, 4), 1.0), ((3, 4), 0.0), ((3, 4), 0.4), ((0, 4), 0.4)])
def test_dropout_draws_and_shares_memory_as_in_eager_mode(shape, p, dynamic):
    def program(x):
        functional = torch.nn.functional.dropout(x, p)
        written = torch.nn.functional.dropout(x.sin(), p, inplace=True)
        return functional, torch.dropout(x, p, train=True), torch.ops.aten.dropout(x, p, True), written

    found = []
    x = torch.full(shape, torch.inf)
    for function in (program, compile_aot(program, dynamic=dynamic)):
        torch.manual_seed(3)
        results = function(x)
        found.append((*results, torch.rand(1), torch.tensor([r is x for r in results])))
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("arguments", [(0.0, True), (0.5, False)])
def test_native_dropout_that_drops_nothing_gives_a_copy(arguments, dynamic):
    def program(x):
        same, kept = torch.native_dropout(x, *arguments)
        return same, kept, same.add_(1)

    found = []
    for function in (program, compile_aot(program, dynamic=dynamic)):
        torch.manual_seed(3)
        x = torch.arange(24.0).reshape(4, 6).t()[1:, ::2]
        same, kept, written = function(x)
        assert same is written
        found.append((x, same, kept, torch.rand(1), torch.tensor([same.stride(), kept.stride()])))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_detached_write_to_a_leaf_whose_elements_share_memory():
    def program(x):
        x.diagonal(0).detach().neg_()
        return x * 1

    found = []
    for function in (program, compile_aot(program)):
        x = torch.ones(1).as_strided((2, 1), (0, 1)).requires_grad_()
        found.append((function(x), x.detach()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_with_symbolic_sizes_backward_of_antialiased_resampling(mode):
    def program(x):
        return torch.nn.functional.interpolate(x, size=(3, 4), mode=mode, antialias=True).sin()

    compiled = compile_aot(program, dynamic=True)
    for width in (2, 5):
        x = torch.randn(1, 1, 6, width, requires_grad=True)
        expected, actual = (torch.autograd.grad(f(x).sum(), x) for f in (program, compiled))
        torch.testing.assert_close(actual, expected)


def test_cudnn_s_batch_norm_in_a_graph_is_the_operator_that_says_what_it_writes():
    aten, graph = torch.ops.aten, torch.fx.Graph()
    x, grad, weight, bias, mean, var = (
        graph.placeholder(name) for name in ("x", "grad", "weight", "bias", "mean", "var")
    )
    made = graph.call_function(aten.cudnn_batch_norm.default, (x, weight, bias, mean, var, True, 0.1, 1e-5))
    out, saved_mean, saved_rstd, reserve = (graph.call_function(operator.getitem, (made, at)) for at in range(4))
    back = graph.call_function(
        aten.cudnn_batch_norm_backward.default, (x, grad, weight, mean, var, saved_mean, saved_rstd, 1e-5, reserve)
    )
    graph.output((out, reserve, back))
    name_writes(graph)
    make_gradients_plain(graph)
    inputs = [torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(3), torch.randn(3), torch.zeros(3), torch.ones(3)]
    kept = [value.clone() for value in inputs]
    actual, empty, gradients = torch.fx.GraphModule({}, graph)(*inputs)
    expected, *saved = aten.native_batch_norm.default(kept[0], *kept[2:], True, 0.1, 1e-5)
    wanted = aten.native_batch_norm_backward.default(
        kept[1], kept[0], kept[2], *kept[4:], *saved, True, 1e-5, [True] * 3
    )
    assert {node.target for node in graph.nodes if "norm" in str(node.target)} == {
        aten._native_batch_norm_legit.default, aten.native_batch_norm_backward.default,
    }  # fmt: skip
    assert (empty.dtype, empty.shape) == (torch.uint8, (0,))
    for a, b in zip([actual, *gradients, *inputs], [expected, *wanted, *kept], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.fractional
@pytest.mark.parametrize("spread", [torch.var, torch.std, torch.var_mean, torch.std_mean])
@pytest.mark.parametrize("sizes", [(2, 3, 4), (4, 2, 3), (5, 3, 2)])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_with_symbolic_sizes_formulas_of_autograd_may_divide_by_zero(spread, sizes):
    def program(x):
        return pytree.tree_leaves(spread(x, dim=0, correction=2))[0]

    compiled = compile_aot(program, dynamic=True)
    for size in sizes:
        found = []
        for function in (program, compiled):
            x = torch.arange(2.0 * size).reshape(size, 2).requires_grad_()
            result = function(x)
            found.append((result, *torch.autograd.grad(result.sum(), x)))
        torch.testing.assert_close(found[1], found[0], equal_nan=True)


def test_with_symbolic_sizes_a_users_backward_divides_as_python_does():
    class Divided(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.size = x.shape[0]
            return x * 1

        @staticmethod
        def backward(ctx, *gradients):
            return gradients[0] * (1.0 / (ctx.size - 2.0))

    for size in (3, 4):
        compiled = compile_aot(lambda x: Divided.apply(x), dynamic=True)
        for x in (torch.ones(size), torch.ones(5)):
            x = x.requires_grad_()
            expected = torch.autograd.grad(Divided.apply(x).sum(), x)
            torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), expected)
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(ZeroDivisionError):
            torch.autograd.grad(compiled(x).sum(), x)


@pytest.fixture(scope="module")
def without_formula():
    """An operator with a kernel of other operators, and no formula for its gradient."""
    library = torch.library.Library("refimpl_without_formula", "DEF")
    library.define("cubed(Tensor x) -> Tensor")
    library.impl("cubed", lambda x: x**3, "CPU")
    torch.library.register_fake("refimpl_without_formula::cubed", torch.empty_like, lib=library)
    yield torch.ops.refimpl_without_formula.cubed
    library._destroy()


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("partition", ["min_cut", "default"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_operator_without_a_formula_is_differentiated_through_its_kernel(without_formula, partition, dynamic):
    def program(x, y):
        return without_formula(x.sin()) * y

    args = [torch.randn(3, requires_grad=True) for _ in range(2)]
    expected = torch.autograd.grad(program(*args).sum(), args)
    compiled = compile_aot(program, partition=partition, dynamic=dynamic)
    torch.testing.assert_close(torch.autograd.grad(compiled(*args).sum(), args), expected)
    captured = with_options(program, CaptureOptions(backend=aot_eager))
    torch.testing.assert_close(torch.autograd.grad(captured(*args).sum(), args), expected)


def test_an_operator_without_a_formula_stays_in_a_graph_without_gradients(without_formula):
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    compiled = compile_aot(lambda x, y: without_formula(x.sin()) * y, backend=backend)
    x, y = torch.randn(3), torch.randn(3, requires_grad=True)
    result = compiled(x, y)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), y)[0], x.sin() ** 3)
    assert any(node.target is without_formula.default for graph in graphs for node in graph.graph.nodes)
