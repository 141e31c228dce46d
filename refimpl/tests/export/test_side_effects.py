"""What an export leaves in the program's Python: nothing that has no data."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, export
from refimpl.tests.export.forms import STRICT

LOG: list[Any] = ["before"]
TABLE: dict[str, Any] = {"before": 1}
LAST: Any = None
COUNT = [0]


class Recorder:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.window: deque[Any] = deque(maxlen=2)
        self.last: Any = None

    def note(self, value: torch.Tensor) -> None:
        self.last = value
        self.items.append({"nested": (value,)})
        self.window.append(value)


def note(log: list[Any], value: torch.Tensor) -> None:
    log.append(value)


class Logging(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        note(LOG, y)
        TABLE["last"] = y
        self.recorder.note(y)
        COUNT[0] += 1
        return y * 2


def data_of_a_result(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * 2
    z.data = y
    return z + 1


def data_of_an_input(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    x.add_(1)
    return x * 2, y


@pytest.mark.parametrize("function", [data_of_a_result, data_of_an_input])
def test_assigned_data_is_used_afterwards(function: Callable[..., Any]) -> None:
    class Calling(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return function(x, y)

    program = export(Calling(), (torch.ones(3), torch.ones(3)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    given, expected = ([torch.arange(4.0), torch.arange(4.0) * 3] for _ in range(2))
    torch.testing.assert_close(program.module()(*given), function(*expected))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_assigned_data_that_changes_gradients_or_dtypes_is_refused(dtype: torch.dtype) -> None:
    class Assigning(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=dtype is torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.data = self.weight.data.to(dtype) * 2
            return x * self.weight

    with pytest.raises(UnsupportedByRefimpl, match=r"`x.data = y` with an x .*test_side_effects"):
        export(Assigning(), (torch.ones(3),))


class Assigning(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global LAST
        LAST = x + 1
        return x * 2


def closing_over(kept: list[Any]) -> torch.nn.Module:
    class Closing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(x + 1)
            return x * 2

    return Closing()


@STRICT
def test_containers_outside_of_the_module_are_as_they_were(strict: bool) -> None:
    module = Logging()
    with pytest.warns(UserWarning, match=r"forward stored fake tensors of the export.* in self.recorder") as caught:
        program = export(module, (torch.ones(3),), strict=strict)
    assert all(name in str(caught[0].message) for name in ("LOG", "TABLE", "self.recorder.items"))
    assert (LOG, TABLE) == (["before"], {"before": 1})
    assert (module.recorder.items, list(module.recorder.window), module.recorder.last) == ([], [], None)
    assert program.module()(torch.ones(3)).tolist() == [4.0] * 3
    assert LOG == ["before"]


@STRICT
def test_a_list_that_forward_closes_over(strict: bool) -> None:
    kept: list[Any] = []
    with pytest.warns(UserWarning, match="fake tensors of the export in kept"):
        export(closing_over(kept), (torch.ones(3),), strict=strict)
    assert kept == []


@STRICT
def test_functions_that_forward_stores_are_searched_for_what_they_close_over(strict: bool) -> None:
    kept: list[Any] = []

    class Deferring(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1

            def later() -> torch.Tensor:
                return y * 2

            kept.append(later)
            return x.sin()

    with pytest.warns(UserWarning, match="fake tensors of the export in kept"):
        export(Deferring(), (torch.ones(3),), strict=strict)
    assert kept == []


def test_a_global_that_forward_assigns() -> None:
    with pytest.warns(UserWarning, match="fake tensors of the export in LAST"):
        export(Assigning(), (torch.ones(3),))
    assert LAST is None


@STRICT
@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU])
def test_weights_that_a_module_lists_for_itself_are_no_assignment(make: Callable[..., Any], strict: bool) -> None:
    module = make(3, 4)
    weights = list(module._flat_weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(module, (torch.ones(2, 5, 3),), strict=strict)
    assert all(a is b for a, b in zip(module._flat_weights, weights, strict=True))
    assert not any(isinstance(weight, FakeTensor) for weight in module._flat_weights)


def test_an_export_that_fails_puts_back_as_well() -> None:
    kept: list[Any] = []

    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(x + 1)
            raise ValueError("after the change")

    with pytest.raises(ValueError, match="after the change"):
        export(Failing(), (torch.ones(3),))
    assert kept == []


@STRICT
def test_hooks_that_would_be_lost_are_refused(*, strict: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    handle = module[0].register_full_backward_hook(lambda part, inward, outward: (inward[0] * 2,))
    with pytest.raises(UnsupportedByRefimpl, match=r"backward hooks of modules \('0'\) while gradients are enabled"):
        export(module, (torch.ones(1, 2),), strict=strict)
    with torch.no_grad():
        assert export(module, (torch.ones(1, 2),), strict=strict).module()(torch.ones(1, 2)).shape == (1, 2)
    handle.remove()
    export(module, (torch.ones(1, 2),), strict=strict)


class _Reshaping(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.t_().unsqueeze_(0)
        return x * 2


@STRICT
def test_inputs_get_other_shapes_in_place(*, strict: bool) -> None:
    program = export(_Reshaping(), (torch.ones(3, 4),), strict=strict)
    x = torch.arange(12.0).reshape(3, 4)
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(program.module()(mine), _Reshaping()(theirs), rtol=0, atol=0)
    assert mine.shape == theirs.shape == (1, 4, 3)
    assert mine.stride() == theirs.stride()


class _Exchanging(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.transpose_(0, 1)
        return x * 2


@pytest.mark.parametrize(
    ("module", "shape", "dims"), [(_Reshaping(), (3, 4), {0: Dim("n")}), (_Exchanging(), (3, 2, 2), [Dim.AUTO] * 3)]
)
def test_in_strict_export_not_where_they_vary(module: torch.nn.Module, shape: Any, dims: Any) -> None:
    """This holds also if symbolic sizes change places."""
    with pytest.raises(UnsupportedByRefimpl, match="an in-place change of shape or strides"):
        export(module, (torch.ones(shape),), strict=True, dynamic_shapes={"x": dims})
