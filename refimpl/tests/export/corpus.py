"""Modules that export, its archive and its trees of modules all have to get right, with inputs that they take and refuse."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from refimpl._torch import pytree
from refimpl.export import Dim, ExportedProgram, export, register_dataclass
from refimpl.tests.export.modules import Adding, Assigning, Containers, EverythingModule, Mutating, Normalised, Tied

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
X = torch.arange(12.0).reshape(4, 3) / 7


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


class Modes(nn.Module):
    """Regions without gradients and with casts; dtypes, infinities and None among the arguments."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            y = x.masked_fill(x > 0, float("-inf")).to(torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ x.t()
        return y, z, x[:, None, ::2], torch.ones_like(x, memory_format=torch.contiguous_format)


class SizeArithmetic(nn.Module):
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


class Counting(nn.Module):
    """Two ways through, and a count of the calls."""

    count: torch.Tensor
    one: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor, adds: bool = True) -> torch.Tensor:
        self.count.add_(self.one)
        return x + self.count if adds else x * self.count


class Twice(nn.Module):
    """Calls a module by two names, and both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Counting()
        self.inner = nn.Sequential(Counting(), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.inner(self.first(self.first(x), adds=False)))


class Keywords(nn.Module):
    """A part with containers in and out, arguments by name, and results that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.part = KeywordsPart()

    def forward(self, x: torch.Tensor, *, more: dict[str, torch.Tensor]) -> Any:
        found = self.part({"q": x, "r": [more["a"], 2]}, option=more["b"], flag=False)
        return found["y"] + found["pair"][0], found["k"]


class KeywordsPart(nn.Module):
    def forward(self, given: dict[str, Any], *rest: Any, flag: bool = True, option: Any = None) -> dict[str, Any]:
        y = given["q"] + given["r"][0] * given["r"][1] + option
        return {"y": y, "pair": (given["q"], None), "k": 3}


class Sizes(nn.Module):
    """Numbers that are computed in one part, or around it, and used in others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SizesFirst()
        self.second = SizesSecond()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y, y.shape[0] * 2) + x.shape[0]


class SizesFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]).view(-1, x.shape[1])


class SizesSecond(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x.reshape(-1)[:n] + n + x.shape[0]


class Branches(nn.Module):
    """Operators with functions, of which one is inside of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.part = BranchesPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + torch.cond(x.sum() > 0, self.linear, lambda x: x - 1, (x,))


class BranchesPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 3, lambda x: x * self.scale, lambda x: x - self.scale, (x,))


class BranchesBySize(nn.Module):
    """Branches within branches, which a size chooses. They use parameters and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def large(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.shape[0] > 8, lambda x: x * 2 + self.offset, self.linear, (x,))

        return torch.cond(x.shape[0] > 4, large, lambda x: x - self.offset, (x,))


class Reading(nn.Module):
    """Parts that read numbers out of tensors, and assert what they need of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ReadingPart()
        self.second = ReadingPart()

    def forward(self, n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.first(n, x).sum() * self.second(n + 1, x).shape[0]


class ReadingPart(nn.Module):
    def forward(self, n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        size: Any = n.item()
        torch._check(size >= 0)
        torch._check(size < x.size(0))
        return x[:size]


class Constants(nn.Module):
    """Tensors that are attributes and literals, outside and inside of a part, and one of another module's."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.ones(3)
        self.part = ConstantsPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x, self.constant) + self.part.constant + torch.tensor([1.0, 2.0, 3.0])


class ConstantsPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * self.constant + torch.tensor(2.5) - other


class Writing(nn.Module):
    """A part that writes to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.part = WritingPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part(x)
        return self.part(x + 1) + x


class WritingPart(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


class NamedSelf(nn.Module):
    """A child by the name that code has for the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.self = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.self(x))


class GivingBack(nn.Module):
    """A part whose conversion has nothing to do, so that its result is the argument."""

    def __init__(self) -> None:
        super().__init__()
        self.part = GivingBackPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return self.part(y) * y


class GivingBackPart(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32).mean(0)


class ConstantsOfBranches(nn.Module):
    """Reads an attribute and a literal in its branches only, in one of them in a branch of the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        constant = self.constant

        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 3, lambda x: x * constant, lambda x: x + constant, (x,))

        def negative(x: torch.Tensor) -> torch.Tensor:
            return x - constant * torch.tensor([1.0, 2.0, 3.0])

        return torch.cond(x.sum() > 0, positive, negative, (x,))


class NamedOutput(nn.Module):
    def forward(self, output: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        return output - input


class Indexed(nn.Module):
    """Reads and writes at a place that an input says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(20.0).reshape(4, 5)
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, place: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n: Any = place.item()
        torch._check(n >= 0)
        torch._check(n < 4)
        y = x.clone()
        y[n] = self.table[n]
        y[..., n] = 0
        y[1:, n] += 1
        rows = torch.tensor([0, 2])
        mask = torch.tensor([True, False, True, False])
        return y, self.weight[n], self.weight[None, n, 1:], self.table[:, n], self.table[rows, n], self.weight[mask, n]


class Last(nn.Module):
    """Reads at a place that a size says."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[y.shape[0] - 1]


def _place(n: int) -> Callable[[], Arguments]:
    return lambda: ((torch.tensor(n), torch.randn(4, 5)), {})


def _halves() -> Arguments:
    whole = torch.randn(6)
    return (whole[:3], whole[3:]), {}


def _sizes_shapes() -> Any:
    size = Dim("size", min=3, max=20)
    return {"x": {0: size}, "y": {0: size + 1}}


def _structured() -> Arguments:
    table = collections.defaultdict(list, a=[torch.randn(3)])
    return (Pair(torch.randn(3)), Point(torch.randn(3), torch.randn(3)), table), {}


def _pair(first: int, second: int) -> Callable[[], Arguments]:
    return lambda: ((torch.randn(first, 2), torch.randn(second, 2)), {})


def _randn(*sizes: int) -> Callable[[], Arguments]:
    return lambda: ((torch.randn(*sizes),), {})


def _given(*args: Any, **kwargs: Any) -> Callable[[], Arguments]:
    return lambda: (args, kwargs)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A module, its inputs, sizes that may vary, and further inputs it should take or refuse.

    `parts` are submodules that keep their signature and can be replaced. `decomposes` says whether `run_decompositions` takes it,
    `unflattens_decomposed` whether `unflatten` takes what is made then.
    """

    module: Callable[[], nn.Module]
    inputs: Callable[[], Arguments] = _given(X)
    shapes: Callable[[], Any] = lambda: None
    others: tuple[Callable[[], Arguments], ...] = ()
    refused: tuple[Callable[[], Arguments], ...] = ()
    decomposes: bool = True
    unflattens_decomposed: bool = True
    preserved: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


CASES = {
    "an_input_named_output": Case(module=NamedOutput, inputs=_given(X, X + 1)),
    "linear": Case(module=lambda: nn.Linear(3, 4), inputs=_randn(2, 3), refused=(_randn(3, 3),)),
    "batch_norm": Case(
        module=Normalised,
        parts=("norm", "linear"),
        inputs=_randn(4, 3),
        shapes=lambda: {"x": {0: Dim("batch", min=2)}},
        others=(_randn(2, 3), _randn(9, 3)),
        refused=(_randn(4, 5),),
    ),
    "convolution": Case(
        module=ChannelsLast,
        inputs=_randn(2, 3, 6, 6),
    ),
    "tied": Case(module=Tied, inputs=_randn(2, 3), parts=("first", "second")),
    "mutating": Case(module=Mutating, inputs=_randn(3)),
    "everything": Case(
        module=EverythingModule,
        inputs=lambda: ((torch.randn(2, 3), 3), {"mask": torch.ones(4)}),
        others=(lambda: ((torch.randn(2, 3), 3), {"mask": torch.randn(4)}),),
    ),
    "batch_norm_in_evaluation": Case(module=lambda: Normalised().eval(), inputs=_randn(4, 3)),
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
    "size_arithmetic": Case(
        module=SizeArithmetic,
        inputs=_pair(6, 7),
        shapes=_sizes_shapes,
        others=(_pair(4, 5), _pair(9, 10), _pair(20, 21)),
        refused=(_pair(21, 22), _pair(2, 3), _pair(6, 6), _pair(3, 4)),  # with 3 the half is 1, which a guard excludes
    ),
    "run_time_sizes": Case(module=Nonzero, inputs=lambda: ((torch.tensor([1.0, 0.0, 2.0]),), {})),
    "branches": Case(module=Branches, others=(_given(X - 5), _given(X + 5)), parts=("part", "linear")),
    "branches_by_size": Case(
        module=BranchesBySize,
        inputs=_randn(6, 3),
        shapes=lambda: {"x": {0: Dim("n", min=2)}},
        others=(_randn(2, 3), _randn(9, 3)),
    ),
    "aliased_inputs": Case(module=Adding, inputs=_halves),
    "number": Case(
        module=Scaled,
        inputs=lambda: ((torch.randn(4), 5), {}),
        shapes=lambda: {"x": {0: Dim.DYNAMIC}, "n": Dim.DYNAMIC},
        others=(lambda: ((torch.randn(7), 3), {}),),
        refused=(lambda: ((torch.randn(7), "3"), {}),),
    ),
    "preserved": Case(module=Outer, inputs=lambda: ((torch.randn(2, 3), 7), {}), preserved=("inner",)),
    "modes": Case(module=Modes, inputs=_randn(4, 4)),
    "constants_of_branches": Case(
        module=ConstantsOfBranches,
        inputs=_given(torch.ones(3)),
        others=(
            _given(torch.ones(3) * 3),
            _given(torch.ones(3) / 4),
            _given(-torch.ones(3)),
        ),
    ),
    "indexed": Case(
        module=Indexed,
        inputs=_place(1),
        others=tuple(_place(n) for n in range(4)),
    ),
    "last": Case(
        module=Last,
        inputs=lambda: ((torch.randn(9, 2), torch.ones(4)), {}),
        shapes=lambda: (None, {0: Dim("n", max=9)}),
        others=(lambda: ((torch.randn(9, 2), torch.ones(3)), {}), lambda: ((torch.randn(9, 2), torch.ones(9)), {})),
    ),
    "assigning": Case(module=Assigning, inputs=_randn(3)),
    "twice": Case(module=Twice, parts=("first", "inner", "inner.0")),
    "keywords": Case(module=Keywords, inputs=_given(X, more={"a": X + 1, "b": X - 1}), parts=("part",)),
    "sizes": Case(module=Sizes, parts=("first", "second")),
    "reading": Case(module=Reading, inputs=_given(torch.tensor(2), X), parts=("first", "second")),
    "constants": Case(module=Constants, parts=("part",)),
    "writing": Case(module=Writing, parts=("part",)),
    "named_self": Case(module=NamedSelf, parts=("self", "other")),
    "giving_back": Case(module=GivingBack, parts=("part",)),
    "shared": Case(
        module=lambda: nn.Sequential(*[nn.LayerNorm(3)] * 2, nn.ReLU()), unflattens_decomposed=False, parts=("0", "1")
    ),
}


def program_of(case: Case, *, strict: bool = False, preserved: tuple[str, ...] = ()) -> tuple[Any, ExportedProgram]:
    """A module of the case and what it is exported to, the same at each call."""
    torch.manual_seed(0)
    args, kwargs = case.inputs()
    module = case.module()
    program = export(
        module, args, kwargs, dynamic_shapes=case.shapes(), strict=strict,
        preserve_module_call_signature=preserved or case.preserved,
    )  # fmt: skip
    return module, program
