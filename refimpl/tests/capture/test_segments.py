"""Tests of captured functions: graphs, breaks, guards and what is made after a graph, against the function run by CPython."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import refimpl.capture.translate
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.compile import compile
from refimpl.capture.public.errors import BackendCompilerFailed
from refimpl.errors import BadParameter
from refimpl.tests.capture.capturing import (
    IN_EVERY_MODE,
    Recorder,
    assert_same_as_eager,
    captured_with,
    each_of,
    same,
)

# -------------------------------------------------------------------------------------------------------------------- programs

SCALE = 3
TABLE = {"low": 1, "high": 2}
TABLE_OF_KEYWORDS = {"scale": 3}


def straight(x: Any, y: Any) -> Any:
    z = torch.relu(x + y)
    return z * SCALE, {"sum": z.sum(), "x": x}


def loop(x: Any, y: Any) -> Any:
    total = x
    for index in range(4):
        if index % 2:
            total = total * y
        else:
            total = total - index
    return total


def while_on_data(x: Any, y: Any) -> Any:
    steps = 0
    while x.sum() < 40:
        x = x * 2 + y.abs()
        steps += 1
    return x, steps


def keyword_and_star(x: Any, y: Any) -> Any:
    def inner(*args: Any, scale: Any = 2, **rest: Any) -> Any:
        return sum(args) * scale + rest.get("shift", 0)

    return inner(x, y, x, shift=5), inner(*[x, y], **TABLE_OF_KEYWORDS)


def closure(x: Any, y: Any) -> Any:
    count = 0

    def step(value: Any) -> Any:
        nonlocal count
        count += 1
        return value + y * count

    return step(step(x)), count


def lists(x: Any, y: Any) -> Any:
    found = [x]
    for value in (y, x * y):
        found.append(value + len(found))
    last = found.pop()
    first, *others = [*found, last]
    return first, others, found[::-1], len(others)


def dicts(x: Any, y: Any) -> Any:
    named = {"x": x, "y": y}
    named["z"] = named["x"] @ named["y"].T
    named.update({"w": 1})
    keys = list(named)
    return named, keys, [key for key, value in named.items() if key in TABLE or isinstance(value, int)]


def views(x: Any, y: Any) -> Any:
    named = {"a": 1, "b": 2}
    values = named.values()
    return [*values], [*values], len(values), x * sum(values)


def in_place(x: Any, y: Any) -> Any:
    z = x.clone()
    w = z.view(-1)
    z.add_(1)
    w[0] = 7
    z += y
    return z, w, z is z.mul_(2)


def prints(x: Any, y: Any) -> Any:
    z = x + 1
    print("between", tuple(z.shape))
    return z * 2


def branches(x: Any, y: Any) -> Any:
    return x * 2 if (x > y).any() else y * 3


def reads(x: Any, y: Any) -> Any:
    value = x.sum().item()
    return y * value, [v * 2 for v in x.flatten().tolist()[:2]]


def raises_and_handles(x: Any, y: Any) -> Any:
    try:
        z = x @ torch.ones(9, 9)
    except RuntimeError as error:
        z = y + len(type(error).__name__)
    finally:
        z = x * 2
    return z


def context(x: Any, y: Any) -> Any:
    with torch.no_grad():
        z = x * 2
    return z, torch.is_grad_enabled()


def named_results(x: Any, y: Any) -> Any:
    found = torch.sort(x + y, descending=True)
    print(end="")
    return found, found.values, x.max(0)


def generator(x: Any, y: Any) -> Any:
    def numbers() -> Any:
        yield x
        yield from (y, x * y)

    return [value + 1 for value in numbers()]


def half_read(x: Any, y: Any) -> Any:
    pairs = enumerate(zip([x, y, x], range(5), strict=False), 1)
    first = next(pairs)
    print(end="")
    return first, list(pairs)


def lambdas(x: Any, y: Any) -> Any:
    twice = lambda value, by=2: value * by  # noqa: E731 - what is tested
    print(end="")
    return twice(x), twice(y, by=3), twice.__name__


def matches(x: Any, y: Any) -> Any:
    match {"shape": tuple(x.shape), "kind": "plain"}:
        case {"kind": "plain", "shape": (rows, columns), **rest}:
            return x * rows + columns, rest
        case _:
            return y


def strings(x: Any, y: Any) -> Any:
    text = f"{x.dim()}-{tuple(x.shape)!s:>10}|" + "ab".upper()
    return x * len(text), text.split("|")


def recursion(x: Any, y: Any) -> Any:
    def down(value: Any, depth: int) -> Any:
        return value if depth == 0 else down(value + depth, depth - 1)

    return down(x, 5)


def swaps(x: Any, y: Any) -> Any:
    x, y = y, x
    a = b = x - y
    del x
    return a is b, a, y


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    straight, loop, while_on_data, keyword_and_star, closure, lists, dicts, views, in_place, prints, branches, reads,
    raises_and_handles, context, named_results, generator, half_read, lambdas, matches, strings, recursion, swaps,
)  # fmt: skip
def test_a_captured_function_does_what_the_function_does(program: Callable[..., Any], mode: str) -> None:
    calls = [
        (torch.arange(float(math.prod(shape))).reshape(shape), torch.full(shape, 2.0))
        for shape in ((3, 3), (3, 3), (2, 3))
    ]
    assert_same_as_eager(program, mode, calls)


# ------------------------------------------------------------------------------------------------------------ graphs and breaks


def test_a_function_without_breaks_is_one_graph_and_the_second_call_uses_it() -> None:
    captured, recorder, made = captured_with(loop)
    for _ in range(3):
        captured(torch.ones(2), torch.ones(2))
    assert len(recorder.graphs) == 1
    assert not made.breaks
    assert recorder.targets == ["sub", "mul", "sub", "mul"]


def test_inputs_are_named_as_upstream_names_them() -> None:
    module = torch.nn.Linear(2, 2)

    def program(data: Any) -> Any:
        return module(data["x"])

    captured, recorder, _ = captured_with(program)
    captured({"x": torch.ones(1, 2)})
    names = [node.target for node in recorder.graphs[0].graph.nodes if node.op == "placeholder"]
    assert "L_data_x_" in names
    assert any(name.endswith("_parameters_weight_") for name in names)


def test_functions_and_modules_that_are_called_are_in_the_same_graph() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))

    def program(x: Any) -> Any:
        return torch.nn.functional.softmax(layers(x), dim=-1)

    captured, recorder, made = captured_with(program)
    x = torch.randn(2, 3)
    assert torch.equal(captured(x), program(x))
    assert recorder.targets == ["linear", "relu", "layer_norm", "softmax"]
    assert not made.breaks


def test_a_break_names_its_reason_and_the_users_line() -> None:
    captured, recorder, made = captured_with(prints)
    captured(torch.ones(2), torch.ones(2))
    (reason,) = made.breaks
    assert reason.kind.id == "RC0014"
    assert reason.stack[-1].function == "prints"
    assert reason.stack[-1].line == prints.__code__.co_firstlineno + 2
    assert len(recorder.graphs) == 2


def test_a_break_in_a_function_that_is_called_ends_the_segment_before_the_call() -> None:
    def inner(x: Any) -> Any:
        y = x * 2
        print(end="")
        return y + 1

    def program(x: Any) -> Any:
        return inner(x - 1) / 2

    captured, recorder, made = captured_with(program)
    x = torch.ones(2)
    assert torch.equal(captured(x), program(x))
    assert recorder.targets == ["sub", "mul", "add", "truediv"]
    assert [len(graph.graph.find_nodes(op="output")) for graph in recorder.graphs] == [1] * 4
    assert {reason.stack[-1].function for reason in made.breaks} == {"inner"}


def test_fullgraph_raises_the_break() -> None:
    captured, _, _ = captured_with(branches, fullgraph=True)
    with pytest.raises(GraphBreak, match="RC0001") as caught:
        captured(torch.ones(2), torch.ones(2))
    assert "branches" in str(caught.value)
    assert "Hint" in str(caught.value)


def test_a_loop_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refimpl.capture.translate, "MOST_INSTRUCTIONS", 500)

    def program(x: Any) -> Any:
        for index in range(100):
            x = x + index
        return x

    captured, _, made = captured_with(program)
    assert torch.equal(captured(torch.ones(1)), program(torch.ones(1)))
    assert made.breaks[0].kind.name == "too_many_instructions"


def test_recursion_without_end_raises_what_eager_raises() -> None:
    def program(x: Any) -> Any:
        return program(x + 1)

    captured, _, _ = captured_with(program)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)  # the default takes ten seconds
    try:
        with pytest.raises(RecursionError):
            captured(torch.ones(1))
    finally:
        sys.setrecursionlimit(limit)


def test_where_a_value_cannot_be_made_again_the_function_is_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(emitter: Any, result: str) -> Any:
        raise GraphBreak("cannot_rebuild", kind="thing")

    monkeypatch.setattr(refimpl.capture.translate.Emitter, "function", refuse)
    captured, _, made = captured_with(loop)
    for _ in range(2):
        assert torch.equal(captured(torch.ones(2), torch.ones(2)), loop(torch.ones(2), torch.ones(2)))
    assert [reason.kind.name for reason in made.breaks] == ["cannot_rebuild"]


def test_what_the_program_raises_comes_out() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        raise KeyError(tuple(y.shape))

    captured, recorder, _ = captured_with(program)
    with pytest.raises(KeyError, match=r"\(2,\)"):
        captured(torch.ones(2))
    assert recorder.targets == ["add"]


def test_arguments_that_do_not_fit_raise_what_the_function_raises() -> None:
    with pytest.raises(TypeError, match="straight\\(\\) missing 1 required positional argument"):
        compile(straight)(torch.ones(1))


def test_an_error_of_the_backend_comes_out_and_nothing_is_kept() -> None:
    calls = 0

    def fails(graph: Any, example_inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        raise OSError("no compiler")

    captured = compile(loop, backend=fails)
    for _ in range(2):
        with pytest.raises(BackendCompilerFailed, match="no compiler"):
            captured(torch.ones(1), torch.ones(1))
    assert calls == 2


def test_a_backend_that_gives_nothing_to_call_is_named() -> None:
    with pytest.raises(BadParameter, match="a NoneType"):
        compile(loop, backend=lambda graph, example_inputs: None)(torch.ones(1), torch.ones(1))  # type: ignore[arg-type,return-value]


def test_a_compiled_function_that_is_called_is_one_with_its_caller() -> None:
    inner = compile(lambda x, n: x * n)

    def program(x: Any) -> Any:
        return inner(x + 1, 3) - 1

    captured, recorder, made = captured_with(program)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 5.0))
    assert recorder.targets == ["add", "mul", "sub"]
    assert not made.breaks


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(BadParameter, match="a function or a torch"):
        compile(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------- guards


class Settings:
    scale = 2

    def __init__(self) -> None:
        self.shift = 1


HOOKED = torch.nn.Linear(2, 2)
SHARED = Settings()
NAMES = {"a": 1}


def _helper(x: Any) -> Any:
    return x + 1


def reads_everything(x: Any, number: Any, items: Any) -> Any:
    y = HOOKED(x) * SCALE + SHARED.shift * SHARED.scale + len(items) + NAMES["a"]
    return _helper(y) * number if torch.is_grad_enabled() else y


def _set(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        (lambda: None, {"x": torch.ones(2, 2, dtype=torch.float64)}),
        (lambda: None, {"x": torch.ones(3, 2)}),
        (lambda: None, {"x": torch.ones(2, 2).T.contiguous().T}),
        (lambda: None, {"x": torch.ones(2, 2, requires_grad=True)}),
        (lambda: None, {"number": 3}),
        (lambda: None, {"number": 2.0}),
        (lambda: None, {"number": True}),
        (lambda: None, {"items": [1, 2, 3]}),
        (lambda: None, {"items": (1, 2)}),
        (_set("SCALE", 4), {}),
        (_set("_helper", lambda x: x - 1), {}),
        (lambda: setattr(SHARED, "shift", 5), {}),
        (lambda: setattr(SHARED, "scale", 5), {}),
        (lambda: setattr(Settings, "scale", 6), {}),
        (lambda: NAMES.__setitem__("a", 2), {}),
        (lambda: NAMES.__setitem__("b", 2), {}),
        (lambda: setattr(_helper, "__code__", (lambda x: x * 7).__code__), {}),
        (lambda: setattr(HOOKED, "weight", torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))), {}),
        (lambda: HOOKED.register_forward_hook(lambda *args: None) and None, {}),
        (lambda: torch.set_grad_enabled(False) and None, {}),
    ],
)
def test_a_change_of_what_was_read_is_noticed(
    change: Callable[[], None], arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(x: Any) -> Any:
        return x + 1

    monkeypatch.setitem(globals(), "HOOKED", torch.nn.Linear(2, 2))
    monkeypatch.setitem(globals(), "SHARED", Settings())
    monkeypatch.setitem(globals(), "NAMES", {"a": 1})
    monkeypatch.setitem(globals(), "SCALE", 3)
    monkeypatch.setitem(globals(), "_helper", plain)
    monkeypatch.setattr(Settings, "scale", 2)
    captured, recorder, made = captured_with(reads_everything)
    before = {"x": torch.ones(2, 2), "number": 2, "items": [1, 2]}
    try:
        for _ in range(2):
            assert torch.equal(captured(**before), reads_everything(**before))
        assert len(recorder.graphs) == 1
        change()
        after = {**before, **arguments}
        outcomes = [_outcome(captured, after), _outcome(reads_everything, after)]
        assert same(*outcomes)
        segments = [segment for function in made.functions.values() for segment in function.cache.segments()]
        assert len(segments) > 1
    finally:
        torch.set_grad_enabled(True)


def _outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except RuntimeError as error:
        return type(error).__name__


@pytest.mark.parametrize(
    "change",
    [
        lambda: None,
        lambda: setattr(SHARED, "unread", 5),
        lambda: _set("UNREAD", 4)(),
        lambda: globals().__setitem__("SHARED", Settings()),
    ],
)
def test_a_change_of_what_was_not_read_is_not(change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SHARED", Settings())
    monkeypatch.setitem(globals(), "UNREAD", 3)
    captured, recorder, _ = captured_with(reads_everything)
    arguments = {"x": torch.ones(2, 2), "number": 2, "items": [1, 2]}
    captured(**arguments)
    change()
    captured(**{**arguments, "x": torch.zeros(2, 2)})
    assert len(recorder.graphs) == 1


def test_one_tensor_twice_is_another_program_than_two() -> None:
    def program(x: Any, y: Any) -> Any:
        return x.add_(1) * y if x is y else x + y

    captured, recorder, _ = captured_with(program)
    for _ in range(2):
        assert torch.equal(captured(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
        one = torch.ones(2)
        assert torch.equal(captured(one, one), torch.full((2,), 4.0))
    assert len(recorder.graphs) == 2


@pytest.mark.parametrize("value", [0.0, -0.0, math.nan, math.inf, 1 + 2j, "text", None, (1, (2.5, "a"))])
def test_constants_are_held_to_their_class_and_value(value: Any) -> None:
    def program(x: Any, constant: Any) -> Any:
        return x + 1, constant, repr(constant)

    captured, _, _ = captured_with(program)
    for given in (value, 0.0, -0.0, 0, False, value):
        result = captured(torch.ones(1), given)
        assert repr(result[1]) == repr(given)
        assert result[2] == repr(given)


def test_past_the_limit_the_function_is_run_without_graphs() -> None:
    captured, recorder, _ = captured_with(lambda x, n: x * n, recompile_limit=3)
    for number in range(6):
        assert torch.equal(captured(torch.ones(2), number), torch.full((2,), float(number)))
    assert len(recorder.graphs) == 3


# ------------------------------------------------------------------------------------------------------------- asked for breaks


def asks(x: Any) -> Any:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def asks_below(x: Any) -> Any:
    return asks(x) - 1, x * 3


def test_a_break_that_is_asked_for_costs_no_step() -> None:
    for program, graphs in ((asks, 2), (asks_below, 3)):
        captured, recorder, options = captured_with(program)
        for _ in range(2):
            assert same(captured(torch.ones(2)), program(torch.ones(2)))
        assert len(recorder.graphs) == graphs
        assert {reason.kind.name for reason in options.breaks} == {"user_break"}


# ------------------------------------------------------------------------------------------------- parameters of calls


def parameters(a: Any, /, b: Any = 2, *rest: Any, c: Any, d: Any = 4, **others: Any) -> Any:
    return a * b + c * d + sum(rest) + sum(others.values()), [lambda: a]


def positional(a: Any, b: Any = 2, *rest: Any) -> Any:
    return a * b, rest


def keywords(a: Any, *, b: Any, **others: Any) -> Any:
    return a * b, others


def test_calls_are_bound_as_python_binds_them() -> None:
    x = torch.ones(2)
    captured, _, _ = captured_with(lambda *args, **kwargs: parameters(*args, **kwargs)[0])
    for _ in range(2):
        assert same(captured(x, c=1), parameters(x, c=1)[0])
        assert same(captured(x, 3, 5, c=1, d=2, e=7), parameters(x, 3, 5, c=1, d=2, e=7)[0])
    for function, calls in (
        (positional, [((x,), {}), ((x, 3), {}), ((x, 3, 4), {}), ((), {"a": x, "b": 5})]),
        (keywords, [((x,), {"b": 1}), ((x,), {"b": 2, "z": 3}), ((), {"b": 3, "a": x})]),
    ):
        captured, _, _ = captured_with(function)
        for args, kwargs in calls * 2:
            assert same(captured(*args, **kwargs), function(*args, **kwargs))
        for args, kwargs in [((), {}), ((x,), {"nothing": 1, "b": 2, "a": x})]:
            with pytest.raises(TypeError) as found:
                captured(*args, **kwargs)
            with pytest.raises(TypeError) as expected:
                function(*args, **kwargs)
            assert str(found.value) == str(expected.value)


def with_default(x: Any, by: Any = 2) -> Any:
    return x * by


def test_other_defaults_and_other_code_are_noticed() -> None:
    x = torch.ones(2)
    captured, _, _ = captured_with(with_default)
    before, code = with_default.__defaults__, with_default.__code__
    try:
        for _ in range(2):
            assert captured(x)[0] == 2
        with_default.__defaults__ = (5,)
        assert captured(x)[0] == 5
        with_default.__code__ = (lambda x, by=2: x + by).__code__
        assert captured(x)[0] == 6
    finally:
        with_default.__defaults__, with_default.__code__ = before, code
    assert captured(x)[0] == 2


# --------------------------------------------------------------------------------------------------------- names of nodes


def of_variables(x: Any, y: Any) -> Any:
    z = torch.sin(x)
    other = z
    a, (b, _) = torch.sin(y), torch.max(y, 0)
    z = z + other + a
    x = y * 2
    return (other + z) * b, x


def of_inlined_functions(x: Any, y: Any) -> Any:
    def scaled(value: Any) -> Any:
        made = value * 2
        return made + 1

    first = scaled(x)
    second, kept = scaled(y).cos(), [scaled(y)]
    total = kept[0] + first
    return total, [each + second for each in kept]


def of_cells(x: Any, y: Any) -> Any:
    held = x.sin()

    def adds() -> Any:
        nonlocal held
        held = held + y
        return held

    return adds(), held * 2


def of_branches(x: Any, y: Any) -> Any:
    def on_true(x: Any, y: Any) -> Any:
        z = x.sin()
        w = z + y
        return w, z * 2

    def on_false(x: Any, y: Any) -> Any:
        return x.cos(), y * 2

    first, second = torch.cond(x.sum() > 0, on_true, on_false, (x, y))
    return first + second


@each_of(of_variables, of_inlined_functions, of_cells, of_branches)
def test_a_node_is_named_after_the_first_variable_that_holds_its_tensor(program: Callable[..., Any]) -> None:
    x, y = torch.ones(3, 3), torch.arange(9.0).view(3, 3)
    found = []
    for api in (compile, torch.compile):
        recorder: Any = Recorder()
        torch._dynamo.reset()
        api(program, backend=recorder, fullgraph=True)(x, y)
        found.append([node.name for node in recorder.graphs[0].graph.nodes])
    assert found[0] == found[1]


def test_a_node_of_a_branch_is_named_after_a_variable_too() -> None:
    recorder: Any = Recorder()
    compile(of_branches, backend=recorder, fullgraph=True)(torch.ones(3), torch.ones(3))
    graph: Any = recorder.graphs[0].cond_true_0
    assert [node.name for node in graph.graph.nodes] == ["l_x_", "l_y_", "z", "w", "mul", "output"]


def _recorder() -> Any:
    return Recorder()


def of_self(self: Any, given: Any) -> Any:
    self = self * 2
    torch_, print = self + 1, given * 2
    return torch.cond(self.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (torch_ + print,))


def test_a_node_never_takes_a_name_that_the_code_of_a_graph_needs() -> None:
    x = torch.ones(3)
    assert torch.equal(compile(of_self, backend=_recorder(), fullgraph=True)(x, x), of_self(x, x))


def test_the_metadata_of_a_node_keeps_its_first_name() -> None:
    recorder: Any = Recorder()
    compile(of_cells, backend=recorder, fullgraph=True)(torch.ones(3), torch.ones(3))
    (held, *_) = recorder.graphs[0].graph.find_nodes(op="call_method", target="sin")
    assert (held.name, held.meta["source_fn_stack"]) == ("held", [("sin", "sin")])


class OfParameters(torch.nn.Module):
    def forward(self, x: Any, given: Any, *rest: Any, factor: Any = 1, shift: Any = None) -> Any:
        return x * given["a"] + sum(rest) * factor + (0 if shift is None else shift)


def test_an_input_of_a_module_is_named_after_the_parameter_of_its_forward() -> None:
    recorder: Any = Recorder()
    x, y, z = torch.ones(3), torch.full((3,), 2.0), torch.full((3,), 3.0)
    compiled = compile(OfParameters(), backend=recorder, fullgraph=True)
    shift = z + 1
    assert torch.equal(compiled(x, {"a": y}, z, shift=shift), OfParameters()(x, {"a": y}, z, shift=shift))
    names = [str(node.target) for node in recorder.graphs[0].graph.find_nodes(op="placeholder")]
    assert names == ["L_x_", "L_given_a_", "L_rest_0_", "L_shift_"]
