"""Settings of capture: each changes something that can be seen; unknown ones are named."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

import refimpl
from refimpl.capture.config import CaptureConfig, config
from refimpl.capture.public.counters import counters
from refimpl.capture.public.errors import FailOnRecompileLimitHit, RecompileError, Unsupported

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    refimpl.reset()
    counters.clear()
    yield
    refimpl.reset()


def graphs_of(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> int:
    """How many graphs some calls take; each gives what the function gives."""
    graphs: list[Any] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    refimpl.reset()
    compiled = refimpl.optimize(keep, **options)(function)
    for args in calls:
        torch.testing.assert_close(compiled(*args), function(*args))
    return len(graphs)


SIZES = [(torch.ones(size),) for size in (3, 4, 5)]
NUMBERS = [(torch.ones(2), number) for number in (3, 4, 5)]


@pytest.mark.parametrize(
    ("setting", "value", "calls", "by_default", "changed"),
    [
        ("automatic_dynamic_shapes", False, SIZES, 2, 3),
        ("assume_static_by_default", False, SIZES, 2, 1),
        ("specialize_int", True, NUMBERS, 2, 3),
        ("recompile_limit", 1, SIZES, 2, 1),
        ("cache_size_limit", 1, SIZES, 2, 1),
    ],
)
def test_settings_that_decide_how_often_a_function_is_captured(
    setting: str, value: Any, calls: list[tuple[Any, ...]], by_default: int, changed: int
) -> None:
    """XC-10"""

    def program(x: Tensor, number: int = 2) -> Tensor:
        return x * number

    assert graphs_of(program, *calls) == by_default
    with config.patch(setting, value):
        assert graphs_of(program, *calls) == changed


def test_parameters_have_numbers_for_sizes() -> None:
    """XC-10"""
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, 4, 5)]
    calls = [(weight,) for weight in weights]
    assert graphs_of(lambda w: w + 1, *calls) == 3
    with config.patch(force_parameter_static_shapes=False):
        assert graphs_of(lambda w: w + 1, *calls) == 2


def test_numbers_out_of_tensors_are_captured_where_a_setting_says_so() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        return x * x.sum().item()

    x = torch.tensor([1.5, 2.5])
    assert graphs_of(program, (x,)) == 2
    with config.patch(capture_scalar_outputs=True):
        assert graphs_of(program, (x,)) == 1


def test_shapes_that_depend_on_data_are_captured_where_a_setting_says_so() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        return (x + 1).nonzero() * 2

    x = torch.tensor([0.0, 1.0, -1.0])
    assert graphs_of(program, (x,)) == 2
    with config.patch(capture_dynamic_output_shape_ops=True):
        assert graphs_of(program, (x,)) == 1


def test_capturing_again_can_be_an_error() -> None:
    """XC-10"""
    compiled = refimpl.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    with config.patch(error_on_recompile=True):
        compiled(torch.ones(2))
        with pytest.raises(RecompileError, match=r"captured again(?s:.*)L\['x'\]"):
            compiled(torch.ones(2, dtype=torch.int64))
    assert compiled(torch.ones(2, dtype=torch.int64)).tolist() == [2, 2]


def test_a_limit_over_all_places_of_a_function() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        x = x + 1
        refimpl.graph_break()
        x = x * 2
        refimpl.graph_break()
        x = x - 3
        refimpl.graph_break()
        return x * 4

    x = torch.ones(2)
    assert graphs_of(program, (x,)) == 4
    with config.patch(accumulated_recompile_limit=2):
        assert graphs_of(program, (x,)) == 2
        assert counters["recompile_limit"]["test_a_limit_over_all_places_of_a_function.<locals>.program"] == 1
    assert graphs_of(lambda x: x + 1, *SIZES, dynamic=False) == 3
    with config.patch(accumulated_recompile_limit=2):
        assert graphs_of(lambda x: x + 1, *SIZES, dynamic=False) == 2


def test_a_marked_size_that_has_to_be_a_number_is_an_error_unless_a_setting_allows_it() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] == 3 else x

    def marked(mark: Callable[..., None]) -> Tensor:
        x = torch.ones(3, 4)
        mark(x, 0)
        return x

    with pytest.raises(ConstraintViolationError):
        graphs_of(program, (marked(refimpl.mark_dynamic),))
    assert graphs_of(program, (marked(refimpl.maybe_mark_dynamic),)) == 1
    with config.patch(allow_ignore_mark_dynamic=True):
        assert graphs_of(program, (marked(refimpl.mark_dynamic),)) == 1
    assert graphs_of(lambda x: x * 2, (marked(refimpl.maybe_mark_dynamic),), (torch.ones(5, 4),)) == 1


def test_records_of_what_is_compiled_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """XC-10"""
    with caplog.at_level("DEBUG", logger="refimpl.capture"):
        graphs_of(lambda x: x + 1, (torch.ones(2),))
        assert caplog.text.count("compilation metrics: ") == 1
        assert '"graph_op_count": 1' in caplog.text
        caplog.clear()
        with config.patch(log_compilation_metrics=False):
            graphs_of(lambda x: x + 1, (torch.ones(2),))
    assert "compilation metrics" not in caplog.text


def test_the_limit_can_be_an_error() -> None:
    """XC-10"""
    with config.patch(recompile_limit=1, automatic_dynamic_shapes=False):
        compiled = refimpl.compile(lambda x: x + 1, backend="eager")
        compiled(torch.ones(2))
        with (
            config.patch(fail_on_recompile_limit_hit=True),
            pytest.raises(FailOnRecompileLimitHit, match="captured 1 times"),
        ):
            compiled(torch.ones(3))
        assert compiled(torch.ones(3)).tolist() == [2, 2, 2]
        whole = refimpl.compile(lambda x: x + 2, backend="eager", fullgraph=True)
        whole(torch.ones(2))
        with pytest.raises(FailOnRecompileLimitHit, match="recompile_limit"):
            whole(torch.ones(3))


def test_errors_of_capture_can_be_suppressed() -> None:
    """XC-10"""

    def broken(graph: Any, example_inputs: Any) -> Any:
        raise OSError("no compiler")

    with config.patch(suppress_errors=True):
        assert refimpl.compile(lambda x: x + 1, backend=broken)(torch.ones(1)).tolist() == [2]
    with pytest.raises(RuntimeError, match="no compiler"):
        refimpl.compile(lambda x: x + 1, backend=broken)(torch.ones(1))


def test_under_fullgraph_reading_numbers_is_captured_and_a_break_is_an_error() -> None:
    whole = refimpl.compile(lambda x: x * x.sum().item(), backend="eager", fullgraph=True)
    assert whole(torch.ones(2)).tolist() == [2, 2]
    assert not config.capture_scalar_outputs
    with pytest.raises(Unsupported):
        refimpl.compile(lambda x: x + 1 if x.sum() > 0 else x, backend="eager", fullgraph=True)(torch.ones(2))
    assert not config.capture_scalar_outputs, "also after an error"


# ------------------------------------------------------------------------------------------------------------ the object


def test_unknown_settings_are_named_with_those_there_are() -> None:
    for use in (
        lambda: config.no_such_setting,
        lambda: setattr(config, "no_such_setting", 1),
        lambda: config.describe("no_such_setting"),
        lambda: config.patch(no_such_setting=1).__enter__(),
    ):
        with pytest.raises(AttributeError, match=r"no_such_setting(?s:.*)recompile_limit"):
            use()
    assert not hasattr(config, "no_such_setting")
    config.patch(no_such_setting=1)  # a decorator of a test for another version


def test_settings_are_put_back_also_after_errors_and_when_nested() -> None:
    patch = config.patch("recompile_limit", 3)

    def fails() -> None:
        with patch, config.patch({"recompile_limit": 4, "verbose": True}):
            assert (config.recompile_limit, config.cache_size_limit, config.verbose) == (4, 4, True)
            raise KeyError

    with patch:
        with pytest.raises(KeyError):
            fails()
        assert (config.recompile_limit, config.verbose) == (3, False)
    assert config.recompile_limit == 8


def test_a_patch_decorates_functions_and_test_cases() -> None:
    @config.patch(recompile_limit=3)
    def limit() -> int:
        return config.recompile_limit

    assert (limit(), config.recompile_limit) == (3, 8)

    @config.patch("recompile_limit", 5)
    class Case(unittest.TestCase):
        seen = 0

        def test_limit(self) -> None:
            Case.seen = config.recompile_limit

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.wasSuccessful()
    assert (Case.seen, config.recompile_limit) == (5, 8)


def test_mock_patches_a_setting() -> None:
    with mock.patch.object(config, "recompile_limit", 2):
        assert config.cache_size_limit == 2
    with mock.patch("refimpl.capture.config.config.recompile_limit", 2):
        assert config.recompile_limit == 2
    assert config.recompile_limit == 8


def test_every_setting_has_a_sentence_and_sets_belong_to_one_object() -> None:
    names = [name for name in dir(config) if name not in ("patch", "describe")]
    assert all(config.describe(name) for name in names)
    CaptureConfig().traceable_tensor_subclasses.add(int)
    assert CaptureConfig().traceable_tensor_subclasses == set()
    assert config.traceable_tensor_subclasses == set()


def test_a_setting_without_effect_warns_when_it_is_changed() -> None:
    changed = config.patch(optimize_ddp=False)
    with pytest.warns(UserWarning, match="optimize_ddp = False changes nothing: graphs are not split"):
        changed.__enter__()
    assert config.optimize_ddp is False
    changed.__exit__()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usual = {
            "optimize_ddp": True,
            "skip_code_recursive_on_cache_limit_hit": True,
            "skip_nnmodule_hook_guards": True,
        }
        with config.patch(recompile_limit=3, **usual):
            pass
