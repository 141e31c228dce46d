"""Draft export: programs that `export` refuses, and the report of the assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config

from refimpl.capture.public.errors import UserError
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, export
from refimpl.export.draft import draft_export
from refimpl.export.draft_report import FailureType


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Ops of namespace refimpl_draft: doubled without a fake kernel, wide with a wrong one, right, written in place, failing."""
    library = torch.library.Library("refimpl_draft", "FRAGMENT")
    for schema in (
        "doubled(Tensor x) -> Tensor",
        "wide(Tensor x) -> Tensor",
        "right(Tensor x) -> (Tensor, Tensor)",
        "write(Tensor(a!) x) -> ()",
        "failing(Tensor x) -> Tensor",
        "kept(Tensor x) -> Tensor",
        "same(Tensor x) -> Tensor",
        "copied(Tensor x) -> Tensor",
        "gaps(Tensor x) -> Tensor",
        "late(Tensor x) -> Tensor",
        "pair(Tensor x) -> Tensor[]",
        "chosen(Tensor x) -> Tensor",
    ):
        library.define(schema)
    library.impl("doubled", lambda x: torch.cat([x, x]), "CPU")
    library.impl("wide", lambda x: torch.cat([x, x]).double(), "CPU")
    library.impl("right", lambda x: (x + 1, x[x > 0].clone()), "CPU")
    library.impl("write", lambda x: (x.add_(1), None)[1], "CPU")
    library.impl("failing", lambda x: x + 1, "CPU")
    library.impl("kept", lambda x: x + 1, "CPU")
    library.impl("same", lambda x: x, "CPU")
    library.impl("copied", lambda x: x + 1, "CPU")
    library.impl("gaps", lambda x: (x + 1)[:, :-1], "CPU")
    library.impl("late", lambda x: (x + 1)[1:], "CPU")
    library.impl("chosen", lambda x: x[x > 0].double(), "CPU")
    library.impl("pair", lambda x: [x.double(), x + 1, x.repeat(2, 1)], "CPU")

    def right(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = torch.library.get_ctx().new_dynamic_size()
        return torch.empty_like(x), x.new_empty(count)

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("a mistake of the library's")

    torch.library.register_fake("refimpl_draft::wide", torch.empty_like, lib=library)
    torch.library.register_fake("refimpl_draft::right", right, lib=library)
    torch.library.register_fake("refimpl_draft::write", lambda x: None, lib=library)
    torch.library.register_fake("refimpl_draft::failing", failing, lib=library)
    torch.library.register_fake("refimpl_draft::same", torch.clone, lib=library)
    torch.library.register_fake("refimpl_draft::chosen", lambda x: right(x)[1], lib=library)
    torch.library.register_fake("refimpl_draft::copied", lambda x: x, lib=library)
    torch.library.register_fake("refimpl_draft::pair", lambda x: [torch.empty_like(x) for _ in range(3)], lib=library)
    torch.library.register_fake("refimpl_draft::kept", lambda x: x.new_empty(3), lib=library)
    yield
    library._destroy()


class Deciding(nn.Module):
    """Takes roads that data choose: by a truth value, by a number, by how many elements there are."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.constant = torch.tensor([1.0, 2.0, 3.0])
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        self.count += 1
        y = self.linear(x) * self.constant
        if x.sum() > 0:
            y = y + 1
        k = n.item()
        if k > 3:
            y = y * k
        positive = x[x > 0]
        if positive.numel() > 2:
            y = y + positive.sum()
        if self.count > 0.5:
            y = y - 2
        return y


def test_roads_that_data_choose_are_those_of_the_example_and_asserted() -> None:
    module, x, n = Deciding(), torch.ones(4, 3), torch.tensor(5)
    with pytest.raises(UserError):
        export(module, (x, n))
    program = draft_export(module, (x, n), dynamic_shapes=({0: Dim.DYNAMIC}, None))
    assert module.count.item() == 0
    report = program.report
    assert report is not None
    assert not report.successful()
    assert [failure.failure_type for failure in report.failures] == [FailureType.DATA_DEPENDENT_ERROR] * 4
    asked = ("if x.sum() > 0:", "if k > 3:", "if positive.numel() > 2:", "if self.count > 0.5:")
    assert all(line in failure.place for line, failure in zip(asked, report.failures, strict=True))
    assert "The export made 4 assumptions" in str(report)
    runnable = program.module()
    other, six = torch.rand(7, 3) + 0.1, torch.tensor(6)
    torch.testing.assert_close(runnable(other, six), Deciding.forward(_copy(module), other, six))
    for given in ((-other, six), (other, torch.tensor(3)), (torch.tensor([[5.0, -1.0, -1.0], [0.0, 0.0, 0.0]]), six)):
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            runnable(*given)


def _copy(module: nn.Module) -> Any:
    copy = Deciding()
    copy.load_state_dict(module.state_dict())
    copy.count.zero_()
    return copy


def test_nothing_has_to_be_assumed_of_a_program_that_exports() -> None:
    module = nn.Linear(3, 2)
    program = draft_export(module, (torch.ones(4, 3),), dynamic_shapes=({0: Dim("n")},))
    assert program.report is not None
    assert program.report.successful()
    assert "No assumptions" in str(program.report)
    assert str(program) == str(export(module, (torch.ones(4, 3),), dynamic_shapes=({0: Dim("n")},)))
    assert export(module, (torch.ones(4, 3),)).report is None


class Calling(nn.Module):
    """Calls an operator of the library."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = getattr(torch.ops.refimpl_draft, self.name)(x * 2)
        first, *rest = result if isinstance(result, tuple) else (result,)
        return first.sum(0) + sum((r.sum() for r in rest), torch.zeros(()))


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("doubled", FailureType.MISSING_FAKE_KERNEL, "has no fake kernel"),
        (
            "wide",
            FailureType.MISMATCHED_FAKE_KERNEL,
            "Dtypes torch.float64 and torch.float32 are not equal!",
        ),
        ("kept", FailureType.MISMATCHED_FAKE_KERNEL, "the real result has ndim 2, the fake one 1"),
        ("chosen", FailureType.MISMATCHED_FAKE_KERNEL, "Dtypes torch.float64 and torch.float32 are not equal!"),
        ("copied", FailureType.MISMATCHED_FAKE_KERNEL, "Mismatched aliasing spec between fake kernel and real kernel"),
        ("failing", FailureType.MISMATCHED_FAKE_KERNEL, "it raises ValueError: a mistake of the library's"),
    ],
)
def test_operators_that_do_not_say_what_they_give_are_run(name: str, kind: FailureType, reason: str) -> None:
    module = Calling(name)
    program = draft_export(module, (torch.randn(2, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    assert program.report is not None
    (failure,) = program.report.failures
    assert (failure.failure_type, failure.data["op"]) == (kind, f"refimpl_draft.{name}.default")
    assert reason in str(failure)
    assert "result = getattr(torch.ops.refimpl_draft, self.name)(x * 2)" in failure.place
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program.module()(x), module(x))


def test_a_missing_kernel_is_one_failure_and_values_have_the_example_s() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.ops.refimpl_draft.doubled(x)
            return torch.ops.refimpl_draft.doubled(y).sum()

    x = torch.randn(2, 3)
    program = draft_export(Twice(), (x,))
    assert program.report is not None
    (failure,) = program.report.failures
    assert failure.data == {"op": "refimpl_draft.doubled.default", "occurrences": 2}
    (given,) = program.graph.find_nodes(op="placeholder")
    assert torch.equal(given.meta["val"].real_tensor, x)


def test_each_wrong_result_of_an_operator_is_a_failure() -> None:
    class Summing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum(part.sum() for part in torch.ops.refimpl_draft.pair(x))  # type: ignore[return-value]

    x = torch.randn(2, 3)
    program = draft_export(Summing(), (x,))
    assert program.report is not None
    assert [failure.data["reason"] for failure in program.report.failures] == [
        "Dtypes torch.float64 and torch.float32 are not equal!",
        "the real result has shape (4, 3), the fake one (2, 3)",
    ]
    torch.testing.assert_close(program.module()(x), Summing()(x))


@pytest.mark.parametrize(("name", "seen"), [("gaps", "was not dense in memory"), ("late", "non-zero storage offset")])
def test_results_whose_strides_no_fake_would_have_are_refused(name: str, seen: str) -> None:
    with pytest.raises(UnsupportedByRefimpl, match=f"a return .*{seen}"):
        draft_export(Calling(name), (torch.randn(2, 3),))


def test_an_operator_that_is_right_is_no_failure_and_its_number_has_a_value() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, positive = torch.ops.refimpl_draft.right(x)
            return y + 1 if positive.shape[0] > 1 else y

    program = draft_export(Counting(), (torch.ones(3),))
    assert program.report is not None
    assert [failure.failure_type for failure in program.report.failures] == [FailureType.DATA_DEPENDENT_ERROR]
    assert program.module()(torch.ones(3)).tolist() == [3.0] * 3
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        program.module()(-torch.ones(3))


def test_writes_of_operators_are_seen_and_do_not_reach_the_example() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.refimpl_draft.write(x)
            return x * 2 if x.sum() > 3 else x

    x = torch.ones(3)
    program = draft_export(Writing(), (x,))
    assert x.tolist() == [1.0] * 3
    assert program.report is not None
    assert [failure.data.get("value") for failure in program.report.failures] == [True]
    assert program.module()(torch.ones(3)).tolist() == [4.0] * 3


def test_promises_that_do_not_hold_are_reported_and_left_out() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] == 4 else x + y

    shapes = ({0: Dim("n", max=10)}, {0: Dim("m")})
    with pytest.raises(UserError):
        export(Fixed(), (torch.ones(4), torch.ones(4)), dynamic_shapes=shapes)
    program = draft_export(Fixed(), (torch.ones(4), torch.ones(4)), dynamic_shapes=shapes)
    assert program.report is not None
    (failure,) = program.report.failures
    assert failure.failure_type is FailureType.GUARD_ADDED
    assert "Suggested fixes" in str(failure)
    assert program.module()(torch.ones(4), torch.ones(9)).tolist() == [2.0] * 4
    with pytest.raises(AssertionError):
        program.module()(torch.ones(5), torch.ones(9))


@pytest.mark.parametrize(("dim", "largest"), [(Dim("n", max=20), 20), (2 * Dim("n", max=10) + 1, 21)])
def test_promises_that_do_not_hold_keep_their_bounds(dim: Any, largest: int) -> None:
    class Bounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] > 5 else x

    program = draft_export(Bounded(), (torch.ones(9),), dynamic_shapes=({0: dim},))
    assert program.report is not None
    assert not program.report.successful()
    assert program.module()(torch.ones(largest)).shape == (largest,)
    for size in (5, largest + 1):
        with pytest.raises(AssertionError, match="Guard failed"):
            program.module()(torch.ones(size))


def test_a_condition_of_a_loop_is_one_failure() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = 0
            for value in x:
                if value > 0:
                    total += 1
            return x * total

    program = draft_export(Counting(), (torch.tensor([1, 0, 1]),))
    assert program.report is not None
    (failure,) = program.report.failures
    assert failure.data["occurrences"] == 3
    assert "3 times" in str(failure)


def test_what_makes_no_sense_is_refused_as_by_export() -> None:
    with pytest.raises(UserError, match="tuple"):
        draft_export(nn.Linear(2, 2), torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Module"):
        draft_export(torch.sin, (torch.ones(2),))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedByRefimpl, match="strict"):
        draft_export(nn.Linear(2, 2), (torch.ones(2),), strict=True)


def test_an_error_of_the_program_stays_one() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                raise KeyError("of the program")
            return x

    with pytest.raises(KeyError, match="of the program"):
        draft_export(Failing(), (torch.ones(2),))


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> Any:
        return x.sum() if (x.sum() + self.weight).item() > 0 else torch.is_nonzero(x[0])


def test_a_setting_makes_export_take_the_roads_of_the_example() -> None:
    with functorch_config.patch(fake_tensor_propagate_real_tensors=True):
        program = export(Choosing(), (torch.ones(3),))
        other = export(Choosing(), (torch.tensor([-3.0, 0.0]),))
    assert program.module()(torch.ones(3)).item() == 3
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        program.module()(-torch.ones(3))
    assert other.module()(torch.tensor([-3.0, 0.0])) is True
    with pytest.raises(UserError, match="control flow depends on data"):
        export(Choosing(), (torch.ones(3),))


def test_a_setting_makes_export_check_operators_by_their_values() -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.refimpl_draft.same(x)

    with functorch_config.patch(fake_tensor_propagate_real_tensors=True):
        with pytest.raises(RuntimeError, match="alias"):
            export(Same(), (torch.ones(3),))
