"""A program that is saved and loaded is the same program: graph, signature, state, ranges, results."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from refimpl._torch import pytree
from refimpl.export import ExportedProgram, export, load, save
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.archive.sources import to_sources
from refimpl.tests.export.corpus import CASES, Pair, Point, program_of
from refimpl.tests.export.forms import archived, saved
from refimpl.upstream.serialized import deserialize, serialize


def test_one_parameter_under_two_names_stays_one() -> None:
    loaded = archived(program_of(CASES["tied"])[1])
    assert loaded.state_dict["first.weight"] is loaded.state_dict["second.weight"]
    module = loaded.module()
    assert module.get_parameter("first.weight") is module.get_parameter("second.weight")


def test_a_write_to_one_view_is_seen_in_the_other() -> None:
    loaded = archived(program_of(CASES["views"])[1])
    before = loaded.state_dict["columns"].clone()
    loaded.module()(torch.randn(2, 4))
    after = loaded.state_dict["columns"]
    assert torch.equal(after[:, 0], before[:, 0])
    assert torch.equal(after[:, 1:], before[:, 1:] + 1)


def test_a_loaded_program_shares_nothing_with_the_saved_one() -> None:
    program = program_of(CASES["linear"])[1]
    loaded = archived(program)
    with torch.no_grad():
        program.state_dict["weight"].zero_()
    assert loaded.state_dict["weight"].abs().sum() > 0


def test_loaded_parameters_are_trained() -> None:
    loaded = archived(program_of(CASES["batch_norm"])[1])
    module = loaded.module()
    module(torch.randn(4, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_symbols_have_ranges_and_hints_and_new_ones_get_other_names() -> None:
    loaded = archived(program_of(CASES["size_arithmetic"])[1])
    (node,) = (node for node in loaded.graph.find_nodes(op="placeholder") if node.name == "x")
    size = node.meta["val"].shape[0]
    assert (size.node.hint, str(loaded.range_constraints[size.node.expr])) == (6, "VR[3, 20]")
    env = size.node.shape_env
    assert str(env.create_symbol(5, "other")) != str(size)


@pytest.mark.parametrize(
    "copied", [archived, lambda program: deserialize(serialize(program)), ExportedProgram.run_decompositions]
)
def test_what_a_user_notes_in_custom_is_kept(copied: Callable[[ExportedProgram], ExportedProgram]) -> None:
    program = export(nn.Linear(3, 2), (torch.ones(4, 3),))
    program.graph_module.meta["custom"] = {"owner": "me", "bits": 8}
    for node in program.graph.nodes:
        node.meta["custom"] = {"tag": "kept"}
    made = copied(program)
    assert made.graph_module.meta["custom"] == {"owner": "me", "bits": 8}
    assert [node.name for node in made.graph.nodes if node.meta.get("custom") != {"tag": "kept"}] == []


def test_nodes_keep_what_they_were_made_of() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.layer_norm(self.linear(x), (3,)).sin() + math.pi
            return torch.cond(y.sum() > 0, lambda y: torch.ops.aten.cos(y), lambda y: y[0:1] * 2, (y,))

    program = export(Layers(), (torch.ones(1, 3),), strict=True)
    loaded = archived(program)
    for module, other in zip(program.graph_module.modules(), loaded.graph_module.modules(), strict=True):
        if isinstance(module, torch.fx.GraphModule):
            for node, copy in zip(module.graph.nodes, other.graph.nodes, strict=True):  # type: ignore[union-attr]
                assert copy.meta.get("source_fn_stack") == node.meta.get("source_fn_stack")
    kinds = {type(entry[1]) for node in loaded.graph.nodes for entry in node.meta.get("source_fn_stack", ())}
    assert len(kinds) >= 3


@pytest.mark.parametrize(
    "record",
    [
        "torch.sin", [["x", {"in": "os", "function": "system"}]], [["x", {"in": "torch", "function": "no_such"}]],
        [["x", {"packet": "load_library"}]], [["x", {"packet": "aten.__class__"}]], [["x", {"operator": "os.system"}]], [["x"]],
    ],
)  # fmt: skip
def test_sources_of_a_file_are_looked_up_and_never_imported(record: Any) -> None:
    with pytest.raises(ArchiveError):
        to_sources(record, "a node")


def test_example_inputs_come_back() -> None:
    program = program_of(CASES["structured"])[1]
    loaded = archived(program)
    assert loaded.example_inputs is not None
    (pair, point, table), kwargs = loaded.example_inputs
    assert (type(pair), type(point), type(table), table.default_factory, kwargs) == (
        Pair,
        Point,
        collections.defaultdict,
        list,
        {},
    )
    torch.testing.assert_close(pytree.tree_leaves(loaded.example_inputs), pytree.tree_leaves(program.example_inputs))


def test_example_inputs_that_share_memory_still_do() -> None:
    loaded = archived(program_of(CASES["aliased_inputs"])[1])
    assert loaded.example_inputs is not None
    first, second = loaded.example_inputs[0]
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    assert second.storage_offset() == 3


def test_a_program_without_example_inputs_is_saved() -> None:
    program = program_of(CASES["linear"])[1]
    program.example_inputs = None
    assert archived(program).example_inputs is None


def test_extra_files_come_back_as_text_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "program.zip"
    save(program_of(CASES["linear"])[1], path, extra_files={"notes.txt": "größe", "raw": b"\xff\x00"})
    extra: dict[str, Any] = {"notes.txt": "", "raw": ""}
    load(path, extra_files=extra)
    assert extra == {"notes.txt": "größe", "raw": b"\xff\x00"}


def test_an_operator_of_the_process_is_found_again_and_missed_where_it_is_not() -> None:
    def define(schema: str) -> None:
        library.define(schema)
        library.impl("twice", lambda x, *rest: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", lambda x, *rest: torch.empty_like(x), "Meta")

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.archive_test.twice(x)

    with torch.library._scoped_library("archive_test", "FRAGMENT") as library:
        define("twice(Tensor x) -> Tensor")
        content = saved(export(Twice(), (torch.ones(2),)))
        assert load(content).module()(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(ArchiveError, match=r"torch\.ops\.archive_test\.twice\.default, which is not registered"):
        load(content)
    with torch.library._scoped_library("archive_test", "FRAGMENT") as library:
        define("twice(Tensor x, int n=2) -> Tensor")
        with pytest.raises(ArchiveError, match=r"saved with the operator archive_test::twice\(Tensor x\) -> Tensor"):
            load(content)


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.zip"
    save(program_of(CASES["linear"])[1], path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", _fails)
    with pytest.raises(OSError, match="disk full"):
        save(program_of(CASES["tied"])[1], path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["program.zip"]


def _fails(handle: int) -> None:
    raise OSError("disk full")


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    path, link = tmp_path / "program.zip", tmp_path / "link.zip"
    path.write_bytes(b"old")
    link.symlink_to(path)
    save(program_of(CASES["linear"])[1], link)
    assert link.is_symlink()
    assert load(path).dialect == "TRAINING"
    save(program_of(CASES["linear"])[1], "/dev/null")
    assert Path("/dev/null").is_char_device()
