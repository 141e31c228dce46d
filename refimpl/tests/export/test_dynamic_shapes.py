"""Sizes that may vary: what can be said of them, what is refused, and which inputs an exported program then takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.errors import BadParameter
from refimpl.export import Dim, ShapesCollection, dims, export, register_dataclass
from refimpl.export.errors import InputMismatch
from refimpl.tests.export.forms import STRICT, decomposed
from refimpl.tests.export.modules import Adding, Containers, Shifted
from refimpl.upstream.saved_shapes import _dump_dynamic_shapes, _load_dynamic_shapes


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 5 else x - 1


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Paired(nn.Module):
    """Takes sizes of which the first is a multiple of 4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] % 4 == 0)
        return x.view(x.shape[0] // 4, 4).sum(1)


class Outer(nn.Module):
    """Takes sizes of which the third is the product of the others: no Dim says so."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x[:, None] * y[None, :]).reshape(-1) + z


def ranges(program: Any) -> list[tuple[float, float]]:
    return [(bounds.lower, bounds.upper) for bounds in program.range_constraints.values()]


# ---------------------------------------------------------------------------------------------------------------- Dims


def test_dims_have_names_bounds_and_arithmetic() -> None:
    dx = Dim("dx", min=2, max=8)
    derived = 2 * dx + 1
    assert (dx.__name__, dx.min, dx.max) == ("dx", 2, 8)
    assert (str(derived), derived.min, derived.max) == ("2*dx + 1", 5, 17)
    assert [dim.__name__ for dim in dims("a", "b", max=4)] == ["a", "b"]
    assert repr(Dim("n")) == "Dim('n')"
    assert repr(Dim.DYNAMIC(min=3)) == "DimHint(DYNAMIC, min=3)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Dim("x", min=4, max=3), "inconsistent min=4, max=3"),
        (lambda: Dim("1x"), "the name '1x'(.|\n)*an identifier of Python"),
        (lambda: Dim("x", min=-1), "a size"),
    ],
)
def test_dims_refuse_what_no_size_is(wrong: Any, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        wrong()


@pytest.mark.parametrize("wrong", [lambda d: d * -1, lambda d: d * 2.5, lambda d: d + d, lambda d: 3 - d])
def test_dims_refuse_other_than_increasing_linear_functions(wrong: Any) -> None:
    with pytest.raises(NotImplementedError, match="with integers a > 0 and b"):
        wrong(Dim("d"))


# -------------------------------------------------------------------------------------------------------- what is said


@STRICT
def test_a_named_size_varies_within_its_bounds(strict: bool) -> None:
    program = export(
        Doubling(), (torch.ones(5, 3),), dynamic_shapes={"x": {0: Dim("n", min=3, max=100)}}, strict=strict
    )
    assert ranges(program) == [(3, 100)]
    module = program.module()
    assert module(torch.ones(100, 3)).shape == (100, 3)
    for rows in (2, 101):
        with pytest.raises(InputMismatch, match=r"x.size\(\)\[0\]"):
            module(torch.ones(rows, 3))


@STRICT
def test_sizes_of_one_name_are_one_size(strict: bool) -> None:
    n = Dim("n")
    program = export(Adding(), (torch.ones(4), torch.ones(4)), dynamic_shapes={"x": {0: n}, "y": {0: n}}, strict=strict)
    assert len(program.range_constraints) == 1
    assert program.module()(torch.ones(9), torch.ones(9)).tolist() == [2.0] * 9
    with pytest.raises(InputMismatch, match=r"y.size\(\)\[0\]"):
        program.module()(torch.ones(9), torch.ones(8))


@STRICT
def test_a_derived_size_follows_its_root(strict: bool) -> None:
    n = Dim("n", min=2, max=10)
    program = export(
        Shifted(), (torch.ones(4), torch.ones(5)), dynamic_shapes={"x": {0: n}, "y": {0: n + 1}}, strict=strict
    )
    assert program.module()(torch.ones(7), torch.ones(8)).shape == (7,)
    with pytest.raises(InputMismatch):
        program.module()(torch.ones(7), torch.ones(7))


def test_only_a_derived_size_is_enough_to_read_its_root() -> None:
    n = Dim("n", min=2, max=10)
    program = export(Doubling(), (torch.ones(9),), dynamic_shapes={"x": {0: 2 * n + 1}})
    assert program.module()(torch.ones(21)).shape == (21,)
    for size in (8, 23):
        with pytest.raises(InputMismatch):
            program.module()(torch.ones(size))


@STRICT
def test_auto_is_what_the_program_allows(strict: bool) -> None:
    said = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}
    program = export(Adding(), (torch.ones(4), torch.ones(4)), dynamic_shapes=said, strict=strict)
    assert program.module()(torch.ones(6), torch.ones(6)).shape == (6,)
    with pytest.raises(InputMismatch):
        program.module()(torch.ones(6), torch.ones(5))
    fixed = export(Adding(), (torch.ones(4), torch.ones(4)), dynamic_shapes=({0: Dim.AUTO}, None), strict=strict)
    assert fixed.range_constraints == {}


@STRICT
def test_dynamic_is_a_promise(strict: bool) -> None:
    with pytest.raises(UserError, match=r"specialized it to be a constant \(4\)") as raised:
        export(Adding(), (torch.ones(4), torch.ones(4)), dynamic_shapes=({0: Dim.DYNAMIC}, None), strict=strict)
    assert raised.value.error_type is UserErrorType.CONSTRAINT_VIOLATION

    class AtMostFour(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[0] <= 4
            return x * 2

    with pytest.raises(ValueError, match=r"Dim.DYNAMIC.* static shape of 4 for dimension inputs\['x'\].shape\[0\]"):
        export(AtMostFour(), (torch.ones(4),), dynamic_shapes=({0: Dim.DYNAMIC(min=4)},), strict=strict)


@STRICT
def test_a_relation_of_sizes_is_a_guard_or_as_asked_an_assertion(strict: bool) -> None:
    class Related(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if x.shape[0] ** 2 - y.shape[0] ** 2 >= 4 and x.shape[0] > 2:
                return x.sum() + y.sum()
            return x.sum()

    said = {"x": {0: Dim("a", min=3)}, "y": {0: Dim("b")}}
    for asserts in (False, True):
        program = export(
            Related(), (torch.ones(5), torch.ones(3)), dynamic_shapes=said, strict=strict,
            prefer_deferred_runtime_asserts_over_guards=asserts,
        )  # fmt: skip
        assert len(program.guards) == (0 if asserts else 1)
        message = (
            r"Runtime assertion failed for expression .* >= 4 on node 'ge'" if asserts else "Guard failed: .* >= 4"
        )
        for runnable in (program.module(), program.run_decompositions().module()):
            assert runnable(torch.ones(4), torch.ones(2)).item() == 6
            with pytest.raises(RuntimeError, match=message):
                runnable(torch.ones(4), torch.ones(4))


@STRICT
def test_a_derived_size_that_is_constant_is_named_with_its_own_value(strict: bool) -> None:
    d = Dim("d", min=1, max=2)
    said = {"x": {0: 2 * d}, "y": {0: d + 1}}
    with pytest.raises(UserError) as raised:
        export(Adding(), (torch.ones(2), torch.ones(2)), dynamic_shapes=said, strict=strict)
    for size in (r"2*d", "d + 1"):
        assert f"You marked {size} as dynamic but your code specialized it to be a constant (2)" in str(raised.value)


def test_the_largest_of_equal_sizes_is_one_operation() -> None:
    module = Computing(lambda n: max([n, 3, n]) + max(n, n))
    program = export(module, (torch.ones(4, 2),), dynamic_shapes=({0: Dim("n")},))
    assert [node.target for node in program.graph.nodes].count(torch.sym_max) == 1
    for size in (2, 5):
        assert torch.equal(program.module()(torch.ones(size, 2)), module(torch.ones(size, 2)))


def test_an_integer_may_vary_where_python_runs() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n

    program = export(Scaled(), (torch.ones(2), 3), dynamic_shapes={"x": None, "n": Dim.DYNAMIC})
    assert program.module()(torch.ones(2), 7).tolist() == [7.0, 7.0]
    with pytest.raises(InputMismatch, match="an int"):
        program.module()(torch.ones(2), 2.5)


@pytest.mark.parametrize(
    "said",
    [
        {"pair": ({0: Dim.AUTO}, [{0: Dim.AUTO}]), "rest": ((Dim.AUTO,),), "last": [Dim.AUTO], "deep": {"k": {0: Dim.AUTO}}},
        {
            "pair": ({0: Dim.AUTO}, [{0: Dim.AUTO}]), "rest": [{0: Dim.AUTO}],
            "named": {"last": {0: Dim.AUTO}, "deep": {"k": {0: Dim.AUTO}}},
        },
    ],
    ids=["beside", "below"],
)  # fmt: skip
@STRICT
def test_sizes_are_said_in_containers_and_of_keywords(said: Any, strict: bool) -> None:
    t = torch.ones(3)
    inputs = ((t, [t + 1]), t + 2), {"last": t + 3, "deep": {"k": t + 4}}
    program = export(Containers(), *inputs, dynamic_shapes=said, strict=strict)
    t = torch.ones(7)
    args, kwargs = ((t, [t + 1]), t + 2), {"last": t + 3, "deep": {"k": t + 4}}
    torch.testing.assert_close(program.module()(*args, **kwargs), Containers()(*args, **kwargs))


class Joined(nn.Module):
    def forward(self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return x * first.sum() - second.sum()


@STRICT
def test_a_list_of_sizes_is_in_the_order_of_the_parameters(strict: bool) -> None:
    """A call may give keywords in another order."""
    given = {"second": torch.ones(4), "first": torch.ones(4)}
    shapes = (None, {0: Dim("n")}, None)
    runnable = export(Joined(), (torch.ones(2),), given, dynamic_shapes=shapes, strict=strict).module()
    assert runnable(torch.ones(2), second=torch.ones(4), first=torch.ones(9)).tolist() == [5.0, 5.0]
    with pytest.raises(InputMismatch, match="second"):
        runnable(torch.ones(2), second=torch.ones(9), first=torch.ones(4))


class Points(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@STRICT
def test_a_named_tuple_of_arguments_is_a_tuple_of_them(strict: bool) -> None:
    points = Points(torch.ones(3), torch.ones(3))
    assert export(Adding(), points, strict=strict).module()(*points).tolist() == [2.0] * 3


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


class OfBatch(nn.Module):
    def forward(self, batch: Batch) -> Batch:
        return Batch(batch.x + batch.y, batch.x)


@pytest.fixture(scope="module")
def _batch_is_a_container() -> None:
    register_dataclass(Batch)


@pytest.mark.usefixtures("_batch_is_a_container")
@pytest.mark.parametrize("spec", [[{0: Dim("n")}] * 2, {"x": [Dim("n")], "y": [Dim("n")]}], ids=["list", "fields"])
def test_dataclasses_are_containers(spec: Any) -> None:
    program = export(OfBatch(), (Batch(torch.ones(3), torch.ones(3)),), dynamic_shapes={"batch": spec})
    assert list(program.graph_signature.user_inputs) == ["batch_x", "batch_y"]
    result = program.module()(Batch(torch.ones(5), torch.ones(5)))
    assert isinstance(result, Batch)
    assert result.x.tolist() == [2.0] * 5


@STRICT
def test_shapes_may_be_said_tensor_by_tensor(strict: bool) -> None:
    shapes, x = ShapesCollection(), torch.ones(4)
    shapes[x] = {0: Dim("n")}
    program = export(Doubling(), (x,), dynamic_shapes=shapes, strict=strict)
    assert program.module()(torch.ones(7)).shape == (7,)


def test_a_collection_refuses_two_shapes_of_one_tensor_and_tensors_that_are_no_inputs() -> None:
    shapes, x = ShapesCollection(), torch.ones(4)
    shapes[x] = {0: Dim.AUTO}
    with pytest.raises(BadParameter, match="do not match"):
        shapes[x] = {0: Dim.STATIC}
    with pytest.raises(BadParameter, match="non-tensor"):
        shapes["x"] = {0: Dim.AUTO}  # type: ignore[index]
    with pytest.raises(ValueError, match="not among the inputs"):
        shapes.dynamic_shapes(Doubling(), (torch.ones(4),))


class OfSizes(nn.Module):
    """Tensors of sizes."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            x + torch.tensor(n),
            torch.tensor([[n, 2], [3, n * 2]]),
            torch.tensor([n, 0.5]),
            torch.tensor(n, dtype=torch.int8),
        )


@STRICT
@pytest.mark.parametrize("table", ["none", "default"])
def test_tensors_of_sizes_vary_with_them(table: str, strict: bool) -> None:
    program = decomposed(export(OfSizes(), (torch.ones(4),), dynamic_shapes=({0: Dim("n")},), strict=strict), table)
    for size in (2, 7):
        torch.testing.assert_close(program.module()(torch.ones(size)), OfSizes()(torch.ones(size)))


def test_a_size_for_which_a_guard_divides_by_0_is_refused() -> None:
    class InThree(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [part.sum() for part in x.chunk(3)]

    runnable = export(InThree(), (torch.ones(9),), dynamic_shapes=({0: Dim.AUTO},)).module()
    torch.testing.assert_close(runnable(torch.ones(8)), InThree()(torch.ones(8)))
    for size in (0, 1, 4):
        with pytest.raises(InputMismatch):
            runnable(torch.ones(size))


# --------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"x": {0: Dim("n")}}, "top-level keys must be the arg names"),
        (({0: Dim("n")},), "one entry for each of the arguments"),
        (
            {"x": [Dim("n"), None], "y": None},
            r"at `dynamic_shapes\['x'\]` to have the same length (.|\n)*\(expected 1, but got 2",
        ),
        ((Dim("n"), None), r"at `dynamic_shapes\[0\]` \(expected either a list/tuple"),
        ({"x": {3: Dim("n")}, "y": None}, "and 3 is none of them"),
        ({"x": {0: "n"}, "y": None}, "Unexpected dimension 'n'"),
        ({"x": {0: 7}, "y": None}, "does not match input size of 4"),
        (Dim("n"), "`dynamic_shapes` is a Dim"),
        ({"x": {0: Dim("n", max=3)}, "y": None}, "not in range"),
    ],
)
@STRICT
def test_shapes_that_do_not_fit_the_inputs_are_refused(said: Any, message: str, strict: bool) -> None:
    with pytest.raises(UserError, match=message):
        export(Adding(), (torch.ones(4), torch.ones(4)), dynamic_shapes=said, strict=strict)


class Asserting(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        assert x.shape[0] <= 32
        assert n > 10
        return x * n


@pytest.mark.parametrize(
    ("said", "messages"),
    [
        ({"x": [Dim.DYNAMIC(min=33)], "n": None}, [r"\[33, None\].*\[2, 32\], for inputs\['x'\].shape\[0\]"]),
        ({"x": [Dim.AUTO(max=15)], "n": None}, [r"\[None, 15\].*\[2, 32\], for inputs\['x'\].shape\[0\]"]),
        ({"x": [Dim.STATIC(min=6, max=8)], "n": None}, [r"\[6, 8\].*\[16, 16\]"]),
        ({"x": None, "n": Dim.DYNAMIC(max=10)}, [r"\[None, 10\].*\[11, int_oo\], for inputs\['n'\]"]),
        (
            {"x": [Dim.AUTO(max=15)], "n": Dim.DYNAMIC(max=10)},
            [r"\[2, 32\], for inputs\['x'\].shape", r"\[11, int_oo\], for inputs\['n'\]"],
        ),
    ],
)
@STRICT
def test_bounds_of_hints_are_compared_with_those_of_the_program(said: Any, messages: list[str], strict: bool) -> None:
    with pytest.raises(UserError) as raised:
        export(Asserting(), (torch.ones(16), 14), dynamic_shapes=said, strict=strict)
    assert isinstance(raised.value, ValueError)
    for message in messages:  # strict export names places of its own
        assert re.search(message.partition(", for")[0] if strict else message, str(raised.value))


def test_a_static_size_within_its_bounds_is_taken() -> None:
    program = export(Doubling(), (torch.ones(5, 3),), dynamic_shapes={"x": [Dim.STATIC(min=2, max=8), None]})
    assert ranges(program) == []


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            ({"k": (None, None)},),
            "`inputs[0]['k']` is a <class 'list'>, but `dynamic_shapes[0]['k']` is a <class 'tuple'>",
        ),
        (({"k": Dim("n")},), "`inputs[0]['k']` is a <class 'list'>, but `dynamic_shapes[0]['k']` is not"),
        (({"k": [None]},), "`inputs[0]['k']` has 2 elements, but `dynamic_shapes[0]['k']` has 1 elements"),
        ({"x": {"l": [None]}}, "`inputs['x']` has keys ['k'], but `dynamic_shapes['x']` has keys ['l']"),
        ({"x": [None]}, "`inputs['x']` is a <class 'dict'>, but `dynamic_shapes['x']` is a <class 'list'>"),
    ],
)
def test_shapes_in_other_containers_than_the_inputs_are_refused(said: Any, message: str) -> None:
    class Taking(nn.Module):
        def forward(self, x: dict[str, list[torch.Tensor]]) -> Any:
            return pytree.tree_map(torch.sin, x)

    with pytest.raises(UserError, match=re.escape(message)):
        export(Taking(), ({"k": [torch.ones(4), torch.ones(4)]},), dynamic_shapes=said)


@pytest.mark.parametrize(
    ("value", "hinted"), [({"k": torch.ones(4)}, True), ([torch.ones(4)], False), ({"l": torch.ones(4)}, False)]
)
def test_shapes_of_a_single_dict_that_look_like_shapes_by_name_are_explained(value: Any, hinted: bool) -> None:
    class Taking(nn.Module):
        def forward(self, x: Any) -> Any:
            return pytree.tree_map(torch.sin, x)

    with pytest.raises(UserError, match="top-level keys must be the arg names") as raised:
        export(Taking(), (value,), dynamic_shapes={"k": {0: Dim("n")}})
    assert hinted == ("forgot to enclose `dynamic_shapes` in a list/tuple" in str(raised.value))


@STRICT
def test_a_branch_on_a_promised_size_is_refused_with_what_to_say_instead(strict: bool) -> None:
    with pytest.raises(UserError, match="Suggested fixes:\n  n = Dim\\('n', min=6\\)") as raised:
        export(Branching(), (torch.ones(8),), dynamic_shapes={"x": {0: Dim("n")}}, strict=strict)
    assert "if x.shape[0] > 5" in str(raised.value)
    program = export(Branching(), (torch.ones(8),), dynamic_shapes={"x": {0: Dim("n", min=6)}}, strict=strict)
    assert program.module()(torch.ones(6)).tolist() == [2.0] * 6


@STRICT
def test_a_multiple_is_suggested_as_a_derived_size(strict: bool) -> None:
    with pytest.raises(UserError, match="n = 4\\*_n"):
        export(Paired(), (torch.ones(8),), dynamic_shapes={"x": {0: Dim("n")}}, strict=strict)
    root = Dim("_n", max=100)
    program = export(Paired(), (torch.ones(8),), dynamic_shapes={"x": {0: 4 * root}}, strict=strict)
    assert program.module()(torch.ones(12)).tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(InputMismatch):
        program.module()(torch.ones(13))


class Computing(nn.Module):
    """Computes a number from the size of its input."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.function(x.shape[0])


@STRICT
@pytest.mark.parametrize(
    "function",
    [
        torch.sym_float,
        torch.sym_sqrt,
        lambda n: torch.sym_int(n * 1.5),
        lambda n: torch.sym_max(n, 5) + torch.sym_min(n, 5),
        lambda n: torch.sym_sum([n, 3, n]),
        lambda n: math.floor(n / 2) - math.ceil(n / 3),
    ],
    ids=["float", "sqrt", "int", "max", "sum", "floor"],
)
def test_numbers_computed_from_sizes_vary(function: Callable[[Any], Any], strict: bool) -> None:
    module = Computing(function)
    program = export(module, (torch.ones(4, 2),), dynamic_shapes=({0: Dim("n")},), strict=strict)
    for size in (2, 5, 9):
        assert torch.equal(program.module()(torch.ones(size, 2)), module(torch.ones(size, 2)))


@pytest.mark.parametrize(
    "function",
    [
        lambda n: int(n * 1.5),
        lambda n: math.trunc(n / 3),
        lambda n: round(n * 1.5) + round(n / 3, 1),
        math.sqrt,
        lambda n: max(n, 3, 7) - min(n, 4),
        lambda n: math.prod([n, 2]),
    ],
    ids=["int", "trunc", "round", "sqrt", "extremes", "product"],
)
def test_python_s_functions_of_sizes_are_operations_of_a_strict_graph(function: Callable[[Any], Any]) -> None:
    module = Computing(function)
    program = export(module, (torch.ones(4, 2),), dynamic_shapes=({0: Dim("n")},), strict=True)
    for size in (2, 5, 9):
        torch.testing.assert_close(program.module()(torch.ones(size, 2)), module(torch.ones(size, 2)))


@STRICT
def test_a_condition_on_a_size_may_be_a_result(strict: bool) -> None:
    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.shape[0] > 4, x + 1

    program = export(Asking(), (torch.ones(3),), dynamic_shapes=({0: Dim("n")},), strict=strict)
    for runnable in (program.module(), program.run_decompositions().module()):
        assert [runnable(torch.ones(size))[0] for size in (3, 4, 5)] == [False, False, True]


@STRICT
@pytest.mark.parametrize("sizes", [(2, 5, 6), (3, 4, 7)])
def test_parts_of_a_size_vary_in_a_decomposed_program(sizes: tuple[int, ...], strict: bool) -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.chunk(2)

    shapes = ({0: Dim.AUTO},)
    program = export(Parts(), (torch.ones(4, 2),), dynamic_shapes=shapes, strict=strict).run_decompositions()
    for size in sizes:
        x = torch.randn(size, 2)
        torch.testing.assert_close(program.module()(x), Parts()(x))


def test_conditions_of_a_decomposition_are_checked_at_calls() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    def by_size(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 3 else x * 3

    program = export(Doubled(), (torch.ones(4),), dynamic_shapes=({0: Dim.AUTO},))
    decomposed = program.run_decompositions({torch.ops.aten.sin.default: by_size})
    assert decomposed.module()(torch.ones(5)).tolist() == [2.0] * 5
    with pytest.raises(InputMismatch, match=r"size\(\)\[0\] >= 4"):
        decomposed.module()(torch.ones(3))
    assert ranges(program) == [(2, math.inf)]


class Stepped(nn.Module):
    """Takes x of 3n - 1 elements from 5 to 36, and y and z that have one and three more."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 5 or x.shape[0] > 36 or y.shape[0] % 3:
            return x
        return x + y[1:] + z[3:]


class Even(nn.Module):
    """Takes 4n + 2 elements, which it asks for twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.shape[0] + 2) % 4 or (3 * x.shape[0]) % 6:
            return x
        return x.reshape(-1, 2)


def suggested(error: pytest.ExceptionInfo[UserError]) -> dict[str, Any]:
    """What the suggested fixes define when they are run as Python."""
    made: dict[str, Any] = {}
    for line in str(error.value).partition("Suggested fixes:\n")[2].splitlines():
        exec(line.strip(), {"Dim": Dim, **made}, made)
    return made


@STRICT
@pytest.mark.parametrize(
    ("module", "sizes", "fixes"),
    [
        (Stepped(), (11, 12, 14), ["_a = Dim('_a', max=12)", "a = 3*_a - 1", "b = 3*_a", "c = 3*_a + 2"]),
        (Even(), (10,), ["_a = Dim('_a')", "a = 4*_a - 2"]),
    ],
)
def test_suggested_fixes_suffice(module: nn.Module, sizes: tuple[int, ...], fixes: list[str], strict: bool) -> None:
    names = ["a", "b", "c"][: len(sizes)]
    examples = tuple(torch.ones(size) for size in sizes)
    with pytest.raises(UserError, match="Suggested fixes:") as error:
        export(module, examples, dynamic_shapes=tuple({0: Dim(name)} for name in names), strict=strict)
    assert [line.strip() for line in str(error.value).partition("fixes:\n")[2].splitlines()] == fixes
    found = suggested(error)
    program = export(module, examples, dynamic_shapes=tuple({0: found[name]} for name in names), strict=strict)
    larger = tuple(torch.ones(found[name].fn(7)) for name in names)
    assert torch.equal(program.module()(*larger), module(*larger))


@STRICT
def test_two_definitions_of_a_dim_are_named(strict: bool) -> None:
    one, other = Dim("n", min=3), Dim("n", max=12)
    message = re.escape("different definitions Dim('n', min=3) and Dim('n', max=12) for the same symbolic dimension")
    with pytest.raises(UserError, match=message):
        export(Adding(), (torch.ones(4), torch.ones(4)), dynamic_shapes=({0: one}, {0: other}), strict=strict)


@STRICT
def test_a_size_may_be_promised_to_be_one_or_two(strict: bool) -> None:
    size = Dim("size", min=1, max=2)
    program = export(Doubling(), (torch.ones(2, 2),), dynamic_shapes=({0: size},), strict=strict)
    assert [(bounds.lower, bounds.upper) for bounds in program.range_constraints.values()] == [(1, 2)]
    for count in (1, 2):
        assert program.module()(torch.ones(count, 2)).shape == (count, 2)
    with pytest.raises(InputMismatch, match=r"x.size\(\)\[0\] <= 2"):
        program.module()(torch.ones(3, 2))


@STRICT
def test_a_derived_size_has_a_range_of_its_own(strict: bool) -> None:
    n, m = Dim("n", min=3, max=6), Dim("m", min=4, max=8)
    examples = (torch.ones(4), torch.ones(9), torch.ones(5))
    program = export(Apart(), examples, dynamic_shapes=({0: n}, {0: 2 * n + 1}, {0: m}), strict=strict)
    bounds = sorted((found.lower, found.upper) for found in program.range_constraints.values())
    assert bounds == [(3, 6), (4, 8), (7, 13)]


class Apart(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, y + 1, z + 1


@STRICT
def test_what_no_dim_says_is_checked_at_every_call(strict: bool) -> None:
    a, b, c = dims("a", "b", "c")
    said = ({0: a}, {0: b}, {0: c})
    program = export(Outer(), (torch.ones(3), torch.ones(4), torch.ones(12)), dynamic_shapes=said, strict=strict)
    assert program.module()(torch.ones(2), torch.ones(5), torch.ones(10)).shape == (10,)
    with pytest.raises(InputMismatch, match="Guard failed"):
        program.module()(torch.ones(2), torch.ones(5), torch.ones(11))


@STRICT
def test_one_tensor_at_two_places_is_two_inputs(strict: bool) -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * y

    t = torch.ones(3)
    program = export(Writing(), (t, t), strict=strict)
    assert list(program.graph_signature.user_inputs) == ["x", "y"]
    assert program.module()(torch.ones(3), torch.full((3,), 5.0)).tolist() == [10.0] * 3
    assert t.tolist() == [1.0] * 3  # exporting writes to nothing


def test_shapes_are_saved_as_plain_data() -> None:
    n = Dim("n", min=3, max=9)
    said = {
        "pair": ({0: 2 * n, 1: None}, (2 * n - 1,)),
        "table": {"u": (n, Dim.AUTO)},
        "free": {0: Dim("m")},
        "name": None,
    }
    args = ((torch.ones(8, 2), torch.ones(7)), {"u": torch.ones(4, 5)}, torch.ones(6), "name")
    saved = _dump_dynamic_shapes(said, args, to_dict=True)
    assert saved == {
        "dynamic_shapes": ((["2*n", 2], ["2*n - 1"]), {"u": ["n", "_DimHint.AUTO"]}, ["m"], None),
        "dims": {
            "m": {"min": 0, "max": None, "derived": []},
            "n": {"min": 3, "max": 9, "derived": ["2*n", "2*n - 1"]},
        },
    }
    loaded = _load_dynamic_shapes(saved, from_dict=True)
    assert _dump_dynamic_shapes(loaded, args) == _dump_dynamic_shapes(said, args)
    (_, less), table, _, name = loaded
    assert (less[0].fn(5), less[0].root, table["u"][1], name) == (9, table["u"][0], Dim.AUTO, None)
    assert _load_dynamic_shapes(_dump_dynamic_shapes(None, args), from_dict=True) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": {}}, "to be tracked in"),
        ({"dims": {"n": {"min": 3, "max": 9}}}, "to have keys"),
        ({"dims": {"n": {"min": None, "max": 9, "derived": []}}}, "`min` to an int"),
        ({"dims": {"n": {"min": 3, "max": 9, "derived": ["n**2"]}}}, "linear expressions"),
        ({"dims": {"n": {"min": 3, "max": 9, "derived": ["m + 1"]}}}, "only free symbol"),
        ({"dynamic_shapes": [[2.5]]}, "Expected leaves"),
    ],
)
def test_saved_shapes_of_another_form_are_refused(change: dict[str, Any], message: str) -> None:
    saved = {"dynamic_shapes": [["n"]], "dims": {"n": {"min": 3, "max": 9, "derived": []}}, **change}
    with pytest.raises(UserError, match=message):
        _load_dynamic_shapes(saved, from_dict=True)
    with pytest.raises(UserError, match="mismatch"):
        _dump_dynamic_shapes(([{0: 2}],), ([torch.ones(2), torch.ones(2)],))
