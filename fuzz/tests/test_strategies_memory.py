"""Layouts, views and writes: every rule can be drawn, gives what it is named for, and never writes what has no meaning."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.inputs.strides import contiguous_stride, extent
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.program.render import render
from fuzz.program.structure import Expr, OpCall, Operand, Ref, StateEntry
from fuzz.tests.grammar_samples import accepted_by_eager, scene_of
from fuzz.vocabulary.programs import draw_result
from fuzz.vocabulary.statements import layouts, views, writes
from fuzz.vocabulary.statements.indices import draw_advanced_index, draw_basic_index, draw_slice
from fuzz.vocabulary.statements.layouts import draw_layout, draw_parts
from fuzz.vocabulary.statements.rule import Rule

TRIES = 60
# Rules that need what few scenes have.
RARE = {"complex_parts": 250, "other_dtype": 150, "catalogued": 80, "random_write": 120}
OF_MODULES = "state_written"


def by_name(rules: tuple[Rule, ...], name: str) -> Rule:
    return next(rule for rule in rules if rule.name == name)


@pytest.mark.parametrize(
    "rule",
    [rule for rule in (*views.RULES, *writes.RULES) if rule.name != OF_MODULES],
    ids=lambda rule: f"{rule.family}-{rule.name}",
)
def test_every_rule_can_be_drawn(rule: Rule) -> None:
    assert accepted_by_eager(rule, RARE.get(rule.name, TRIES))


@pytest.mark.parametrize("region", [None, "torch.no_grad()"])
def test_state_of_modules_is_written(region: str | None) -> None:
    """Buffers as they are, parameters where no gradient is recorded."""
    written: set[str] = set()
    for seed in range(60):
        scene = Scene(RandomDraw(seed), Settings(), seed=seed)
        parameter = StateEntry(name="self.w0", text="self.w0 = torch.nn.Parameter(torch.ones(3))")
        scene.become_module([parameter, StateEntry(name="self.b0", text="self.register_buffer('b0', torch.ones(3))")])
        with scene.region(region) if region else contextlib.nullcontext():
            statements = by_name(writes.RULES, OF_MODULES).draw_statements(scene.draw, scene)
            if statements is not None and scene.add(statements):
                written.update(re.findall(r"(self\.\w+)\.\w+_\(", render(scene.to_program(None))))
    assert written == ({"self.w0", "self.b0"} if region else {"self.b0"})


@pytest.mark.parametrize("rules", [views.RULES, writes.RULES], ids=["views", "writes"])
def test_most_of_what_rules_draw_is_accepted(rules: tuple[Rule, ...]) -> None:
    drawn = accepted = 0
    for number, rule in enumerate(rules * 3):
        scene = scene_of(1000 + number)
        statements = rule.draw_statements(scene.draw, scene)
        if statements:
            drawn += 1
            accepted += scene.add(statements)
    assert accepted / drawn > 0.75


def test_a_rule_leaves_the_scene_as_it_was() -> None:
    for rule in (*views.RULES, *writes.RULES):
        scene = scene_of(7)
        before = len(scene.statements)
        rule.draw_statements(scene.draw, scene)
        assert len(scene.statements) == before


@pytest.mark.parametrize("rule", writes.RULES, ids=lambda rule: rule.name)
def test_writes_change_only_what_may_be_written(rule: Rule) -> None:
    """Tensors with one place for several elements keep their values, but for fills."""
    for seed in range(25):
        scene = Scene(RandomDraw(seed), Settings(), seed=seed)
        scene.add_argument(
            {"$": "tensor", "shape": [3, 4], "dtype": "float32", "stride": [0, 1], "fill": {"kind": "arange"}}
        )
        before = scene.values["a0"].clone()
        statements = rule.draw_statements(scene.draw, scene)
        if statements is not None and scene.add(statements) and rule.name not in ("filled", "reshaped_in_place"):
            assert torch.equal(scene.values["a0"], before), render(scene.to_program(None))


def test_as_strided_reads_no_memory_that_nobody_wrote() -> None:
    """The storage of a mean loss has room for every element's loss, of which eager writes one."""
    names: set[Operand] = set()
    for seed in range(80):
        scene = Scene(RandomDraw(seed), Settings(), seed=seed)
        scene.add_argument({"$": "tensor", "shape": [3, 4], "dtype": "float32", "fill": {"kind": "arange"}})
        scene.add([OpCall(target="torch.nn.functional.mse_loss", args=(Ref("a0"), Ref("a0")), results=("v0",))])
        scene.add([OpCall(target="torch.relu", args=(Ref("a0"),), results=("v1",))])
        drawn = views.as_strided(scene.draw, scene)
        if isinstance(drawn, OpCall):
            assert scene.add(drawn)
            names.add(drawn.args[0])
    assert names == {Ref("a0"), Ref("v1")}


@pytest.mark.parametrize(
    ("rules", "name", "pattern"),
    [
        (writes.RULES, "shifted", r"\[[:, ]*\d+:\] = |\[[:, ]*:-\d+\] = "),
        (writes.RULES, "out_argument", r"out=[av]\d"),
        (writes.RULES, "foreach", r"torch\._foreach_\w+_\("),
        (writes.RULES, "through_view", r"_\("),
        (writes.RULES, "behind_autograd", r"\.(data|detach\(\))"),
        (writes.RULES, "reshaped_in_place", r"\.(unsqueeze_|squeeze_|transpose_|t_|swapaxes_|resize_|as_strided_)\("),
        (writes.RULES, "masked", r"masked_|where|\] = "),
        (writes.RULES, "assigned", r"\] = |[+*]= "),
        (views.RULES, "divided", r"\.(split|chunk|tensor_split|unbind)\("),
        (views.RULES, "relaid_and_reduced", r"(contiguous|clone)\(\)"),
        (views.RULES, "scattered", r"_scatter\(|index_fill\("),
        (views.RULES, "other_dtype", r"\.view\(torch\."),
    ],
)
def test_rules_write_what_they_are_named_for(rules: tuple[Rule, ...], name: str, pattern: str) -> None:
    scenes = accepted_by_eager(by_name(rules, name), 40 if name != "other_dtype" else 150)
    assert scenes
    assert all(re.search(pattern, render(scene.to_program(None))) for scene in scenes)


# ------------------------------------------------------------------------------------ programs that are known to go wrong


def scenes_like(rules: tuple[Rule, ...], name: str, pattern: str, tries: int) -> bool:
    rule = by_name(rules, name)
    return any(
        re.search(pattern, render(scene.to_program(None))) for scene in accepted_by_eager(rule, tries, focus="views")
    )


def test_the_grammar_has_a_write_shifted_by_one() -> None:
    """pytorch 197829: `x[1:] = x[:-1].clone()`."""
    pattern = r"(v\d+) = (\w+)\[:-1\]\n\s+(v\d+) = \1\.clone\(\)\n\s+\2\[1:\] = \3"
    assert scenes_like(writes.RULES, "shifted", pattern, 150)


def test_the_grammar_has_the_position_of_a_minimum_in_turned_memory() -> None:
    """pytorch 183894: `x.t().contiguous().argmin()`."""
    pattern = r"(v\d+) = \w+\.transpose\(.*\)\n\s+(v\d+) = \1\.contiguous\(\)\n\s+v\d+ = \2\.argmin\(\)"
    assert scenes_like(views.RULES, "relaid_and_reduced", pattern, 150)


def test_the_grammar_has_windows_with_gaps_that_are_written() -> None:
    """pytorch 198102: in place through an unfold view with gaps."""
    pattern = r"(v\d+) = \w+\.unfold\((-?\d), (\d), (?!\3\))\d+\)\n(.*\n)?\s+\1\.\w+_\("
    assert scenes_like(writes.RULES, "through_view", pattern, 300)


def test_the_grammar_has_a_scatter_into_a_tensor_that_is_overwritten() -> None:
    """pytorch 198094: `y = slice_scatter(x, s); x.zero_(); return y`: a scatter, and then a write that any target may be."""
    scatter, fill = by_name(views.RULES, "scattered"), by_name(writes.RULES, "filled")
    for seed in range(400):
        scene = scene_of(seed, "views")
        drawn = scatter.draw_statements(scene.draw, scene)
        if isinstance(drawn, OpCall) and drawn.target == ".slice_scatter" and scene.add(drawn):
            written = fill.draw_statements(scene.draw, scene)
            if isinstance(written, OpCall) and written.args[0] == drawn.args[0] and scene.add(written):
                return
    pytest.fail("no slice_scatter into a tensor that is overwritten afterwards")


# --------------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(6,), (1,), (3, 4), (2, 3, 2), (1, 1)], ids=str)
def test_parts_lie_inside_the_storage(shape: tuple[int, ...], dtype: str) -> None:
    size = torch.empty((), dtype=getattr(torch, dtype)).element_size()
    whole = extent(shape, contiguous_stride(shape)) * size
    for seed in range(60):
        parts = draw_parts(RandomDraw(seed), shape, dtype)
        assert len(parts) >= 2
        for part in parts:
            element = torch.empty((), dtype=getattr(torch, part.dtype or dtype)).element_size()
            assert extent(part.shape, part.stride, part.offset) * element <= whole


@pytest.mark.parametrize("focus", layouts.LAYOUT_WEIGHTS)
def test_layouts_give_arguments(focus: str) -> None:
    for seed in range(60):
        draw = RandomDraw(seed)
        scene = Scene(draw, Settings(focus=focus), seed=seed)
        draw_layout(draw, scene)
        assert scene.values
        program = scene.to_program(Ref(next(iter(scene.values))))
        assert len(program.inputs or program.arguments) == len(scene.specs)


@pytest.mark.parametrize("pair", layouts._PAIRS, ids="-".join)
def test_derived_arguments_share_memory(pair: tuple[str, ...]) -> None:
    scene = Scene(RandomDraw(0), Settings(), seed=0)
    root = scene.add_input({"$": "tensor", "shape": [4, 4], "dtype": "float32", "requires_grad": True})
    statements = [OpCall(target="operator.mul", args=(Ref(root), 2), results=("t0",))]
    names = [f"a{at}" for at in range(len(pair))]
    for kind, name in zip(pair, names, strict=True):
        statements += layouts._view_statements(kind, "t0", name, (4, 4))
    assert scene.derive_arguments(statements, names)
    assert len({scene.values[name].untyped_storage().data_ptr() for name in names}) == 1


# --------------------------------------------------------------------------------------------------------------- indices


@pytest.mark.parametrize("size", [0, 1, 2, 5, 17])
def test_slices_are_valid(size: int) -> None:
    x = torch.zeros(size)
    draw = RandomDraw(size)
    for _ in range(100):
        found = eval(f"x[{draw_slice(draw, size)}]", {"x": x})
        assert found.numel() or size < 2


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 1, 5), (0, 3)], ids=str)
def test_basic_indices_are_valid(shape: tuple[int, ...]) -> None:
    draw = RandomDraw(1)
    for _ in range(100):
        index = draw_basic_index(draw, shape)
        assert isinstance(index, Expr)
        eval(f"x[{index.text}]", {"x": torch.zeros(shape)})


def test_a_scalar_tensor_has_no_index() -> None:
    assert draw_basic_index(RandomDraw(0), ()) is None
    scene = scene_of(0)
    assert draw_advanced_index(scene.draw, scene, torch.zeros(())) is None


# --------------------------------------------------------------------------------------------------------------- results


def test_results_name_what_is_live() -> None:
    for seed in range(80):
        scene = scene_of(seed)
        program = scene.to_program(draw_result(scene.draw, scene))
        names = set(re.findall(r"\b[av]\d+\b", render(program).rsplit("return", 1)[1]))
        assert names <= {*scene.values, *scene.scalars}
