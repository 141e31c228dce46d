"""The environment: symbols, what guards teach, what they print, when they hold, what was promised."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental import symbolic_shapes as upstream

from refimpl._torch import enable_python_dispatcher
from refimpl.symbolic.constraints import violations
from refimpl.symbolic.dynamic_shapes import DimSpec
from refimpl.symbolic.errors import NewGuard
from refimpl.symbolic.fake_inputs import fake_input, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sources import Source


def symint(env: ShapeEnv, value: int, source: str = "x", **options: Any) -> Any:
    return env.create_symintnode(env.create_symbol(value, source, **options), hint=value)


def shown(env: ShapeEnv) -> list[str]:
    return [str(guard.expr) for guard in env.guards]


# ----------------------------------------------------------------------------------------------------------- symbols


def test_zero_and_one_are_numbers_and_equal_sizes_share_a_symbol() -> None:
    env = ShapeEnv()
    assert [str(symint(env, v, f"x{v}")) for v in (0, 1, 5, 5, 6)] == ["0", "1", "s0", "s0", "s1"]
    assert env.var_to_val == env.backed_var_to_val == {env.source_to_var["L['x5']"]: 5, env.source_to_var["L['x6']"]: 6}
    assert env.var_to_range[env.source_to_var["L['x5']"]].lower == 2


def test_without_duck_sizing_and_specialisation_every_size_is_free() -> None:
    env = ShapeEnv(duck_shape=False, specialize_zero_one=False)
    zero, five, other = symint(env, 0), symint(env, 5), symint(env, 5)
    assert five.node.expr != other.node.expr
    assert bool(zero == 0)
    assert shown(env) == ["Eq(s0, 0)"]


def test_policies_decide_what_a_size_becomes() -> None:
    env = ShapeEnv()
    assert env.create_symbol(5, "a", "STATIC") == 5
    assert env.create_symbol(5, "b", "DUCK") == env.create_symbol(5, "c", upstream.DimDynamic.DUCK)
    assert env.create_symbol(5, "d", "DYNAMIC") != env.create_symbol(5, "e", upstream.DimDynamic.DYNAMIC)
    hidden = env.create_symbol(5, "f", upstream.DimDynamic.UNBACKED)
    assert env.is_unbacked_symint(hidden)
    assert env.pending_fresh_unbacked_symbols == []


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="no_such_setting"):
        ShapeEnv(no_such_setting=True)
    assert ShapeEnv(assume_static_by_default=True).assume_static_by_default is True


# ---------------------------------------------------------------------------------------------- what guards teach


def test_an_equality_replaces_the_newer_symbol() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b, c = (symint(env, v, n) for v, n in ((16, "a"), (8, "b"), (8, "c")))
    assert bool(a == b * 2)
    assert {str(k): str(v) for k, v in env.replacements.items()} == {"s0": "2*s1"}
    assert bool(b == c)
    assert {str(k): str(v) for k, v in env.replacements.items()} == {"s0": "2*s1", "s2": "s1"}
    assert bool(b == 8)
    assert {str(k): str(v) for k, v in env.replacements.items()} == {"s0": "16", "s1": "8", "s2": "8"}
    assert [n.node.maybe_as_int() for n in (a, b, c)] == [16, 8, 8]


def test_a_range_of_one_value_is_that_value() -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    assert bool(s >= 5)
    assert not bool(s > 5)
    assert s.node.maybe_as_int() == 5


def test_an_answered_question_is_not_a_second_guard() -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    for _ in range(3):
        assert bool(s < 20)
        assert bool(s <= 19)
        assert not bool(s * 2 > 40)
        assert bool(3 * s < 100)
    assert shown(env) == ["s0 < 20"]


def test_divisibility_that_is_known_makes_division_exact() -> None:
    env = ShapeEnv()
    s = symint(env, 12)
    assert bool(s % 4 == 0)
    assert bool((s // 4) * 4 == s)
    assert bool(s % 2 == 0) in (True, False)
    assert shown(env)[0] == "Eq(Mod(s0, 4), 0)"


def test_division_is_bounded_by_what_is_divided() -> None:
    env = ShapeEnv()
    s = symint(env, 12)
    half = (s + 1) // 2
    assert bool(half <= s)
    assert bool(s - half >= 0)
    assert bool(half * 2 >= s)
    assert shown(env) == []


def test_products_of_sizes_are_compared_without_guards() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b = symint(env, 5), symint(env, 7)
    assert bool(a * b >= a)
    assert bool(a * b > 3)
    assert not bool(a * b == 1)
    assert bool((a - b) ** 2 >= 0)
    assert bool((a + b) * (a - b) == a * a - b * b)
    assert shown(env) == []


def test_positive_factors_that_both_sides_share_are_taken_out() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b, c = symint(env, 5), symint(env, 4), symint(env, 20)
    assert bool(a * b * 3 == c * 3)
    assert str(c.node.expr) == "s0*s1"
    assert not bool(a * b < b)
    assert len(env.guards) == 1


def test_an_equality_that_no_integers_fulfil_is_false() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b = symint(env, 9), symint(env, 6)
    assert env.decided((2 * a == 4 * b + 1).node.expr) is False
    assert env.decided((6 * a - 3 * b != 2).node.expr) is True
    assert env.decided((2 * a == 4 * b).node.expr) is None
    assert env.guards == []


def test_bounds_are_rounded_to_the_integers_that_fulfil_them() -> None:
    for lowest, holds in ((1, None), (2, True)):
        env = ShapeEnv()
        u: Any = env.create_unbacked_symint()
        torch._check(u >= lowest)
        assert env.decided((2 * u >= 3).node.expr) is holds
        assert env.decided((-2 * u <= -3).node.expr) is holds
        torch._check(3 * u <= 11)
        assert env.decided((u <= 3).node.expr) is True
        assert env.decided((u <= 2).node.expr) is None
        torch._check(2 * u > 4)
        assert u.node.maybe_as_int() == 3


def test_nothing_is_cancelled_that_may_be_zero_or_negative() -> None:
    env = ShapeEnv(duck_shape=False)
    u, a, b = env.create_unbacked_symint(), symint(env, 5), symint(env, 7)
    torch._check(a < b)
    for question in (u * a < u * b, u * a == u * b, u // u == 1, u % u == 0, u * a // u == a):
        assert isinstance(question, torch.SymBool)
        assert env.decided(question.node.expr) is None, str(question)


def test_an_equality_without_an_integer_solution_replaces_nothing() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b = symint(env, 9), symint(env, 6)
    assert bool(a * 2 == b * 3)
    assert env.replacements == {}
    assert bool(4 * a == 6 * b)
    assert len(env.guards) == 1


def test_what_is_known_not_to_be_zero_divides_itself() -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    scaled: Any = torch.sym_int(torch.sym_float(s) * 1.7)  # pyright: ignore[reportOperatorIssue]
    assert scaled // scaled == 1
    assert (scaled * 3) % scaled == 0
    assert str((scaled * s) // scaled) == "s0"
    assert bool(scaled >= 2)
    assert shown(env) == []


def test_guards_are_left_out_where_they_are_suppressed() -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    with env.suppress_guards():
        assert bool(s < 20)
        assert int(s) == 5
    assert shown(env) == []
    assert env.replacements == {}


def test_a_frozen_environment_warns_of_guards(caplog: pytest.LogCaptureFixture) -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    env.freeze()
    with caplog.at_level(logging.WARNING):
        assert bool(s < 20)
    assert shown(env) == []
    assert "s0 < 20" in caplog.text


def test_guards_can_be_forbidden() -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    with env.error_on_new_guards():
        with pytest.raises(NewGuard, match=r"s0 < 20[\s\S]*test_shape_env"):
            bool(s < 20)
        unbacked = env.create_unbacked_symint()
        with pytest.raises(NewGuard, match="u0 < 20"):
            bool(unbacked < 20)
        with pytest.raises(NewGuard, match="u0 < 30"):
            torch._check(unbacked < 30)
    assert bool(s < 20)
    assert not env.deferred_runtime_asserts


def test_a_guard_knows_the_users_line() -> None:
    env = ShapeEnv()
    s = symint(env, 5)
    assert bool(s < 20)  # the line
    assert "test_shape_env.py" in env.guards[0].sloc
    assert "# the line" in env.guards[0].sloc
    assert "# the line" in env.format_guards(verbose=True)
    assert env.format_guards() == " - s0 < 20"


def test_runtime_assertions_take_the_place_of_guards_where_that_is_preferred() -> None:
    env = ShapeEnv(prefer_deferred_runtime_asserts_over_guards=True)
    s = symint(env, 5)
    torch._check(s < 20)
    assert shown(env) == []
    assert [str(a.expr) for a in env.deferred_runtime_asserts[None]] == ["s0 < 20"]
    assert bool(s < 20)
    assert shown(env) == []
    with pytest.raises(RuntimeError):
        torch._check(s > 30)


def test_facts_follow_a_symbol_that_is_replaced() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b, u = symint(env, 8, "a"), symint(env, 4, "b"), env.create_unbacked_symint()
    torch._check(u <= a)
    assert bool(a == b * 2)
    assert bool(u <= b * 2)
    assert bool(a > 3)
    assert shown(env) == ["Eq(s0, 2*s1)"]


def test_a_disjunction_whose_other_parts_are_excluded_is_its_last_part() -> None:
    env = ShapeEnv()
    u, s = env.create_unbacked_symint(), symint(env, 7)
    torch._check(upstream.sym_or(u == 1, u == s))
    torch._check(u != 1)
    torch._check(upstream.sym_or(u == 1, u <= 3 * s))
    assert bool(u <= 3 * s)


def test_the_values_of_real_tensors_are_a_last_resort() -> None:
    env = ShapeEnv()
    u = env.create_unbacked_symint()
    env.set_real_tensor_prop_unbacked_vals(u.node.expr, 5)
    assert bool(u > 3)
    assert [str(a.expr) for a in env.deferred_runtime_asserts[u.node.expr]] == ["u0 > 3"]


def test_renamed_and_eliminated_symbols_stand_for_others() -> None:
    env = ShapeEnv()
    a, b, c = (env.create_unbacked_symint() for _ in range(3))
    env._rename_unbacked_to(b.node.expr, a.node.expr)
    env._eliminate_unbacked(c.node.expr, sympy.Integer(4))
    assert str(b.node.expr) == "u0"
    assert int(c) == 4
    assert upstream.resolve_unbacked_bindings(env, {b.node._expr: ()}) == {a.node.expr: ()}  # pyright: ignore


# -------------------------------------------------------------------------------------- guards as Python, for new inputs


def trace(function: Any, *tensors: torch.Tensor, policies: Any = None, **settings: Any) -> tuple[ShapeEnv, list[Any]]:
    env = ShapeEnv(**settings)
    mode = symbolic_fake_mode(env)
    policies = policies or [None] * len(tensors)
    fakes = [fake_input(t, mode, env, n, p) for t, n, p in zip(tensors, "abcdef", policies, strict=False)]
    with enable_python_dispatcher(), mode:
        function(*fakes)
    return env, fakes


def test_guards_are_printed_over_the_inputs() -> None:
    def f(a: Any, b: Any) -> Any:
        assert a.shape[0] == b.shape[0] * 2
        assert a.shape[1] * b.shape[1] > 5
        return a

    env, fakes = trace(f, torch.randn(16, 3), torch.randn(8, 7))
    assert env.produce_guards(fakes, ["a", "b"], ignore_static=False) == [
        "L['a'].size()[0] == 2*L['b'].size()[0]",
        "L['a'].stride()[0] == L['a'].size()[1]",
        "L['a'].stride()[1] == 1",
        "L['a'].storage_offset() == 0",
        "L['b'].stride()[0] == L['b'].size()[1]",
        "L['b'].stride()[1] == 1",
        "L['b'].storage_offset() == 0",
        "L['a'].size()[1]*L['b'].size()[1] > 5",
        "2 <= L['a'].size()[1]",
        "2 <= L['b'].size()[0]",
        "2 <= L['b'].size()[1]",
    ]
    assert env.produce_guards(fakes, ["a", "b"], _simplified=True) == ["L['a'].size()[1]*L['b'].size()[1] > 5"]


def test_a_condition_that_divides_by_a_size_of_0_does_not_hold() -> None:
    def f(a: Any) -> Any:
        return a.cos() if a.shape[0] * 4 % a.shape[1] == 0 else a

    env, fakes = trace(f, torch.randn(3, 6))
    assert env.evaluate_guards_for_args(fakes, [torch.randn(6, 8)])
    assert not env.evaluate_guards_for_args(fakes, [torch.randn(6, 7)])
    assert not env.evaluate_guards_for_args(fakes, [torch.randn(6, 0)])


def test_a_range_is_printed_as_bounds() -> None:
    def f(a: Any) -> Any:
        return a.cos() if a.shape[0] < 20 else a

    env, fakes = trace(f, torch.randn(3, 4))
    assert env.produce_guards(fakes, ["a"], _simplified=True) == ["L['a'].size()[0] <= 19"]
    assert env.get_nontrivial_guards() == []
    assert env.evaluate_guards_for_args(fakes, [torch.randn(4, 5)])
    assert not env.evaluate_guards_for_args(fakes, [torch.randn(25, 5)])
    assert not env.evaluate_guards_for_args(fakes, [torch.randn(1, 5)])


def test_sources_may_be_objects_with_a_name() -> None:
    class Named:
        def __init__(self, text: str) -> None:
            self.text = text

        def name(self) -> str:
            return self.text

    env, fakes = trace(lambda a: a.shape[0] < 20, torch.randn(3, 4))
    lines = env.produce_guards(fakes, [Named("self.weight")], _simplified=True)
    assert lines == ["self.weight.size()[0] <= 19"] or lines == []
    assert any("self.weight.size()[0]" in line for line in env.produce_guards(fakes, [Named("self.weight")]))


def test_guards_of_other_strides_offsets_and_equal_sizes_are_checked() -> None:
    env, fakes = trace(lambda a, b: a + b, torch.randn(4, 4), torch.randn(8)[4:])
    check = env.evaluate_guards_for_args
    assert check(fakes, [torch.randn(6, 6), torch.randn(12)[6:]])
    assert not check(fakes, [torch.randn(6, 5), torch.randn(12)[6:]])  # sizes that were equal
    assert not check(fakes, [torch.randn(6, 6).t(), torch.randn(12)[6:]])  # strides
    assert check(fakes, [torch.randn(6, 6), torch.randn(12)[6:]])


def test_symbols_are_bound_by_inputs() -> None:
    env, fakes = trace(lambda a: a.cos(), torch.randn(3, 4))
    assert repr(env.bind_symbols(fakes, [torch.randn(4, 5)])) == "{s0: 4, s1: 5}"
    square, same = trace(lambda a: a.cos(), torch.randn(4, 4))
    with pytest.raises(AssertionError, match="4 != 5"):
        square.bind_symbols(same, [torch.randn(4, 5)])


def test_pruned_guards_mention_only_the_sizes_asked_for() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b = symint(env, 5, "a"), symint(env, 6, "b")
    assert bool(a < 20)
    assert bool(a * b < 100)
    assert [str(g.expr) for g in env.get_pruned_guards([a])] == ["s0 < 20"]


SHAPES = st.tuples(st.integers(2, 9), st.integers(2, 9))
STEPS = ("rows", "columns", "product", "divides", "reshape", "half", "cat", "square")


def steps_of(x: torch.Tensor, y: torch.Tensor, steps: list[str]) -> list[Any]:
    """A program whose course depends on sizes: the list says which way it went."""
    course: list[Any] = []
    for step in steps:
        n, m = x.shape
        match step:
            case "rows":
                course.append(bool(n > y.shape[0]))
            case "columns":
                course.append(bool(m >= 5))
            case "product":
                course.append(bool(n * m > 30))
            case "divides":
                course.append(bool(n % 2 == 0))
            case "reshape":
                x = x.reshape(-1, 2) if bool((n * m) % 2 == 0) else x
                course.append(x.dim())
            case "half":
                x = x[: n // 2] if bool(n > 3) else x
                course.append(bool(n > 3))
            case "cat":
                if bool(x.shape[1] == y.shape[1]):
                    x = torch.cat([x, y])
                course.append(bool(x.shape[0] > 6))
            case _:
                course.append(bool(n == m))
    return course


@settings(derandomize=True, database=None, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(SHAPES, SHAPES, SHAPES, SHAPES, st.lists(st.sampled_from(STEPS), min_size=1, max_size=5))
def test_guards_hold_where_the_program_goes_the_same_way_and_fail_where_it_does_not(
    a: Any, b: Any, c: Any, d: Any, steps: list[str]
) -> None:
    course: list[Any] = []
    env, fakes = trace(
        lambda x, y: course.extend(steps_of(x, y, steps)), torch.empty(a), torch.empty(b), duck_shape=False
    )
    assert course == steps_of(torch.empty(a), torch.empty(b), steps)
    holds = env.evaluate_guards_for_args(fakes, [torch.empty(c), torch.empty(d)])
    again = steps_of(torch.empty(c), torch.empty(d), steps)
    if holds:
        assert course == again, env.produce_guards(fakes, ["x", "y"])
    assert env.evaluate_guards_for_args(fakes, [torch.empty(a), torch.empty(b)])


# -------------------------------------------------------------------------------------------------------- promises


def test_a_promise_that_is_kept_raises_nothing() -> None:
    spec = DimSpec.dynamic("batch", min=4, max=64)
    env, fakes = trace(lambda a: a.cos() if a.shape[0] > 3 else a, torch.randn(8, 3), policies=[{0: spec}])
    assert violations(env) == []
    assert "4 <= L['a'].size()[0] and L['a'].size()[0] <= 64" in env.produce_guards(fakes, ["a"])
    assert env.guards == []


@pytest.mark.parametrize(
    ("function", "problem", "suggestion"),
    [
        (lambda a, b: a.new_empty(int(a.shape[0])), "is always 8", "  batch = 8\n"),
        (lambda a, b: bool(a.shape[0] < 20), "from 2 to 19", "  batch = Dim('batch', max=19)"),
        (lambda a, b: bool(a.shape[0] > 5), "from 6 on", "  batch = Dim('batch', min=6)"),
        (lambda a, b: bool(a.shape[0] % 4 == 0), "% 4", "  _batch = Dim('_batch')\n    batch = 4*_batch"),
        (lambda a, b: bool(a.shape[0] == b.shape[0] * 2), "is always 2*other", "batch = 2*other"),
        (lambda a, b: bool(a.shape[0] * b.shape[0] < 100), "< 100", None),
    ],
)
def test_a_promise_that_is_not_kept_says_what_to_write(function: Any, problem: Any, suggestion: Any) -> None:
    policies = [{0: DimSpec.dynamic("batch")}, {0: DimSpec.dynamic("other")}]
    env, fakes = trace(function, torch.randn(8, 3), torch.randn(4, 3), policies=policies)
    with pytest.raises(upstream.ConstraintViolationError, match="Constraints violated") as caught:
        env.produce_guards(fakes, ["a", "b"])
    assert problem in str(caught.value)
    assert "test_shape_env.py" in str(caught.value)
    if suggestion is not None:
        assert suggestion in f"{caught.value}\n"


def test_dimensions_of_one_name_are_one_size() -> None:
    spec = DimSpec.dynamic("batch")
    env, fakes = trace(lambda a, b: a + b, torch.randn(8, 3), torch.randn(8, 3), policies=[{0: spec}, {0: spec}])
    assert fakes[0].shape[0].node.expr == fakes[1].shape[0].node.expr
    assert violations(env) == []
    assert not env.evaluate_guards_for_args(fakes, [torch.randn(6, 3), torch.randn(7, 3)])
    with pytest.raises(upstream.ConstraintViolationError, match="where batch = 8, but got 9"):
        trace(lambda a, b: a, torch.randn(8, 3), torch.randn(9, 3), policies=[{0: spec}, {0: spec}])


def test_a_derived_dimension_is_an_expression_of_its_root() -> None:
    root = DimSpec.dynamic("half")
    policies = [{0: root.times(2).plus(1)}, {0: root}]
    env, fakes = trace(
        lambda a, b: a.shape[0] == 2 * b.shape[0] + 1, torch.randn(9, 3), torch.randn(4, 3), policies=policies
    )
    assert str(fakes[0].shape[0]) == "2*s0 + 1"
    assert str(root.times(2).plus(1)) == "2*half + 1"
    assert violations(env) == []
    assert env.evaluate_guards_for_args(fakes, [torch.randn(13, 3), torch.randn(6, 3)])
    assert not env.evaluate_guards_for_args(fakes, [torch.randn(12, 3), torch.randn(6, 3)])
    with pytest.raises(upstream.ConstraintViolationError, match="of the form 2\\*half \\+ 1, where half is an integer"):
        trace(lambda a, b: a, torch.randn(8, 3), torch.randn(4, 3), policies=policies)


def test_a_size_outside_of_its_promised_bounds_is_refused_before_tracing() -> None:
    with pytest.raises(upstream.ConstraintViolationError, match=r"L\['a'\].size\(\)\[0\]: 8 not in range"):
        trace(lambda a: a, torch.randn(8, 3), policies=[{0: DimSpec.dynamic(max=4)}])


def test_a_relaxed_promise_is_broken_only_by_a_single_number() -> None:
    relaxed = [{0: DimSpec.dynamic()}]
    env, fakes = trace(lambda a: bool(a.shape[0] < 20), torch.randn(8, 3), policies=relaxed)
    env.check_promises()
    env, fakes = trace(lambda a: int(a.shape[0]), torch.randn(8, 3), policies=relaxed)
    with pytest.raises(upstream.ConstraintViolationError, match=r"specialized it to be a constant \(8\)"):
        env.produce_guards(fakes, ["a"])


def test_upstreams_contexts_are_promises_too() -> None:
    env = ShapeEnv()
    context = upstream.StatelessSymbolicContext(
        [upstream.DimDynamic.DYNAMIC, upstream.DimDynamic.STATIC],
        constraint_sizes=[upstream.StrictMinMaxConstraint(warn_only=False, vr=upstream.ValueRanges(3, 10)), None],
    )
    mode = symbolic_fake_mode(env)
    fake = mode.from_tensor(torch.randn(8, 3), symbolic_context=context, source=Source("L['a']", "L['a']"))  # pyright: ignore[reportArgumentType]
    assert str(tuple(fake.shape)) == "(s0, 3)"
    assert bool(fake.shape[0] <= 10)
    env.check_promises()
    assert bool(fake.shape[0] > 5)
    with pytest.raises(upstream.ConstraintViolationError, match="from 6 to 10"):
        env.check_promises()


def test_marks_on_tensors_are_policies() -> None:
    x = torch.randn(8, 8)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=16)
    torch._dynamo.mark_static(x, 1)
    env = ShapeEnv()
    fake = fake_input(x, symbolic_fake_mode(env), env, "x")
    assert str(tuple(fake.shape)) == "(s0, 8)"
    assert bool(fake.shape[0] <= 16)
    assert env.guards == []
