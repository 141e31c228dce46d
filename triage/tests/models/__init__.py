"""Models as users write them, each with a backend that has one wrong rule, and where that rule shows first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
BACKENDS = "triage.tests.models.wrong_backends"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongModel:
    """One model on one wrong backend."""

    name: str
    target: str  # file and what makes the model, as a user names them
    inputs: str
    backend: str  # a function of `wrong_backends`
    text: str  # of the line that computes the first wrong value
    module: str
    operator: str
    direction: str = "forward"  # or "backward"

    @property
    def path(self) -> str:
        """The target with the path of its file."""
        return str(FOLDER / self.target)

    @property
    def source(self) -> str:
        """The place of the line: "model.py:41"."""
        file = self.target.partition(":")[0]
        lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
        return f"{file}:{next(number for number, line in enumerate(lines, start=1) if self.text in line)}"


MODELS = (
    WrongModel(
        name="transformer of 6 layers", target="transformer.py:Transformer", inputs="i64[1, 4] < 32", backend="wrong_softmax",
        text="weights = scores.softmax", module="layers.0.attention", operator="softmax",
    ),
    WrongModel(
        name="transformer of 1 layer", target="transformer.py:Transformer(depth=1)", inputs="i64[1, 4] < 32",
        backend="wrong_floor_divide", text="bucket = (distance // 2)", module="bias", operator="floordiv",
    ),
    WrongModel(
        name="U-Net", target="unet.py:UNet(width=2)", inputs="f32[1, 3, 8, 8]", backend="wrong_interpolate",
        text="x = F.interpolate(", module="ups.0", operator="interpolate",
    ),
    WrongModel(
        name="mixture of experts", target="experts.py:Model(depth=1)", inputs="f32[1, 4, 8]", backend="wrong_index_add",
        text=".index_add_(", module="mixtures.0", operator="index_add_",
    ),
    WrongModel(
        name="state space", target="state_space.py:StateSpace(depth=1)", inputs="f32[1, 2, 6]", backend="wrong_cumsum",
        text="torch.cumsum(", module="total", operator="cumsum",
    ),
    WrongModel(
        name="LSTM", target="lstm.py:LSTM", inputs="f32[1, 1, 3]", backend="wrong_sigmoid_gradient",
        text="torch.sigmoid(o)", module="cells.1", operator="sigmoid", direction="backward",
    ),
)  # fmt: skip
