"""Linear algebra on well-conditioned matrices, with unique results that do not amplify rounding errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import OpCall, Ref
from fuzz.vocabulary.operators.build import DOUBLES, CallBuilder, PartLike, named, op
from fuzz.vocabulary.operators.operands import either, flag, matrix, of_shape, optional, x
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

_CATEGORY = "linalg"
_CONDITION = {
    "matrix": "diagonally dominant (symmetric: and so positive definite): the error of eager is a few units in the last place"
}


def _row(
    target: str, *parts: PartLike, results: str = "v", is_symmetric: bool = False, name: str = "", **keywords: Any
) -> OpSpec:
    return op(
        target,
        _CATEGORY,
        matrix(is_symmetric=is_symmetric),
        *parts,
        results=results,
        name=name,
        weight=0.5,
        why=_CONDITION,
        **keywords,
    )


def _columns(builder: CallBuilder) -> Sequence[int]:
    """Right-hand sides."""
    return (*builder.main.shape[:-1], builder.draw.choice((2, 1, 3)))


_B = of_shape(_columns, domain="small")


def _right_side_first(target: str) -> DrawCall:
    """Older names take the right-hand side before the matrix, and read one triangle of it."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene)
        factor = matrix()(builder)
        right = _B(builder)
        assert isinstance(factor, Ref)
        assert isinstance(right, Ref)
        kwargs = (("upper", draw.chance(0.5)),)
        call = OpCall(target=target, args=(right, factor), kwargs=kwargs)
        return named(call, scene, "v_" if target.endswith("triangular_solve") else "v")

    return draw_call


LINALG = (
    _row("torch.linalg.det"),
    _row("torch.det"),
    _row("torch.linalg.slogdet", results="vv"),
    _row("torch.slogdet", results="vv"),
    _row("torch.logdet"),
    _row("torch.linalg.inv"),
    _row("torch.inverse"),
    _row("torch.linalg.inv_ex", results="vv"),
    _row("torch.linalg.solve", _B, left=optional(True)),
    _row("torch.linalg.solve_ex", _B, results="vv"),
    _row("torch.linalg.solve_triangular", _B, upper=either(True, False), unitriangular=flag()),
    _row("torch.linalg.cholesky", upper=flag(), is_symmetric=True),
    _row("torch.linalg.cholesky_ex", results="vv", is_symmetric=True),
    _row("torch.cholesky", is_symmetric=True),
    _row("torch.cholesky_inverse", upper=flag()),
    _row("torch.linalg.eigvalsh", is_symmetric=True),
    _row("torch.linalg.svdvals"),
    _row("torch.linalg.lu_factor", results="vv"),
    _row("torch.linalg.lu_factor_ex", results="vvv"),
    _row("torch.linalg.lu", results="vvv"),
    _row("torch.linalg.ldl_factor", results="vv", is_symmetric=True, has_gradient=False),
    _row("torch.linalg.ldl_factor_ex", results="vvv", is_symmetric=True, has_gradient=False),
    op("torch.linalg.tensorsolve", _CATEGORY, matrix(batch=0), of_shape(lambda b: b.main.shape[:1]), weight=0.4, why=_CONDITION),
    _row("torch.linalg.matrix_exp"),
    _row("torch.matrix_exp"),
    _row("torch.linalg.pinv"),
    _row("torch.pinverse"),
    _row("torch.linalg.cond", optional(either(None, 2, "fro", 1)), has_gradient=False),
    _row("torch.linalg.matrix_rank"),
    _row("torch.linalg.lstsq", _B, results="v___"),
    op("torch.linalg.tensorinv", _CATEGORY, matrix(batch=0), ind=1, weight=0.4, why=_CONDITION),
    _row("torch.linalg.matrix_power", either(-1, 2, -2), name="torch.linalg.matrix_power(inverse)"),
    op("torch.linalg.norm", _CATEGORY, matrix(batch=0), either("nuc", 2, -2), name="torch.linalg.norm(spectral)",
       weight=0.4, why=_CONDITION),
    _row("torch.linalg.diagonal", offset=optional(either(1, -1))),
    *(OpSpec(name=f"torch.{name}", category=_CATEGORY, draw_call=_right_side_first(f"torch.{name}"), weight=0.5,
             meta=_CONDITION) for name in ("cholesky_solve", "triangular_solve")),
    op("torch.linalg.vander", _CATEGORY, x(DOUBLES, rank=(1, 2), domain="unit"), N=optional(either(2, 4)), weight=0.5),
    op("torch.vander", _CATEGORY, x(DOUBLES, rank=(1, 1), domain="unit"), N=optional(either(2, 4)), increasing=flag(),
       weight=0.5),
)  # fmt: skip
