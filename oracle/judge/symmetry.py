"""Compare results that are unique only up to a symmetry, such as eigenvectors up to their sign.

`INVARIANT_RULES` has one short function for each `ComparePolicy.invariant`. A rule is used only if the outputs are not close as
they are, and compares what the choice does not change: eigenvectors have a phase and, in degenerate subspaces, a rotation;
unordered collections have an order. Factors are compared by their product and their orthogonality, under the bound of a
backward stable algorithm, `k * n * eps * norm`, where n is the larger side of a matrix.

Index outputs (argmax, topk, sort, unique) are here too: with ties the index is free, but not the value it points to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracle.errors import UsageError
from oracle.judge.elements import widen
from oracle.judge.leaves import LeafPair, parts_of
from oracle.judge.tolerance import TABLE, ToleranceRow
from oracle.judge.values import compare_values
from oracle.observe.outcome import Leaf

InvariantRule = Callable[[Sequence[Tensor], Sequence[Tensor]], str]


def check_invariant(name: str, eager: Sequence[Leaf], subject: Sequence[Leaf]) -> str:
    """What differs between the tensor outputs beyond the symmetry called `name`; "" if nothing does.

    The outputs are in the operator's order: (L, V) of eig and eigh, (U, S, Vh) or (U, S, V) of svd, (Q, R) of qr.
    """
    left, right = _plain_tensors(eager), _plain_tensors(subject)
    if len(left) != len(right) or any(a.shape != b.shape for a, b in zip(left, right, strict=True)):
        return "the outputs have other shapes"
    return rule_of(name)(left, right)


def rule_of(name: str) -> InvariantRule:
    """The rule of this name. Raises UsageError if there is none."""
    if name not in INVARIANT_RULES:
        raise UsageError(
            seen=f"invariant {name!r} in a program's policy",
            expected=f"one of {', '.join(sorted(INVARIANT_RULES))}, or none",
            do="correct the program's ComparePolicy",
        )
    return INVARIANT_RULES[name]


def _plain_tensors(leaves: Sequence[Leaf]) -> list[Tensor]:
    return [part for leaf in leaves if leaf.facts is not None for _, part in parts_of(leaf.value)]


def _row(tensors: Sequence[Tensor]) -> ToleranceRow:
    """The row of the least precise dtype among the tensors; float32's for integers."""
    rows = [TABLE[tensor.dtype] for tensor in tensors if tensor.dtype in TABLE]
    return max(rows, key=lambda row: row.eps, default=TABLE[torch.float32])


def _has_other_finiteness(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return any(bool((widen(a).isfinite() != widen(b).isfinite()).any()) for a, b in zip(left, right, strict=True))


def _excess(seen: Tensor, expected: Tensor, row: ToleranceRow, side: int, factor: float = 1.0) -> float:
    """Largest `|seen - expected|` over a batch of matrices, divided by the allowed error; above 1 is wrong."""
    if expected.numel() == 0:
        return 0.0
    allowed = row.k * max(side, 1) * row.eps * factor * torch.linalg.matrix_norm(expected) + row.atol
    return (torch.linalg.matrix_norm(seen - expected) / allowed).nan_to_num(nan=0.0).max().item()


def _is_orthonormal(columns: Tensor, row: ToleranceRow) -> bool:
    side = max(columns.shape[-2:], default=1)
    identity = torch.eye(columns.shape[-1], dtype=columns.dtype).expand(*columns.shape[:-2], -1, -1)
    return _excess(columns.mH @ columns, identity, row, side) <= 1


def _of_factors(
    operator: str, count: int, compare: Callable[[Sequence[Tensor], Sequence[Tensor], ToleranceRow], str]
) -> InvariantRule:
    """The rule of an operator with `count` outputs. `compare` gets them in float64 or complex128, finite where eager's are."""

    def rule(eager: Sequence[Tensor], subject: Sequence[Tensor]) -> str:
        if len(eager) != count:
            return f"{operator} has {len(eager)} outputs, but should have {count}"
        if _has_other_finiteness(eager, subject):
            return "NaN or infinity in other places"
        return compare([widen(t) for t in eager], [widen(t) for t in subject], _row(eager))

    return rule


def _svd(eager: Sequence[Tensor], subject: Sequence[Tensor], row: ToleranceRow) -> str:
    (ue, se, ve), (us, ss, vs) = eager, subject
    side = max(*ue.shape[-2:], *ve.shape[-2:], 1)
    if (message := _spectrum_symptom("singular values", se, ss, row, side)) != "":
        return message
    rank = se.shape[-1]

    def as_vh(v: Tensor, u: Tensor) -> list[Tensor]:
        """Vh if the right factor is Vh (torch.linalg.svd), and Vh if it is V (torch.svd), where the shape permits."""
        readings = []
        if v.shape[-2] >= rank:
            readings.append(v[..., :rank, :])
        if v.shape[-1] >= rank:
            readings.append(v.mH[..., :rank, :])
        return readings

    excess = min(
        _excess((us[..., :rank] * ss.unsqueeze(-2)) @ right, (ue[..., :rank] * se.unsqueeze(-2)) @ left, row, side)
        for left, right in zip(as_vh(ve, ue), as_vh(vs, us), strict=True)
    )
    if excess > 1:
        return f"U diag(S) Vh is {excess:.3g} times further from eager's than a stable algorithm is"
    for name, theirs, ours in (("U", us, ue), ("V", vs, ve)):
        is_wide = theirs.shape[-1] > theirs.shape[-2]
        theirs, ours = (theirs.mH, ours.mH) if is_wide else (theirs, ours)
        if _is_orthonormal(ours, row) and not _is_orthonormal(theirs, row):
            return f"{name} is not orthonormal, but should be"
    return ""


def _eigenvectors(eager: Sequence[Tensor], subject: Sequence[Tensor], row: ToleranceRow) -> str:
    (le, ve), (ls, vs) = eager, subject
    common = torch.complex128 if any(t.is_complex() for t in (le, ve, ls, vs)) else torch.float64
    le, ve, ls, vs = (t.to(common) for t in (le, ve, ls, vs))
    side = max(*ve.shape[-2:], 1)
    is_finite = (ve.isfinite() & le.isfinite().unsqueeze(-2)).all(-1).all(-1)  # of each matrix
    le, ve, ls, vs = (t[is_finite] for t in (le, ve, ls, vs))
    if ve.numel() == 0:
        return ""
    if _is_orthonormal(ve, row):
        if (message := _spectrum_symptom("eigenvalues", le, ls, row, side)) != "":
            return message
        excess = _excess((vs * ls.unsqueeze(-2)) @ vs.mH, (ve * le.unsqueeze(-2)) @ ve.mH, row, side)
        if excess > 1:
            return f"V diag(L) V^H is {excess:.3g} times further from eager's than a stable algorithm is"
        return "" if _is_orthonormal(vs, row) else "V is not orthonormal, but should be"
    return _general_eigenvectors(le, ve, ls, vs, row, side)


def _general_eigenvectors(le: Tensor, ve: Tensor, ls: Tensor, vs: Tensor, row: ToleranceRow, side: int) -> str:
    """Compare eig of a matrix that is not normal: the subject's pairs must be eigenpairs of A, recovered from eager's."""
    condition = torch.linalg.cond(ve).max().item()
    if condition * row.eps * side * row.k >= 1:
        # Near a defective matrix, V has no usable inverse and a perturbation moves eigenvalues by its square root.
        bound = row.k * side * math.sqrt(row.eps) * le.abs().amax(-1, keepdim=True) + row.atol
        return _eigenvalues_symptom(le, ls, bound)
    A = torch.linalg.solve(ve.mH, (ve * le.unsqueeze(-2)).mH).mH  # V diag(L) V^-1
    norms = torch.linalg.vector_norm(vs, dim=-2) - torch.linalg.vector_norm(ve, dim=-2)
    if bool((norms.abs() > row.k * side * row.eps).any()):
        return "the norms of the eigenvectors differ"
    excess = _excess(A + A @ vs - vs * ls.unsqueeze(-2), A, row, side, factor=condition)
    if excess > 1:
        return f"A V - V diag(L) is {excess:.3g} times further from zero than a stable algorithm leaves it"
    bound = row.k * side * row.eps * condition * torch.linalg.matrix_norm(A).unsqueeze(-1) + row.atol
    return _eigenvalues_symptom(le, ls, bound)


def _eigenvalues_symptom(expected: Tensor, seen: Tensor, bound: Tensor) -> str:
    """Each eigenvalue must be close to one of the other side, in both directions, so that none is returned twice."""
    gaps = (expected.unsqueeze(-1) - seen.unsqueeze(-2)).abs()
    if bool((gaps.amin(-1) > bound).any()) or bool((gaps.amin(-2) > bound).any()):
        return "the eigenvalues differ"
    return ""


def _qr(eager: Sequence[Tensor], subject: Sequence[Tensor], row: ToleranceRow) -> str:
    (qe, re), (qs, rs) = eager, subject
    side = max(*re.shape[-2:], *qe.shape[-2:], 1)
    if bool((rs.tril(-1) != 0).any()):
        return "R is not upper triangular, but should be"
    if qe.numel() == 0:  # mode "r": R^H R does not depend on the signs
        excess = _excess(rs.mH @ rs, re.mH @ re, row, side)
        return "" if excess <= 1 else f"R^H R is {excess:.3g} times further from eager's than a stable algorithm is"
    excess = _excess(qs @ rs, qe @ re, row, side)
    if excess > 1:
        return f"Q R is {excess:.3g} times further from eager's than a stable algorithm is"
    return "" if _is_orthonormal(qs, row) or not _is_orthonormal(qe, row) else "Q is not orthonormal, but should be"


def _spectrum_symptom(name: str, expected: Tensor, seen: Tensor, row: ToleranceRow, side: int) -> str:
    if expected.numel() == 0:
        return ""
    scale = expected.abs().amax(-1, keepdim=True)
    if bool(((seen - expected).abs() > row.k * side * row.eps * scale + row.atol).any()):
        return f"the {name} differ"
    return ""


def _order(eager: Sequence[Tensor], subject: Sequence[Tensor]) -> str:
    """Compare unordered collections. Outputs of the same length are permuted together."""
    for length, group in itertools.groupby(
        sorted(range(len(eager)), key=lambda at: eager[at].shape[0] if eager[at].ndim else -1),
        key=lambda at: eager[at].shape[0] if eager[at].ndim else -1,
    ):
        members = list(group)
        left, right = [eager[at] for at in members], [subject[at] for at in members]
        if length >= 0:
            left, right = _sorted_together(left), _sorted_together(right)
        for at, a, b in zip(members, left, right, strict=True):
            if not (report := compare_values(a, b)).is_right:
                return f"output number {at}, sorted{report.detail}"
    return ""


def _sorted_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    keys = [column for tensor in tensors for column in _columns(tensor)]
    if not keys or tensors[0].shape[0] == 0:
        return list(tensors)
    order = torch.from_numpy(np.lexsort(keys[::-1]).copy())
    return [tensor[order] for tensor in tensors]


def _columns(tensor: Tensor) -> list[np.ndarray]:
    rows = tensor.reshape(tensor.shape[0], -1) if tensor.shape[0] else tensor.reshape(0, 1)
    if rows.is_floating_point() or rows.is_complex():
        rows = widen(rows)
    values = rows.numpy()
    if rows.is_complex():
        return [part(values[:, at]) for at in range(values.shape[1]) for part in (np.real, np.imag)]
    return [values[:, at] for at in range(values.shape[1])]


INVARIANT_RULES: dict[str, InvariantRule] = {
    "eigenvectors": _of_factors("an eigendecomposition", 2, _eigenvectors),
    "svd": _of_factors("svd", 3, _svd),
    "qr": _of_factors("qr", 2, _qr),
    "order": _order,
}


# ------------------------------------------------------------------------------------------- index outputs


def explain_indices(
    pair: LeafPair, spec: Mapping[str, Any], eager_source: Leaf | None, subject_source: Leaf | None
) -> str:
    """The explanation if different indices point to the same values, else "".

    `spec` is a value of ComparePolicy.index_outputs: "dim" is the dimension that the indices run along, None for the flattened
    tensor; "stable" means that ties have one right order, so that different indices are wrong. Raises UsageError if the
    indexed tensor is not there.
    """
    if eager_source is None or subject_source is None or eager_source.facts is None or subject_source.facts is None:
        raise UsageError(
            seen=f"index_outputs of {pair.path!r} names {spec.get('of')!r}, which is no tensor of this program",
            expected="the path of an argument or an output that is a tensor",
            do="correct the program's ComparePolicy",
        )
    if spec.get("stable"):
        return ""
    dim = spec.get("dim")
    eager = _pointed_at(eager_source.value, pair.eager.value, dim)
    subject = _pointed_at(subject_source.value, pair.subject.value, dim)
    if eager is None or subject is None:
        return ""
    if not compare_values(eager, subject).is_right or _repeats_more(pair.eager.value, pair.subject.value, dim):
        return ""
    differing = int((pair.eager.value != pair.subject.value).sum())
    return (
        f"{pair.path} differs in {differing} of {pair.eager.value.numel()} indices that point to the same values of "
        f"{spec.get('of')}"
    )


def align_tied_gradients(
    gradient: LeafPair, index: LeafPair, dim: int | None, source: Leaf | None
) -> tuple[Tensor, str] | None:
    """The subject's gradient of `source`, permuted among equal elements to match eager's, and a symptom or "".

    `index` is the pair of differing indices into `source`. The symptom says that the gradients differ at the elements that each
    side chose. None if a tensor is no plain tensor of the source's shape.
    """
    if source is None or source.facts is None:
        return None
    values = [source.value, gradient.eager.value, gradient.subject.value]
    if any(not isinstance(value, Tensor) or value.layout is not torch.strided for value in values):
        return None
    tied, eager, subject = (value.detach().cpu() for value in values)
    if not tied.shape == eager.shape == subject.shape or tied.is_complex() or eager.is_complex():
        return None
    taken = [_pointed_at(side, at, dim) for side, at in ((eager, index.eager.value), (subject, index.subject.value))]
    wrong = ""
    if taken[0] is not None and taken[1] is not None:
        report = compare_values(taken[0], taken[1], zero_signs=False)
        wrong = "" if report.is_right else f"{gradient.path}, at the elements that {index.path} names,{report.detail}"
    groups = _ties(tied, dim)
    aligned = torch.empty_like(subject).reshape(-1)
    aligned[_by_group(eager.reshape(-1), groups)] = subject.reshape(-1)[_by_group(subject.reshape(-1), groups)]
    return aligned.reshape(subject.shape), wrong


def _ties(source: Tensor, dim: int | None) -> Tensor:
    """For each element, in row-major order, a number shared by equal elements along `dim`. All NaN are equal."""
    is_nan = source.isnan() if source.is_floating_point() else torch.zeros_like(source, dtype=torch.bool)
    known, number = source.masked_fill(is_nan, 0).unique(return_inverse=True)
    number = torch.where(is_nan, known.numel(), number)
    if dim is None or source.ndim == 0:
        return number.reshape(-1)
    lines = torch.arange(source.numel() // max(source.shape[dim], 1))
    line = lines.reshape([1 if at == dim % source.ndim else size for at, size in enumerate(source.shape)])
    return (line.expand(source.shape) * (known.numel() + 1) + number).reshape(-1)


def _by_group(values: Tensor, groups: Tensor) -> Tensor:
    """Positions sorted by group, and by value within a group."""
    order = values.sort(stable=True).indices
    return order[groups[order].sort(stable=True).indices]


def _pointed_at(source: Tensor, index: Tensor, dim: int | None) -> Tensor | None:
    """The values that the indices point to; None if an index is out of range."""
    source = source.cpu()
    index = index.cpu().to(torch.int64)
    if dim is None or source.ndim <= 1:
        return source.reshape(-1)[index] if _is_within(index, source.numel()) else None
    if not _is_within(index, source.shape[dim]):
        return None
    is_reduced = index.ndim == source.ndim - 1
    values = torch.gather(source, dim, index.unsqueeze(dim) if is_reduced else index)
    return values.squeeze(dim) if is_reduced else values


def _is_within(index: Tensor, size: int) -> bool:
    return index.numel() == 0 or (int(index.min()) >= 0 and int(index.max()) < size)


def _repeats_more(eager: Tensor, subject: Tensor, dim: int | None) -> bool:
    """Whether the subject repeats an index along `dim` where eager's indices are all different (topk, sort)."""
    if eager.ndim == 0 or eager.numel() == 0:
        return False
    along = 0 if dim is None or eager.ndim == 1 else dim

    def repeats(index: Tensor) -> Tensor:
        ordered = index.to(torch.int64).sort(along).values
        return (ordered.diff(dim=along) == 0).any(along)

    return bool((repeats(subject) & ~repeats(eager)).any())
