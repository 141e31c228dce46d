"""Examples of torch.compile's programming model: graph breaks, and how programs ask for them or forbid them."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any

import torch

from refimpl.tests.documentation.example import Graphs, Page, equal, leaf, raising, same

_FOLDER = "user_guide/torch_compiler/compile/programming_model"
_AREA = "graph breaks"
concepts = Page(_AREA, "Dynamo Core Concepts", f"{_FOLDER}.dynamo_core_concepts.html")
common = Page(_AREA, "Common Graph Breaks", f"{_FOLDER}.common_graph_breaks.html")
fullgraph = Page(_AREA, "Use fullgraph=True to Identify and Eliminate Graph Breaks", f"{_FOLDER}.fullgraph_true.html")
nonstrict = Page(_AREA, "Use torch._dynamo.nonstrict_trace", f"{_FOLDER}.dynamo_nonstrict_trace.html")
toggling = Page(_AREA, "Toggling error_on_graph_break", f"{_FOLDER}.error_on_graph_break.html")
skipped = Page(_AREA, "Skipped Functions", f"{_FOLDER}.skipped_functions.html")
disabling = Page(_AREA, "Disabling and Suppressing Errors", f"{_FOLDER}.compiler_disable.html")
nested = Page(_AREA, "Nested Graph Breaks", f"{_FOLDER}.nested_graph_breaks.html")


@concepts
def a_call_that_stores_breaks_the_graph(api: Any) -> None:
    """Storing runs between two graphs."""
    stored: list[torch.Tensor] = []

    def store(value: torch.Tensor) -> None:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        stored.append(torch.load(buffer))

    def volume(x: torch.Tensor) -> torch.Tensor:
        half = x**2 / 4
        store(half)
        return half**3 - 1

    graphs = Graphs()
    x = torch.randn(5)
    equal(api.compile(volume, backend=graphs)(x), (x**2 / 4) ** 3 - 1)
    equal(stored[0], x**2 / 4)
    equal(len(graphs), 2)


@concepts
def guards_hold_for_equal_inputs(api: Any) -> None:
    """A second call with the same sizes reuses the graph; another size is captured again."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x - 2, backend=graphs)
    compiled(torch.ones(2, 5))
    compiled(torch.zeros(2, 5))
    equal(len(graphs), 1)
    equal(compiled(torch.ones(6, 5)), torch.full((6, 5), -1.0))
    equal(len(graphs), 2)


@concepts
def dynamic_sizes_need_one_graph(api: Any) -> None:
    """With dynamic=True one graph serves several sizes."""
    graphs = Graphs()
    compiled = api.compile(lambda x: x * 3, backend=graphs, dynamic=True)
    for size in (3, 4, 7):
        equal(compiled(torch.ones(size, size)), torch.full((size, size), 3.0))
    equal(len(graphs), 1)


@common
def an_error_of_the_program_stays_one(api: Any) -> None:
    """A call with too many arguments raises TypeError, as in eager mode."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x, x)  # type: ignore[call-overload]

    with raising(TypeError, text="cos"):
        api.compile(wrong, backend="eager")(torch.ones(2))


@common
def an_error_shows_under_force_eager(api: Any) -> None:
    """The stance force_eager leaves the function as it is, with its own error."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x, x)  # type: ignore[call-overload]

    compiled = api.compile(wrong, backend="eager")
    with api.compiler.set_stance("force_eager"), raising(TypeError, text="cos"):
        compiled(torch.ones(2))


@common
def a_branch_on_data(api: Any) -> None:
    """Both ways of a branch on a sum agree with eager."""

    def centred(x: torch.Tensor) -> torch.Tensor:
        total = x.mean()
        if total > 0.5:
            return x * total.item()
        return x / (1 + total.item())

    compiled = api.compile(centred, backend="aot_eager")
    same(centred, compiled, torch.ones(2, 4))
    same(centred, compiled, torch.zeros(2, 4))


@common
def a_branch_on_a_tensor_of_a_closure(api: Any) -> None:
    """The branch is taken by the captured tensor's values."""
    offset = torch.randn(2, 3)

    def shift(y: torch.Tensor) -> torch.Tensor:
        if offset.sum() > 0:
            return y + offset
        return y - offset

    same(shift, api.compile(shift, backend="aot_eager"), leaf(2, 3))


@common
def a_branch_on_a_constant(api: Any) -> None:
    """A value read before the call is no graph break."""
    offset = torch.randn(2, 3)
    is_positive = bool(offset.sum() > 0)

    def shift(y: torch.Tensor) -> torch.Tensor:
        return y + offset if is_positive else y - offset

    graphs = Graphs()
    same(shift, api.compile(shift, backend=graphs, fullgraph=True), leaf(2, 3))


@common
def cond_takes_the_place_of_a_branch(api: Any) -> None:
    """torch.cond keeps the branch in one graph."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 1, lambda v: v * 2, lambda v: v - 3, (x,))

    compiled = api.compile(step, backend="aot_eager", fullgraph=True)
    equal(compiled(torch.ones(4)), torch.full((4,), 2.0))
    equal(compiled(torch.zeros(4)), torch.full((4,), -3.0))


@common
def a_number_read_from_a_tensor_is_captured(api: Any) -> None:
    """With capture_scalar_outputs, item() is no graph break."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.amax().item()

    graphs = Graphs()
    with api._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = api.compile(scaled, backend=graphs, fullgraph=True)
        equal(compiled(torch.arange(4.0)), torch.arange(4.0) * 3)
        equal(compiled(torch.arange(4.0) + 1), (torch.arange(4.0) + 1) * 4)
    equal(len(graphs), 1)


@common
def printing_keeps_its_place(api: Any) -> None:
    """print runs between the graphs, with the value it has there."""

    def shown(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("total", y.sum().item())
        return y * 2

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        equal(api.compile(shown, backend="eager")(torch.zeros(3)), torch.full((3,), 2.0))
    equal(out.getvalue(), "total 3.0\n")


@common
def printing_is_moved_to_the_end(api: Any) -> None:
    """A function of reorderable_logging_functions runs after the graph, of which there is one."""

    def shown(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("a step")
        return y * 2

    out, graphs = io.StringIO(), Graphs()
    with api._dynamo.config.patch(reorderable_logging_functions={print}), contextlib.redirect_stdout(out):
        equal(api.compile(shown, backend=graphs)(torch.zeros(3)), torch.full((3,), 2.0))
    equal(out.getvalue(), "a step\n")
    equal(len(graphs), 1)


@fullgraph
def an_iterator_of_the_caller(api: Any) -> None:
    """next() of an iterator from outside agrees with eager, or is refused by name."""

    def pair(items: Any) -> torch.Tensor:
        return next(items) * next(items)

    compiled = api.compile(pair, backend="eager", fullgraph=True)
    with contextlib.suppress(api._dynamo.exc.Unsupported):
        equal(compiled(iter([torch.tensor(3.0), torch.tensor(4.0)])), torch.tensor(12.0))


@fullgraph
def an_iterator_made_inside(api: Any) -> None:
    """An iterator over a list that is an argument is captured whole."""

    def pair(items: list[torch.Tensor]) -> torch.Tensor:
        iterator = iter(items)
        return next(iterator) * next(iterator)

    equal(
        api.compile(pair, backend="eager", fullgraph=True)([torch.tensor(3.0), torch.tensor(4.0)]), torch.tensor(12.0)
    )


@fullgraph
def an_asked_for_break_is_an_error(api: Any) -> None:
    """graph_break under fullgraph=True raises Unsupported."""
    graph_break = api._dynamo.graph_break

    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x.tan()
        graph_break()
        return y.cos()

    with raising(api._dynamo.exc.Unsupported):
        api.compile(lambda x: inner(x * 2), backend="eager", fullgraph=True)(torch.randn(3))


@fullgraph
def nonstrict_trace_is_a_way_out(api: Any) -> None:
    """A function marked by nonstrict_trace is traced, in one graph."""
    graph_break = api._dynamo.graph_break

    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x.tan()
        graph_break()
        return y.cos()

    traced = api._dynamo.nonstrict_trace(inner)
    x = torch.randn(3)
    equal(api.compile(lambda x: traced(x * 2), backend="eager", fullgraph=True)(x), (x * 2).tan().cos())


@fullgraph
def storing_is_refused(api: Any) -> None:
    """torch.save cannot be part of one graph."""

    def stored(x: torch.Tensor) -> torch.Tensor:
        y = x * 4
        torch.save(y, io.BytesIO())
        return y - 1

    with raising(api._dynamo.exc.Unsupported):
        api.compile(stored, backend="eager", fullgraph=True)(torch.randn(3))


@fullgraph
def parts_are_compiled_around_what_cannot_be(api: Any) -> None:
    """Two compiled functions, and code between them that is not."""
    first = api.compile(lambda x: x**2 - 1, backend="eager", fullgraph=True)
    second = api.compile(lambda y: y / 5, backend="eager", fullgraph=True)
    kept: list[torch.Tensor] = []

    def whole(x: torch.Tensor) -> torch.Tensor:
        y = first(x)
        kept.append(y)
        return second(y)

    x = torch.randn(3)
    equal(whole(x), (x**2 - 1) / 5)
    equal(kept[0], x**2 - 1)


@fullgraph
def is_compiling_leaves_code_out(api: Any) -> None:
    """What is under `not is_compiling()` does not run."""
    is_compiling = api.compiler.is_compiling
    kept: list[int] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        if not is_compiling():
            kept.append(1)
        return x * 6

    equal(api.compile(watched, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 6.0))
    equal(kept, [])
    watched(torch.ones(2))
    equal(kept, [1])


def _store(value: torch.Tensor) -> None:
    torch.save(value, io.BytesIO())


@fullgraph
def ignored_functions_are_left_out(api: Any) -> None:
    """A function of ignore_logging_functions is not called, and breaks no graph."""

    def watched(x: torch.Tensor) -> torch.Tensor:
        y = x * 6
        _store(y)
        return y + 1

    with api._dynamo.config.patch(ignore_logging_functions={_store}):
        equal(api.compile(watched, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 7.0))


@nonstrict
def a_constant_made_behind_a_break(api: Any) -> None:
    """Without the mark the break is an error under fullgraph=True."""
    graph_break = api._dynamo.graph_break

    def number() -> torch.Tensor:
        graph_break()
        return torch.tensor([17])

    with raising(api._dynamo.exc.Unsupported):
        api.compile(lambda x: x + number(), backend="eager", fullgraph=True)(torch.zeros(4))


@nonstrict
def a_decorated_function_without_arguments(api: Any) -> None:
    """nonstrict_trace as a decorator: one graph."""
    graph_break = api._dynamo.graph_break

    @api._dynamo.nonstrict_trace
    def number() -> torch.Tensor:
        graph_break()
        return torch.tensor([17])

    equal(api.compile(lambda x: x + number(), backend="eager", fullgraph=True)(torch.zeros(4)), torch.full((4,), 17.0))


@nonstrict
def a_function_marked_inside(api: Any) -> None:
    """nonstrict_trace called in the compiled function."""
    graph_break, nonstrict_trace = api._dynamo.graph_break, api._dynamo.nonstrict_trace

    def number() -> torch.Tensor:
        graph_break()
        return torch.tensor([17])

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + nonstrict_trace(number)()

    equal(api.compile(shifted, backend="eager", fullgraph=True)(torch.zeros(4)), torch.full((4,), 17.0))


def _breaks(api: Any) -> Any:
    graph_break = api._dynamo.graph_break

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 3
        graph_break()
        return x * 5

    return broken


@toggling
def a_break_is_allowed_in_one_function(api: Any) -> None:
    """error_on_graph_break(False) inside of error_on_graph_break(True)."""
    allowed = api._dynamo.error_on_graph_break(False)(_breaks(api))
    compiled = api._dynamo.error_on_graph_break(True)(api.compile(lambda x: allowed(x), backend="eager"))
    equal(compiled(torch.ones(3)), torch.full((3,), 20.0))


@toggling
def a_break_is_allowed_in_a_block(api: Any) -> None:
    """The same as a context manager."""
    graph_break, toggle = api._dynamo.graph_break, api._dynamo.error_on_graph_break

    def body(x: torch.Tensor) -> torch.Tensor:
        x = x + 3
        with toggle(False):
            graph_break()
        return x * 5

    equal(toggle(True)(api.compile(body, backend="eager"))(torch.ones(3)), torch.full((3,), 20.0))


@toggling
def a_method_of_a_library_is_wrapped(api: Any) -> None:
    """forward of an object is replaced by a wrapped one."""
    graph_break = api._dynamo.graph_break

    class Foreign(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 3
            graph_break()
            return x * 5

    module = Foreign()
    module.forward = api._dynamo.error_on_graph_break(False)(module.forward)
    compiled = api._dynamo.error_on_graph_break(True)(api.compile(lambda x: module.forward(x), backend="eager"))
    equal(compiled(torch.ones(3)), torch.full((3,), 20.0))


@toggling
def a_break_is_forbidden_in_one_function(api: Any) -> None:
    """error_on_graph_break(True) in a function that is called after an allowed break."""
    graph_break = api._dynamo.graph_break
    forbidden = api._dynamo.error_on_graph_break(True)(_breaks(api))

    def body(x: torch.Tensor) -> torch.Tensor:
        x = x - 1
        graph_break()
        return forbidden(x)

    with raising(api._dynamo.exc.Unsupported):
        api.compile(body, backend="eager")(torch.ones(3))


@toggling
def a_setting_holds_for_nested_calls(api: Any) -> None:
    """A block that allows breaks holds for the functions called in it."""
    toggle, broken = api._dynamo.error_on_graph_break, _breaks(api)

    def middle(x: torch.Tensor) -> torch.Tensor:
        with toggle(False):
            return broken(x)

    equal(toggle(True)(api.compile(lambda x: middle(x), backend="eager"))(torch.ones(3)), torch.full((3,), 20.0))


@toggling
def fullgraph_is_stronger(api: Any) -> None:
    """fullgraph=True raises, whatever error_on_graph_break says."""
    allowed = api._dynamo.error_on_graph_break(False)(_breaks(api))
    with raising(api._dynamo.exc.Unsupported):
        api.compile(lambda x: allowed(x), backend="eager", fullgraph=True)(torch.ones(3))


@toggling
def fullgraph_is_not_taken_back(api: Any) -> None:
    """A compiled function with breaks, called by one with fullgraph=True, raises."""
    inner = api.compile(_breaks(api), backend="eager", fullgraph=False)
    with raising(api._dynamo.exc.Unsupported):
        api.compile(lambda x: inner(x), backend="eager", fullgraph=True)(torch.ones(3))


@toggling
def fullgraph_inside_of_another_function(api: Any) -> None:
    """A function with fullgraph=True raises inside of one without."""
    inner = api.compile(_breaks(api), backend="eager", fullgraph=True)
    with raising(api._dynamo.exc.Unsupported):
        api.compile(lambda x: inner(x), backend="eager", fullgraph=False)(torch.ones(3))


@skipped
def a_frame_is_left_to_python(api: Any) -> None:
    """skip_frame runs the function as it is; what it calls may be captured."""
    skip_frame = api._dynamo.skip_frame

    def first(x: torch.Tensor) -> torch.Tensor:
        return x + 3

    def second(x: torch.Tensor) -> torch.Tensor:
        return x * 5

    def body(x: torch.Tensor) -> torch.Tensor:
        x = first(x)
        skip_frame()
        return second(x)

    equal(api.compile(body, backend="eager")(torch.ones(3)), torch.full((3,), 20.0))


@skipped
def a_break_in_a_loop(api: Any) -> None:
    """A break in one round of a loop: the values are right."""
    graph_break = api._dynamo.graph_break

    def body(x: torch.Tensor) -> torch.Tensor:
        for i in range(4):
            x = x * 2 - i
            if i == 2:
                graph_break()
        return x

    same(lambda x: ((x * 2 * 2 - 1) * 2 - 2) * 2 - 3, api.compile(body, backend="eager"), leaf(3))


@skipped
def a_loop_unrolled_by_hand(api: Any) -> None:
    """An inner function that assigns a variable of the outer one."""
    graph_break = api._dynamo.graph_break

    def body(x: torch.Tensor) -> torch.Tensor:
        def step(i: int) -> None:
            nonlocal x
            x = x * 2 - i
            if i == 1:
                graph_break()

        step(0)
        step(1)
        step(2)
        return x

    same(lambda x: (x * 2 * 2 - 1) * 2 - 2, api.compile(body, backend="eager"), leaf(3))


class _Plain:
    """A context manager that does nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@skipped
def a_break_in_a_context_manager(api: Any) -> None:
    """A break in the block of a context manager of the program."""
    graph_break = api._dynamo.graph_break

    def body(x: torch.Tensor) -> torch.Tensor:
        with _Plain():
            x = x + 3
            graph_break()
            return x * 5

    same(lambda x: (x + 3) * 5, api.compile(body, backend="eager"), leaf(3))


@skipped
def a_break_between_context_managers(api: Any) -> None:
    """The break is between two blocks: two graphs."""
    graph_break, graphs = api._dynamo.graph_break, Graphs()

    def body(x: torch.Tensor) -> torch.Tensor:
        with _Plain():
            x = x + 3
        graph_break()
        with _Plain():
            return x * 5

    equal(api.compile(body, backend=graphs)(torch.ones(3)), torch.full((3,), 20.0))
    equal(len(graphs), 2)


@skipped
def a_break_without_gradients(api: Any) -> None:
    """A break in no_grad inside of nullcontext goes on in no_grad: two graphs."""
    graph_break, graphs = api._dynamo.graph_break, Graphs()

    def body(x: torch.Tensor) -> torch.Tensor:
        with contextlib.nullcontext(), torch.no_grad():
            x = x + 3
            graph_break()
            return x * 5

    result = api.compile(body, backend=graphs)(leaf(3))
    assert not result.requires_grad
    equal(len(graphs), 2)


@skipped
def a_break_in_a_try_block(api: Any) -> None:
    """A break in a block of try."""
    graph_break = api._dynamo.graph_break

    def body(x: torch.Tensor) -> torch.Tensor | None:
        try:
            x = x + 3
            graph_break()
            return x * 5
        except ValueError:
            return None

    same(lambda x: (x + 3) * 5, api.compile(body, backend="eager"), leaf(3))


@disabling
def a_disabled_function(api: Any) -> None:
    """A disabled function and what it calls run as they are; one graph after it."""
    graph_break, graphs = api._dynamo.graph_break, Graphs()

    def inner(x: torch.Tensor) -> torch.Tensor:
        graph_break()
        return x + 3

    @api.compiler.disable
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x - 1)

    equal(api.compile(lambda x: outer(x) * 5, backend=graphs)(torch.ones(3)), torch.full((3,), 15.0))
    equal(len(graphs), 1)


@disabling
def disabled_but_for_what_it_calls(api: Any) -> None:
    """recursive=False: the called function is captured, in two graphs around its break."""
    graph_break, graphs = api._dynamo.graph_break, Graphs()

    def inner(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        graph_break()
        return x + 3

    @api.compiler.disable(recursive=False)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x - 1)

    equal(api.compile(lambda x: outer(x) * 5, backend=graphs)(torch.full((3,), 2.0)), torch.full((3,), 25.0))
    equal(len(graphs), 3)


@disabling
def errors_of_a_compiler_are_suppressed(api: Any) -> None:
    """With suppress_errors the function runs without a backend that fails."""

    def failing(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        raise NotImplementedError("no code for this machine")

    logging.getLogger("torch").setLevel(logging.CRITICAL)
    with api._dynamo.config.patch(suppress_errors=True):
        equal(api.compile(lambda x: x + 3, backend=failing)(torch.ones(3)), torch.full((3,), 4.0))


@nested
def frames_go_on_after_a_nested_break(api: Any) -> None:
    """A break two calls deep: eager's values; two graphs where nested frames are resumed, more where they are not."""
    broken, graphs = _breaks(api), Graphs()

    def middle(x: torch.Tensor) -> torch.Tensor:
        return broken(x - 1) + 7

    def outer(x: torch.Tensor) -> torch.Tensor:
        return middle(x * 2) / 2

    same(lambda x: ((x * 2 - 1 + 3) * 5 + 7) / 2, api.compile(outer, backend=graphs), torch.ones(3))


@nested
def nested_breaks_make_two_graphs(api: Any) -> None:
    """With nested_graph_breaks there is one graph before the break and one after it."""
    broken, graphs = _breaks(api), Graphs()

    def middle(x: torch.Tensor) -> torch.Tensor:
        return broken(x - 1) + 7

    with api._dynamo.config.patch(nested_graph_breaks=True):
        equal(api.compile(lambda x: middle(x * 2) / 2, backend=graphs)(torch.ones(3)), torch.full((3,), 13.5))
    equal(len(graphs), 2)


@nested
def nested_breaks_are_turned_off(api: Any) -> None:
    """disable_nested_graph_breaks as a decorator: eager's values."""
    broken = _breaks(api)

    @api._dynamo.disable_nested_graph_breaks
    def middle(x: torch.Tensor) -> torch.Tensor:
        return broken(x - 1) + 7

    with api._dynamo.config.patch(nested_graph_breaks=True):
        equal(api.compile(lambda x: middle(x * 2) / 2, backend="eager")(torch.ones(3)), torch.full((3,), 13.5))
