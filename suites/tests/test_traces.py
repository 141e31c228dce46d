"""The comparison of two tracers, fed with right graphs and with wrong ones of every kind it must see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from oracle.program import Program
from oracle.program.build import LiveProgram
from oracle.subjects.make_fx import MakeFx
from oracle.subjects.registry import resolve
from oracle.subjects.traced import FlatProgram
from suites.models.catalog import ARCHITECTURES
from suites.models.zoo import build, make_inputs
from suites.traces.comparing import compare_tracers
from suites.traces.explanations import EXPLANATIONS, Explanation, reason_of
from suites.traces.graphs import live_nodes, op_counts, whole_slices
from suites.traces.programs import BATCH, joint_of_sample, model
from suites.traces.records import ASPECTS, DIFFERS, EXPLAINED, Difference, TraceCase, TraceRow
from suites.traces.sizes import SecondInput, enlarged, enlargements, same_structure
from suites.traces.tracing import Tracer

Spoil = Callable[[torch.fx.GraphModule], torch.fx.GraphModule]


def torch_tracer(mode: str) -> MakeFx:
    return MakeFx(resolve(f"make_fx[mode={mode}]"))


class SpoiledTracer(MakeFx):
    """torch's tracer with its graph changed afterwards."""

    def __init__(self, mode: str, spoil: Spoil) -> None:
        super().__init__(resolve(f"make_fx[mode={mode}]"))
        self._spoil = spoil

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> Any:
        return self._spoil(cast("torch.fx.GraphModule", super().trace(flat, tensors)))


class RefusingTracer(MakeFx):
    """Raises whatever it is given."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> Any:
        raise NotImplementedError("this tracer refuses")


def case(mode: str) -> TraceCase:
    return TraceCase(
        case_id=f"made/up/float32/forward@{mode}",
        suite="opinfo",
        group="made/up",
        name="made/up/float32/forward",
        dtype="float32",
        direction="forward",
        mode=mode,
        program={},
    )


def compare(
    function: Callable[..., Any],
    *args: Any,
    mode: str = "real",
    ours: Tracer | None = None,
    theirs: Tracer | None = None,
    second: tuple[Any, ...] | None = None,
) -> TraceRow:
    live = LiveProgram(program=Program(name="made up", source=""), make_target=lambda: function, args=args, kwargs={})
    candidates = [] if second is None else [SecondInput(args=second, kwargs={}, label="second")]
    return compare_tracers(
        case(mode),
        make=live.instantiate,
        ours=ours or torch_tracer(mode),
        theirs=theirs or torch_tracer(mode),
        candidates=lambda instance: candidates,
    )


def aspects(row: TraceRow) -> list[str]:
    return [one.aspect for one in row.differences]


def sine_plus_one(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def first_call(module: torch.fx.GraphModule, overload: Any) -> torch.fx.Node:
    return next(node for node in module.graph.nodes if node.target is overload)


def without_sine(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    node = first_call(module, torch.ops.aten.sin.default)
    node.replace_all_uses_with(node.all_input_nodes[0])
    module.graph.erase_node(node)
    module.recompile()
    return module


def with_one_more_op(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Adds a negation and its inverse: the values stay."""
    node = first_call(module, torch.ops.aten.sin.default)
    with module.graph.inserting_after(node):
        twice = module.graph.call_function(torch.ops.aten.clone.default, (node,))
    node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)
    module.recompile()
    return module


def with_dead_code(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    node = first_call(module, torch.ops.aten.sin.default)
    with module.graph.inserting_after(node):
        module.graph.call_function(torch.ops.aten.neg.default, (node,))
    module.recompile()
    return module


def with_another_overload(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`x + 1` as aten.add.Scalar: same value, another overload."""
    first_call(module, torch.ops.aten.add.Tensor).target = torch.ops.aten.add.Scalar
    module.recompile()
    return module


# ------------------------------------------------------------------------------------------------------ one size


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_two_equal_tracers_are_equal(mode: str) -> None:
    row = compare(sine_plus_one, torch.randn(4, 3), mode=mode)
    assert (row.status, row.verdict, row.aten_calls, row.differences) == ("equal", "pass", 2, ())


def test_a_missing_op_is_seen_in_the_values_and_in_the_ops() -> None:
    row = compare(sine_plus_one, torch.randn(4), ours=SpoiledTracer("real", without_sine))
    assert row.status == DIFFERS
    assert aspects(row) == ["values", "ops"]
    assert (dict(row.only_ours), dict(row.only_torch)) == ({}, {"aten.sin.default": 1})


def test_an_extra_op_that_changes_no_value_is_seen_in_the_ops() -> None:
    row = compare(sine_plus_one, torch.randn(4), ours=SpoiledTracer("fake", with_one_more_op), mode="fake")
    assert (row.status, row.verdict, aspects(row)) == (DIFFERS, "pass", ["ops"])
    assert (dict(row.only_ours), dict(row.only_torch)) == ({"aten.clone.default": 1}, {})


def test_another_overload_of_the_same_operator_is_seen() -> None:
    row = compare(sine_plus_one, torch.randn(4), ours=SpoiledTracer("real", with_another_overload))
    assert (dict(row.only_ours), dict(row.only_torch)) == ({"aten.add.Scalar": 1}, {"aten.add.Tensor": 1})


def test_dead_code_does_not_count() -> None:
    spoiled = SpoiledTracer("real", with_dead_code)
    assert compare(sine_plus_one, torch.randn(4), ours=spoiled).status == "equal"
    assert compare(sine_plus_one, torch.randn(4), theirs=spoiled).status == "equal"


def test_a_call_that_writes_is_alive_though_nobody_reads_its_result() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.zero_()
        return x + 1

    module = make_fx(writes)(torch.ones(2))
    assert op_counts(module) == {"aten.clone.default": 1, "aten.zero_.default": 1, "aten.add.Tensor": 1}
    assert len(live_nodes(module.graph)) == len(module.graph.nodes)


def test_what_torchs_graph_gets_wrong_too_is_told_apart() -> None:
    spoiled = SpoiledTracer("real", without_sine)
    (alone, _) = compare(sine_plus_one, torch.randn(4), ours=spoiled).differences
    (together,) = compare(sine_plus_one, torch.randn(4), ours=spoiled, theirs=spoiled).differences
    assert (alone.aspect, alone.torch_too) == ("values", False)
    assert (together.aspect, together.torch_too) == ("values", True)


def test_a_refusal_of_one_tracer_is_a_difference_and_of_both_is_none() -> None:
    refusing = RefusingTracer(resolve("make_fx"))
    x = torch.ones(2)
    assert aspects(compare(sine_plus_one, x, ours=refusing)) == ["refusal"]
    assert aspects(compare(sine_plus_one, x, theirs=refusing)) == ["torch_refuses"]
    both = compare(sine_plus_one, x, ours=refusing, theirs=refusing)
    assert (both.status, both.error_ours) == ("both_refuse", "NotImplementedError: this tracer refuses")


def test_a_program_that_eager_refuses_is_not_comparable() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("never")

    row = compare(raises, torch.ones(2))
    assert (row.status, row.verdict) == ("not_comparable", "eager_fail_to_run")


def test_a_tracer_that_leaves_process_state_changed_is_seen() -> None:
    def leak(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        torch.set_default_dtype(torch.float64)
        return module

    row = compare(sine_plus_one, torch.ones(2), ours=SpoiledTracer("real", leak))
    assert (row.verdict, torch.get_default_dtype()) == ("fail_state", torch.float32)


def test_a_symbolic_graph_without_a_shape_environment_is_malformed() -> None:
    row = compare(sine_plus_one, torch.ones(2), ours=torch_tracer("real"), mode="symbolic")
    assert aspects(row) == ["malformed"]


# --------------------------------------------------------------------------------------------------- second size


def doubled_rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0] * x.shape[1]).repeat(2)


class BurnedIn(MakeFx):
    """Traces with sizes burned in, and shows the guards of a symbolic trace: the graph of a tracer that forgets guards."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> Any:
        symbolic = cast("Any", super().trace(flat, tensors))
        module: Any = make_fx(lambda *args: flat(*args), tracing_mode="fake")(*tensors)
        module.shape_env = symbolic.shape_env
        for node, its in zip(placeholders(module), placeholders(symbolic), strict=True):
            node.meta["val"] = its.meta["val"]
        return module


def placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def test_a_symbolic_graph_is_right_at_a_second_size() -> None:
    row = compare(doubled_rows, torch.randn(4, 3), mode="symbolic", second=(torch.randn(6, 5),))
    assert (row.status, row.second, row.second_input, row.second_tried) == ("equal", "equal", "second", 1)


def test_a_graph_burned_in_at_the_first_size_is_seen_at_the_second() -> None:
    ours = BurnedIn(resolve("make_fx[mode=symbolic]"))
    row = compare(doubled_rows, torch.randn(4, 3), mode="symbolic", ours=ours, second=(torch.randn(6, 5),))
    assert (row.status, row.verdict, row.second) == (DIFFERS, "pass", "differs")
    assert "second_size" in aspects(row)


def test_a_size_that_the_guards_refuse_is_no_difference() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > 5 else x.cos()

    row = compare(branches, torch.randn(4), mode="symbolic", second=(torch.randn(7),))
    assert (row.status, row.second, row.second_tried) == ("equal", "guards_refuse", 1)


def test_a_size_that_became_a_constant_is_refused() -> None:
    def burns(x: torch.Tensor) -> torch.Tensor:
        return x * int(x.shape[0])

    row = compare(burns, torch.randn(4), mode="symbolic", second=(torch.randn(7),))
    assert (row.status, row.second) == ("equal", "guards_refuse")


def test_guards_that_refuse_what_torchs_accept_are_seen_with_both_lists() -> None:
    def guarded(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        assert placeholders(module)[0].meta["val"].shape[0] == 4  # a guard that the graph does not need
        return module

    row = compare(
        sine_plus_one,
        torch.randn(4),
        mode="symbolic",
        ours=SpoiledTracer("symbolic", guarded),
        second=(torch.randn(7),),
    )
    assert (row.second, aspects(row)) == ("guards_refuse", ["guards"])
    assert [text.partition(" ")[0] for text in row.guards_differ] == ["ours", "torch"]


def test_a_second_size_that_eager_refuses_is_not_counted() -> None:
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    row = compare(
        product, torch.randn(4, 3), torch.randn(3, 4), mode="symbolic", second=(torch.randn(4, 3), torch.randn(5, 4))
    )
    assert (row.second, row.second_tried) == ("no_size", 0)


# -------------------------------------------------------------------------------------------------- larger inputs


def test_enlarged_keeps_the_order_of_dimensions_and_what_was_expanded() -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    larger = enlarged(x, (6, 4))
    assert (tuple(larger.shape), larger.stride()) == ((6, 4), (1, 6))
    assert torch.equal(larger[:3, :2], x)
    assert torch.equal(larger[3:, 2:], x)
    expanded = enlarged(torch.arange(2.0)[:, None].expand(2, 3), (4, 6))
    assert expanded.stride()[1] == 0


def test_sizes_that_are_equal_stay_equal() -> None:
    found = list(enlargements((torch.ones(5, 4), torch.ones(4, 5)), {}, is_resizable=lambda leaf: True))
    assert found[0].label == "5->10"
    assert [tuple(one.shape) for one in found[0].args] == [(10, 4), (4, 10)]
    assert found[2].label == "5->10, 4->8"


def test_sizes_of_one_and_what_may_not_change_stay() -> None:
    found = list(enlargements((torch.ones(1, 3), torch.ones(3)), {}, is_resizable=lambda leaf: leaf == 0))
    assert {tuple(one.args[0].shape) for one in found} == {(1, 6), (1, 4)}
    assert {tuple(one.args[1].shape) for one in found} == {(3,)}
    assert list(enlargements((torch.ones(1), 7), {}, is_resizable=lambda leaf: True)) == []


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ((torch.ones(4), 2), True),
        ((torch.ones(3), 2), False),  # no other size
        ((torch.ones(4), 3), False),  # another number
        ((torch.ones(4, 4), 2), False),  # another rank
        ((torch.ones(4, dtype=torch.int64), 2), False),
        ((torch.ones(4), torch.ones(4)), False),
    ],
)
def test_same_structure_lets_only_sizes_differ(other: Any, is_same: bool) -> None:
    assert same_structure((torch.ones(3), 2), other) is is_same


# --------------------------------------------------------------------------------------------------- explanations


def differing_row(aspect: str, **fields: Any) -> TraceRow:
    difference = Difference(aspect=aspect, detail="only ours: aten.detach.default; only torch's: nothing")
    return TraceRow.of(case("fake"), status=DIFFERS, differences=(difference,), **fields)


def explain(explanation: Explanation, row: TraceRow) -> TraceRow:
    return row.with_reasons(lambda one, difference: explanation.name if explanation.applies(one, difference) else None)


def test_a_row_is_explained_only_if_every_difference_is() -> None:
    detach = Explanation(name="detach", aspects=("ops",), reason="noise", only_ours=frozenset({"aten.detach.default"}))
    row = differing_row("ops", only_ours={"aten.detach.default": 1})
    assert explain(detach, row).status == EXPLAINED
    both = TraceRow.of(
        case("fake"),
        status=DIFFERS,
        differences=(*row.differences, Difference(aspect="values", detail="wrong")),
        only_ours=row.only_ours,
    )
    assert explain(detach, both).status == DIFFERS


def test_an_explanation_of_one_overload_covers_no_other() -> None:
    detach = Explanation(name="detach", aspects=("ops",), reason="noise", only_ours=frozenset({"aten.detach.default"}))
    assert explain(detach, differing_row("ops", only_torch={"aten.detach.default": 1})).status == DIFFERS
    more = differing_row("ops", only_ours={"aten.detach.default": 1, "aten.mul.Tensor": 1})
    assert explain(detach, more).status == DIFFERS


def test_slices_are_explained_only_if_all_that_differ_take_a_whole_dimension() -> None:
    slices = next(one for one in EXPLANATIONS if one.name == "whole-slices")
    difference = Difference(aspect="ops", detail="slices")

    def row(whole: int, **fields: Any) -> TraceRow:
        return TraceRow.of(
            case("symbolic"), status=DIFFERS, differences=(difference,), only_torch={"aten.slice.Tensor": 2},
            whole_slices_torch=whole, **fields,
        )  # fmt: skip

    assert slices.applies(row(2, second="equal"), difference)
    assert not slices.applies(row(1, second="equal"), difference)
    assert not slices.applies(row(2, second="guards_refuse"), difference)


def test_whole_slices_are_counted() -> None:
    def slices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.slice(x, 0, 0, 2**63 - 1), torch.ops.aten.slice(x, 0, 1), torch.ops.aten.slice(x, 0, 0, 2)

    assert whole_slices(make_fx(slices)(torch.ones(4))) == 1


def test_the_table_of_explanations_is_well_formed() -> None:
    names = [one.name for one in EXPLANATIONS]
    assert len(names) == len(set(names))
    for one in EXPLANATIONS:
        assert one.aspects
        assert set(one.aspects) <= set(ASPECTS)
        assert one.reason
        may_explain = one.torch_too and one.groups != ("*",)
        assert may_explain or not {"values", "second_size"} & set(one.aspects), (
            "wrong results are torch's too, and of known ops"
        )
        assert one.pattern or one.only_ours or one.only_torch, f"{one.name} would explain everything of its aspect"


def test_wrong_values_have_no_reason() -> None:
    row = differing_row("values")
    assert row.with_reasons(functools.partial(reason_of)).status == DIFFERS


@pytest.mark.slow  # builds all models: half a minute
def test_the_batch_of_the_models_is_no_other_size_of_any_model() -> None:
    for name in ARCHITECTURES:
        module = build(name, mode="train", dtype="float32", device="cpu")
        _, inputs = make_inputs(name, mode="train", dtype="float32", device="cpu", call=0)
        sizes = {size for tensor in (*module.parameters(), *module.buffers()) for size in tensor.shape}
        sizes |= {size for tensor in inputs.values() for size in tensor.shape[1:]}
        assert BATCH not in sizes, name


def test_a_model_is_traced_with_a_batch_of_its_own_size() -> None:
    _, inputs = model("mlp", direction="joint", dtype="float32", device="cpu", masks=True)
    (parameters, _, given), _ = inputs(0)
    assert given["x"].shape[0] == BATCH
    assert not any(value.requires_grad for value in parameters.values())


def test_a_joint_function_gives_the_gradients_that_autograd_gives() -> None:
    program, inputs = joint_of_sample("sin", dtype="float32", index=0, device="cpu")
    args, kwargs = inputs(0)
    result, (gradient,) = program(*args, **kwargs)
    x = args[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(x.sin().pow(2).sum(), x)
    assert not result.requires_grad
    assert torch.equal(gradient, expected)
