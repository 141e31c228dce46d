"""Settings of capture: each changes something that can be seen; unknown ones are named."""

from __future__ import annotations

import ast
import itertools
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl.capture.config import CaptureConfig, config
from refimpl.capture.public.counters import counters
from refimpl.capture.public.errors import FailOnRecompileLimitHit, RecompileError, Unsupported, UserError
from refimpl.capture.repro.accuracy import same_two_models

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


def test_sizes_that_vary_may_be_unbacked() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] == 4 else x * 2

    calls = [(torch.ones(size),) for size in (3, 4, 5, 6)]
    assert graphs_of(program, *calls) == 3
    with config.patch(automatic_dynamic_shapes_mark_as="unbacked"):
        assert graphs_of(lambda x: x * 2, (torch.ones(3),), (torch.ones(4),), (torch.ones(1),)) == 2
        with pytest.raises(UserError, match="data-dependent"):
            graphs_of(program, *calls, nopython=True)
    with (
        config.patch(automatic_dynamic_shapes_mark_as="other"),
        pytest.raises(ValueError, match="one of dynamic, unbacked"),
    ):
        graphs_of(program, *calls)


def test_sizes_are_symbols_where_a_setting_has_their_value_or_name() -> None:
    """XC-10"""
    calls = [(torch.ones(1111),), (torch.ones(3),), (torch.ones(4),)]
    assert graphs_of(lambda x: x * 2, *calls[:2], dynamic=False) == 2
    with config.patch(dynamic_values="7, 1111"):
        assert graphs_of(lambda x: x * 2, *calls) == 1
    with config.patch(unbacked_sources="L['x']"):
        assert graphs_of(lambda x: x * 2, *calls, (torch.ones(1),)) == 1


def test_of_two_segments_that_fit_the_first_runs_where_a_setting_says_so() -> None:
    """XC-10"""
    ran: list[int] = []
    numbers = itertools.count()

    def keep(graph: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        number = next(numbers)
        return lambda *args: (ran.append(number), graph(*args))[1]

    for excludes, expected in ((False, [0, 1, 1]), (True, [2, 3, 2])):
        refimpl.reset()
        ran.clear()
        with config.patch(automatic_dynamic_exclusion_guard=excludes):
            compiled = refimpl.optimize(keep)(lambda x: x + 1)
            for size in (3, 4, 3):
                compiled(torch.ones(size))
        assert ran == expected


def test_a_backend_and_settings_for_captures_by_their_number() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        return (x + 1) * 2

    def broken(graph: Any, example_inputs: Any) -> Any:
        raise OSError("no compiler")

    with config.patch(debug_backend_override=">=0:eager"):
        assert refimpl.compile(program, backend=broken)(torch.ones(1)).tolist() == [4]
    with config.patch(debug_dynamo_config_override=">=0:specialize_int=True"):
        assert graphs_of(lambda x, n: x * n, *NUMBERS) == 3
    assert graphs_of(lambda x, n: x * n, *NUMBERS) == 2
    for changes, says in (
        ({"debug_backend_override": "0:no_such"}, "'no_such' is not a valid backend"),
        ({"debug_backend_override": ">=0:eager;>=0:aot_eager"}, "Conflicting backend override"),
        ({"debug_backend_override": "x:eager"}, "the numbers of an override are 'x'"),
        ({"debug_dynamo_config_override": ">=0:no_such=1"}, "'no_such=1' is no setting"),
        ({"debug_dynamo_config_override": ">=0:verbose=1;>=0:verbose=2"}, "Conflicting config override"),
        ({"debug_dynamo_config_override": "verbose"}, "an override is 'verbose'"),
    ):
        with config.patch(changes), pytest.raises(ValueError, match=says):
            refimpl.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


def test_whether_a_profiler_runs_is_a_constant_where_a_setting_says_so() -> None:
    """XC-10"""

    def program(x: Tensor) -> Tensor:
        return x + 1 if torch.autograd._profiler_enabled() else x * 2

    with pytest.raises(Unsupported, match="_profiler_enabled"):
        graphs_of(program, (torch.ones(2),), nopython=True)
    with config.patch(constant_fold_autograd_profiler_enabled=True):
        assert graphs_of(program, (torch.ones(2),), nopython=True) == 1


def test_a_function_under_checkpoint_may_change_objects_where_a_setting_says_so() -> None:
    """XC-10"""
    seen: list[Any] = []

    def inner(x: Tensor) -> Tensor:
        seen.append(x.cos())
        seen.append(1)
        return x.sin()

    def program(x: Tensor) -> Tensor:
        return checkpoint(inner, x, use_reentrant=False) * 2

    for backend in ("eager", "aot_eager"):
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(Unsupported, match="changes an object"):
            refimpl.compile(program, backend=backend, fullgraph=True)(x)
        with config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
            seen.clear()
            result = refimpl.compile(program, backend=backend, fullgraph=True)(x)
            result.sum().backward()
        torch.testing.assert_close(result, x.sin() * 2)
        torch.testing.assert_close(x.grad, x.cos() * 2)
        torch.testing.assert_close(seen[0], x.cos())
        assert seen[1:] == [1], "the second run in the backward appends nothing"


def test_float64_takes_part_in_the_comparison_of_modules_unless_a_setting_leaves_it_out() -> None:
    """XC-10"""
    kinds: list[torch.dtype] = []

    class Noted(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            kinds.append(x.dtype)
            return x * 2

    for uses, expected in ((True, [torch.float32, torch.float64, torch.float32]), (False, [torch.float32] * 2)):
        kinds.clear()
        with config.patch(same_two_models_use_fp64=uses):
            assert same_two_models(Noted(), Noted(), [torch.ones(2)], only_fwd=True)
        assert kinds == expected


def test_captured_functions_are_traced_by_fx_where_a_setting_says_so() -> None:
    """XC-10"""
    captured = refimpl.compile(lambda x: x + 1, backend="eager")
    with pytest.raises(RuntimeError, match="symbolically trace"):
        torch.fx.symbolic_trace(captured)
    with config.patch(force_compile_during_fx_trace=True):
        assert "x + 1" in torch.fx.symbolic_trace(captured).code


# ------------------------------------------------------------------------------------------------------------ the object


def test_settings_are_saved_and_loaded() -> None:
    fresh = CaptureConfig()
    assert fresh.codegen_config() == ""
    with config.patch(recompile_limit=3, verbose=True):
        assert config.codegen_config() == "config.recompile_limit = 3\nconfig.verbose = True"
        fresh.load_config(config.to_dict())
        fresh.load_config({"error_on_recompile": True})
    assert (fresh.recompile_limit, fresh.verbose, fresh.error_on_recompile) == (3, True, True)
    fresh.get_config_copy()["reorderable_logging_functions"].add(print)
    assert fresh.reorderable_logging_functions == set()


def test_every_setting_of_torch_is_known() -> None:
    """A setting that refimpl lacks would give AttributeError where a program sets it."""
    names: list[str] = []
    for module in ("_dynamo/config.py", "compiler/config.py"):
        for statement in ast.parse((Path(torch.__file__).parent / module).read_text()).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    assert len(names) > 100
    assert [name for name in names if name != "__all__" and not hasattr(config, name)] == []


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
    names = [name for name in dir(config) if not callable(getattr(config, name))]
    assert all(config.describe(name) for name in names)
    CaptureConfig().traceable_tensor_subclasses.add(int)
    assert CaptureConfig().traceable_tensor_subclasses == set()
    assert config.traceable_tensor_subclasses == set()


def test_a_setting_without_effect_warns_when_it_is_changed() -> None:
    changed = config.patch(optimize_ddp=False)
    with pytest.warns(UserWarning, match="optimize_ddp = False changes nothing: each process captures alone"):
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
