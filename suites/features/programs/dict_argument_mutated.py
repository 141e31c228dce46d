"""A dict argument is written, popped and updated; its order afterwards is part of the result."""

import torch

PROGRAM = {"tags": ("containers", "mutation")}
DEVICE = "cpu"


def program(table):
    table["sum"] = table["a"] + table["b"]
    last = table.pop("b")
    table.setdefault("c", last * 2)
    table.update(a=table["a"] - 1)
    del table["old"]
    return list(table), [value.sum() for value in table.values()]


def inputs(call):
    table = {name: torch.randn(3, device=DEVICE) for name in ("a", "old", "b")}
    return (table,), {}
