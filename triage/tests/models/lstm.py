"""An LSTM for sequences, written with cells."""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.given = nn.Linear(width_in, 4 * width)
        self.kept = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (self.given(x) + self.kept(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class LSTM(nn.Module):
    def __init__(self, features: int = 3, width: int = 5, depth: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.width = width
        self.cells = nn.ModuleList(Cell(features if at == 0 else width, width) for at in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = x.new_zeros(x.shape[0], self.width)
        states = [(zero, zero) for _ in self.cells]
        for at in range(x.shape[1]):
            value = x[:, at]
            for number, cell in enumerate(self.cells):
                states[number] = cell(value, *states[number])
                value = states[number][0]
        return self.head(states[-1][0])
