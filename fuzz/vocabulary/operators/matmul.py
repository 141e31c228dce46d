"""Products of matrices and vectors. The sizes of the second operand follow from the first one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.shapes import draw_broadcastable
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Items, OpCall, Operand
from fuzz.vocabulary.operators.build import INEXACT, NUMERIC, CallBuilder, Part, op
from fuzz.vocabulary.operators.operands import either, integer, of_shape, optional, random_size, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "matmul"


def _by(*sizes: Callable[[CallBuilder], int]) -> Part:
    """A tensor of the first one's dtype with these sizes."""
    return of_shape(lambda builder: [size(builder) for size in sizes])


def _at(dim: int) -> Callable[[CallBuilder], int]:
    return lambda builder: builder.main.shape[dim]


def _draw_matmul(target: str) -> Callable[[Draw, Scene], OpCall | None]:
    """Every combination of ranks that matmul takes, batch dimensions broadcast."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        left = builder.take(builder.find(NUMERIC, rank=(1, 4)))
        main = builder.main
        inner = main.shape[-1]
        if draw.chance(0.2):
            shape: tuple[int, ...] = (inner,)
        else:
            lead = draw_broadcastable(draw, main.shape[:-2]) if draw.chance(0.6) else ()
            shape = (*lead, inner, random_size(builder))
        right = builder.take(builder.find((dtype_name(main),), shape=shape))
        return OpCall(target=target, args=(left, right), results=(scene.fresh(),))

    return draw_call


def _draw_add_product(
    target: str, ranks: tuple[int, int], shapes: Callable[[CallBuilder, Sequence[int]], tuple[Sequence[int], ...]]
) -> Callable[[Draw, Scene], OpCall | None]:
    """addmm and its kin: what is added broadcasts to the product. `shapes` gives that of the second factor and of the product."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        left = builder.take(builder.find(NUMERIC, rank=ranks))
        main = builder.main
        shape, product = shapes(builder, main.shape)
        dtype = (dtype_name(main),)
        right = builder.take(builder.find(dtype, shape=shape))
        added_shape = draw_broadcastable(draw, product) if draw.chance(0.3) and target != "torch.addr" else product
        added = builder.take(builder.find(dtype, shape=added_shape))
        is_exact = not (main.is_floating_point() or main.is_complex())
        scalars = {"beta": (1, 0, 2) if is_exact else (1, 0.5, 0, 2), "alpha": (1, 2) if is_exact else (1, 2, -0.5)}
        kwargs = tuple((name, draw.choice(options)) for name, options in scalars.items() if draw.chance(0.3))
        return OpCall(target=target, args=(added, left, right), kwargs=kwargs, results=(scene.fresh(),))

    return draw_call


def _mm(builder: CallBuilder, shape: Sequence[int]) -> tuple[Sequence[int], ...]:
    columns = random_size(builder)
    return (shape[1], columns), (shape[0], columns)


def _mv(builder: CallBuilder, shape: Sequence[int]) -> tuple[Sequence[int], ...]:
    return (shape[1],), (shape[0],)


def _bmm(builder: CallBuilder, shape: Sequence[int]) -> tuple[Sequence[int], ...]:
    columns = random_size(builder)
    return (shape[0], shape[2], columns), (shape[0], shape[1], columns)


def _summed_bmm(builder: CallBuilder, shape: Sequence[int]) -> tuple[Sequence[int], ...]:
    second, product = _bmm(builder, shape)
    return second, product[1:]


def _outer(builder: CallBuilder, shape: Sequence[int]) -> tuple[Sequence[int], ...]:
    columns = random_size(builder)
    return (columns,), (shape[0], columns)


# equation -> shapes of the operands, as letters; every letter is one size
_EQUATIONS = (
    "ij,jk->ik", "ij->ji", "ii->i", "ij->", "i,i->", "i,j->ij", "bij,bjk->bik", "bij,bkj->bik", "ij,j->i", "ij,ij->i",
    "bhid,bhjd->bhij", "ij,jk,kl->il", "...i,ij->...j", "ij,kj", "ii->", "ijk->k", "bi,bj->bij", "ij,ik->jk",
)  # fmt: skip


def _draw_einsum(draw: Draw, scene: Scene) -> OpCall | None:
    builder = CallBuilder(draw, scene)
    equation = draw.choice(_EQUATIONS)
    sizes = {letter: random_size(builder) for letter in sorted(set(equation)) if letter.isalpha()}
    terms = equation.split("->")[0].split(",")
    dtype: Sequence[str] = FLOATS
    operands: list[Operand] = []
    for term in terms:
        lead = (2, 3) if term.startswith("...") and draw.chance(0.5) else ()
        shape = (*lead, *(sizes[letter] for letter in term if letter.isalpha()))
        operands.append(builder.take(builder.find(dtype, shape=shape)))
        dtype = (dtype_name(builder.main),)
    return OpCall(target="torch.einsum", args=(equation, *operands), results=(scene.fresh(),))


def _draw_chain(target: str) -> Callable[[Draw, Scene], OpCall | None]:
    """Three matrices or more in a row."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        operands: list[Operand] = [builder.take(builder.find(FLOATS, rank=(2, 2)))]
        for _ in range(draw.integer(1, 3)):
            shape = (builder.last.shape[1], random_size(builder))
            operands.append(builder.take(builder.find((dtype_name(builder.main),), shape=shape)))
        args = (Items(tuple(operands), "list"),) if target.endswith("multi_dot") else tuple(operands)
        return OpCall(target=target, args=args, results=(scene.fresh(),))

    return draw_call


def _special_case(name: str, draw_call: Callable[[Draw, Scene], OpCall | None], weight: float = 1.0) -> OpSpec:
    return OpSpec(name=name, category=_CATEGORY, draw_call=draw_call, weight=weight)


MATMUL = (
    _special_case("torch.matmul", _draw_matmul("torch.matmul"), 2),
    _special_case("operator.matmul", _draw_matmul("operator.matmul"), 2),
    op("torch.mm", _CATEGORY, x(NUMERIC, rank=(2, 2)), _by(_at(1), random_size), weight=1.5),
    op("torch.bmm", _CATEGORY, x(NUMERIC, rank=(3, 3)), _by(_at(0), _at(2), random_size), weight=1.5),
    op("torch.mv", _CATEGORY, x(NUMERIC, rank=(2, 2)), _by(_at(1))),
    op("torch.dot", _CATEGORY, x(NUMERIC, rank=(1, 1)), _by(_at(0))),
    op("torch.vdot", _CATEGORY, x(INEXACT, rank=(1, 1)), _by(_at(0))),
    op("torch.inner", _CATEGORY, x(FLOATS, rank=(1, 3)), _by(random_size, _at(-1))),
    op("torch.outer", _CATEGORY, x(NUMERIC, rank=(1, 1)), _by(random_size)),
    op("torch.ger", _CATEGORY, x(FLOATS, rank=(1, 1)), _by(random_size), weight=0.3),
    op("torch.tensordot", _CATEGORY, x(FLOATS, rank=(1, 3)), _by(_at(-1), random_size), dims=1),
    op("torch.tensordot", _CATEGORY, x(FLOATS, rank=(2, 3)), _by(random_size, _at(0)),
       dims=Items((Items((0,)), Items((1,))), "tuple"), name="torch.tensordot(dims)"),
    op("torch.kron", _CATEGORY, x(NUMERIC, rank=(1, 2)), _by(lambda b: 2, lambda b: 3)),
    _special_case("torch.addmm", _draw_add_product("torch.addmm", (2, 2), _mm), 1.5),
    _special_case("torch.addmv", _draw_add_product("torch.addmv", (2, 2), _mv)),
    _special_case("torch.addr", _draw_add_product("torch.addr", (1, 1), _outer)),
    _special_case("torch.baddbmm", _draw_add_product("torch.baddbmm", (3, 3), _bmm)),
    _special_case("torch.addbmm", _draw_add_product("torch.addbmm", (3, 3), _summed_bmm)),
    _special_case("torch.einsum", _draw_einsum, 2),
    _special_case("torch.linalg.multi_dot", _draw_chain("torch.linalg.multi_dot")),
    _special_case("torch.chain_matmul", _draw_chain("torch.chain_matmul"), 0.3),
    op("torch.nn.functional.linear", _CATEGORY, x(FLOATS, rank=(1, 4)), _by(lambda b: 5, _at(-1)),
       optional(_by(lambda b: 5)), weight=2),
    op("torch.nn.functional.bilinear", _CATEGORY, x(("float32",), rank=(1, 3)),
       of_shape(lambda b: (*b.main.shape[:-1], 3)), _by(lambda b: 4, _at(-1), lambda b: 3), optional(_by(lambda b: 4))),
    op("torch.cdist", _CATEGORY, x(("float32", "float64"), rank=(2, 3)), _by(random_size, _at(-1)),
       p=either(2.0, 1.0, float("inf"), 0.0)),
    op("torch.nn.functional.pdist", _CATEGORY, x(("float32", "float64"), rank=(2, 2)), p=either(2.0, 1.0), weight=0.5),
    op("torch.linalg.cross", _CATEGORY, x(NUMERIC, shape=lambda b: (*b.draw.choice(((), (4,), (2, 5))), 3)),
       of_shape(lambda b: b.main.shape), dim=-1),
    op("torch.cross", _CATEGORY, x(FLOATS, shape=lambda b: (b.draw.choice((2, 4)), 3)), of_shape(lambda b: b.main.shape),
       dim=1, weight=0.5),
    op("torch.cov", _CATEGORY, x(("float32", "float64"), rank=(1, 2)), correction=optional(either(0, 1))),
    op("torch.corrcoef", _CATEGORY, x(("float32", "float64"), rank=(2, 2)), weight=0.5),
    op("torch.linalg.matrix_power", _CATEGORY, x(FLOATS[:2], shape=lambda b: (3, 3), domain="unit"), integer(0, 4)),
    op("torch.block_diag", _CATEGORY, x(NUMERIC, rank=(0, 2)), x(NUMERIC, rank=(1, 2)), weight=0.7),
)  # fmt: skip
