"""A transformer of six layers for classification, with relative positions."""

import torch
import torch.nn.functional as F
from torch import nn


class RelativeBias(nn.Module):
    """One number for each head and each bucket of distances."""

    def __init__(self, heads: int, buckets: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets = buckets

    def forward(self, length: int) -> torch.Tensor:
        at = torch.arange(length)
        distance = at[None, :] - at[:, None]
        bucket = (distance // 2).clamp(-self.buckets // 2, self.buckets // 2 - 1) + self.buckets // 2
        return self.table(bucket).permute(2, 0, 1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + bias
        weights = scores.softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 32, width: int = 16, heads: int = 2, depth: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.bias = RelativeBias(heads)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        bias = self.bias(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, bias)
        return F.log_softmax(self.head(x.mean(dim=1)), dim=-1)
