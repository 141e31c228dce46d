"""Models for benchmarks: small nets of our own, and small versions of transformers' architectures.

A model is a module with its inputs. Its joint graph is that of AOT autograd in training mode, before partitioning.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from refimpl.aot.partition import default_partition
from refimpl.aot_entry_points import aot_module_simplified


class Model(NamedTuple):
    """A module and its inputs."""

    module: nn.Module
    inputs: tuple[Any, ...]


class JointProgram(NamedTuple):
    """A joint graph with real inputs for it. The first `static` primals are parameters and buffers."""

    graph_module: torch.fx.GraphModule
    primals: list[Any]
    tangents: list[torch.Tensor]
    outputs: int
    static: int


class TensorOutputs(nn.Module):
    """A module that returns a tuple of the tensors the inner one returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(t for t in pytree.tree_leaves(_as_plain(self.inner(*inputs))) if isinstance(t, torch.Tensor))


def _as_plain(result: Any) -> Any:
    return dict(result) if isinstance(result, dict) else result  # pytree does not know transformers' output classes


def joint_program(model: Model) -> JointProgram:
    """The functionalized joint graph of a model in training mode, before partitioning."""
    torch.manual_seed(0)
    module = TensorOutputs(model.module.train())
    found: list[tuple[torch.fx.GraphModule, int]] = []

    def partition(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        found.append((joint, num_fwd_outputs))
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    aot_module_simplified(module, model.inputs, lambda graph_module, _: graph_module, partition_fn=partition)
    ((joint, outputs),) = found
    state = [t.detach().clone() for t in (*module.parameters(), *module.buffers())]
    primals = [*state, *model.inputs]
    values = [node.meta["val"] for node in joint.graph.nodes if node.op == "placeholder"]
    tangents = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).normal_() for v in values[len(primals) :]]
    return JointProgram(joint, primals, tangents, outputs, len(state))


Graphs = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
"""Forward and backward."""


def fresh_copy(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of the graph, since torch's partitioner changes its argument."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return torch.fx.GraphModule(module, graph)


def split(
    program: JointProgram, partitioner: Callable[..., Graphs], joint: torch.fx.GraphModule | None = None
) -> Graphs:
    """Partition the joint graph, with parameters declared as static. `joint`: a copy of the joint graph."""
    static = list(range(program.static))
    joint = fresh_copy(program.graph_module) if joint is None else joint
    return partitioner(joint, None, num_fwd_outputs=program.outputs, static_lifetime_input_indices=static)


def run_graphs(graphs: Graphs, program: JointProgram, primals: Sequence[Any]) -> list[Any]:
    """Run both graphs operator by operator: outputs and gradients. The graphs may write to `primals`."""
    forward, backward = graphs
    names = [getattr(o, "name", None) for o in list(forward.graph.nodes)[-1].args[0][program.outputs :]]
    placeholders = [node.name for node in backward.graph.nodes if node.op == "placeholder"]
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = forward(*primals)
        saved = dict(zip(names, outputs[program.outputs :], strict=True))
        tangents = iter(program.tangents)
        arguments = [saved[name] if name in saved else next(tangents) for name in placeholders]
        return [*outputs[: program.outputs], *backward(*arguments)]


class Mlp(nn.Module):
    """Linear layers with an activation between them."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor], depth: int = 4, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


class ConvBlock(nn.Module):
    """Convolution, normalisation, activation and a skip connection, several times."""

    def __init__(self, norm: Callable[[int], nn.Module], depth: int = 3, channels: int = 16) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(norm(channels) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class GatedCell(nn.Module):
    """A recurrent cell as torch.nn.LSTMCell, written out and unrolled."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.from_input = nn.Linear(width, 4 * width)
        self.from_state = nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = torch.zeros_like(x[0])
        for step in x:
            i, f, g, o = (self.from_input(step) + self.from_state(hidden)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return hidden


class RmsNormGatedMlp(nn.Module):
    """The MLP half of a modern decoder layer."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(3 * width, width, bias=False) for _ in range(depth))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gate, up, down, scale in zip(self.gates, self.ups, self.downs, self.scales, strict=True):
            normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale
            x = x + down(F.silu(gate(normed)) * up(normed))
        return x


class Pointwise(nn.Module):
    """One activation written with pointwise operators."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(128))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.scale)


def _gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def _standardised(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


def _encoder(layers: int, dropout: float, *, norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        64, 4, 256, dropout=dropout, batch_first=True, norm_first=norm_first, activation="gelu"
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def own_models() -> dict[str, Callable[[], Model]]:
    """Nets written here."""
    rows, image, sentence = torch.randn(32, 128), torch.randn(2, 16, 16, 16), torch.randn(4, 32, 64)
    return {
        "mlp relu": lambda: Model(Mlp(F.relu), (rows,)),
        "mlp gelu": lambda: Model(Mlp(F.gelu), (rows,)),
        "mlp mish": lambda: Model(Mlp(F.mish), (rows,)),
        "mlp dropout": lambda: Model(Mlp(lambda x: F.dropout(F.silu(x), 0.1)), (rows,)),
        "activation gelu written out": lambda: Model(Pointwise(_gelu_by_tanh), (rows,)),
        "activation hard swish": lambda: Model(Pointwise(lambda x: x * (x + 3).clamp(0, 6) / 6), (rows,)),
        "activation standardised": lambda: Model(Pointwise(_standardised), (rows,)),
        "conv batch norm": lambda: Model(ConvBlock(nn.BatchNorm2d), (image,)),
        "conv group norm": lambda: Model(ConvBlock(lambda c: nn.GroupNorm(4, c)), (image,)),
        "lstm written out": lambda: Model(GatedCell(), (torch.randn(8, 16, 64),)),
        "gated mlp, rms norm": lambda: Model(RmsNormGatedMlp(), (sentence,)),
        "transformer layer": lambda: Model(_encoder(1, 0.0), (sentence,)),
        "transformer layer, dropout": lambda: Model(_encoder(1, 0.1), (sentence,)),
        "transformer layer, norm first": lambda: Model(_encoder(1, 0.0, norm_first=True), (sentence,)),
        "12 transformer layers": lambda: Model(_encoder(12, 0.0), (sentence,)),
        "12 transformer layers, dropout": lambda: Model(_encoder(12, 0.1), (sentence,)),
    }


def all_models(*, own: bool = False) -> dict[str, Callable[[], Model]]:
    """Makers by name. `own`: without transformers' architectures."""
    return own_models() if own else {**own_models(), **transformers_models()}


_SIZES = {
    "vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "num_key_value_heads": 2, "head_dim": 16,
    "n_embd": 64, "n_layer": 2, "n_head": 4, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2,
    "num_heads": 4, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "ffn_dim": 128, "embedding_size": 64,
    "word_embed_proj_dim": 64, "max_position_embeddings": 64, "image_size": 32, "patch_size": 8, "hidden_sizes": [16, 32],
    "depths": [1, 1], "embedding_hidden_size": 64, "num_stages": 2, "use_cache": False, "pad_token_id": 0, "embed_dim": 64,
}  # fmt: skip
_TEXT = (
    "Bert", "Roberta", "Electra", "DistilBert", "Albert", "GPT2", "GPTNeoX", "OPT", "Bloom", "Llama", "Mistral", "Qwen2",
    "Gemma", "Phi",
)  # fmt: skip
_IMAGE = ("ViT", "DeiT", "Dinov2", "ConvNext")


def transformers_models() -> dict[str, Callable[[], Model]]:
    """Architectures of the transformers package, with random weights; none where it is not installed."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return {}

    def text(name: str, attention: str) -> Callable[[], Model]:
        return lambda: Model(_architecture(transformers, name, attention), (torch.randint(1, 99, (2, 32)),))

    def image(name: str) -> Callable[[], Model]:
        return lambda: Model(_architecture(transformers, name, "eager"), (torch.randn(2, 3, 32, 32),))

    without_sdpa = ("Bloom",)
    models = {
        f"{name}, {attention}": text(name, attention)
        for name in _TEXT
        for attention in ("eager", "sdpa")
        if attention == "eager" or name not in without_sdpa
    }
    return {**models, **{name: image(name) for name in _IMAGE}}


def _architecture(transformers: Any, name: str, attention: str) -> nn.Module:
    config_class = getattr(transformers, f"{name}Config")
    known = config_class().to_dict()
    mapped = {**getattr(config_class, "attribute_map", {})}
    sizes = {mapped.get(k, k): v for k, v in _SIZES.items() if k in known or mapped.get(k) in known}
    if name in ("GPTNeoX", "Bloom", "Phi", "GPT2", "OPT", "Bert", "Roberta", "Electra", "Albert", "DistilBert"):
        sizes.pop("head_dim", None)
        sizes.pop("num_key_value_heads", None)
    config = config_class(**sizes)
    config._attn_implementation = attention
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(config)
