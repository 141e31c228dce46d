"""A registered dataclass with an optional field is the argument and, changed, the result."""

from dataclasses import dataclass

import torch

PROGRAM = {"tags": ("export", "classes", "containers"), "calls": [{}, {}]}
DEVICE = "cpu"


@dataclass
class Batch:
    """Tokens and perhaps a mask."""

    tokens: torch.Tensor
    mask: torch.Tensor | None = None


torch.export.register_dataclass(Batch)


def program(batch):
    scores = batch.tokens.cumsum(0)
    if batch.mask is not None:
        scores = scores.masked_fill(batch.mask, 0.0)
    return scores, batch.tokens.mean()


def inputs(call):
    tokens = torch.arange(6.0, device=DEVICE).view(3, 2) + call
    return (Batch(tokens, tokens > 3),), {}
