"""An operator with an effect in a branch of torch.cond whose result nothing reads."""

import torch

PROGRAM = {"tags": ("control-flow",), "calls": [{}]}
DEVICE = "cpu"


state = [0]


@torch.library.custom_op("features_effects::note", mutates_args=())
def note(x: torch.Tensor, digit: int) -> torch.Tensor:
    state[0] = state[0] * 10 + digit if digit else 0
    return x + state[0]


@note.register_fake
def _(x, digit):
    return torch.empty_like(x)


torch.library._register_effectful_op("features_effects::note", torch.library.EffectType.ORDERED)


def program(x, y):
    z = note(x, 0)
    torch.cond(x.sum() > 0, lambda t: note(t, 1) * 2, lambda t: note(t, 2), (x,))
    return note(z, 3) + y


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
