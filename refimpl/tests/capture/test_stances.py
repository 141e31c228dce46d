"""`set_stance`, filters of guards, and settings by upstream's names: each changes what can be seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

import refimpl
from refimpl.capture.config import config
from refimpl.capture.guards import filters
from refimpl.capture.public.errors import Unsupported
from refimpl.capture.public.stances import current, set_stance
from refimpl.tests.capture.capturing import Recorder


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    refimpl.reset()
    yield
    current.stance = None


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def graphs(function: Callable[..., Any], *sizes: int, recorder: Any = None, **options: Any) -> list[int]:
    """How many graphs there are after each call; each call gives what the function gives."""
    recorder = Recorder() if recorder is None else recorder
    compiled = refimpl.compile(function, backend=recorder, **options)
    counts = []
    for size in sizes:
        torch.testing.assert_close(compiled(torch.ones(size)), function(torch.ones(size)))
        counts.append(len(recorder.graphs))
    return counts


@pytest.mark.parametrize(
    ("stance", "counts"),
    [
        ("default", [1, 2, 2]),
        ("force_eager", [0, 0, 0]),
        ("eager_on_recompile", [0, 0, 0]),
        ("eager_then_compile", [0, 1, 1]),
        ("aot_eager_then_compile", [0, 1, 1]),
    ],
)
def test_stances_decide_when_graphs_are_made(stance: str, counts: list[int]) -> None:
    with set_stance(stance):
        assert graphs(double, 3, 4, 5) == counts
    assert current.stance is None


def test_eager_on_recompile_uses_what_there_is() -> None:
    recorder: Any = Recorder()
    compiled = refimpl.compile(double, backend=recorder)
    compiled(torch.ones(3))
    with set_stance("eager_on_recompile"):
        compiled(torch.ones(4))
        compiled(torch.ones(3))
    assert len(recorder.graphs) == 1


def test_fail_on_recompile_raises_where_nothing_fits() -> None:
    recorder: Any = Recorder()
    compiled = refimpl.compile(double, backend=recorder)
    compiled(torch.ones(3))
    with set_stance("fail_on_recompile"):
        compiled(torch.ones(3))
        with pytest.raises(RuntimeError, match=r"Detected recompile .* function name: 'double'.*TENSOR"):
            compiled(torch.ones(4))
    compiled(torch.ones(4))


def test_a_stance_may_force_a_backend() -> None:
    mine: Any = Recorder()
    forced: Any = Recorder()
    compiled = refimpl.compile(double, backend=mine)
    with set_stance(force_backend=forced):
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert (len(mine.graphs), len(forced.graphs)) == (1, 1)
    with set_stance(force_backend="aot_eager"):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_a_stance_is_a_function_a_block_and_a_decorator() -> None:
    recorder: Any = Recorder()
    compiled = refimpl.compile(double, backend=recorder)

    @set_stance("force_eager")
    def eagerly(x: torch.Tensor) -> torch.Tensor:
        return compiled(x)

    assert current.stance is None
    eagerly(torch.ones(3))
    assert not recorder.graphs
    set_stance("force_eager")
    compiled(torch.ones(3))
    assert not recorder.graphs
    set_stance("default")
    compiled(torch.ones(3))
    assert len(recorder.graphs) == 1
    with set_stance("force_eager"), set_stance("default"):
        compiled(torch.ones(4))
    assert len(recorder.graphs) == 2


def test_wrong_stances_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"invalid torch\.compile stance 'quick'"):
        set_stance("quick")
    with pytest.raises(RuntimeError, match="non-default stance cannot have force_backend set"):
        set_stance("force_eager", force_backend="eager")
    assert current.stance is None


def test_captured_code_sets_no_stance() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        set_stance("force_eager")
        return x + 1

    with pytest.raises(Exception, match="forbidden callable"):
        refimpl.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert current.stance is None


# ------------------------------------------------------------------------------------------------------------- filters

SCALE = 2


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def test_a_filter_sees_every_guard_and_drops_some() -> None:
    global SCALE
    seen: list[Any] = []

    def without_globals(entries: Sequence[Any]) -> list[bool]:
        seen.extend(entries)
        return [not entry.is_global for entry in entries]

    recorder: Any = Recorder()
    compiled = refimpl.compile(scaled, backend=recorder, options={"guard_filter_fn": without_globals})
    x = torch.ones(2)
    try:
        assert compiled(x).tolist() == [2, 2]
        SCALE = 3
        assert compiled(x).tolist() == [2, 2], "the guard on the global is dropped: unsafe, as asked"
    finally:
        SCALE = 2
    assert len(recorder.graphs) == 1
    by_name = {entry.name: entry for entry in seen}
    assert by_name["G['SCALE']"].guard_type == "EQUALS_MATCH"
    assert by_name["G['SCALE']"].value == 2
    assert by_name["x"].guard_type in ("TENSOR_MATCH", "HASATTR")
    assert {"GLOBAL_STATE", "TENSOR_MATCH"} <= {entry.guard_type for entry in seen}


def test_all_guards_may_be_dropped() -> None:
    recorder: Any = Recorder()
    skip: Any = torch.compiler.skip_all_guards_unsafe
    compiled = refimpl.compile(double, backend=recorder, options={"guard_filter_fn": skip})
    for size in (3, 4):
        torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert len(recorder.graphs) == 1


class Scaling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2
        self.inner = torch.nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor


@pytest.mark.parametrize("home", [torch.compiler, filters])
@pytest.mark.parametrize(
    ("name", "own_is_guarded", "builtin_is_guarded"),
    [
        ("skip_guard_on_all_nn_modules_unsafe", False, False),
        ("skip_guard_on_inbuilt_nn_modules_unsafe", True, False),
    ],
)
def test_guards_on_modules_may_be_left_out(
    home: Any, name: str, own_is_guarded: bool, builtin_is_guarded: bool
) -> None:
    module, recorder, x = Scaling(), cast(Any, Recorder()), torch.ones(2)
    compiled = refimpl.compile(module, backend=recorder, options={"guard_filter_fn": getattr(home, name)})
    torch.testing.assert_close(compiled(x), module(x))
    torch.testing.assert_close(compiled(torch.ones(2, 2)), module(torch.ones(2, 2)), msg="inputs are guarded")
    before = len(recorder.graphs)
    module.inner.p = 1.0
    torch.testing.assert_close(compiled(x), module(x) if builtin_is_guarded else torch.full((2,), 2.0))
    assert len(recorder.graphs) == before
    module.inner.p, module.factor = 0.0, 3
    torch.testing.assert_close(compiled(x), torch.full((2,), 3.0 if own_is_guarded else 2.0))


def test_what_a_container_of_torch_holds_is_guarded_as_its_own_class_says() -> None:
    module, skip = torch.nn.Sequential(Scaling()), cast(Any, torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe)
    compiled = refimpl.compile(module, backend="eager", options={"guard_filter_fn": skip})
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    cast(Scaling, module[0]).factor = 3
    assert compiled(torch.ones(2)).tolist() == [3, 3]


def test_a_filter_has_to_answer_for_each_guard() -> None:
    compiled = refimpl.compile(double, backend="eager", options={"guard_filter_fn": lambda entries: [True]})
    with pytest.raises(Exception, match="1 answers for 3 guards"):
        compiled(torch.ones(2))


# ------------------------------------------------------------------------------------------------------------ settings


def test_capture_may_be_off() -> None:
    with config.patch(disable=True):
        assert graphs(double, 3, 4) == [0, 0]
    assert graphs(double, 3) == [1]


class Counter:
    count = 0


def counts(x: torch.Tensor, counter: Counter) -> torch.Tensor:
    counter.count += 1
    return x + 1


@pytest.mark.parametrize(("is_replayed", "expected"), [(True, 1), (False, 0)])
def test_side_effects_may_be_left_out(is_replayed: bool, expected: int) -> None:
    counter = Counter()
    with config.patch(replay_side_effects=is_replayed):
        refimpl.compile(counts, backend="eager", fullgraph=True)(torch.ones(2), counter)
    assert counter.count == expected


def test_side_effects_may_be_an_error_or_a_warning() -> None:
    compiled = refimpl.compile(counts, backend="eager", fullgraph=True)
    with config.patch(side_effect_replay_policy="error"), pytest.raises(RuntimeError, match="attribute count"):
        compiled(torch.ones(2), Counter())
    with config.patch(side_effect_replay_policy="warn"), pytest.warns(UserWarning, match="attribute count"):
        compiled(torch.ones(2), Counter())
    with warnings.catch_warnings(), config.patch(side_effect_replay_policy="error"):
        warnings.simplefilter("error")
        refimpl.compile(double, backend="eager", fullgraph=True)(torch.ones(2))


def test_operators_that_do_not_comply_may_be_left_out() -> None:
    with torch.library._scoped_library("refimpl_stances", "FRAGMENT") as library:
        library.define("unknown(Tensor x) -> Tensor")
        library.define("known(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
        for name in ("unknown", "known"):
            library.impl(name, lambda x: x + 1, "CompositeExplicitAutograd")

        for name, expected in (("unknown", 0), ("known", 1)):
            operator = getattr(torch.ops.refimpl_stances, name)

            def program(x: torch.Tensor, operator: Any = operator) -> torch.Tensor:
                return operator(x)

            assert graphs(program, 3) == [1]
            refimpl.reset()
            with config.patch(only_allow_pt2_compliant_ops=True):
                assert graphs(program, 3) == [expected]


def test_the_overload_that_a_call_takes_says_whether_it_complies() -> None:
    with torch.library._scoped_library("refimpl_stances", "FRAGMENT") as library:
        library.define("mixed.one(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
        library.define("mixed.two(Tensor x, int dim) -> Tensor")
        library.impl("mixed.one", torch.sin, "CompositeImplicitAutograd")
        library.impl("mixed.two", torch.sum, "CompositeImplicitAutograd")

        def program(*args: Any) -> torch.Tensor:
            return torch.ops.refimpl_stances.mixed(*args)

        x = torch.ones(3)
        with config.patch(only_allow_pt2_compliant_ops=True):
            whole = refimpl.compile(program, backend="eager", fullgraph=True)
            torch.testing.assert_close(whole(x), x.sin())
            with pytest.raises(Unsupported, match=r"mixed\.two, which is not PT2 compliant"):
                whole(x, 0)
            with pytest.raises(Unsupported, match="failed to find an overload"):
                whole(x, x, x)


def test_functions_of_numpy_may_be_left_out() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.from_numpy(np.sin(x.numpy())) + 1

    refimpl.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    refimpl.reset()
    with config.patch(trace_numpy=False):
        with pytest.raises(Unsupported):
            refimpl.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
        torch.testing.assert_close(refimpl.compile(program, backend="eager")(torch.ones(2)), program(torch.ones(2)))
