"""TorchScript programs, traced or scripted, converted to exported programs."""

from __future__ import annotations

import copy
import io
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.capture.public.errors import UserError
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, ExportedProgram, InputKind
from refimpl.export.errors import InputMismatch
from refimpl.export.torchscript.converter import TS2EPConverter, convert_script, patch_forward, process_inputs
from refimpl.export.torchscript.interpreter import ScriptRaised
from refimpl.export.torchscript.operators import on_anything, on_numbers, on_tensor
from refimpl.export.torchscript.values import DTYPES, LAYOUTS


class Everything(nn.Module):
    """State of all kinds, containers, loops, branches on numbers and on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.steps = nn.Buffer(torch.zeros(()))  # scripts do not read annotations of a class that are text
        self.scale = 3
        self.shift = torch.ones(3)

    def forward(self, x: torch.Tensor, doubled: bool = True, sizes: list[int] | None = None) -> Any:
        y = self.first(x)
        for layer in self.layers:
            y = layer(y).relu()
        if doubled:
            y = y * 2
        if bool(x.sum() > 0):
            y = y + 1
        else:
            y = y - self.shift
        for i in range(self.scale):
            y = y + i
        found: dict[str, torch.Tensor] = {}
        self.steps += 1
        found["y"] = y.view(x.shape[0], -1)
        parts = [y.sum(), y.mean()]
        if sizes is not None:
            parts.append(torch.ones(sizes).sum())
        return found, torch.stack(parts), x.size(0) * 2, y.dtype == x.dtype


@pytest.mark.parametrize("decomposed", [False, True], ids=["exported", "decomposed"])
def test_a_script_computes_what_its_module_does(decomposed: bool) -> None:
    module = Everything()
    script = torch.jit.script(copy.deepcopy(module))
    program = TS2EPConverter(script, (torch.ones(2, 3), True, [4])).convert()
    program = program.run_decompositions() if decomposed else program
    runnable = program.module()
    for sign in (1, -1):
        x = sign * torch.rand(2, 3)
        found, parts, size, is_same = runnable(x, True, [4])
        expected, expected_parts, expected_size, _ = module(x, True, [4])
        torch.testing.assert_close(found["y"], expected["y"])
        torch.testing.assert_close(parts, expected_parts)
        assert (size, is_same) == (expected_size, True)
    assert runnable.get_buffer("steps").item() == 2
    assert runnable.get_buffer("steps") is not module.steps


def test_state_has_the_names_of_the_script_and_is_its_own() -> None:
    script = torch.jit.script(Everything())
    program = TS2EPConverter(script, (torch.ones(2, 3),)).convert()
    kinds = {spec.target: spec.kind for spec in program.graph_signature.input_specs if spec.target}
    assert kinds["first.weight"] is kinds["layers.1.bias"] is InputKind.PARAMETER
    assert kinds["steps"] is InputKind.BUFFER
    assert kinds["shift"] is InputKind.CONSTANT_TENSOR
    assert program.state_dict.keys() == script.state_dict().keys()
    assert program.state_dict["first.weight"].data_ptr() == script.first.weight.data_ptr()
    assert [spec.arg.name for spec in program.graph_signature.input_specs][-1:] == ["x"]


def test_arguments_may_go_by_name_and_have_defaults() -> None:
    module = Everything()
    script = torch.jit.script(copy.deepcopy(module))
    x = torch.rand(2, 3)
    program = TS2EPConverter(script, (x,), {"sizes": [2, 2]}).convert()
    torch.testing.assert_close(program.module()(x, sizes=[2, 2])[1], module(x, sizes=[2, 2])[1])


def views(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0] * 3)[: x.shape[0] // 2 + 1] * 2 + x.shape[1] / 2


def full(x: torch.Tensor) -> torch.Tensor:
    return torch.full((2, 2), 7.0) + x.numel() + torch.arange(x.shape[0]).sum() + torch.tensor([3])


def several(x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    first, second = x.split(1, dim=1)[:2]
    return first, (second.to(torch.float64), x.clamp(min=0.5).flatten())


@pytest.mark.parametrize("function", [views, full, several], ids=lambda f: f.__name__)
def test_a_traced_function_holds_for_the_sizes_it_is_exported_for(function: Callable[..., Any]) -> None:
    script = torch.jit.trace(function, torch.rand(4, 3))
    program = TS2EPConverter(script, (torch.rand(4, 3),)).convert(dynamic_shapes=({0: Dim("n", min=2)},))
    for rows in (4, 7):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(program.module()(x), function(x))


def test_by_default_sizes_vary_as_far_as_the_script_allows() -> None:
    class Adding(nn.Module):
        def forward(self, x: torch.Tensor, y: list[torch.Tensor]) -> torch.Tensor:
            return x.view(-1, 3) + y[0].sum()

    module = TS2EPConverter(torch.jit.script(Adding()), (torch.rand(2, 6), [torch.rand(4)])).convert().module()
    for x, y in ((torch.rand(5, 6), torch.rand(7)), (torch.rand(3, 12), torch.rand(4))):
        torch.testing.assert_close(module(x, [y]), Adding()(x, [y]))
    with pytest.raises(InputMismatch):
        module(torch.rand(2, 5), [torch.rand(4)])


def test_a_traced_module_is_exported_with_its_modules_state() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()
    x = torch.randn(2, 3, 8, 8)
    program = TS2EPConverter(torch.jit.trace(module, x), (x,)).convert()
    torch.testing.assert_close(program.module()(x), module(x))
    assert program.state_dict.keys() == module.state_dict().keys()
    assert torch.ops.aten.convolution.default in [node.target for node in program.graph.nodes]


def test_a_script_that_was_saved_is_exported() -> None:
    file = io.BytesIO()
    module = Everything()
    torch.jit.save(torch.jit.script(module), file)
    script = torch.jit.load(io.BytesIO(file.getvalue()))
    x = torch.rand(2, 3)
    program = TS2EPConverter(script, (x,)).convert()
    torch.testing.assert_close(program.module()(x)[0]["y"], module(x)[0]["y"])


class Methods(nn.Module):
    """A second method, which is exported for scripts, and one that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            raise ValueError("too many rows")
        assert bool((x > 0).all()), "negative"
        return self.linear(x)

    @torch.jit.export
    def tripled(self, x: torch.Tensor, times: int = 3) -> torch.Tensor:
        return self.linear(x) * times


def test_a_method_of_a_script_is_exported() -> None:
    module = Methods()
    script = torch.jit.script(module)
    x = torch.rand(2, 2)
    program = TS2EPConverter(script.tripled, (x,), {"times": 4}).convert()
    torch.testing.assert_close(program.module()(x, times=4), module.tripled(x, 4))
    assert program.state_dict.keys() == module.state_dict().keys()


def test_what_a_script_asserts_is_asserted_and_what_it_raises_is_said() -> None:
    script = torch.jit.script(Methods())
    program = TS2EPConverter(script, (torch.rand(2, 2),)).convert()
    program.module()(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="Assertion of the script failed"):
        program.module()(-torch.ones(2, 2))
    with pytest.raises(ScriptRaised, match="too many rows"):
        TS2EPConverter(script, (torch.rand(4, 2),)).convert()


def test_what_cannot_be_converted_is_told_without_running() -> None:
    class Contexts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autograd.profiler.record_function("name"):
                y = x + 1
            with torch.no_grad():
                return y * 2

    good = TS2EPConverter(torch.jit.script(Everything()), (torch.ones(2, 3),))
    assert good.explain(print_output=False).startswith("Success")
    converter = TS2EPConverter(torch.jit.script(Contexts()), (torch.ones(2),))
    problems = converter.explain(print_output=False)
    assert "prim::Enter" in problems
    assert "test_torchscript.py" in problems
    with pytest.raises(UnsupportedByRefimpl, match="in a script"):
        converter.convert()


def test_an_attribute_that_is_no_buffer_keeps_no_value() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x + self.count

    converter = TS2EPConverter(torch.jit.script(Counting()), (torch.zeros(2),))
    with pytest.warns(UserWarning, match="count, which is no buffer"):
        module = converter.convert().module()
    assert [module(torch.zeros(2)).tolist() for _ in range(2)] == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("made", [nn.Linear(2, 2), torch.sin, 3], ids=["module", "function", "number"])
def test_what_is_no_script_is_refused(made: Any) -> None:
    with pytest.raises(UserError, match="is no script"):
        TS2EPConverter(made, (torch.ones(2),))


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (1, None, ((1,), {})),
        ([1, 2], None, ((1, 2), {})),
        ((1, 2), {"a": 3}, ((1, 2), {"a": 3})),
        ({"a": 1}, None, (({"a": 1},), {})),
        ("ab", {}, (("ab",), {})),
    ],
)
def test_example_inputs_are_those_of_a_trace(args: Any, kwargs: Any, expected: Any) -> None:
    assert process_inputs(args, kwargs) == expected


def test_a_patched_forward_is_put_back() -> None:
    module = Methods()
    with patch_forward(module, module.tripled):
        assert module.forward.__name__ == "tripled"
    assert "forward" not in module.__dict__
    module.forward = module.tripled
    with pytest.raises(ZeroDivisionError), patch_forward(module, torch.sin):
        raise ZeroDivisionError
    assert module.__dict__["forward"].__name__ == "tripled"


def test_scripts_modules_methods_and_functions_become_exported_modules() -> None:
    module, x = Methods(), torch.rand(2, 2)
    script = torch.jit.script(module)
    for given, expected in (
        (script, module(x)),
        (script.tripled, module.tripled(x)),
        (module.tripled, module.tripled(x)),
        (nn.ReLU(), x.relu()),
        (several, several(x)),
    ):
        torch.testing.assert_close(convert_script(given, x)(x), expected)
    assert "forward" not in module.__dict__


def test_the_source_line_of_the_script_is_named() -> None:
    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = int(x.sum())
            y = torch.ones(3)
            for _ in range(n):
                y = y * 2
            return y

    with pytest.raises(UserError, match=r"test_torchscript\.py:[0-9]+ in forward: for _ in range"):
        TS2EPConverter(torch.jit.script(Reading()), (torch.ones(2),)).convert()


def program_of(script: Any, *args: Any) -> ExportedProgram:
    return TS2EPConverter(script, args).convert()


def test_strings_and_containers_are_computed_while_exporting() -> None:
    class Containers(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str, list[int]]:
            names: list[str] = []
            for i in range(3):
                names.append("n{}".format(i))  # noqa: UP032  (scripts know no other form)
            table = {"a": 1, "b": 2}
            total = 0
            for key in table:
                total += table[key]
            sizes = list(x.shape)
            sizes.insert(0, 9)
            del table["a"]
            if "b" in table and not ("a" in table) and len(names) == 3:  # noqa: E713  (as a script has it)
                total *= 10
            return x * total, "".join(names), sizes[::2]

    program = program_of(torch.jit.script(Containers()), torch.ones(2, 3))
    y, names, sizes = program.module()(torch.ones(2, 3))
    assert (y[0, 0].item(), names, sizes) == (30.0, "n0n1n2", [9, 3])
    assert program.module()(torch.ones(5, 3))[2] == [9, 3]
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert [target for target in called if target is not torch.ops.aten.sym_size.int] == [torch.ops.aten.mul.Scalar]


_NUMBERS: dict[str, list[Any]] = {"int": [7, -3, 2], "float": [2.5, 0.5], "bool": [True, False], "Scalar": [3, 1.5]}
_SAMPLES: dict[str, list[Any]] = {
    **_NUMBERS, "str": ["ab", "b"], "int[]": [[3, 1, 2]], "float[]": [[2.0, 0.5]], "bool[]": [[True, False]],
    "str[]": [["b", "a"]], "t[]": [[3, 1, 2], [1]], "int?": [1, None], "Dict(str, t)": [{"a": 1, "b": 2}], "t": [3],
}  # fmt: skip


def _calls_without_tensors() -> list[tuple[Any, list[Any]]]:
    """Schemas of TorchScript that change nothing and take numbers, strings and containers, each with some arguments."""
    calls: list[tuple[Any, list[Any]]] = []
    for schema in torch._C._jit_get_all_schemas():
        types = [re.sub(r"\([a-z]\)", "", str(argument.type)) for argument in schema.arguments]
        is_pure = schema.name.startswith(("aten::", "prim::")) and "!" not in str(schema)
        if is_pure and all(kind in _SAMPLES for kind in types):
            calls += [(schema, list(args)) for args in itertools.product(*(_SAMPLES[kind] for kind in types))][:20]
    return calls


def test_operators_named_as_pythons_functions_compute_what_torchscript_does() -> None:
    compared: set[str] = set()
    for schema, args in _calls_without_tensors():
        function = on_anything(schema.name, args) or on_numbers(schema.name)
        packet = getattr(getattr(torch.ops, schema.name[:4]), schema.name[6:], None)
        if function is None or packet is None:
            continue
        try:
            expected = getattr(packet, schema.overload_name or "default")(*args)
            found = function(*args)
        except (LookupError, RuntimeError, TypeError, ValueError, ArithmeticError):
            continue  # one of the two refuses these arguments
        expected = expected.item() if isinstance(expected, torch.Tensor) else expected  # of sizes as traces have them
        is_float = isinstance(expected, float)
        assert found == (pytest.approx(expected, rel=1e-6, nan_ok=True) if is_float else expected), (str(schema), args)
        compared.add(schema.name)
    assert len(compared) > 35, sorted(compared)


def _called(function: Callable[..., Any] | None, *values: Any) -> Any:
    assert function is not None
    return function(*values)


def test_the_numbers_of_dtypes_and_layouts_are_torchscripts() -> None:
    number_of_dtype, number_of_layout = torch.ops.prim.dtype.default, torch.ops.prim.layout.default
    assert [number_of_dtype(torch.empty(0, dtype=kind, device="meta")) for kind in DTYPES] == list(range(len(DTYPES)))
    made = [torch.zeros(2, 2).to_sparse(layout=kind) if n else torch.zeros(2, 2) for n, kind in enumerate(LAYOUTS)]
    assert list(map(number_of_layout, made)) == list(range(len(LAYOUTS)))


def test_methods_of_tensors_and_containers_are_pythons() -> None:
    x = torch.rand(2, 3)
    assert _called(on_tensor("aten::size", "aten::size(Tensor self) -> int[]"), x) == [2, 3]
    assert _called(on_tensor("aten::size", "aten::size.int(Tensor self, int dim) -> int"), x, 1) == 3
    assert _called(on_tensor("aten::stride", "aten::stride(Tensor self) -> int[]"), x) == [3, 1]
    assert on_tensor("aten::sin", "aten::sin(Tensor self) -> Tensor") is None
    items = [(x, 1)]
    assert _called(on_anything("aten::pop", [items]), items) == (x, 1)
    assert _called(on_anything("aten::keys", [{"a": x}]), {"a": x}) == ["a"]
    assert on_anything("aten::stack", [[x, x]]) is None


def test_attributes_of_tensors_are_numbers_where_torchscript_has_numbers() -> None:
    x = torch.rand(2, dtype=torch.float64)
    names = ("dtype", "layout", "device", "is_cuda", "itemsize")
    given = {name: _called(on_anything(f"prim::{name}", [x]), x) for name in names}
    assert given == {"dtype": 7, "layout": 0, "device": x.device, "is_cuda": False, "itemsize": 8}
    assert _called(on_anything("prim::type", [x.device]), x.device) == "cpu"
    assert on_anything("prim::abs", [x]) is None  # a method, and no attribute


def test_containers_of_tensors_are_changed_while_exporting() -> None:
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[int], int]:
            parts = [x, x * 2]
            parts.append(x + 1)
            parts.extend([x + 2])
            parts.insert(0, x + 3)
            last = parts.pop()
            parts.reverse()
            other = parts.copy()
            other.clear()
            table = {"a": x}
            table.update({"b": last})
            numbers = [3, 1, 2, 5]
            numbers.sort()
            numbers.sort(reverse=True)
            numbers[0] = numbers.index(2) + numbers.count(3)
            found = table.get("c", x * 7)
            together = parts[1:] + list(table.values()) + [found]
            return torch.stack(together), sorted(numbers), len(other) + len(table.keys()) + len(together)

    module, x = Changing(), torch.ones(2)
    found, expected = program_of(torch.jit.script(module), x).module()(x), module(x)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1:] == expected[1:]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_fuser_of_torchscript_is_as_before(enabled: bool) -> None:
    """EX-36"""
    before = torch._C._jit_texpr_fuser_enabled()
    torch._C._jit_set_texpr_fuser_enabled(enabled)
    try:
        script = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
        module = convert_script(script, (torch.ones(1, 2),))
        assert module is not None
        assert torch._C._jit_texpr_fuser_enabled() is enabled
        with pytest.raises(Exception):  # noqa: B017 - whatever it is
            convert_script(script, (torch.ones(3, 3),))
        assert torch._C._jit_texpr_fuser_enabled() is enabled
    finally:
        torch._C._jit_set_texpr_fuser_enabled(before)
