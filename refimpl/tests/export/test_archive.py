"""A program that is saved and loaded is the same program: graph, signature, state, ranges, results."""

from __future__ import annotations

import collections
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from refimpl._torch import pytree
from refimpl.export import Dim, ExportedProgram, export, load, register_dataclass, save
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.errors import InputMismatch
from refimpl.tests.export.modules import Containers, EverythingModule, Mutating, Normalised, Tied

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Pair:
    """A container of inputs and results."""

    left: torch.Tensor
    right: torch.Tensor | None = None


register_dataclass(Pair)
Point = collections.namedtuple("Point", "x y")
pytree._register_namedtuple(Point, serialized_type_name="test_export_archive.Point")


class Views(nn.Module):
    """Two buffers over one memory, of strides that are not plain."""

    columns: torch.Tensor
    rest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("columns", whole.t())
        self.register_buffer("rest", whole[1:], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rest.add_(1)
        return x @ self.columns + self.rest.sum()


class Dtypes(nn.Module):
    """State of dtypes that safetensors knows, and of some that it does not."""

    complex: torch.Tensor
    conjugate: torch.Tensor
    sixteen: torch.Tensor
    eight: torch.Tensor
    scalar: torch.Tensor
    empty: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("complex", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("conjugate", torch.randn(3, dtype=torch.complex64).conj())
        self.register_buffer("sixteen", torch.randn(3).bfloat16())
        self.register_buffer("eight", torch.randn(3).to(torch.float8_e4m3fn))
        self.register_buffer("scalar", torch.tensor(7))
        self.register_buffer("empty", torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (
            x * self.frozen
            + self.complex.real
            + self.conjugate.imag
            + self.sixteen.float()
            + self.eight.float()
            + self.scalar
        )
        return torch.cat([y, self.empty])


class ChannelsLast(nn.Sequential):
    """A convolution whose weight has strides of its own, and batch normalisation."""

    def __init__(self) -> None:
        convolution = nn.Conv2d(3, 4, 3)
        convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
        super().__init__(convolution, nn.BatchNorm2d(4), nn.ReLU())


class Branches(nn.Module):
    """Graphs inside of an operator, which read a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: self.linear(a), lambda a: a - 1, (x,))


class Modes(nn.Module):
    """Regions without gradients and with casts; dtypes, infinities and None among the arguments."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            y = x.masked_fill(x > 0, float("-inf")).to(torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ x.t()
        return y, z, x[:, None, ::2], torch.ones_like(x, memory_format=torch.contiguous_format)


class Sizes(nn.Module):
    """Sizes in arithmetic, of tensors and of results."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        half = x[: x.shape[0] // 2]
        return half * x.shape[0], x.reshape(-1), y[1:] + x, x.shape[0] * 2


class Nonzero(nn.Module):
    """Sizes that are known only at run time, and an assertion on one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        number: Any = x.sum().to(torch.int64).item()
        torch._check(number >= 2)
        return x.nonzero() * number, x.new_zeros(number)


class Structured(nn.Module):
    """Registered containers, in and out."""

    def forward(self, pair: Pair, point: Any, table: Any) -> Any:
        total = pair.left + point.x + point.y + table["a"][0]
        return collections.OrderedDict(pair=Pair(total, None), point=Point(total * 2, [total]), max=torch.max(total, 0))


class Added(nn.Module):
    """Inputs that share memory."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Scaled(nn.Module):
    """A number that varies, and one computed from it."""

    def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, float]:
        return x * n, x.shape[0] / n


class Inner(nn.Module):
    """A result in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, k: int = 1) -> dict[str, torch.Tensor]:
        return {"out": self.linear(x) * k}


class Outer(nn.Module):
    """A submodule whose signature is kept, and constants among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return self.inner(x, k=2)["out"] + n, "text", None, 2.5


def _halves() -> Arguments:
    whole = torch.randn(6)
    return (whole[:3], whole[3:]), {}


def _sizes_shapes() -> Any:
    size = Dim("size", min=3, max=20)
    return {"x": {0: size}, "y": {0: size + 1}}


def _structured() -> Arguments:
    table = collections.defaultdict(list, a=[torch.randn(3)])
    return (Pair(torch.randn(3)), Point(torch.randn(3), torch.randn(3)), table), {}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A module, its inputs, sizes that may vary, and further inputs it should take."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], Arguments]
    shapes: Callable[[], Any] = lambda: None
    others: tuple[Callable[[], Arguments], ...] = ()
    refused: tuple[Callable[[], Arguments], ...] = ()
    decomposes: bool = True
    preserved: tuple[str, ...] = ()


def _pair(first: int, second: int) -> Callable[[], Arguments]:
    return lambda: ((torch.randn(first, 2), torch.randn(second, 2)), {})


def _randn(*sizes: int) -> Callable[[], Arguments]:
    return lambda: ((torch.randn(*sizes),), {})


CASES = {
    "linear": Case(module=lambda: nn.Linear(3, 4), inputs=_randn(2, 3), refused=(_randn(3, 3),)),
    "batch_norm": Case(
        module=Normalised,
        inputs=_randn(4, 3),
        shapes=lambda: {"x": {0: Dim("batch", min=2)}},
        others=(_randn(2, 3), _randn(9, 3)),
        refused=(_randn(4, 5),),
    ),
    "convolution": Case(
        module=ChannelsLast,
        inputs=_randn(2, 3, 6, 6),
    ),
    "tied": Case(module=Tied, inputs=_randn(2, 3)),
    "mutating": Case(module=Mutating, inputs=_randn(3)),
    "everything": Case(module=EverythingModule, inputs=lambda: ((torch.randn(2, 3), 3), {"mask": torch.ones(4)})),
    "views": Case(module=Views, inputs=_randn(2, 4), decomposes=False),  # a write to one of two buffers over one memory
    "dtypes": Case(module=Dtypes, inputs=_randn(1, 3)),
    "containers": Case(
        module=Containers,
        inputs=lambda: (
            ((torch.randn(2), [torch.randn(2)]), torch.randn(2), torch.randn(2)),
            {"last": torch.randn(2), "deep": {"k": torch.randn(2)}},
        ),
    ),
    "structured": Case(module=Structured, inputs=_structured),
    "sizes": Case(
        module=Sizes,
        inputs=_pair(6, 7),
        shapes=_sizes_shapes,
        others=(_pair(4, 5), _pair(9, 10), _pair(20, 21)),
        refused=(_pair(21, 22), _pair(2, 3), _pair(6, 6), _pair(3, 4)),  # with 3 the half is 1, which a guard excludes
    ),
    "run_time_sizes": Case(module=Nonzero, inputs=lambda: ((torch.tensor([1.0, 0.0, 2.0]),), {})),
    "cond": Case(module=Branches, inputs=_randn(2, 3), others=(lambda: ((-torch.ones(2, 3),), {}),)),
    "aliased_inputs": Case(module=Added, inputs=_halves),
    "number": Case(
        module=Scaled,
        inputs=lambda: ((torch.randn(4), 5), {}),
        shapes=lambda: {"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC},
        others=(lambda: ((torch.randn(7), 3), {}),),
        refused=(lambda: ((torch.randn(7), "3"), {}),),
    ),
    "preserved": Case(module=Outer, inputs=lambda: ((torch.randn(2, 3), 7), {}), preserved=("inner",)),
    "modes": Case(module=Modes, inputs=_randn(4, 4)),
}
PROGRAMS = [
    pytest.param(case, is_decomposed, id=f"{name}-{'decomposed' if is_decomposed else 'training'}")
    for name, case in CASES.items()
    for is_decomposed in (False, True)
    if case.decomposes or not is_decomposed
]
CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def program_of(case: Case, *, is_decomposed: bool = False, strict: bool = False) -> ExportedProgram:
    torch.manual_seed(0)
    args, kwargs = case.inputs()
    program = export(case.module(), args, kwargs, dynamic_shapes=case.shapes(), strict=strict,
                     preserve_module_call_signature=case.preserved)  # fmt: skip
    return program.run_decompositions() if is_decomposed else program


def saved(program: ExportedProgram, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    save(program, buffer, **options)
    buffer.seek(0)
    return buffer


def assert_same_state(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        loaded = actual[name]
        assert type(loaded) is type(tensor), name
        assert (loaded.dtype, loaded.shape, loaded.stride(), loaded.storage_offset(), loaded.requires_grad) == (
            tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad
        ), name  # fmt: skip
        assert (loaded.is_conj(), loaded.is_neg()) == (tensor.is_conj(), tensor.is_neg()), name
        assert torch.equal(_bits(loaded), _bits(tensor)), name


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def aliases(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, bool, bool]]:
    """Of every two tensors whether they are one object, and whether they have one memory."""
    return [
        (a, b, x is y, x.untyped_storage()._cdata == y.untyped_storage()._cdata)
        for a, x in tensors.items()
        for b, y in tensors.items()
    ]


def assert_same_program(actual: ExportedProgram, expected: ExportedProgram) -> None:
    assert str(actual) == str(expected)
    assert str(actual.graph) == str(expected.graph)
    assert actual.graph_module.code == expected.graph_module.code
    assert actual.graph_signature == expected.graph_signature
    assert actual.range_constraints == expected.range_constraints
    assert actual.guards == expected.guards
    assert actual.module_call_graph == expected.module_call_graph
    assert actual.verifiers == expected.verifiers
    assert_same_state(actual.state_dict, expected.state_dict)
    assert_same_state(actual.constants, expected.constants)
    assert aliases({**actual.state_dict, **actual.constants}) == aliases({**expected.state_dict, **expected.constants})
    assert [_meta(node) for node in nodes(actual)] == [_meta(node) for node in nodes(expected)]


def nodes(program: ExportedProgram) -> list[torch.fx.Node]:
    return [
        node
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]


def _meta(node: torch.fx.Node) -> Any:
    described = pytree.tree_map(_value, node.meta.get("val"))
    kept = (
        "nn_module_stack",
        "stack_trace",
        "torch_fn",
        "original_aten",
        "seq_nr",
        "grad_mode",
        "device",
        "tensor_meta",
    )
    bindings = {str(symbol): str(path) for symbol, path in node.meta.get("unbacked_bindings", {}).items()}
    return node.name, described, bindings, {key: str(node.meta[key]) for key in kept if key in node.meta}


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = [str(n) for n in (*value.shape, *value.stride(), value.storage_offset())]
        return [str(value.dtype), sizes, value.requires_grad, str(value.device)]
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return [str(value), value.node.pytype.__name__, value.node.hint]
    return value


def results(program: ExportedProgram, arguments: Arguments) -> Any:
    args, kwargs = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, arguments)
    torch.manual_seed(1)
    return [program.module()(*args, **kwargs), args, kwargs]  # of the inputs too, which may have been written to


def assert_same_results(actual: Any, expected: Any) -> None:
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert actual_spec == expected_spec
    for actual_leaf, expected_leaf in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(expected_leaf, torch.Tensor):
            torch.testing.assert_close(actual_leaf, expected_leaf, rtol=0, atol=0)
        else:
            assert actual_leaf == expected_leaf


@pytest.mark.parametrize(("case", "is_decomposed"), PROGRAMS)
def test_a_loaded_program_is_the_saved_one_and_computes_the_same(case: Case, is_decomposed: bool) -> None:
    program = program_of(case, is_decomposed=is_decomposed)
    loaded = load(saved(program))
    assert_same_program(loaded, program)
    for make in (case.inputs, *case.others):
        arguments = make()
        assert_same_results(results(loaded, arguments), results(program, arguments))
        assert_same_state(loaded.state_dict, program.state_dict)  # updates happen, and the same ones
    for make in case.refused:
        args, kwargs = make()
        with pytest.raises(InputMismatch):
            loaded.module()(*args, **kwargs)


@CASE
def test_a_loaded_program_can_be_decomposed_and_saved_again(case: Case) -> None:
    program = program_of(case)
    first = saved(program).getvalue()
    loaded = load(io.BytesIO(first))
    assert saved(loaded).getvalue() == first
    if case.decomposes:
        expected, actual = program.run_decompositions(), loaded.run_decompositions()
        assert str(actual.graph) == str(expected.graph)
        assert actual.graph_signature == expected.graph_signature


@pytest.mark.parametrize("name", ["linear", "tied", "sizes", "cond", "everything"])
def test_programs_exported_strictly_come_back_as_well(name: str) -> None:
    program = program_of(CASES[name], strict=True)
    loaded = load(saved(program))
    assert_same_program(loaded, program)
    arguments = CASES[name].inputs()
    assert_same_results(results(loaded, arguments), results(program, arguments))


def test_one_parameter_under_two_names_stays_one() -> None:
    loaded = load(saved(program_of(CASES["tied"])))
    assert loaded.state_dict["first.weight"] is loaded.state_dict["second.weight"]
    module = loaded.module()
    assert module.get_parameter("first.weight") is module.get_parameter("second.weight")


def test_a_write_to_one_view_is_seen_in_the_other() -> None:
    loaded = load(saved(program_of(CASES["views"])))
    before = loaded.state_dict["columns"].clone()
    loaded.module()(torch.randn(2, 4))
    after = loaded.state_dict["columns"]
    assert torch.equal(after[:, 0], before[:, 0])
    assert torch.equal(after[:, 1:], before[:, 1:] + 1)


def test_a_loaded_program_shares_nothing_with_the_saved_one() -> None:
    program = program_of(CASES["linear"])
    loaded = load(saved(program))
    with torch.no_grad():
        program.state_dict["weight"].zero_()
    assert loaded.state_dict["weight"].abs().sum() > 0


def test_loaded_parameters_are_trained() -> None:
    loaded = load(saved(program_of(CASES["batch_norm"])))
    module = loaded.module()
    module(torch.randn(4, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_symbols_have_ranges_and_hints_and_new_ones_get_other_names() -> None:
    loaded = load(saved(program_of(CASES["sizes"])))
    (node,) = (node for node in loaded.graph.find_nodes(op="placeholder") if node.name == "x")
    size = node.meta["val"].shape[0]
    assert (size.node.hint, str(loaded.range_constraints[size.node.expr])) == (6, "Range(lower=3, upper=20)")
    env = size.node.shape_env
    assert str(env.create_symbol(5, "other")) != str(size)


def test_example_inputs_come_back() -> None:
    program = program_of(CASES["structured"])
    loaded = load(saved(program))
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
    loaded = load(saved(program_of(CASES["aliased_inputs"])))
    assert loaded.example_inputs is not None
    first, second = loaded.example_inputs[0]
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    assert second.storage_offset() == 3


def test_a_program_without_example_inputs_is_saved() -> None:
    program = program_of(CASES["linear"])
    program.example_inputs = None
    assert load(saved(program)).example_inputs is None


def test_extra_files_come_back_as_text_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "program.zip"
    save(program_of(CASES["linear"]), path, extra_files={"notes.txt": "größe", "raw": b"\xff\x00"})
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
    save(program_of(CASES["linear"]), path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", _fails)
    with pytest.raises(OSError, match="disk full"):
        save(program_of(CASES["tied"]), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["program.zip"]


def _fails(handle: int) -> None:
    raise OSError("disk full")


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    path, link = tmp_path / "program.zip", tmp_path / "link.zip"
    path.write_bytes(b"old")
    link.symlink_to(path)
    save(program_of(CASES["linear"]), link)
    assert link.is_symlink()
    assert load(path).dialect == "TRAINING"
    save(program_of(CASES["linear"]), "/dev/null")
    assert Path("/dev/null").is_char_device()
