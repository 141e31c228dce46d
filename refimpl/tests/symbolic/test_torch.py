"""torch's own readers of symbolic shapes (meta kernels, helpers, C++) work with our environment and nodes."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.fx.experimental import symbolic_shapes as upstream

from refimpl._torch import (
    UPSTREAM_SHAPE_ERRORS,
    FakeTensor,
    FakeTensorMode,
    enable_python_dispatcher,
    upstream_shape_error,
)
from refimpl.symbolic.dynamic_shapes import DimSpec
from refimpl.symbolic.fake_inputs import fake_input, fake_int, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sym_node import SymNode
from refimpl.symbolic.symbols import fresh_bindings

DYNAMIC_TO_NINE = DimSpec.dynamic(max=9)
ANY = 7  # a size that is neither specialised nor shared with another of the tests


def backed(value: int = ANY, env: ShapeEnv | None = None) -> Any:
    env = env or ShapeEnv()
    return env.create_symintnode(env.create_symbol(value, "x"), hint=value)


def unbacked(env: ShapeEnv | None = None) -> Any:
    return (env or ShapeEnv()).create_unbacked_symint()


def guards_of(number: Any) -> list[str]:
    return [str(g.expr) for g in number.node.shape_env.guards]


# ----------------------------------------------------------------------------------------------------------- helpers


def test_the_error_types_are_upstreams_and_exceptions() -> None:
    for name in UPSTREAM_SHAPE_ERRORS:
        assert upstream_shape_error(name) is getattr(upstream, name)
        assert issubclass(upstream_shape_error(name), RuntimeError)


def test_guard_or_false_guards_on_inputs_and_not_on_data() -> None:
    s, u = backed(), unbacked()
    assert upstream.guard_or_false(s == 7) is True
    assert guards_of(s) == ["Eq(s0, 7)"]
    assert upstream.guard_or_false(u == 7) is False
    assert upstream.guard_or_true(u == 7) is True
    assert guards_of(u) == []


def test_conditions_known_statically_add_no_guard() -> None:
    s = backed()
    assert upstream.statically_known_true(s >= 2)
    assert upstream.statically_known_false(s < 2) is True
    assert not upstream.statically_known_true(s == 7)
    assert not upstream.statically_known_false(s == 7)
    assert upstream.guard_or_false(s > 1)
    assert guards_of(s) == []


def test_sym_and_or_eq_make_no_guard() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b = backed(5, env), backed(6, env)
    both = upstream.sym_and(a == 5, b == 6)
    assert isinstance(both, torch.SymBool)
    assert isinstance(upstream.sym_or(a == 1, b == 6), torch.SymBool)
    assert isinstance(upstream.sym_eq((a, b), (b, a)), (torch.SymBool, bool))
    assert env.guards == []
    assert bool(both)
    assert env.replacements == {a.node._expr: 5, b.node._expr: 6}


def test_concreteness_follows_what_is_learnt() -> None:
    s = backed()
    assert not upstream.is_concrete_int(s)
    assert not upstream.has_static_value(s)
    assert upstream.free_symbols(s) == {s.node._expr}
    assert upstream.has_free_symbols(s)
    assert int(s) == 7
    assert upstream.is_concrete_int(s)
    assert upstream.has_static_value(s)
    assert not upstream.has_free_symbols(s)
    assert upstream.is_concrete_bool(s == s)
    assert not upstream.is_nested_int(s)


def test_unbacked_symbols_are_seen_as_unbacked() -> None:
    env = ShapeEnv()
    s, u, z = backed(ANY, env), unbacked(env), env.create_unbacked_symfloat()
    assert upstream.has_free_unbacked_symbols(u + s)
    assert not upstream.has_free_unbacked_symbols(s)
    assert upstream.free_unbacked_symbols([s, u * 2]) == {u.node.expr}
    assert upstream.free_unbacked_symbols(z) == {z.node.expr}
    if hasattr(upstream, "has_guarding_hint"):
        assert upstream.has_guarding_hint(s)
        assert not upstream.has_guarding_hint(u)
        assert upstream.optimization_hint(s) == 7
        assert upstream.optimization_hint(u, fallback=64) == 64
    else:  # torch 2.11
        names = vars(upstream)
        assert names["has_hint"](s)
        assert not names["has_hint"](u)
        assert names["size_hint"](s) == 7
        assert names["size_hint"](u, fallback=64) == 64


def test_guarding_reads_values_and_data_dependent_ones_raise() -> None:
    s = backed()
    assert (upstream.guard_int(s), upstream.guard_bool(s > 3), upstream.guard_scalar(s)) == (7, True, 7)
    u = unbacked()
    for read in (int, lambda n: bool(n > 3), lambda n: upstream.guard_int(n), lambda n: upstream.guard_bool(n == 0)):
        with pytest.raises(upstream.GuardOnDataDependentSymNode, match=r"data-dependent[\s\S]*test_torch.py"):
            read(u)


def test_constrain_range_answers_questions_without_guards() -> None:
    u = unbacked()
    upstream.constrain_range(u, min=3, max=9)
    assert bool(u >= 3)
    assert not bool(u > 9)
    with pytest.raises(upstream.GuardOnDataDependentSymNode):
        bool(u > 5)
    other = unbacked(u.node.shape_env)
    upstream.constrain_range(other, min=2)  # the other bound is torch's own infinity
    assert bool(other >= 2)
    upstream.constrain_range(other, min=None, max=6)
    assert bool(other <= 6)
    upstream._constrain_range_for_size(u, min=4)
    assert bool(u > 3)
    with pytest.raises(ValueError, match="less than the specified min"):
        upstream.constrain_range(u, min=5, max=4)
    with pytest.raises(ValueError, match=r"is \[5, 4\]\n  expected: a max that is not less than the min"):
        upstream._constrain_range_for_size(u, min=5, max=4)
    assert guards_of(u) == []


def test_constrain_unify_makes_two_numbers_one() -> None:
    env = ShapeEnv()
    a, b = unbacked(env), unbacked(env)
    upstream.constrain_unify(a, b)
    assert bool(a == b)
    upstream.constrain_unify(a, 5)  # pyright: ignore[reportArgumentType]
    assert int(b) == 5


def test_checks_on_unbacked_numbers_become_runtime_assertions() -> None:
    env = ShapeEnv()
    u, s = unbacked(env), backed(ANY, env)
    with pytest.warns(FutureWarning):
        torch._check_is_size(u)
    torch._check(u <= s)
    assert bool(u >= 0)
    assert bool(u <= s)
    assert bool(u < s + 1)
    assert not bool(u > s)
    asserted = env.deferred_runtime_asserts[u.node.expr]
    assert [str(a.expr) for a in asserted] == ["u0 >= 0", "u0 <= s0"]
    assert "test_torch.py" in str(asserted[0].stack)
    assert env.guards == []


def test_an_equality_check_removes_the_newest_unbacked_number() -> None:
    env = ShapeEnv()
    s, a, b = backed(ANY, env), unbacked(env), unbacked(env)
    torch._check(a + b == s * 2)
    assert str(b.node.expr) == "2*s0 - u0"
    torch._check(a == s)
    assert b.node.expr == a.node.expr == s.node.expr
    assert int(b) == 7


def test_a_check_that_fails_raises_the_callers_error() -> None:
    s = backed()
    with pytest.raises(RuntimeError, match="too small"):
        torch._check(s > 100, lambda: "too small")
    with pytest.raises(IndexError):
        torch._check_index(s > 100)
    u = unbacked()
    torch._check(u > 5)
    with pytest.raises(RuntimeError):
        torch._check(u < 3)


def test_size_oblivious_questions_take_unbacked_sizes_as_at_least_two() -> None:
    u = unbacked()
    upstream._constrain_range_for_size(u)
    assert u.node.shape_env._maybe_evaluate_static((u == 1).node.expr, size_oblivious=True) is sympy.false
    assert (u == 1).node.guard_size_oblivious("", 0) is False
    with pytest.raises(upstream.GuardOnDataDependentSymNode):
        bool(u == 1)


def test_sums_min_max_and_ite_are_symbolic() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b, u = backed(5, env), backed(6, env), unbacked(env)
    assert str(torch.sym_sum([a, b, 3])) == "s0 + s1 + 3"
    assert str(torch.sym_max(a, b)) == "Max(s0, s1)"
    assert str(torch.sym_max(a, 1)) == "s0"
    assert str(torch.sym_min(a, 1)) == "1"
    # torch.sym_ite itself takes nodes of torch's own class only.
    assert str((u == 1).node.sym_ite(a.node, b.node)) == "Where(Eq(u0, 1), s0, s1)"
    assert env.guards == []
    assert torch.sym_max(a, b) == 6


# -------------------------------------------------------------------------------------------------- operator protocol

OPERATORS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (operator.add, (7, 3)),
    (operator.sub, (3, 7)),
    (operator.mul, (7, 3)),
    (operator.truediv, (7, 2)),
    (operator.floordiv, (7, 2)),
    (operator.mod, (7, 4)),
    (operator.pow, (7, 2)),
    (operator.pow, (7, 0.5)),
    (operator.pow, (2, 7)),
    (operator.lshift, (7, 2)),
    (operator.rshift, (7, 1)),
    (operator.and_, (7, 5)),
    (operator.or_, (7, 8)),
    (operator.xor, (7, 5)),
    (operator.neg, (7,)),
    (operator.abs, (7,)),
    (operator.pos, (7,)),
    (math.floor, (7,)),
    (math.ceil, (7,)),
    (math.trunc, (7,)),
    (torch.sym_float, (7,)),
    (getattr(torch, "_sym_sqrt"), (7,)),
    (round, (7,)),
    (operator.eq, (7, 7)),
    (operator.lt, (7, 3)),
    (operator.add, (7, 0.5)),
    (operator.mul, (7, 0.5)),
    (operator.floordiv, (7, 2.5)),
    (operator.mod, (7, 2.5)),
    (operator.le, (7, 7.5)),
]


@pytest.mark.parametrize(("function", "operands"), OPERATORS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_operators_give_pythons_type_and_value(function: Any, operands: Any) -> None:
    expected = function(*operands)
    for position in range(len(operands)):
        if not isinstance(operands[position], int):
            continue
        arguments = list(operands)
        arguments[position] = backed(operands[position], ShapeEnv(specialize_zero_one=False))
        result = function(*arguments)
        kinds = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
        assert isinstance(result, (kinds[type(expected)], type(expected))), (function, type(result))
        assert type(expected)(result) == expected


def test_multiplying_by_one_is_the_number_itself() -> None:
    s = backed()
    assert (s * 1).node is s.node
    assert (1 * s).node is s.node
    assert guards_of(s) == []


def test_expressions_that_fold_to_a_constant_are_ints() -> None:
    s = backed()
    for value, expected in ((s - s, 0), (s * 0, 0), (s // s, 1), ((s * 2) % 2, 0), ((s + 1) - s, 1)):
        assert type(value) is int
        assert value == expected


def test_the_origin_says_which_operation_made_a_number() -> None:
    s = backed()
    result = (s + 2) // 3
    origin = result.node.origin
    assert (origin.function, origin.operands[1]) == (operator.floordiv, 3)
    inner = origin.operands[0].origin
    assert (inner.function, inner.operands) == (operator.add, (s.node, 2))
    with s.node.shape_env.origins_off():
        assert ((s + 2) // 3).node.origin is None
    assert ((s + 2) // 3).node.origin is not None


def test_a_copied_number_keeps_its_environment() -> None:
    s = backed()
    assert copy.copy(s).node.expr == s.node.expr
    assert str(copy.deepcopy(ShapeEnv().create_unbacked_symint())) == "u0"


# ------------------------------------------------------------------------------------------------------- fake kernels


def run(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[Any, ShapeEnv]:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env)
    fakes = [fake_input(t, mode, env, f"x{i}") for i, t in enumerate(tensors)]
    with enable_python_dispatcher(), mode:
        return function(*fakes), env


def rand(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str, int]] = {
    # name: function, inputs, shape of the result, number of guards at most
    "mm": (lambda a, b: a @ b, (rand(3, 4), rand(4, 5)), "(s0, s2)", 0),
    "broadcast": (lambda a, b: a + b, (rand(3, 4), rand(4)), "(s0, s1)", 0),
    "cat": (lambda a, b: torch.cat([a, b]), (rand(3, 4), rand(5, 4)), "(s0 + s2, s1)", 0),
    "softmax": (lambda a: a.softmax(-1), (rand(3, 4),), "(s0, s1)", 0),
    "layer_norm": (lambda a: F.layer_norm(a, a.shape[-1:]), (rand(3, 4),), "(s0, s1)", 0),
    "batch_norm": (lambda a, m, v: F.batch_norm(a, m, v), (rand(3, 4, 5), rand(4), rand(4)), "(s0, s1, s2)", 0),
    "sdpa": (lambda a: F.scaled_dot_product_attention(a, a, a), (rand(3, 4, 7, 8),), "(s0, s1, s2, s3)", 0),
    "view": (lambda a: a.view(a.shape[0], -1), (rand(3, 4, 5),), "(s0, s1*s2)", 0),
    "flatten": (lambda a: a.view(-1), (rand(3, 4, 5),), "(s0*s1*s2,)", 0),
    "expand": (lambda a: a.expand(a.shape[0], 7), (rand(3, 1),), "(s0, 7)", 0),
    "slice": (lambda a: a[1:, :-1], (rand(6, 3),), "(s0 - 1, s1 - 1)", 0),
    "max_pool": (lambda a: F.max_pool2d(a, 2), (rand(2, 3, 9, 9),), "(s0, s1, (s2//2), (s2//2))", 0),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2.0), (rand(2, 3, 9, 9),), "(s0, s1, 2*s2, 2*s2)", 0),
    "conv": (
        lambda a, w: F.conv2d(a, w),
        (rand(2, 5, 8, 8), rand(6, 5, 3, 3)),
        "(s0, s3, s2 - s4 + 1, s2 - s4 + 1)",
        4,
    ),
    "nonzero": (lambda a: a.nonzero(), (rand(6, 3),), "(u0, 2)", 0),
    "mask": (lambda a: a[a > 0], (rand(6, 3),), "(u0,)", 0),
    "item": (lambda a: torch.zeros(int(a.numel()) + 0 * 1), (rand(6),), "(6,)", 1),
    "contiguous": (lambda a: a.t().contiguous(), (rand(5, 6),), "(s1, s0)", 0),
    "arange": (lambda a: torch.arange(a.shape[0]) / a.shape[0] ** 0.5, (rand(5),), "(s0,)", 0),
    "grad": (
        lambda a, b: torch.autograd.grad((a.requires_grad_() @ b).sin().sum(), a)[0],
        (rand(3, 4), rand(4, 5)),
        "(s0, s1)",
        0,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_on_fake_tensors_with_symbolic_sizes(name: str) -> None:
    function, inputs, shape, most_guards = PROGRAMS[name]
    result, env = run(function, *inputs)
    assert str(tuple(result.shape)) == shape
    if name == "max_pool" and any("Mod" in str(guard.expr) for guard in env.guards):
        most_guards = 1  # torch 2.11's fake kernel asks whether the window divides the size
    assert len(env.guards) <= most_guards, env.format_guards()


def test_an_item_is_an_unbacked_number_that_its_result_binds() -> None:
    result, env = run(lambda a: torch.zeros(a.item()), torch.tensor(3))
    assert str(result.shape[0]) == "u0"
    result, env = run(lambda a: a.item(), torch.tensor(3))
    assert fresh_bindings(env, result) == {result.node.expr: ()}
    assert env.pending_fresh_unbacked_symbols == []


def test_where_fresh_symbols_stand_in_results_is_found_as_upstream_finds_it() -> None:
    for function in (lambda a: a.nonzero(), lambda a: (a + 1, [a[a > 0]]), lambda a: a.to(torch.bool).any().item()):
        result, env = run(function, rand(6, 3))
        pending = list(env.pending_fresh_unbacked_symbols)
        expected = upstream.compute_unbacked_bindings(env, result)  # pyright: ignore[reportArgumentType]
        env.pending_fresh_unbacked_symbols[:] = pending
        ours = fresh_bindings(env, result)
        assert {s: len(path) for s, path in ours.items()} == {s: len(path) for s, path in (expected or {}).items()}
        for symbol, path in ours.items():
            found = result
            for step in path[:-1] if isinstance(found, torch.SymBool) else path:
                found = step.get(found)
            assert symbol in found.node.expr.free_symbols


def test_a_fresh_symbol_that_no_result_has_is_an_error() -> None:
    env = ShapeEnv()
    env.create_unbacked_symint()
    with pytest.raises(upstream.PendingUnbackedSymbolNotFound, match="u0"):
        fresh_bindings(env, torch.zeros(3))
    with env.ignore_fresh_unbacked_symbols():
        env.create_unbacked_symint()
    assert fresh_bindings(env, torch.zeros(3)) == {}


def test_bounds_of_unbacked_sizes_reach_torchs_kernels() -> None:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env)
    x = fake_input(rand(6, 3), mode, env, "x", {0: DYNAMIC_TO_NINE, 1: DYNAMIC_TO_NINE})
    with mode:
        size = x.nonzero().shape[0]
    assert bool(size <= 81)
    assert env.guards == []


def test_tensors_met_while_tracing_become_fake_with_static_sizes() -> None:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env, allow_non_fake_inputs=True)
    x = fake_input(rand(4, 3), mode, env, "x")
    with mode:
        result = x + rand(3)
    assert isinstance(result, FakeTensor)
    assert str(tuple(result.shape)) == "(s0, 3)"


def test_a_fake_mode_that_keeps_results_makes_no_nodes_of_torchs_class() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_fallback_kernels=False)  # pyright: ignore[reportArgumentType]
    assert mode.cache_enabled
    x = fake_input(rand(4, 3), mode, env, "x")
    with mode:
        for _ in range(3):
            y = (x @ x.t()).view(-1)
            assert isinstance(y.shape[0].node, SymNode)  # pyright: ignore[reportAttributeAccessIssue]
            assert str(y.shape[0]) == "s0**2"


def test_upstreams_helpers_evaluate_the_guards_of_a_graph() -> None:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env)
    x = fake_input(rand(4, 3), mode, env, "x")
    assert bool(x.shape[0] < 20)
    graph = torch.fx.Graph()
    graph.placeholder("x_1").meta["val"] = x
    graph.output(None)
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    gm.shape_env = env  # pyright: ignore[reportAttributeAccessIssue]
    assert upstream.eval_guards(gm, rand(5, 6))
    assert not upstream.eval_guards(gm, rand(20, 6))
    assert str(upstream.bind_symbols(gm, rand(5, 6))) == "{s0: 5, s1: 6}"
    assert copy.deepcopy(env) is env


def test_from_tensor_of_the_mode_makes_the_same_symbols() -> None:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env)
    by_mode = mode.from_tensor(rand(4, 3).t())
    by_us = fake_input(rand(4, 3).t(), mode, env, "x")
    assert (by_mode.shape, by_mode.stride()) == (by_us.shape, by_us.stride())
    assert all(isinstance(s, torch.SymInt) for s in by_mode.shape)


def test_a_guard_from_cpp_says_where_it_came_from() -> None:
    _, env = run(lambda a, w: F.conv2d(a, w), rand(2, 3, 8, 8), rand(6, 3, 3, 3))
    assert any(".cpp" in guard.source or ".h" in guard.source for guard in env.guards)
    assert all("test_torch.py" in guard.sloc for guard in env.guards)


def test_an_int_input_is_symbolic_unless_zero_or_one() -> None:
    env = ShapeEnv()
    assert [str(fake_int(v, env, f"n{v}")) for v in (0, 1, 5, -3)] == ["0", "1", "s0", "s1"]
    assert fake_int(5, env, "other") == 5
    assert env.guards[0].expr == sympy.Eq(env.source_to_var["L['n5']"], 5, evaluate=False)
