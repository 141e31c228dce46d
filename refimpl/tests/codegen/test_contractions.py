"""Matrix products as kernels of our own give what eager gives, in one kernel with what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from refimpl._torch import FakeTensorMode
from refimpl.codegen.kernel import Kernel
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.by_device import LevelByDevice
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.loop_ir import Nest
from refimpl.codegen.lowering.contractions import MOST_EMULATED
from refimpl.codegen.lowering.graph import lower_graph
from refimpl.codegen.options import CodegenOptions, Contractions
from refimpl.codegen.printing.kernels import PrintedKernel
from refimpl.tests.codegen.checks import Compiler, check_levels

HALF_AND_FLOAT = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def _tolerance(dtype: torch.dtype) -> float:
    return {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-12}[dtype]


def compiled_template(
    function: Callable[..., Any],
    *,
    dynamic: bool = False,
    strict: bool = True,
    contractions: Contractions = "template",
) -> tuple[Any, Compiler]:
    """The function compiled to kernels on the emulator, which also looks for races, and the compiler with what it compiled."""
    compiler = Compiler(strict=strict, options=CodegenOptions(contractions=contractions))
    return compiler.compile(function, dynamic=dynamic), compiler


def agree(function: Any, compiled: Any, arguments: Sequence[torch.Tensor], tolerance: float | None = None) -> None:
    """Results and gradients, which must be laid out in memory alike as well."""
    __tracebackhide__ = True
    expected, actual = pytree.tree_leaves(function(*arguments)), pytree.tree_leaves(compiled(*arguments))
    for a, b in zip(expected, actual, strict=True):
        bound = (_tolerance(a.dtype) if a.is_floating_point() else 0) if tolerance is None else tolerance
        torch.testing.assert_close(b, a, rtol=bound, atol=bound, equal_nan=True)
        assert b.stride() == a.stride()
    wanted = [argument for argument in arguments if argument.requires_grad]
    if not wanted:
        return
    gradients = []
    for outputs in (expected, actual):
        sums = [
            (output * torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype, device=output.device)).sum()
            for output in outputs
        ]
        gradients.append(torch.autograd.grad(torch.stack(sums).sum(), wanted))
    for a, b in zip(*gradients, strict=True):
        bound = 10 * _tolerance(a.dtype)
        torch.testing.assert_close(b, a, rtol=bound, atol=bound)


def check(function: Callable[..., Any], *arguments: torch.Tensor, **options: Any) -> list[CompiledGraph]:
    compiled, compiler = compiled_template(function, **options)
    agree(function, compiled, arguments)
    return compiler.graphs


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def sources(graph: CompiledGraph) -> list[str]:
    return [kernel.source for kernel in graph.kernels]


@pytest.mark.parametrize("dtype", HALF_AND_FLOAT, ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "with gradients"])
def test_products_of_matrices(dtype: torch.dtype, *, grad: bool) -> None:
    graphs = check(torch.mm, values(37, 50, dtype=dtype, grad=grad), values(50, 21, seed=1, dtype=dtype, grad=grad))
    assert all("tl.dot(" in source for graph in graphs for source in sources(graph))


SHAPES = [
    (1, 1, 1),
    (1, 7, 5),
    (7, 1, 5),
    (5, 7, 1),
    (1, 40, 1),
    (16, 16, 16),
    (3, 200, 130),
    (130, 33, 3),
    (65, 129, 100),
]


@pytest.mark.fractional
@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_sizes_and_layouts(rows: int, depth: int, columns: int, turned: str) -> None:
    a = values(depth, rows).t() if "a" in turned else values(rows, depth)
    b = values(columns, depth, seed=1).t() if "b" in turned else values(depth, columns, seed=1)
    check(lambda a, b: (a @ b, a[:, 1:] @ b[1:]), a, b)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_without_elements_it_is_zero(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    check(torch.mm, values(rows, depth), values(depth, columns))
    check(torch.addmm, values(columns), values(rows, depth), values(depth, columns))


@pytest.mark.parametrize("dtype", HALF_AND_FLOAT, ids=str)
def test_batches_that_are_expanded_and_turned(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.bmm(x, y), x @ y[0], x.transpose(0, 1) @ x.permute(1, 2, 0), torch.einsum("bij,bjk->ik", x, y)

    x, y = (values(5, *sizes, dtype=dtype, grad=True) for sizes in ((6, 30), (30, 20)))
    check(function, x, y)
    check(lambda x, y: x[:, None] @ y[None], x[:2], y)


def _bias(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([float("nan"), 1.0, -2.0, float("inf"), 0.5]).to(dtype)


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", [*HALF_AND_FLOAT, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (2, 0), (-3, 2), (0, 1)])
def test_sums_with_factors(dtype: torch.dtype, alpha: int, beta: int) -> None:
    """With beta = 0 the added tensor is not read, so its NaN do not count."""
    a, b = values(7, 18).mul(4).to(dtype), values(18, 5, seed=1).mul(4).to(dtype)
    bias = _bias(dtype) if dtype.is_floating_point and beta == 0 else torch.arange(5).to(dtype)

    def function(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return (
            torch.addmm(bias, a, b, alpha=alpha, beta=beta),
            torch.baddbmm(bias, a[None], b[None], alpha=alpha, beta=beta),
        )

    check(function, bias, a, b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_overflow_as_in_eager(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    info = torch.iinfo(dtype)
    a, b = (
        torch.randint(info.min // 2, info.max // 2, shape, generator=generator).to(dtype)
        for shape in ((9, 40), (40, 8))
    )
    check(torch.mm, a, b)


def test_a_layer_is_one_kernel() -> None:
    """The bias, what follows, and two results."""

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, rest: torch.Tensor) -> Any:
        y = F.linear(x, weight, bias)
        return F.gelu(y).to(torch.float16), (y + rest).relu()

    arguments = (values(4, 10, 33), values(24, 33, seed=1), values(24, seed=2), values(4, 10, 24, seed=3))
    (graph,) = check(layer, *arguments)
    (source,) = sources(graph)
    assert source.count("tl.dot(") == 1
    assert source.count("tl.store(") == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_product_is_rounded_before_what_follows(dtype: torch.dtype) -> None:
    """The rounded product is bit for bit equal to the one that is stored, as in eager."""

    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        product = a @ b
        return product, product.float() * 3

    compiled, compiler = compiled_template(function)
    product, tripled = compiled(values(20, 30, dtype=dtype), values(30, 40, dtype=dtype, seed=1))
    assert len(compiler.graphs[0].kernels) == 1
    assert torch.equal(tripled, product.float() * 3)


def test_what_is_cheap_to_compute_is_computed_in_the_loop() -> None:
    """What is dear is put into memory first, by a kernel of its own."""
    a, b = values(20, 30), values(30, 40, seed=1)
    (graph,) = check(lambda a, b: (a * 2 + 1) @ b.abs(), a, b)
    assert len(graph.kernels) == 1
    (graph,) = check(lambda a, b: F.gelu(a) @ b, a, b)
    assert len(graph.kernels) == 2


def test_values_that_are_no_numbers_beyond_the_end_do_not_count() -> None:
    """1 / 0 and log(0) of lanes under a mask."""
    a, b = values(5, 20).abs() + 1, values(20, 6, seed=1).abs() + 1
    check(lambda a, b: (a.log() @ b.reciprocal(), a.reciprocal() @ b, a[:1].expand(5, 20).log() @ b), a, b)


def test_heads_are_put_in_another_order_by_the_same_kernel() -> None:
    def heads(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (scores @ values).transpose(1, 2).reshape(2, 7, -1) * 2

    (graph,) = check(heads, values(2, 3, 7, 11), values(2, 3, 11, 8, seed=1))
    assert len(graph.kernels) == 1


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight).relu() + x.sum(-1, keepdim=True)

    compiled, compiler = compiled_template(function, dynamic=True)
    for rows, depth, columns in ((5, 48, 20), (7, 5, 90), (130, 64, 3)):
        agree(function, compiled, (values(rows, depth, grad=True), values(columns, depth, seed=1, grad=True)))
    assert len(compiler.graphs) == 2


def test_what_has_no_exact_kernel_is_called() -> None:
    compiled, compiler = compiled_template(torch.mm, strict=False)
    a, b = torch.ones(3, 4, dtype=torch.complex64), torch.ones(4, 5, dtype=torch.complex64)
    agree(torch.mm, compiled, (a, b), 0)
    assert compiler.graphs[0].fallbacks == {"aten.mm.default": 1}


@pytest.mark.parametrize(
    ("contractions", "size", "calls"),
    [("extern", 20, 1), ("template", 21, 0), ("measured", 20, 0), ("measured", 21, 1)],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_large_products_are_calls_unless_asked_for(
    contractions: Contractions, size: int, calls: int, monkeypatch: pytest.MonkeyPatch, *, dynamic: bool
) -> None:
    """For symbolic sizes the hints count."""
    monkeypatch.setitem(MOST_EMULATED, "dot", 20**3)
    compiled, compiler = compiled_template(torch.mm, strict=False, contractions=contractions, dynamic=dynamic)
    agree(torch.mm, compiled, (values(size, size), values(size, size, seed=1)))
    assert compiler.graphs[0].fallbacks["aten.mm.default"] == calls


def _precisions(*fakes: torch.Tensor, target: Any, rest: Sequence[Any] = ()) -> list[str]:
    """The precisions of the products in a graph of one call."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{at}") for at in range(len(fakes))]
    call = graph.call_function(target, (*inputs, *rest))
    graph.output((call,))
    for node, fake in zip((*inputs, call), (*fakes, target(*fakes, *rest)), strict=True):
        node.meta["val"] = fake
    options = CodegenOptions(contractions="template", strict=True)
    lowered = lower_graph(torch.fx.GraphModule({}, graph), options=options)
    return [step.reduction.precision for step in lowered.steps if isinstance(step, Nest) and step.reduction is not None]


@pytest.fixture
def flags() -> Iterator[tuple[Any, Any]]:
    """PyTorch's for products and for convolutions, which are put back afterwards."""
    libraries: Any = torch.backends
    found = libraries.cuda.matmul, libraries.cudnn.conv
    before = [flag.fp32_precision for flag in found]
    yield found
    for flag, value in zip(found, before, strict=True):
        flag.fp32_precision = value


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("is_product", [True, False])
def test_floats_are_cut_off_where_eager_does(device: str, flags: tuple[Any, Any], *, is_product: bool) -> None:
    """On a GPU, products and convolutions have a flag each."""
    flags[0].fp32_precision, flags[1].fp32_precision = ("tf32", "ieee") if is_product else ("ieee", "tf32")
    aten = torch.ops.aten
    with FakeTensorMode():
        x, image, weight = (torch.empty(size, device=device) for size in ((20, 20), (1, 3, 9, 9), (4, 3, 3, 3)))
        of_product = _precisions(x, x, target=aten.mm.default)
        rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        of_convolution = _precisions(image, weight, target=aten.convolution.default, rest=rest)
    cut_off = ["tf32" if device == "cuda" else "ieee"]
    assert (of_product, of_convolution) == ((cut_off, ["ieee"]) if is_product else (["ieee"], cut_off))


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "product": (lambda a, b: a @ b, [(40, 50), (50, 70)]),
    "batches, turned": (lambda a, b: torch.bmm(a, b.transpose(1, 2)) * 2, [(3, 33, 20), (3, 17, 20)]),
    "layer": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(64, 32), (48, 32), (48,)]),
    "convolution": (lambda x, w: F.conv2d(x, w, stride=2, padding=1).relu(), [(2, 5, 9, 8), (34, 5, 3, 3)]),
    "vector": (lambda a, b: (a @ b[0], b[:1] @ a.t()), [(40, 50), (40, 50)]),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "vector"])
def test_emulator_interpreter_and_compiler_agree(name: str, dtype: torch.dtype) -> None:
    """Forward and backward."""
    function, shapes = PROGRAMS[name]
    compiled, compiler = compiled_template(function)
    arguments = [values(*shape, seed=at, dtype=dtype, grad=True) for at, shape in enumerate(shapes)]
    agree(function, compiled, arguments)
    assert len(compiler.graphs) == 2
    check_levels(compiler.recorded, tolerance=_tolerance(dtype))


def _printed(dtype: torch.dtype, *, size: int) -> list[PrintedKernel]:
    """The kernels of a product, a linear layer and a convolution with operands of this size. Nothing is run."""
    shapes = [(size, size), (size, size), (size,)]
    layer = _compiled_only(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), *(torch.empty(shape, dtype=dtype) for shape in shapes)
    )
    images = [(4, size // 8, 28, 28), (size // 4, size // 8, 3, 3)]
    convolution = _compiled_only(
        lambda x, w: F.conv2d(x, w, padding=1), *(torch.empty(shape, dtype=dtype) for shape in images)
    )
    return [*layer.printed, *convolution.printed]


class _NeverLaunched(Exception):
    """Raised in place of a launch."""


class _NoLevel:
    def launch(
        self, kernel: Kernel, grid: tuple[int, ...], arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> None:
        raise _NeverLaunched


def _compiled_only(function: Callable[..., Any], *arguments: torch.Tensor) -> CompiledGraph:
    compiler = Compiler(options=CodegenOptions(contractions="template"), level=_NoLevel())
    with pytest.raises(_NeverLaunched):
        compiler.compile(function)(*arguments)
    return compiler.graphs[0]


def _compiles(dtype: torch.dtype, capability: int, *, every: bool) -> None:
    kernels = [
        (one.kernel_for(made), made.constants)
        for one in _printed(dtype, size=512)
        for made in (one.configurations if every else one.configurations[:1])
    ]
    assert len(kernels) >= (8 if every else 2)
    for (kernel, constants), result in zip(
        kernels, compile_batch(kernels, capability, has_aligned_tensors=True), strict=True
    ):
        assert isinstance(result, CompiledKernel), (kernel.source, constants, result)
        assert result.spills <= 64, (kernel.source, constants)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_kernels_are_compiled_and_fit_in_registers(dtype: torch.dtype) -> None:
    _compiles(dtype, 90, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", HALF_AND_FLOAT, ids=str)
def test_in_every_configuration_too(dtype: torch.dtype, capability: int) -> None:
    _compiles(dtype, capability, every=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_configuration_gives_the_same(name: str) -> None:
    """What masks leave out does not depend on the blocks that a kernel is launched with."""
    function, shapes = PROGRAMS[name]
    compiled, compiler = compiled_template(function)
    compiled(*(values(*shape, seed=at) for at, shape in enumerate(shapes)))
    launched = 0
    for printed in compiler.graphs[0].printed:
        recorded = zip(compiler.recorded.launches, compiler.recorded.results, strict=True)
        launch, results = next((one, after) for one, after in recorded if one.kernel.source == printed.kernel.source)
        for made in printed.configurations[1:]:
            tensors = [value.clone() for value in launch.arguments if isinstance(value, torch.Tensor)]
            assert len(tensors) == len(launch.arguments)
            grid = tuple(int(size) for size in printed.grid_for(made))
            EmulatorLevel(races=True, asserts=True).launch(printed.kernel_for(made), grid, tensors, made.constants)
            launched += 1
            for actual, expected in zip(tensors, results, strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert launched >= 2


@pytest.mark.parametrize("dtype", HALF_AND_FLOAT, ids=str)
def test_operands_computed_from_other_dtypes_are_compiled(dtype: torch.dtype) -> None:
    """Triton has limits here that the emulator does not know: bfloat16 maxima are float32, float64 must be loaded as such."""

    def function(x: torch.Tensor, flags: torch.Tensor, whole: torch.Tensor) -> Any:
        return (
            x.relu() @ whole.to(dtype),
            torch.where(flags, x, 0.0) @ x,
            x @ x.clamp(-1, 1),
            x.half().to(dtype) @ flags.to(dtype),
        )

    compiled, compiler = compiled_template(function)
    x = values(20, 20, dtype=dtype)
    agree(function, compiled, (x, x > 0, (x * 3).to(torch.int8)), 20 * _tolerance(dtype))
    check_levels(compiler.recorded, tolerance=_tolerance(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF_AND_FLOAT, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_a_gpu(name: str, dtype: torch.dtype, flags: tuple[Any, Any]) -> None:
    for flag in flags:
        flag.fp32_precision = "ieee"
    function, shapes = PROGRAMS[name]
    compiler = Compiler(options=CodegenOptions(contractions="template"), level=LevelByDevice())
    arguments = [values(*shape, seed=at, dtype=dtype).cuda().requires_grad_() for at, shape in enumerate(shapes)]
    agree(function, compiler.compile(function), arguments, 4 * _tolerance(dtype))
