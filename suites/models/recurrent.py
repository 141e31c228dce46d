"""Recurrent models on plain torch."""

from __future__ import annotations

import torch
from torch import nn

from suites.models.architecture import VOCABULARY


class Recurrent(nn.Module):
    """A two-layer bidirectional nn.LSTM or nn.GRU: tokens (N, T) -> (N, T, vocabulary), last hidden state."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.core = getattr(nn, cell)(16, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, last = self.core(self.embed(tokens))
        return self.head(hidden), last[0] if isinstance(last, tuple) else last


class CellLoop(nn.Module):
    """nn.LSTMCell in a Python loop that stops early on a short sequence: x (N, T, 8) -> (N, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)
        self.gate = nn.Bilinear(8, 8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros_like(x[:, 0])
        memory = torch.zeros_like(hidden)
        for step, part in enumerate(x.unbind(1)):
            hidden, memory = self.cell(part, (hidden, memory))
            if step >= 6:
                break
        return torch.sigmoid(self.gate(hidden, memory)) * hidden


class Seq2Seq(nn.Module):
    """Encoder and decoder with additive attention, teacher forced: source (N, S), target (N, T) -> (N, T, vocabulary)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRUCell(2 * width, width)
        self.key = nn.Linear(width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.energy = nn.Linear(width, 1)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory, last = self.encoder(self.embed(source))
        keys, hidden = self.key(memory), last[0]
        outputs = []
        for token in self.embed(target).unbind(1):
            scores = self.energy(torch.tanh(keys + self.query(hidden)[:, None])).squeeze(-1)
            context = torch.einsum("ns,nsw->nw", torch.softmax(scores, dim=-1), memory)
            hidden = self.decoder(torch.cat([token, context], dim=-1), hidden)
            outputs.append(self.head(hidden))
        return torch.stack(outputs, dim=1)
