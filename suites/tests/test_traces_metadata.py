"""The check of fake metadata, fed with fake kernels that are wrong in every field it compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from suites.traces.metadata import DATA_DEPENDENT, DYNAMIC_SHAPE, NO_KERNEL, run_check
from suites.traces.metadata_records import MetadataDifference, MetadataRow, grouped
from suites.traces.metadata_worker import check_case
from suites.traces.records import TraceCase

NAMESPACE = "torch_oracle_metadata_tests"
ops = getattr(torch.ops, NAMESPACE)


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library(NAMESPACE, "FRAGMENT")
    yield made
    made._destroy()


def define(
    library: torch.library.Library, schema: str, real: Callable[..., Any], fake: Callable[..., Any] | None
) -> Any:
    """An operator of our own with a real kernel and a fake one."""
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, real, "CompositeExplicitAutograd" if fake is None else "CPU")
    if fake is not None:
        library.impl(name, fake, "Meta")
    return getattr(ops, name).default


def differences(function: Callable[..., Any], *args: Any, shapes: str = "static") -> list[MetadataDifference]:
    return run_check(function, args, {}, shapes=shapes, known={}).differences


def real(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


WRONG: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, str]] = {
    "shape": (lambda x: x.new_empty(3, 2), "(2, 3)", "(3, 2)"),
    "dtype": (lambda x: torch.empty_like(x, dtype=torch.float64), "float32", "float64"),
    "stride": (lambda x: x.new_empty_strided((2, 3), (1, 2)), "(3, 1) of (2, 3)", "(1, 2)"),
    "storage_offset": (lambda x: x.new_empty(7)[1:].view(2, 3), "0", "1"),
}


@pytest.mark.parametrize("shapes", ["static", "symbolic"])
@pytest.mark.parametrize("field", list(WRONG))
def test_a_fake_kernel_that_is_wrong_in_one_field_is_seen(
    field: str, shapes: str, library: torch.library.Library
) -> None:
    fake, expected, seen = WRONG[field]
    op = define(library, "copy(Tensor x) -> Tensor", real, fake)
    (one,) = differences(op, torch.ones(2, 3), shapes=shapes)
    assert (one.op, one.field, one.where) == (f"{NAMESPACE}.copy.default", field, "result 0")
    assert (one.real, one.fake, one.arguments) == (expected, seen, "(float32[2, 3])")


def test_a_right_fake_kernel_is_no_difference(library: torch.library.Library) -> None:
    op = define(library, "copy(Tensor x) -> Tensor", real, torch.empty_like)
    assert differences(op, torch.ones(2, 3)) == []
    assert differences(op, torch.ones(2, 3), shapes="symbolic") == []


def test_a_fake_kernel_that_raises_is_seen(library: torch.library.Library) -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not for this shape")

    op = define(library, "copy(Tensor x) -> Tensor", real, raises)
    (one,) = differences(op, torch.ones(2))
    assert (one.field, one.fake) == ("raises", "ValueError: not for this shape")


def test_a_view_that_is_a_copy_in_the_fake_run_is_seen(library: torch.library.Library) -> None:
    op = define(library, "alias(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1), lambda x: x.new_empty(x.numel()))
    (one,) = differences(op, torch.ones(2, 3))
    assert (one.field, one.real, one.fake) == ("aliases", "argument 0", "nothing")


def test_an_argument_that_is_resized_is_compared_after_the_call(library: torch.library.Library) -> None:
    def grow(x: torch.Tensor) -> None:
        x.resize_(5)

    op = define(library, "grow_(Tensor(a!) x) -> ()", grow, lambda x: None)
    fields = {(one.field, one.where) for one in differences(op, torch.ones(2))}
    assert fields == {("shape", "argument 0 after the call")}


@pytest.mark.parametrize("shapes", ["static", "symbolic"])
def test_arguments_that_are_one_tensor_or_share_a_storage_stay_so(shapes: str) -> None:
    x = torch.ones(2, 2)
    assert differences(lambda: torch.addmm(x, x, x, out=x), shapes=shapes) == []
    assert differences(lambda: torch.mul(x[0], x[1], out=x[1]), shapes=shapes) == []


def test_symbolic_sizes_are_run_with_the_python_rules_they_need() -> None:
    assert differences(lambda x: torch.narrow_copy(x, 0, 1, 2), torch.ones(5, 5), shapes="symbolic") == []
    assert differences(torch.trace, torch.ones(5, 5), shapes="symbolic") == []


def test_strides_that_address_nothing_have_a_field_of_their_own(library: torch.library.Library) -> None:
    op = define(library, "copy(Tensor x) -> Tensor", real, lambda x: x.new_empty_strided((2, 1), (1, 7)))
    (one,) = differences(op, torch.ones(2, 1))
    assert one.field == "stride_unused"


def test_calls_inside_an_operator_are_checked_and_known_calls_not_done_again() -> None:
    known: dict[Any, Any] = {}

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, x) + 1

    first = run_check(program, (torch.ones(3, 3),), {}, shapes="static", known=known)
    assert first.calls == first.compared == 3  # t, mm, add
    before = len(known)
    again = run_check(program, (torch.zeros(3, 3),), {}, shapes="static", known=known)
    assert (again.calls, len(known)) == (3, before)


def test_what_depends_on_data_is_counted_apart() -> None:
    state = run_check(lambda x: (x.nonzero(), x.sum().item()), (torch.ones(3),), {}, shapes="static", known={})
    assert state.skipped == {
        ("aten.nonzero.default", DYNAMIC_SHAPE): 1,
        ("aten._local_scalar_dense.default", DATA_DEPENDENT): 1,
    }
    assert state.differences == []


def test_an_operator_without_a_fake_kernel_is_counted_apart() -> None:
    state = run_check(lambda x: torch.geqrf(x), (torch.eye(3),), {}, shapes="static", known={})
    assert state.skipped == {("aten.geqrf.default", NO_KERNEL): 1}


def test_sizes_that_depend_on_data_agree_with_any_size_in_the_symbolic_run() -> None:
    state = run_check(lambda x: x.nonzero(), (torch.ones(3),), {}, shapes="symbolic", known={})
    assert (state.compared, state.differences) == (1, [])


def test_a_program_that_raises_is_not_comparable_and_one_that_does_not_load_is_missing() -> None:
    def row(source: str) -> MetadataRow:
        program = {"format": 1, "name": "p", "source": source, "calls": [{}]}
        return check_case(
            TraceCase(
                case_id="p", suite="opinfo", group="p", name="p", dtype="float32", direction="forward", mode="static",
                program=program,
            )
        )  # fmt: skip

    assert row("def program():\n    raise ValueError('no')\n").status == "not_comparable"
    assert row("raise ValueError('no')\n").status == "missing"
    agrees = row("import torch\n\n\ndef program():\n    return torch.ones(2) + 1\n")
    assert (agrees.status, agrees.calls) == ("agrees", 2)


def test_differences_are_grouped_by_operator_and_field_with_the_shortest_example() -> None:
    def difference(arguments: str) -> MetadataDifference:
        return MetadataDifference(
            shapes="static", op="aten.view.default", field="stride", where="result 0", arguments=arguments, real="a", fake="b"
        )  # fmt: skip

    def row(case: str, *found: MetadataDifference) -> MetadataRow:
        return MetadataRow(
            case_id=case, group="view", dtype=case, direction="forward", shapes="static", status="differs",
            differences=found,
        )  # fmt: skip

    (group,) = grouped([row("float32", difference("(long)"), difference("()")), row("int64", difference("()"))])
    assert (group.calls, group.cases, group.dtypes) == (2, 2, ("float32", "int64"))
    assert (group.example.arguments, group.first_case) == ("()", "float32")
