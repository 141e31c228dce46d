"""What cannot be saved, and files that are no archive: each is refused with what was seen, expected and what to do."""

from __future__ import annotations

import collections
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.export import Dim, ExportedProgram, export, load, save
from refimpl.export.archive import files
from refimpl.export.archive.errors import ArchiveError


class Small(nn.Module):
    """A parameter, a buffer, a branch and a size that may vary."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (self.linear(x),))
        return (y.reshape(x.shape[0] * 3) * 0.5).to(torch.float64)


@pytest.fixture(scope="module")
def content() -> bytes:
    """The content of a good archive."""
    program = export(Small(), (torch.randn(4, 3),), dynamic_shapes={"x": {0: Dim("n", min=2, max=9)}})
    buffer = io.BytesIO()
    save(program, buffer)
    return buffer.getvalue()


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(contents: dict[str, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    buffer.seek(0)
    return buffer


def changed(content: bytes, change: Callable[[Any], object], member: str = "program.json") -> io.BytesIO:
    found = members(content)
    record = json.loads(found[member])
    change(record)
    return zipfile_with(found, member, json.dumps(record).encode())


def zipfile_with(found: dict[str, bytes], member: str, new: bytes) -> io.BytesIO:
    return zipped({**found, member: new})


def refusal(file: Any) -> str:
    """The message of the error; it says what to do."""
    with pytest.raises(ArchiveError) as raised:
        load(file)
    message = str(raised.value)
    assert "expected:" in message
    assert "what to do:" in message
    return message


# -------------------------------------------------------------------------------------------------------------- files


def test_the_archive_that_the_others_are_made_of_is_good(content: bytes) -> None:
    assert load(zipped(members(content))).module()(torch.ones(2, 3)).shape == (6,)


def test_every_truncation_is_refused(content: bytes) -> None:
    for length in (10, 40, len(content) // 4, len(content) // 2, len(content) - 30, len(content) - 1):
        assert "damaged or truncated" in refusal(io.BytesIO(content[:length]))


def test_an_empty_file_and_text_are_no_zip(tmp_path: Path) -> None:
    assert "is no zip; it begins with b''" in refusal(io.BytesIO())
    path = tmp_path / "model.py"
    path.write_text("import torch")
    assert f"{path} is no zip" in refusal(path)


def test_a_flipped_byte_is_seen_in_every_member(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        places = [(info.filename, info.header_offset + 30 + len(info.filename) + 5) for info in archive.infolist()]
    assert len(places) == 3
    for _, place in places:
        damaged = bytearray(content)
        damaged[place] ^= 0x20
        refusal(io.BytesIO(bytes(damaged)))


def test_a_file_that_is_not_there_is_python_s_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.zip")


def test_archives_of_torch_are_named(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "program.pt2")
    assert "archive of torch.export (.pt2)" in refusal(tmp_path / "program.pt2")
    torch.save({"a": torch.ones(2)}, tmp_path / "state.pt")
    assert "file of torch.save" in refusal(tmp_path / "state.pt")


def test_pickles_and_other_zips_are_not_looked_into(tmp_path: Path) -> None:
    assert "pickled programs are not loaded" in refusal(io.BytesIO(pickle.dumps({"a": 1})))
    assert "a zip of ['notes.txt']" in refusal(zipped({"notes.txt": b""}))


def test_a_newer_version_is_refused_by_its_number(content: bytes) -> None:
    newer = changed(content, lambda marker: marker.update(version=files.VERSION + 1), "archive.json")
    message = refusal(newer)
    assert f"an archive of version {files.VERSION + 1}" in message
    assert "or a later one" in message


@pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.5])
def test_a_version_that_is_none_is_refused(content: bytes, version: Any) -> None:
    refusal(changed(content, lambda marker: marker.update(version=version), "archive.json"))


def test_another_format_is_refused(content: bytes) -> None:
    assert "of another format" in refusal(changed(content, lambda m: m.update(format="other"), "archive.json"))


@pytest.mark.parametrize("member", ["program.json", "tensors.safetensors"])
def test_a_missing_member_is_named(content: bytes, member: str) -> None:
    found = members(content)
    del found[member]
    assert member in refusal(zipped(found))


def test_members_that_are_something_else_are_refused(content: bytes) -> None:
    found = members(content)
    assert "no JSON" in refusal(zipfile_with(found, "program.json", b"{"))
    assert "no JSON" in refusal(zipfile_with(found, "program.json", b"[" * 100_000))
    refusal(zipfile_with(found, "program.json", b"[]"))
    assert "safetensors cannot read" in refusal(zipfile_with(found, "tensors.safetensors", b"\x00" * 8))


def test_an_extra_file_that_was_not_saved_is_refused(content: bytes) -> None:
    with pytest.raises(ArchiveError, match="no extra file 'notes'"):
        load(io.BytesIO(content), extra_files={"notes": ""})


@pytest.mark.parametrize("file", [None, 3, b"content"])
def test_load_raises_a_type_error_for_an_object_that_is_no_file(file: Any) -> None:
    with pytest.raises(TypeError, match="for a file"):
        load(file)


# ------------------------------------------------------------------------------------------------------------ contents


def _nodes(record: Any) -> Any:
    return record["module"]["nodes"]


def _node(record: Any, op: str) -> Any:
    return next(node for node in _nodes(record) if node["op"] == op)


def _call(record: Any) -> Any:
    return _node(record, "call_function")


def _contradict(symbols: dict[str, Any]) -> None:
    symbols["guards"].append(f"GreaterThan({symbols['symbols'][0]['name']}, 100)")


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "function": (lambda r: r["operators"].update({"os.system": None}), "the program calls 'os.system'"),
    "undeclared": (lambda r: _call(r).update(target="torch.ops.aten.sin.default"), "an operator of the archive's list"),
    "loader": (lambda r: r["operators"].update({"torch.ops.load_library.x": None}), "is not registered"),
    "unknown": (lambda r: r["operators"].update({"torch.ops.aten.nothing.default": ""}), "is not registered"),
    "code_in_a_name": (lambda r: _call(r).update(name="a = __import__('os')"), "expected: a Python identifier"),
    "keyword": (lambda r: _call(r).update(name="class"), "expected: a Python identifier"),
    "code_in_an_input": (lambda r: _node(r, "placeholder").update(target="x=print()"), "expected: a Python identifier"),
    "code_in_a_keyword": (lambda r: _call(r).update(kwargs={"a)(b": 1}), "expected: a Python identifier"),
    "code_in_an_attribute": (lambda r: _node(r, "get_attr").update(target='a"b'), "expected: a Python identifier"),
    "missing_attribute": (lambda r: _node(r, "get_attr").update(target="other"), "reads 'other'"),
    "call_method": (lambda r: _call(r).update(op="call_method", target="item"), ".op is 'call_method'"),
    "later_node": (lambda r: _nodes(r).insert(0, _nodes(r).pop(-2)), "an earlier node"),
    "same_name": (lambda r: _nodes(r)[1].update(name=_nodes(r)[0]["name"]), "unique names"),
    "no_output": (lambda r: _nodes(r).pop(), "has no output"),
    "argument": (lambda r: _call(r).update(args=[{"pickle": "gASV"}]), "expected: a value"),
    "dtype": (lambda r: _call(r).update(args=[{"dtype": "float31"}]), "the dtype 'float31'"),
    "device": (lambda r: _call(r).update(args=[{"device": "nowhere"}]), "the device 'nowhere'"),
    "expression": (lambda r: r["guards"].append("__import__(n)"), "which the grammar lacks"),
    "undeclared_symbol": (lambda r: r["guards"].append("Equality(zz, 1)"), "the symbol 'zz'"),
    "empty_range": (lambda r: r["symbols"]["symbols"][0].update(range=[9, 2]), "symbols[0].range"),
    "no_range": (lambda r: r["symbols"]["symbols"][0].update(range=["x", 2]), "two numbers"),
    "symbol_name": (lambda r: r["symbols"]["symbols"][0].update(name="a b"), "expected: a Python identifier"),
    "contradiction": (lambda r: _contradict(r["symbols"]), "excludes each other"),
    "state_name": (lambda r: r["state_dict"][0].__setitem__(0, 'a"),b'), "a name without quotes"),
    "state_number": (lambda r: r["state_dict"][0].__setitem__(1, 99), "the tensor number 99"),
    "negative_number": (lambda r: r["state_dict"][0].__setitem__(1, -1), "the tensor number -1"),
    "strides": (lambda r: r["tensors"]["tensors"][0].update(shape=[1000]), "a size and a stride per dimension"),
    "overlong": (lambda r: r["tensors"]["tensors"][0].update(shape=[100, 100], stride=[3, 1]), "a view of"),
    "offset": (lambda r: r["tensors"]["tensors"][0].update(offset=-1), "offset -1"),
    "storage": (lambda r: r["tensors"]["tensors"][0].update(storage=7), "in storage 7"),
    "storages": (lambda r: r["tensors"]["storages"].pop(), "numbered from 0"),
    "tensor_kind": (lambda r: r["tensors"]["tensors"][0].update(kind="pickled"), "tensor, parameter or buffer"),
    "container": (lambda r: r["module_call_graph"][0]["signature"]["in_spec"].update(type="os.path"), "the container 'os.path'"),
    "keywords": (
        lambda r: r["module_call_graph"][0]["signature"]["in_spec"]["children"].pop(),
        "expected: (args, kwargs)",
    ),
    "no_call_graph": (lambda r: r["module_call_graph"].clear(), "without the root"),
    "input_kind": (lambda r: r["signature"]["inputs"][0].update(kind="SECRET"), "of kind 'SECRET'"),
    "output_kind": (lambda r: r["signature"]["outputs"][0].update(kind="SECRET"), "of kind 'SECRET'"),
    "fewer_inputs": (lambda r: r["signature"]["inputs"].pop(), "inputs of the user"),
    "other_input": (lambda r: r["signature"]["inputs"][0]["arg"].update(name="q"), "inputs of the graph are"),
    "dialect": (lambda r: r.update(dialects=["OTHER"]), "the dialect 'OTHER'"),
    "field": (lambda r: r.pop("signature"), "a field 'signature'"),
    "field_type": (lambda r: r.update(fakes={}), "of type list"),
    "fake_number": (lambda r: _node(r, "placeholder")["meta"].update(val={"fake": 1000}), "the fake tensor number 1000"),
    "schema": (
        lambda r: r["operators"].update({"torch.ops.aten.linear.default": "aten::linear() -> ()"}),
        "saved with the operator aten::linear() -> ()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_contents_are_refused_and_nothing_of_them_runs(content: bytes, name: str) -> None:
    change, said = CHANGES[name]
    assert said in refusal(changed(content, change))


def test_no_single_missing_or_wrong_value_raises_another_error(content: bytes) -> None:
    found = members(content)
    record = json.loads(found["program.json"])
    refused = 0
    for number, (owner, key) in enumerate(_places(record)):
        before = owner[key]
        owner[key] = ("x y", -7, None, [], {"a": 1}, 1e300)[number % 6]
        try:
            load(zipfile_with(found, "program.json", json.dumps(record).encode()))
        except ArchiveError:
            refused += 1
        owner[key] = before
    assert refused > 20


def _places(record: Any) -> list[tuple[Any, Any]]:
    """Some of all containers with a key or index: every seventh."""
    places: list[tuple[Any, Any]] = []

    def visit(owner: Any) -> None:
        for key in list(owner) if isinstance(owner, dict) else range(len(owner)):
            places.append((owner, key))
            if isinstance(owner[key], (dict, list)):
                visit(owner[key])

    visit(record)
    return places[:: max(1, len(places) // 120)]


# -------------------------------------------------------------------------------------------------------------- saving


def _program(module: nn.Module) -> ExportedProgram:
    return export(module, (torch.randn(2, 3),))


def unsaved(program: Any, **options: Any) -> str:
    buffer = io.BytesIO()
    with pytest.raises(ArchiveError) as raised:
        save(program, buffer, **options)
    assert buffer.getvalue() == b""
    assert "what to do:" in str(raised.value)
    return str(raised.value)


def test_constants_that_are_no_tensors_are_refused_by_name() -> None:
    program = _program(nn.Linear(3, 3))
    program.constants["table"] = torch.jit.script(Scripted())._c.getattr("held")
    assert "the constant 'table'" in unsaved(program)


@torch.jit.script
class Held:
    """A script object."""

    def __init__(self) -> None:
        self.number = 3


class Scripted(nn.Module):
    """Has a script object."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Held()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.held.number


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # that they will be removed
@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (lambda: torch.ones(3).to_sparse(), "layout torch.sparse_coo"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.ones(3, device="meta"), "a meta tensor"),
        (lambda: torch.ones(3).as_subclass(Subclass), "Subclass"),
    ],
)
def test_tensors_that_are_not_dense_or_have_no_data_are_refused(tensor: Callable[[], Any], said: str) -> None:
    program = _program(nn.Linear(3, 3))
    program.constants["odd"] = tensor()
    message = unsaved(program)
    assert "constants['odd']" in message
    assert said in message


class Subclass(torch.Tensor):
    """A tensor of another class."""


class Plain(collections.namedtuple("Plain", "a b")):
    """A class that is not registered."""


def test_a_container_without_a_registered_name_is_refused() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Plain(x + 1, x)

    assert "which has no unique registered name" in unsaved(_program(Pairs()))


def test_save_raises_a_type_error_for_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="save got a Linear"):
        save(nn.Linear(2, 2), io.BytesIO())  # pyright: ignore[reportArgumentType]
    program = _program(nn.Linear(3, 3))
    with pytest.raises(TypeError, match="for a file"):
        save(program, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="extra_files has 'a'"):
        save(program, io.BytesIO(), extra_files={"a": 1})  # pyright: ignore[reportArgumentType]
