"""Which calls of `compile_aot` use what was compiled for an earlier one, and how little Python a call that does so runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch

from refimpl import compile_aot
from refimpl.aot.call_checks import StateReader
from refimpl.aot_entry_points import aot_function
from refimpl.tests.frames import frames_of, own_frames

Tensors = Callable[[], list[torch.Tensor]]
FEW, MANY = 2, 6  # tensors that are checked one by one, and in loops


class CountedBackend:
    """Runs graphs unchanged, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.count += 1
        return graph_module


def total(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.abs(torch.as_tensor(t)).sum().double() for t in tensors]).sum()


def plain() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3).clone()


OTHERS: dict[str, Callable[[], Any]] = {
    "dtype": lambda: plain().double(),
    "size": lambda: torch.ones(3, 3),
    "dimensions": lambda: torch.ones(6),
    "strides": lambda: torch.empty_strided((2, 3), (1, 2)).copy_(plain()),
    "offset": lambda: torch.empty(0).set_(torch.arange(7.0).untyped_storage(), 1, (2, 3), (3, 1)),
    "view": lambda: plain().view(2, 3),
    "requires_grad": lambda: plain().requires_grad_(),
    "class": lambda: torch.nn.Parameter(plain(), requires_grad=False),
    "negated": lambda: torch.complex(plain(), -plain()).conj().imag,
    "number": lambda: 1.5,
}


@pytest.mark.fractional
@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("other", OTHERS)
def test_a_call_with_another_tensor_compiles_again(other: str, count: int) -> None:
    backend = CountedBackend()
    compiled = compile_aot(total, backend=backend)
    tensors = [plain() for _ in range(count)]
    compiled(*tensors)
    compiled(*[t.clone() for t in tensors])
    assert backend.count == 1
    for position in (0, count - 1):
        changed = [plain() if i != position else OTHERS[other]() for i in range(count)]
        before = backend.count
        assert torch.equal(compiled(*changed), total(*changed))
        assert backend.count == before + 1
        assert torch.equal(compiled(*changed), total(*changed))
        assert backend.count == before + 1
    assert torch.equal(compiled(*tensors), total(*tensors))
    assert backend.count == 3


class OnesAreTwos(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ones else result


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_a_call_makes_tensors_as_the_state_of_torch_says_now() -> None:
    """The trace has asked modes, and has made the tensor of a list with the default dtype."""

    def program(x: torch.Tensor) -> Any:
        return x + 1, torch.tensor([1.5], device="cpu"), torch.ones(2)

    backend = CountedBackend()
    compiled = compile_aot(program, backend=backend)
    states: list[Callable[[], Any]] = [
        contextlib.nullcontext,
        lambda: default_dtype(torch.float64),
        OnesAreTwos,
        lambda: torch.device("meta"),
        lambda: torch.device("cpu"),
        contextlib.nullcontext,
        lambda: torch.device("meta"),
    ]
    for state in states:
        with state():
            x = torch.zeros(1, dtype=torch.float32, device="cpu")
            found, expected = compiled(x), program(x)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
            assert ours.is_meta or torch.equal(ours, theirs)
    assert backend.count == 5


@pytest.mark.parametrize("count", [FEW, MANY])
def test_facts_that_other_facts_imply_for_real_leaves_are_compared_where_they_are_not(count: int) -> None:
    backend = CountedBackend()
    compiled = compile_aot(total, backend=backend)
    leaf = torch.ones(2, 3, requires_grad=True)
    number = torch.ones(2, 3, dtype=torch.complex64)
    for changed in (leaf, leaf * 2, number, number.conj()):
        tensors = [plain() for _ in range(count - 1)] + [changed]
        before = backend.count
        for _ in range(2):
            assert torch.equal(compiled(*tensors), total(*tensors))
        assert backend.count == before + 1


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_call_whose_tensors_share_memory_compiles_again(count: int) -> None:
    def written(*tensors: torch.Tensor) -> torch.Tensor:
        tensors[0].add_(1)
        return tensors[1] * 2

    backend = CountedBackend()
    compiled = compile_aot(written, backend=backend)

    def shared() -> list[torch.Tensor]:
        memory = torch.zeros(2, 3)
        return [memory, memory.detach(), *[plain() for _ in range(count - 2)]]

    def same() -> list[torch.Tensor]:
        memory = torch.zeros(2, 3)
        return [memory, memory, *[plain() for _ in range(count - 2)]]

    for number, make in enumerate((lambda: [plain() for _ in range(count)], shared, same), start=1):
        for _ in range(2):
            expected, seen = make(), make()
            assert torch.equal(compiled(*seen), written(*expected))
            assert torch.equal(seen[0], expected[0])
            assert backend.count == number


class Layers(torch.nn.Module):
    """Layers, one without a bias, one twice, and a buffer."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3, bias=index != 1) for index in range(count)])
        self.again = self.layers[0]
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.again(x) + self.shift
        return x * 2 if self.training else x


def drop_bias(module: Layers) -> None:
    module.layers[0].register_parameter("bias", None)


def give_bias(module: Layers) -> None:
    module.layers[1].bias = torch.nn.Parameter(torch.ones(3))


def replace_layer(module: Layers) -> None:
    module.layers[2] = torch.nn.Linear(3, 3)


def replace_parameter(module: Layers) -> None:
    module.layers[2].weight = torch.nn.Parameter(torch.ones(3, 3))


def replace_data(module: Layers) -> None:
    module.layers[2].weight.data = torch.ones(3, 3)


def replace_buffer(module: Layers) -> None:
    module.shift = torch.full((3,), 5.0)


def evaluate(module: Layers) -> None:
    module.eval()


def evaluate_inside(module: Layers) -> None:
    module.layers[0].eval()


def freeze(module: Layers) -> None:
    module.layers[0].weight.requires_grad_(False)


def tie(module: Layers) -> None:
    module.layers[1].weight = module.layers[0].weight


def shorten(module: Layers) -> None:
    del module.layers[2]


def untie(module: Layers) -> None:
    module.again = torch.nn.Linear(3, 3)


CHANGES = [
    (drop_bias, 2), (give_bias, 2), (replace_layer, 1), (replace_parameter, 1), (replace_data, 1), (replace_buffer, 1),
    (evaluate, 2), (evaluate_inside, 2), (freeze, 2), (tie, 2), (shorten, 2), (untie, 2),
]  # fmt: skip


@pytest.mark.parametrize(("change", "programs"), CHANGES, ids=lambda value: getattr(value, "__name__", None))
def test_a_module_is_read_as_it_is_now(change: Callable[[Layers], None], programs: int) -> None:
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(2, 3)
    seen: list[Any] = []
    compiled = compile_aot(module, partition=None, backend=lambda graph, inputs: seen.append(graph) or graph)

    def agrees() -> None:
        state = [*module.parameters()]
        expected, result = module(x), compiled(x)
        torch.testing.assert_close(result, expected)
        for mine, theirs in zip(
            torch.autograd.grad(result.sum(), [p for p in state if p.requires_grad]),
            torch.autograd.grad(expected.sum(), [p for p in state if p.requires_grad]),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs)

    agrees()
    agrees()
    forwards = len([graph for graph in seen if not any("tangents" in node.name for node in graph.graph.nodes)])
    assert forwards == 1
    change(module)
    agrees()
    agrees()
    forwards = len([graph for graph in seen if not any("tangents" in node.name for node in graph.graph.nodes)])
    assert forwards == programs


def test_a_module_that_names_its_parameters_itself_is_asked() -> None:
    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.asked = 0

        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            return super().named_parameters(*args, **kwargs)

        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            return [("", self)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    module, x = Hidden(), torch.ones(2, 3)
    compiled = compile_aot(module)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), module(x))


def test_a_module_with_tables_that_are_no_dicts_is_asked() -> None:
    module = Layers()
    assert StateReader.of(module) is not None
    module.layers[0].__dict__["_buffers"] = MappingProxyType({})
    assert StateReader.of(module) is None
    x = torch.ones(2, 3)
    torch.testing.assert_close(compile_aot(module)(x), module(x))


@pytest.mark.parametrize("count", [3, 25])
def test_a_call_that_was_compiled_enters_as_few_functions_for_many_parameters(count: int) -> None:
    module, x = Layers(count), torch.randn(2, 3)
    compiled = compile_aot(module)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        found = own_frames(lambda: compiled(x))
    assert sum(name.endswith(".serves") for name in found) == 1
    assert len(found) <= 36, found


def test_training_enters_no_function_that_looks_at_each_argument() -> None:
    """torch's `Function.apply` asks each argument in Python whether it has left a transform."""
    compiled = compile_aot(lambda *xs: sum(x * 2 for x in xs[1:]) * xs[0])
    for count in (2, 12):
        xs = [torch.ones(3, requires_grad=True).clone() for _ in range(count)]
        compiled(*xs).sum().backward()
        found = frames_of(lambda xs=xs: compiled(*xs))
        assert not [name for name in found if "_functorch" in name]
        own = own_frames(lambda xs=xs: compiled(*xs))
        assert len(own) <= 35, own


def test_an_argument_that_has_left_a_transform_is_unwrapped() -> None:
    left: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        left.append(x * 1)
        return (x * 2).sum()

    torch.func.grad(keep)(torch.ones(3))
    y = torch.ones(3, requires_grad=True)
    compiled = aot_function(lambda x, y: x * y, lambda graph, inputs: graph)
    compiled(torch.ones(3), y).sum().backward()
    y.grad = None
    compiled(left[0], y).sum().backward()
    assert y.grad is not None
    assert torch.equal(y.grad, torch.ones(3))
