"""chain, product, islice, accumulate, zip_longest, groupby and count."""

import itertools
import operator

import torch

PROGRAM = {"tags": ("control-flow", "containers")}
DEVICE = "cpu"


def program(x):
    rows = list(itertools.chain(x, [x[0] + x[1]]))
    pairs = [rows[a] * rows[b] for a, b in itertools.product(range(2), repeat=2)]
    partial = list(itertools.accumulate(rows, operator.add))
    padded = [a if b is None else a + b for a, b in itertools.zip_longest(rows, pairs[:1])]
    runs = [(key, len(list(group))) for key, group in itertools.groupby([1, 1, 2, 3, 3])]
    first = list(itertools.islice(itertools.count(5, 2), 3))
    return pairs, partial[-1], padded, runs, first


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE),), {}
