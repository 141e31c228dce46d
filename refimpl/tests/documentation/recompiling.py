"""Examples of recompilation, dynamic sizes and stances: how many graphs a program needs, and for which calls they hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true, sym_or

from refimpl.tests.documentation.example import Graphs, Page, equal, leaf, raising, same

_GUIDE = "user_guide/torch_compiler"
_AREA = "recompilation and dynamic sizes"
recompiling = Page(_AREA, "Dealing with Recompilations", f"{_GUIDE}/compile/programming_model.recompilation.html")
guarding = Page(_AREA, "Reducing Guard Overhead", f"{_GUIDE}/compile/programming_model.reducing_guard_overhead.html")
dynamic = Page(_AREA, "Dynamic Shapes", f"{_GUIDE}/torch.compiler_dynamic_shapes.html")
core = Page(_AREA, "Dynamic Shapes Core Concepts", f"{_GUIDE}/compile/dynamic_shapes_core_concepts.html")
data = Page(
    _AREA,
    "Troubleshooting GuardOnDataDependentSymNode Errors",
    f"{_GUIDE}/compile/dynamic_shapes_troubleshooting_guardon_errors.html",
)
zero_one = Page(_AREA, "Zero-One Specialization", f"{_GUIDE}/compile/dynamic_shapes_zero_one_specialization.html")
deep_dive = Page(_AREA, "Dynamo Deep-Dive", f"{_GUIDE}/torch.compiler_dynamo_deepdive.html")
stances = Page(
    _AREA,
    "Dynamic Compilation Control with torch.compiler.set_stance",
    "recipes/torch_compiler_set_stance_tutorial.html",
)


@recompiling
def sizes_that_change_become_symbols(api: Any) -> None:
    """The second size is captured with a symbol, the third reuses that graph."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x + 4, backend=graphs)
    for size in (3, 5, 8, 9):
        equal(compiled(torch.zeros(size)), torch.full((size,), 4.0))
    equal(len(graphs), 2)


@recompiling
def numbers_of_the_caller_are_constants(api: Any) -> None:
    """A float that changes is captured again each time; as a tensor it is not."""
    graphs = Graphs()
    compiled = api.compile(lambda x, c: x * c, backend=graphs, dynamic=False)
    for i in range(3):
        equal(compiled(torch.ones(4), 0.25 + i), torch.full((4,), 0.25 + i))
    equal(len(graphs), 3)
    for i in range(3):
        equal(compiled(torch.ones(4), torch.tensor(0.5 + i)), torch.full((4,), 0.5 + i))
    equal(len(graphs), 4)


def _trained(api: Any, compile_it: bool, *, rate: Any) -> list[torch.Tensor]:
    torch.manual_seed(7)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad(True)
        model(x).pow(2).sum().backward()
        optimizer.step()
        schedule.step()

    run = api.compile(step, backend="eager") if compile_it else step
    for _ in range(3):
        run(torch.ones(4, 3))
    return [value.detach() for value in model.parameters()]


@recompiling
def a_training_step_with_a_schedule(api: Any) -> None:
    """A whole step of training with a rate that decays: eager's parameters."""
    for one, other in zip(_trained(api, True, rate=0.05), _trained(api, False, rate=0.05), strict=True):
        equal(one, other)


@recompiling
def a_training_step_with_a_rate_in_a_tensor(api: Any) -> None:
    """The same with the rate in a tensor."""
    rates = [torch.tensor(0.05) for _ in range(2)]
    for one, other in zip(_trained(api, True, rate=rates[0]), _trained(api, False, rate=rates[1]), strict=True):
        equal(one, other)


class _Counting(nn.Module):
    """A module that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


@recompiling
def a_counter_of_a_module(api: Any) -> None:
    """A number that a module changes at each call: eager's results."""
    module = _Counting()
    compiled = api.compile(module, backend="eager")
    for i in range(5):
        equal(compiled(torch.ones(3)), torch.full((3,), i + 1.0))
    equal(module.calls, 5)


@recompiling
def a_counter_as_a_symbol(api: Any) -> None:
    """With allow_unspec_int_on_nn_module the number is no constant: at most two graphs."""
    graphs = Graphs()
    with api._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        compiled = api.compile(_Counting(), backend=graphs)
        for i in range(5):
            equal(compiled(torch.ones(3)), torch.full((3,), i + 1.0))
    assert len(graphs) <= 3


@recompiling
def more_sizes_than_the_limit(api: Any) -> None:
    """Past the limit of recompilations the function runs without, with eager's values."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x + 4, backend=graphs, dynamic=False)
    for size in range(2, 13):
        equal(compiled(torch.zeros(size)), torch.full((size,), 4.0))
    equal(len(graphs), api._dynamo.config.cache_size_limit)


@recompiling
def a_higher_limit(api: Any) -> None:
    """cache_size_limit raises the number of graphs."""
    graphs = Graphs()
    with api._dynamo.config.patch(cache_size_limit=16):
        compiled = api.compile(lambda x: x + 4, backend=graphs, dynamic=False)
        for size in range(2, 13):
            compiled(torch.zeros(size))
    equal(len(graphs), 11)


@recompiling
def a_break_saves_recompilation(api: Any) -> None:
    """What is before a break is captured once, what is after it for each constant."""
    graph_break, graphs = api._dynamo.graph_break, Graphs()

    def body(x: torch.Tensor, c: int) -> torch.Tensor:
        y = x.cos() + 1
        graph_break()
        return y + c

    compiled = api.compile(body, backend=graphs, dynamic=False)
    for i in range(4):
        equal(compiled(torch.zeros(3), i), torch.full((3,), 2.0 + i))
    equal(len(graphs), 5)


@guarding
def guards_on_modules_are_left_out(api: Any) -> None:
    """guard_filter_fn without guards on modules: the values are right, and the graph is used again."""
    module, graphs = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), Graphs()
    compiled = api.compile(
        module, backend=graphs, options={"guard_filter_fn": api.compiler.skip_guard_on_all_nn_modules_unsafe}
    )
    x = torch.randn(2, 3)
    equal(compiled(x), module(x))
    equal(compiled(x), module(x))
    equal(len(graphs), 1)


@guarding
def free_tensors_are_attributes(api: Any) -> None:
    """With install_free_tensors, parameters are attributes of the graph."""
    module, graphs = nn.Linear(3, 4), Graphs()
    with api._dynamo.config.patch(install_free_tensors=True):
        x = torch.randn(2, 3)
        equal(api.compile(module, backend=graphs)(x), module(x))
    equal(sum(node.op == "placeholder" for node in graphs.graphs[0].graph.nodes), 1)


@guarding
def guards_are_left_out_after_warming_up(api: Any) -> None:
    """set_stance(skip_guard_eval_unsafe=True) after calls with two sizes: both are told apart."""
    compiled = api.compile(lambda x: x + 4, backend="eager", dynamic=False)
    compiled(torch.zeros(3))
    compiled(torch.zeros(5))
    with api.compiler.set_stance(skip_guard_eval_unsafe=True):
        equal(compiled(torch.zeros(3)), torch.full((3,), 4.0))
        equal(compiled(torch.zeros(5)), torch.full((5,), 4.0))


@dynamic
def static_sizes_need_a_graph_each(api: Any) -> None:
    """dynamic=False: a graph for each size."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x / x.size()[0], backend=graphs, dynamic=False)
    for size in (10, 20, 30):
        equal(compiled(torch.ones(size)), torch.full((size,), 1 / size))
    equal(len(graphs), 3)


@dynamic
def a_size_in_arithmetic_is_a_symbol(api: Any) -> None:
    """dynamic=True: one graph, which uses the size."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x / x.size()[0], backend=graphs, dynamic=True)
    for size in (10, 20, 30):
        equal(compiled(torch.ones(size)), torch.full((size,), 1 / size))
    equal(len(graphs), 1)


@dynamic
def branches_on_sizes_specialize(api: Any) -> None:
    """Three ways through the program: three graphs for six sizes."""
    graphs = Graphs()

    def body(x: torch.Tensor) -> torch.Tensor:
        if x.size()[0] == 6:
            return x * 6
        if x.size()[0] <= 15:
            return x - 100
        return x + x.size()[0]

    compiled = api.compile(body, backend=graphs, dynamic=True)
    for size in (6, 9, 15, 16, 20, 40):
        equal(compiled(torch.ones(size)), body(torch.ones(size)))
    equal(len(graphs), 3)


@dynamic
def a_marked_size(api: Any) -> None:
    """mark_dynamic: one graph from the first call on."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x / x.size()[0], backend=graphs)
    first = torch.ones(12)
    api._dynamo.mark_dynamic(first, 0)
    compiled(first)
    equal(compiled(torch.ones(24)), torch.full((24,), 1 / 24))
    equal(len(graphs), 1)


@dynamic
def a_marked_size_must_stay_one(api: Any) -> None:
    """mark_dynamic of a size that the program compares with a constant raises."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.size()[0] == 12 else x

    x = torch.ones(12)
    api._dynamo.mark_dynamic(x, 0)
    with raising(Exception, text="12"):
        api.compile(body, backend="eager")(x)
    y = torch.ones(12)
    api._dynamo.maybe_mark_dynamic(y, 0)
    equal(api.compile(body, backend="eager")(y), torch.full((12,), 2.0))


@dynamic
def marking_inside_is_refused(api: Any) -> None:
    """mark_dynamic in the compiled function is an error."""
    mark = api._dynamo.mark_dynamic

    def body(x: torch.Tensor) -> torch.Tensor:
        mark(x, 0)
        return x + 1

    with raising(Exception):
        api.compile(body, backend="eager", fullgraph=True)(torch.ones(4))


@dynamic
def an_unbacked_size(api: Any) -> None:
    """mark_unbacked: a size without a value, so 1 is as good as any other."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x.sum(0) + x.size()[0], backend=graphs)
    first = torch.ones(5, 2)
    api._dynamo.decorators.mark_unbacked(first, 0)
    equal(compiled(first), torch.full((2,), 10.0))
    second = torch.ones(1, 2)
    api._dynamo.decorators.mark_unbacked(second, 0)
    equal(compiled(second), torch.full((2,), 2.0))
    equal(len(graphs), 1)


@dynamic
def sources_named_dynamic(api: Any) -> None:
    """dynamic_sources names an argument whose sizes are symbols."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x / x.size()[0], backend=graphs)
    with api.compiler.config.patch(dynamic_sources="L['x']"):
        compiled(torch.ones(12))
    equal(compiled(torch.ones(24)), torch.full((24,), 1 / 24))
    equal(len(graphs), 1)


@core
def sizes_propagate(api: Any) -> None:
    """Concatenated with itself, a symbol is twice itself."""
    graphs = Graphs()
    compiled = api.compile(lambda x: torch.cat([x, x]).sum(0), backend=graphs)
    x = torch.ones(6, 2)
    api._dynamo.mark_dynamic(x, 0)
    equal(compiled(x), torch.full((2,), 12.0))
    equal(compiled(torch.ones(7, 2)), torch.full((2,), 14.0))
    equal(len(graphs), 1)


@core
def a_branch_on_a_number(api: Any) -> None:
    """An int on one side of a branch and one on the other are two graphs, in all two for four calls."""
    graphs = Graphs()

    def body(x: torch.Tensor, n: int) -> torch.Tensor:
        return x / 2 if n > 5 else x / 4

    compiled = api.compile(body, backend=graphs, dynamic=True)
    for n in (6, 4, 9, 3):
        equal(compiled(torch.ones(2), n), body(torch.ones(2), n))
    equal(len(graphs), 2)


@core
def a_check_of_a_size(api: Any) -> None:
    """torch._check of a size holds at run time: another size raises."""

    def body(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] < 50)
        return x + 1 if x.shape[0] < 50 else x - 1

    compiled = api.compile(body, backend="eager", dynamic=True)
    equal(compiled(torch.zeros(20)), torch.ones(20))
    with raising(RuntimeError):
        compiled(torch.zeros(60))


def _with_scalars(api: Any) -> Any:
    return api._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


@data
def a_branch_on_a_value_without_a_hint(api: Any) -> None:
    """A branch on item() cannot be part of one graph."""

    def body(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        return x * 2 if n > 4 else x + 3

    with _with_scalars(api), raising(Exception):
        api.compile(body, backend="eager", fullgraph=True)(torch.tensor([3, 4]))


@data
def a_check_decides_a_branch(api: Any) -> None:
    """After torch._check the branch is known; a value that breaks the check raises."""

    def body(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        torch._check(n > 4)
        return x * 2 if n > 4 else x + 3

    with _with_scalars(api):
        compiled = api.compile(body, backend="aot_eager", fullgraph=True)
        equal(compiled(torch.tensor([3, 4])), torch.tensor([6, 8]))
        with raising(RuntimeError):
            compiled(torch.tensor([1, 2]))


@data
def a_size_known_statically(api: Any) -> None:
    """statically_known_true of a symbol is False, and adds no guard."""
    graphs = Graphs()

    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if statically_known_true(x.numel() > 10) else x + 3

    compiled = api.compile(body, backend=graphs, dynamic=True, fullgraph=True)
    equal(compiled(torch.zeros(20)), torch.full((20,), 3.0))
    equal(compiled(torch.zeros(4)), torch.full((4,), 3.0))
    equal(len(graphs), 1)


@data
def a_guard_or_false(api: Any) -> None:
    """guard_or_false of an unbacked value takes the general path."""

    def body(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        if guard_or_false(n == 0):
            return x - 1
        torch._check(n != 0)
        return x * n

    with _with_scalars(api):
        compiled = api.compile(body, backend="eager", fullgraph=True)
        equal(compiled(torch.tensor([3, 4])), torch.tensor([21, 28]))


@data
def conditions_are_joined(api: Any) -> None:
    """torch._check of sym_or: a value that breaks both raises."""

    def body(x: torch.Tensor) -> torch.Tensor:
        a, b = x[0].item(), x[1].item()
        torch._check(sym_or(a != b, a > 5), lambda: "two small equal numbers")
        return x * a

    with _with_scalars(api):
        compiled = api.compile(body, backend="eager", fullgraph=True)
        equal(compiled(torch.tensor([3, 4])), torch.tensor([9, 12]))
        with raising(RuntimeError):
            compiled(torch.tensor([2, 2]))


@data
def two_equal_values_without_hints(api: Any) -> None:
    """Sums of tensors whose sizes were read from data: the sizes are checked equal."""

    def body(x: torch.Tensor) -> torch.Tensor:
        a: Any = x.sum().item()
        b: Any = x.sum().item()
        torch._check(a == b)
        return torch.ones(a) + torch.ones(b)

    with _with_scalars(api):
        equal(api.compile(body, backend="eager", fullgraph=True)(torch.tensor([2, 1])), torch.full((3,), 2.0))


@data
def a_length_read_from_data(api: Any) -> None:
    """narrow with a length that was read from data."""

    def body(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n: Any = x.sum().item()
        torch._check(n >= 0)
        torch._check(n <= y.shape[0])
        return y.narrow(0, 0, n) * 2

    with _with_scalars(api):
        compiled = api.compile(body, backend="eager", fullgraph=True)
        equal(compiled(torch.tensor([2, 1]), torch.ones(6)), torch.full((3,), 2.0))


@data
def lengths_of_parts(api: Any) -> None:
    """split by lengths read by tolist()."""

    def body(values: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
        sizes = lengths.tolist()
        return [part.sum() for part in torch.split(values, sizes)]

    with _with_scalars(api):
        compiled = api.compile(body, backend="eager", fullgraph=True)
        found = compiled(torch.arange(9.0), torch.tensor([3, 2, 4]))
    equal([float(one) for one in found], [3.0, 7.0, 26.0])


@zero_one
def sizes_of_one_are_apart(api: Any) -> None:
    """A size of one has a graph of its own, which is not used for others."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x * x.shape[0], backend=graphs, dynamic=True)
    for size in (1, 4, 7):
        equal(compiled(torch.ones(size, 3)), torch.full((size, 3), float(size)))
    equal(len(graphs), 2)


@deep_dive
def a_mean_square(api: Any) -> None:
    """The graph has the three calls of the program."""
    graphs = Graphs()
    x, y = torch.randn(20), torch.randn(20)
    equal(api.compile(lambda x, y: ((x - y) ** 2).mean(), backend=graphs)(x, y), ((x - y) ** 2).mean())
    equal(sum(node.op.startswith("call") for node in graphs.graphs[0].graph.nodes), 3)


@deep_dive
def a_number_becomes_a_symbol(api: Any) -> None:
    """An int is a constant first, then a symbol for each side of a branch: three graphs for five calls."""
    graphs = Graphs()

    def body(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x**2
        return (n + 3) * y if n >= 0 else y / n

    compiled = api.compile(body, backend=graphs)
    for n in (2, 3, -2, 5, -4):
        equal(compiled(torch.ones(8), n), body(torch.ones(8), n))
    equal(len(graphs), 3)


@deep_dive
def a_string_is_a_constant(api: Any) -> None:
    """Another string is captured again."""
    graphs = Graphs()
    compiled = api.compile(lambda a, b: a * len(b), backend=graphs)
    for word in ("guard", "frame", "guard"):
        equal(compiled(torch.arange(4), word), torch.arange(4) * 5)
    equal(len(graphs), 2)


@deep_dive
def a_string_in_a_list(api: Any) -> None:
    """A change of a string in a list is seen."""
    graphs = Graphs()
    compiled = api.compile(lambda x, words: x * len(words[0]), backend=graphs)
    equal(compiled(torch.ones(2), ["abc", "d"]), torch.full((2,), 3.0))
    equal(compiled(torch.ones(2), ["ab", "d"]), torch.full((2,), 2.0))


@deep_dive
def equal_sizes_share_a_symbol(api: Any) -> None:
    """Two arguments of one size; then of two sizes, which eager refuses too."""
    graphs = Graphs()
    compiled = api.compile(lambda a, b: a.shape[0] * a * b, backend=graphs)
    for size in (4, 8, 16):
        equal(compiled(torch.ones(size, 3), torch.ones(size, 3)), torch.full((size, 3), float(size)))
    equal(len(graphs), 2)
    with raising(RuntimeError):
        compiled(torch.ones(4, 3), torch.ones(5, 3))


@deep_dive
def a_guard_on_an_expression(api: Any) -> None:
    """2 * size < 16 is guarded: a size on the other side is captured again."""
    graphs = Graphs()

    def body(a: torch.Tensor) -> torch.Tensor:
        return a * 3 if a.shape[0] * 2 < 16 else a + 1

    compiled = api.compile(body, backend=graphs, dynamic=True)
    for size in (8, 20, 5, 7, 9):
        equal(compiled(torch.ones(size)), body(torch.ones(size)))
    equal(len(graphs), 2)


@stances
def the_compiler_is_turned_off(api: Any) -> None:
    """force_eager as a decorator, as a context manager, and as a call."""
    is_compiling, set_stance = api.compiler.is_compiling, api.compiler.set_stance
    compiled = api.compile(lambda x: x + 1 if is_compiling() else x - 1, backend="eager")
    x = torch.zeros(3)
    equal(compiled(x), x + 1)
    equal(set_stance("force_eager")(compiled)(x), x - 1)
    with set_stance("force_eager"):
        equal(compiled(x), x - 1)
    set_stance("force_eager")
    try:
        equal(compiled(x), x - 1)
    finally:
        set_stance("default")
    equal(compiled(x), x + 1)


@stances
def a_stance_inside_is_refused(api: Any) -> None:
    """set_stance in a compiled function raises."""
    set_stance = api.compiler.set_stance

    def body(x: torch.Tensor) -> torch.Tensor:
        with set_stance("force_eager"):
            return x + 1

    with raising(Exception):
        api.compile(body, backend="eager", fullgraph=True)(torch.zeros(3))


@stances
def a_recompilation_is_an_error(api: Any) -> None:
    """fail_on_recompile lets a known size pass and refuses a new one."""
    compiled = api.compile(torch.relu, backend="eager")
    compiled(torch.randn(3))
    with api.compiler.set_stance("fail_on_recompile"):
        compiled(torch.randn(3))
        with raising(RuntimeError):
            compiled(torch.randn(4))


@stances
def eager_in_place_of_a_recompilation(api: Any) -> None:
    """eager_on_recompile runs a new size without the compiler."""
    is_compiling = api.compiler.is_compiling
    compiled = api.compile(lambda x: x + 1 if is_compiling() else x - 1, backend="eager")
    compiled(torch.zeros(3))
    with api.compiler.set_stance("eager_on_recompile"):
        equal(compiled(torch.zeros(3)), torch.ones(3))
        equal(compiled(torch.zeros(4)), -torch.ones(4))
        equal(compiled(torch.zeros(3)), torch.ones(3))


@stances
def eager_first(api: Any) -> None:
    """eager_then_compile: the first call runs as it is, the second learns which sizes change."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x * 2, backend=graphs)
    with api.compiler.set_stance("eager_then_compile"):
        for size in (3, 4, 6):
            equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
    equal(len(graphs), 1)


@dynamic
def a_matrix_product_of_any_size(api: Any) -> None:
    """Gradients of a product with a dynamic size."""

    def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).mean(0)

    compiled = api.compile(body, backend="aot_eager", dynamic=True)
    for size in (3, 5):
        same(body, compiled, leaf(size, 4), leaf(4, 2))
