"""Test whether the subject's random tensor could be one of eager's tensors under other seeds (an exchangeability test).

Eager's runs under many seeds are samples of one distribution. A right subject's run is one more sample, so exchanging it for one
of eager's changes no statistic. Each element is replaced by its rank among the other runs' values of that element, which is
uniform whatever the distribution, and a few statistics sum up the ranks. The subject's statistic may be no more extreme than
those of eager's runs. Values within the tolerance row of each other share a rank, since the subject may round differently.

This test finds what a comparison of two samples misses: elements permuted or of the other sign, one draw shared by neighbours,
rows or calls, a few wrong or repeated elements. It does not find an error that is small beside the random part, such as a
factor of 1.01 on `rand_like(x) * x`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from oracle.judge.tolerance import TABLE

FEWEST = 8  # runs
_ENOUGH = 32  # with fewer elements the ranks of few runs show nothing
_AT_MOST = 1 << 14  # of larger tensors, an evenly spread sample of about so many elements is tested
# The subject stands out if it is further from eager's median than both of these:
_DEVIATIONS = 8.0  # standard deviations of eager's runs
_TIMES = 2.0  # times the distance of eager's furthest run
# Number of elements that may lie beyond eager's runs, or be equal, although no run of eager has such elements.
_RARE = 10.0
_OF_RANKS = ("too large, or too small", "too far from 0, or too near")
_BEYOND = ("elements lie beyond all that eager gives there", "elements lie beyond all that eager gives anywhere")
_REPEATED = "too many elements are the same number"
_TAILS = (
    "elements are too often among the largest, or too seldom",
    "elements are too often among the smallest, or too seldom",
)
_TAIL = 1e-3  # the largest thousandth of eager's elements is one tail, the smallest thousandth the other
_HARDLY = 1e-2  # with more repeated numbers than this in eager, repetition comes from the dtype's few values and is not tested
_NONE: Mapping[str, Sequence[Tensor]] = {}


def stands_out(tensors: Sequence[Tensor], others: Mapping[str, Sequence[Tensor]] = _NONE) -> str:
    """Why the first tensor, the subject's, cannot come from the distribution of the others, eager's runs. "" if it can.

    All are real tensors of one shape. The text follows the tensor's path in a symptom. `others` holds further tensors by name,
    one of each run in the same order: the subject's tensor must depend on them as much as eager's tensors do.
    """
    if len(tensors) <= FEWEST or tensors[0].numel() < _ENOUGH:
        return ""
    everything = _sampled(tensors)
    ranks = _ranks(everything, tensors[0].dtype)
    seen = _measured(everything, ranks, tensors[0].shape)
    for name, more in others.items():
        if len(more) == len(tensors) and more[0].shape == tensors[0].shape:
            products = ranks * _ranks(_sampled(more), more[0].dtype)
            seen[f"elements are too much like those of {name}, or too little"] = products.mean(1)
    for what, numbers in seen.items():
        mine, eager = numbers[0].item(), numbers[1:]
        center, deviation = eager.median().item(), eager.std().item()
        if what == _REPEATED and center > _HARDLY:
            continue
        furthest = (eager - center).abs().max().item()
        if abs(mine - center) > max(_DEVIATIONS * deviation, _TIMES * furthest, _least(what, everything.shape[1])):
            return f" is not drawn as eager draws: {what} ({mine:.3g}; {center:.3g} in eager, at most {furthest:.2g} from it)"
    return ""


def _least(what: str, elements: int) -> float:
    """A distance that never stands out: six standard deviations of a mean of independent ranks, their squares or products."""
    if what in (*_BEYOND, *_TAILS, _REPEATED):
        return _RARE / elements
    return (1.75 if what.endswith(_OF_RANKS) else 0.5) / elements**0.5


def _sampled(tensors: Sequence[Tensor]) -> Tensor:
    """One row for each tensor, in float64, with NaN and infinities replaced by 0."""
    rows = [tensor.detach().reshape(-1).double() for tensor in tensors]
    step = -(-rows[0].numel() // _AT_MOST)
    return torch.stack([row[::step] for row in rows]).nan_to_num(0.0, 0.0, 0.0)


def _ranks(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The rank of each element among the same element of eager's other runs, from -0.5 to 0.5. Row 0 is the subject's.

    Values within the tolerance row of `dtype` of each other count as equal.
    """
    tolerance = TABLE.get(dtype)
    around = torch.zeros_like(rows) if tolerance is None else tolerance.rtol * rows.abs() + tolerance.atol
    low, high = rows - around, rows + around
    # A run is neither below nor above itself, so that eager's runs need not be left out one by one.
    ordered = rows[1:].t().contiguous().sort(1).values
    below = torch.searchsorted(ordered, low.t().contiguous()).t()
    above = len(rows) - 1 - torch.searchsorted(ordered, high.t().contiguous(), right=True).t()
    balance = below - above
    # For the subject's row, 0, the last run is left out to have equally many.
    balance[0] -= (rows[-1] < low[0]).long() - (rows[-1] > high[0]).long()
    return 0.5 * balance.double().contiguous() / (len(rows) - 2)


def _measured(rows: Tensor, ranks: Tensor, shape: torch.Size) -> dict[str, Tensor]:
    """Statistics, each a number per row, keyed by the sentence that is true if the subject's number stands out."""
    beyond, beyond_all = _shares_beyond(rows)
    measured = {
        f"elements are {_OF_RANKS[0]}": ranks.mean(1),
        f"elements are {_OF_RANKS[1]}": (ranks * _signs_of_means(rows)).mean(1),
        "elements are too often at the ends of what eager gives there, or too seldom": ranks.square().mean(1),
        "neighbouring elements are too much alike, or too little": (ranks[:, 1:] * ranks[:, :-1]).mean(1),
        _BEYOND[0]: beyond,
        _BEYOND[1]: beyond_all,
        _REPEATED: _share_of_repeated(rows),
        **dict(zip(_TAILS, _shares_of_tails(rows), strict=True)),
    }
    if len(shape) > 1 and shape[-1] > 1 and rows.shape[1] == shape.numel():
        by_row = ranks.reshape(len(rows), -1, shape[-1])
        if by_row.shape[1] > 1:
            measured["rows are too much alike, or too little"] = (by_row[:, 1:] * by_row[:, :-1]).mean((1, 2))
    return measured


def _signs_of_means(rows: Tensor) -> Tensor:
    """The sign of the mean of each element over eager's runs, for each row without the row itself.

    A row's own numbers stay out of the mean: otherwise the sign around 0 would depend on the row itself.
    """
    eager = rows[1:]
    none = torch.zeros_like(rows[:1])
    until, since = eager.cumsum(0), eager.flip(0).cumsum(0).flip(0)
    before, after = torch.cat([none, until[:-1]]), torch.cat([since[1:], none])
    return torch.cat([until[-2:-1], before + after]).sign()


def _shares_beyond(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of elements that lie far beyond what eager's other runs give, in the same element and in all elements.

    In the same element: further from the middle of the other runs than three times the width of their range, to which 1 % of the
    value is added, since all runs may have one value. In all elements: above the largest element of all other runs, or below the
    smallest.
    """
    low, second_low, high, second_high = _outermost(rows[1:])
    lows, highs = rows.amin(1), rows.amax(1)
    beyond, beyond_all = [], []
    for number, row in enumerate(rows):
        if number:
            smallest, largest = torch.where(row == low, second_low, low), torch.where(row == high, second_high, high)
        else:
            smallest, largest = rows[1:-1].amin(0), rows[1:-1].amax(0)
        allowed = 3 * (largest - smallest) + 1e-2 * (smallest.abs() + largest.abs())
        beyond.append(((row - (smallest + largest) / 2).abs() > allowed).double().mean())
        all_low, all_high = _without(lows, number).min(), _without(highs, number).max()
        beyond_all.append(((row > all_high) | (row < all_low)).double().mean())
    return torch.stack(beyond), torch.stack(beyond_all)


def _outermost(rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The smallest, second smallest, largest and second largest number of each column."""
    low, high = torch.minimum(rows[0], rows[1]), torch.maximum(rows[0], rows[1])
    second_low, second_high = high, low
    for row in rows[2:]:
        second_low = torch.minimum(second_low, torch.maximum(low, row))
        second_high = torch.maximum(second_high, torch.minimum(high, row))
        low, high = torch.minimum(low, row), torch.maximum(high, row)
    return low, second_low, high, second_high


def _share_of_repeated(rows: Tensor) -> Tensor:
    """Share of elements whose value more than `_RARE` elements have: none with most generators, the zeros of dropout."""
    values = rows.float().sort(1).values
    return (values[:, int(_RARE) :] == values[:, : -int(_RARE)]).double().mean(1)


def _shares_of_tails(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of elements among the largest, and among the smallest, thousandth of eager's elements."""
    eager = rows[1:].flatten().float()
    count = max(1, round(_TAIL * eager.numel()))
    high, low = eager.topk(count).values[-1], eager.topk(count, largest=False).values[-1]
    return (rows > high).double().mean(1), (rows < low).double().mean(1)


def _without(rows: Tensor, number: int) -> Tensor:
    """Eager's runs other than this row. For the subject's row, 0, the last run is left out to have equally many."""
    return torch.cat([rows[1:number], rows[number + 1 :]]) if number else rows[1:-1]
