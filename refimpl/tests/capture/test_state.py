"""Tests of what capture must notice, leave or hand on beside values: metadata, old dicts, modules, errors of graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.tests.capture.capturing import captured_with, each_of, same

# ------------------------------------------------------------------------------------------- metadata that guards do not cover


def leaf(x: Any) -> Any:
    return x.is_leaf, (x * 2).is_leaf, x + 1


def offset(x: Any) -> Any:
    return x.storage_offset(), x[1:].storage_offset(), x + 1


def leaf_after_a_write(x: Any, y: Any) -> Any:
    x.add_(y)
    return x.is_leaf, x + 1


def test_a_leaf_is_told_from_a_result() -> None:
    captured, _, _ = captured_with(leaf)
    for _ in range(2):
        for make in (lambda: torch.ones(2, requires_grad=True), lambda: torch.ones(2, requires_grad=True) * 1):
            assert captured(make())[:2] == leaf(make())[:2]
    captured, _, _ = captured_with(leaf_after_a_write)
    for _ in range(2):
        given = torch.zeros(2), torch.ones(2, requires_grad=True)
        assert captured(*given)[0] is False


def test_another_offset_in_the_storage_is_noticed() -> None:
    captured, _, _ = captured_with(offset)
    base = torch.arange(6.0)
    for x in (base[:3], base[3:], base[1:4], base[:3]):
        assert captured(x)[:2] == offset(x)[:2]


# ------------------------------------------------------------------------------------------------------ dicts that were there


KEPT: OrderedDict[str, Any] = OrderedDict()


def replaces(x: Any) -> Any:
    KEPT["a"] = KEPT["a"] + 1
    return x * KEPT["a"]


def adds(x: Any) -> Any:
    KEPT["new"] = x
    return x + len(KEPT)


def removes(x: Any) -> Any:
    del KEPT["b"]
    return x + len(KEPT)


def reorders(x: Any) -> Any:
    KEPT["a"] = KEPT.pop("a")
    KEPT.update({"z": 1})
    return x


def empties(x: Any) -> Any:
    KEPT.clear()
    KEPT["c"] = 9
    return x


@each_of(replaces, adds, removes, reorders, empties)
def test_a_dict_that_was_there_is_left_as_eager_leaves_it(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for run in (program, captured_with(program)[0]):
        table = OrderedDict[str, Any](a=1, b=2, c=3)
        monkeypatch.setitem(globals(), "KEPT", table)
        result = run(torch.ones(2))
        found.append((result, list(table.items())))
    assert same(found[1], found[0])


def test_values_are_replaced_under_an_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "KEPT", OrderedDict(a=1, b=2))
    captured, _, _ = captured_with(replaces)
    for _ in KEPT:  # a clear() would end it with an error
        captured(torch.ones(2))
    assert KEPT["a"] == 3


# ------------------------------------------------------------------------------------------------------------- modules' calls


class Doubles(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


def test_a_module_that_is_compiled_later_is_called_as_it_is_then() -> None:
    module = Doubles()

    def program(x: Any) -> Any:
        return module(x)

    captured = compile(program)
    x = torch.ones(2)
    assert torch.equal(captured(x), x * 2)
    calls = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        return lambda *args: calls.append(1) or graph.forward(*args)

    module.compile(backend=backend)
    assert torch.equal(captured(x), x * 2)
    assert calls == [1]
    torch._dynamo.reset()


def test_a_call_of_the_class_that_is_replaced_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Doubles()

    def program(x: Any) -> Any:
        return module(x)

    captured = compile(program)
    x = torch.ones(2)
    assert torch.equal(captured(x), x * 2)
    monkeypatch.setattr(Doubles, "__call__", lambda self, x: x * 5)
    assert torch.equal(captured(x), x * 5)


def test_a_view_whose_history_autograd_does_not_know_is_left_to_eager() -> None:
    def program(a: Any) -> Any:
        view = a.view(1, 2)
        view.mul_(2)
        print(end="")
        return view * 2

    captured, _, _ = captured_with(program)
    with torch.no_grad():
        for _ in range(2):
            a = torch.arange(2.0).requires_grad_()
            assert torch.equal(captured(a), torch.tensor([[0.0, 4.0]]))


def handles_what_data_raise(x: Any, index: Any) -> Any:
    seen = []
    try:
        seen.append("before")
        y = x[index] * 2
        seen.append("after")
    except IndexError:
        y = x * 0
        seen.append("handled")
    return y, seen


def test_an_error_that_depends_on_data_reaches_the_programs_handler() -> None:
    captured, recorder, _ = captured_with(handles_what_data_raise)
    for index in (1, 7, 2, 9):
        given = torch.arange(3.0), torch.tensor([index])
        assert same(captured(*given), handles_what_data_raise(*given))
    assert len(recorder.graphs) >= 1


def test_a_graph_that_wrote_before_it_raised_is_not_run_twice() -> None:
    def program(x: Any, index: Any) -> Any:
        x.add_(1)
        return x[index]

    captured, _, _ = captured_with(program)
    captured(torch.zeros(3), torch.tensor([1]))
    x = torch.zeros(3)
    with pytest.raises(IndexError):
        captured(x, torch.tensor([7]))
    assert torch.equal(x, torch.ones(3))


def test_an_error_of_the_backend_is_not_taken_for_the_programs() -> None:
    def program(x: Any) -> Any:
        try:
            return x * 2
        except (IndexError, ZeroDivisionError):
            return x

    def backend(graph: Any, example_inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise IndexError("the backend's own")

        return run

    captured = compile(program, backend=backend)
    with pytest.raises(IndexError, match="the backend's own"):
        captured(torch.ones(2))


def test_a_handler_in_a_function_that_is_entered_is_reached() -> None:
    def inner(x: Any, index: Any) -> Any:
        try:
            return x[index]
        except IndexError:
            return x * 5

    def program(x: Any, index: Any) -> Any:
        return inner(x + 1, index) * 2

    captured, _, _ = captured_with(program)
    for index in (1, 7):
        given = torch.arange(3.0), torch.tensor([index])
        assert torch.equal(captured(*given), program(*given))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, mean, var: torch.nn.functional.batch_norm(x, mean, var, training=True),
        lambda x, mean, var: torch.nn.functional.relu(mean.sub_(1), True),
        lambda x, mean, var: torch.nn.functional.threshold(mean, 1.0, 5.0, True),
        lambda x, mean, var: torch.nn.functional.dropout(x),
    ],
)
def test_what_is_written_without_a_word_is_written_once(write: Callable[..., Any]) -> None:
    def program(x: Any, mean: Any, var: Any, index: Any) -> Any:
        try:
            return write(x, mean, var), x[index]
        except ZeroDivisionError:
            return None

    captured, _, _ = captured_with(program)
    found = []
    for run in (program, captured):
        torch.manual_seed(3)
        x, mean, var = torch.arange(6.0).reshape(3, 2), torch.zeros(2), torch.ones(2)
        run(x, mean, var, torch.tensor([0]))
        with pytest.raises(IndexError):
            run(x, mean, var, torch.tensor([7]))
        found.append((x, mean, var, torch.get_rng_state()))
    assert same(found[1], found[0])
