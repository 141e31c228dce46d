"""Sources of large programs for the tests of `minimise`, as a user would write them."""

from __future__ import annotations

TRANSFORMER = """
import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        batch, length, size = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, size // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / (size // self.heads) ** 0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, size))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(Layer(16, 2) for _ in range(6))
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens):
        x = self.words(tokens // 2 + 10)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(dim=1)


def program():
    return Encoder()


def inputs(call):
    return (torch.randint(-15, 15, (2, 5)),), {}
"""

LSTM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 8)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], h, c)
        return self.head(h), c


class Cell(nn.Module):
    def __init__(self, inputs, size):
        super().__init__()
        self.x, self.h = nn.Linear(inputs, 4 * size), nn.Linear(size, 4 * size)

    def forward(self, x, h, c):
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def program():
    return Model()


def inputs(call):
    return (torch.randn(2, STEPS, 6),), {}
"""

UNET = """
import torch
import torch.nn as nn
import torch.nn.functional as F


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([block(1, 4), block(4, 8), block(8, 8)])
        self.up = nn.ModuleList([block(16, 4), block(8, 4)])
        self.last = nn.Conv2d(4, 1, 1)

    def forward(self, x):
        kept = []
        for part in self.down:
            x = part(x)
            kept.append(x)
            x = F.max_pool2d(x, 2) if len(kept) < 3 else x
        for part, skip in zip(self.up, reversed(kept[:-1])):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = part(torch.cat([x, skip], dim=1))
        return self.last(x)


def program():
    return UNet()


def inputs(call):
    return (torch.randn(1, 1, 8, 8),), {}
"""
