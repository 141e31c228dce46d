"""Modules: programs with parameters, buffers, attributes and submodules, which forward and call plans use and change.

Every rule adds a line to `__init__` that fits a drawn tensor, and returns the statements that use it. Each line seeds its own
random numbers, so that removing one does not change the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.shapes import draw_broadcastable
from fuzz.draw.scene import Change, Scene, dtype_name
from fuzz.program.structure import Block, Definition, Lines, OpCall, Ref, StateEntry, Statement
from fuzz.vocabulary.statements.modules_layers import draw_layer, seeded
from fuzz.vocabulary.statements.python_template import computation, kind_of
from fuzz.vocabulary.statements.rule import Rule

# How likely a program is a module, by focus.
MODULE_PROBABILITY: Mapping[str, float] = {
    "all": 0.2, "views": 0.1, "autograd": 0.25, "python": 0.3, "guards": 0.45, "dynamic": 0.2, "export": 0.6,
}  # fmt: skip
_NUMBERS = (2.0, 0.5, 3.0, -1.0)
Statements: TypeAlias = "Statement | Sequence[Statement] | None"


def begin(draw: Draw, scene: Scene) -> None:
    """Make the program a module, or leave it a function. Call it before the first statement."""
    if draw.chance(MODULE_PROBABILITY.get(scene.settings.focus, 0)):
        scene.become_module(())


def draw_parameter(draw: Draw, scene: Scene) -> Statements:
    """A parameter that broadcasts with a tensor; tied to an older one now and then."""
    x = _float(scene)
    tensor = scene.values[x]
    name = _name(scene, "w")
    shape, dtype = draw_broadcastable(draw, tensor.shape), dtype_name(tensor)
    value = f"torch.randn({list(shape)}, dtype=torch.{dtype})"
    older = [n for n, v in scene.values.items() if n.startswith("self.w") and tuple(v.shape) == tuple(shape)]
    if older and draw.chance(0.4):
        _add(scene, name, f"{name} = {older[-1]}", needs=(older[-1],))
    else:
        _add(scene, name, seeded(scene, f"{name} = torch.nn.Parameter({value})"))
    at = name.replace("self.", "target.")
    word = name.removeprefix("self.")
    ones = f"torch.ones({list(shape)}, dtype=torch.{dtype})"
    scene.changes.append(
        Change(
            kind="parameter",
            name=name,
            texts=(
                f"{at} = torch.nn.Parameter({ones} * 2)",
                f"{at}.data.mul_(3)",
                f"{at}.data = {ones} * 2",
                f"with torch.no_grad():\n    {at}.add_(1)",
                f"{at}.requires_grad_(False)",
                f"target._parameters['{word}'] = torch.nn.Parameter({ones} * 3)",
                f"del {at}\n{at} = {ones} * 3",
                f"target.register_parameter('{word}', torch.nn.Parameter({ones}.to(torch.float64)))",
            ),
            restore=f"if not isinstance({at}, torch.nn.Parameter):\n    del {at}\n{at} = torch.nn.Parameter({ones})",
        )
    )
    return _binary(draw, scene, x, name)


def draw_buffer(draw: Draw, scene: Scene) -> Statements:
    """A buffer, read, and mostly updated, in forward."""
    x = _float(scene)
    tensor = scene.values[x]
    name = _name(scene, "b")
    word, at = name.removeprefix("self."), name.replace("self.", "target.")
    shape, dtype = draw_broadcastable(draw, tensor.shape), dtype_name(tensor)
    ones = f"torch.ones({list(shape)}, dtype=torch.{dtype})"
    persistent = "" if draw.chance(0.6) else ", persistent=False"
    _add(scene, name, f"self.register_buffer('{word}', {ones}{persistent})")
    scene.changes.append(
        Change(
            kind="buffer",
            name=name,
            texts=(
                f"{at} = {ones} * 2",
                f"{at}.fill_(3)",
                f"target._buffers['{word}'] = {ones} * 4",
                f"target.register_buffer('{word}', {ones}.to(torch.float64))",
                f"{at} = {at}[None]",
                f"{at} = torch.nn.functional.pad({ones}, (0, 1))[..., :-1]",
            ),
            restore=f"{at} = {ones}",
        )
    )
    read = _binary(draw, scene, x, name)
    update = draw.choice(
        (
            f"{name}.add_(1)",
            f"{name} = {name} * 2",
            f"{name}.mul_(0.5).add_({{{x}}}.detach().mean())",
            f"{name} = {name} + {{{x}}}.detach().sum()",
            f"{name}.copy_({{{x}}}.detach().amax())" if tensor.numel() else f"{name}.zero_()",
            f"with torch.no_grad():\n    {name} += 1",
            "",
        )
    )
    if not update:
        return read
    written = Lines(text=update, uses=(x, name))
    return (written, read) if draw.chance(0.5) else (read, written)


def draw_tensor_attribute(draw: Draw, scene: Scene) -> Statements:
    """A tensor that is neither parameter nor buffer."""
    x = _float(scene)
    name = _name(scene, "t")
    at = name.replace("self.", "target.")
    value = f"torch.tensor({draw.choice(_NUMBERS)}, dtype=torch.{dtype_name(scene.values[x])})"
    _add(scene, name, f"{name} = {value}")
    scene.changes.append(
        Change(
            kind="module attribute",
            name=name,
            texts=(
                f"{at} = torch.tensor(5.0)",
                f"{at}.add_(2)",
                f"{at} = 2",
                f"{at} = torch.nn.Parameter(torch.tensor(3.0))",
            ),
            restore=f"if isinstance({at}, torch.nn.Parameter):\n    del {at}\n{at} = {value}",
        )
    )
    return _binary(draw, scene, x, name)


def draw_number_attribute(draw: Draw, scene: Scene) -> Statements:
    """A number, read, and counted up now and then."""
    x = _float(scene)
    name = _name(scene, "n")
    at = name.replace("self.", "target.")
    value = draw.choice((2, 0.5, 3, 1.5, 0))
    _add(scene, name, f"{name} = {value}")
    scene.changes.append(
        Change(
            kind="module attribute",
            name=name,
            texts=(f"{at} = 5", f"{at} = 2.5", f"{at} += 1", f"{at} = torch.tensor(4.0)", f"{at} = True"),
            restore=f"{at} = {value}",
        )
    )
    result = scene.fresh()
    text = f"{{{result}}} = {{{x}}} * {name}"
    if draw.chance(0.4) and scene.settings.focus != "export":  # an exported program leaves numbers as they are
        text = draw.choice((f"{name} += 1\n{text}", f"{text}\n{name} = {name} * 2"))
    return Lines(text=text, uses=(x,), results=(result,))


def draw_flag_attribute(draw: Draw, scene: Scene) -> Statements:
    """A branch on a flag, a word, or the training flag."""
    x = _float(scene)
    name = _name(scene, "flag")
    at = name.replace("self.", "target.")
    kind = draw.choice(("flag", "word", "training", "optional"))
    if kind == "training":
        header = "if self.training:"
    else:
        values, header = {
            "flag": (("True", "False", "1"), f"if {name}:"),
            "word": (("'mean'", "'sum'", "'other'"), f"if {name} == 'mean':"),
            "optional": (("None", "torch.tensor(2.0)", "0"), f"if {name} is None:"),
        }[kind]
        _add(scene, name, f"{name} = {values[0]}")
        others = tuple(f"{at} = {value}" for value in values[1:])
        scene.changes.append(Change(kind="module flag", name=name, texts=others, restore=f"{at} = {values[0]}"))
    result = scene.fresh()
    branches = [
        Lines(text=f"{{{result}}} = {computation(draw, 'float', 'f', f'{{{x}}}')}", uses=(x,), results=(result,))
        for _ in range(2)
    ]
    return Block(header=header, body=(branches[0],), orelse=(branches[1],))


def draw_container_attribute(draw: Draw, scene: Scene) -> Statements:
    """A list or dict of numbers, tensors or parameters; or torch's own containers of parameters."""
    x = _float(scene)
    name = _name(scene, "c")
    at = name.replace("self.", "target.")
    result = scene.fresh()
    kind = draw.choice(("list", "parameters", "dict", "ParameterList", "ParameterDict"))
    value, loop, texts = {
        "list": ("[2.0, 3.0]", name, (f"{at}.append(0.5)", f"{at}[0] = 4.0", f"{at} = [1.5]", f"{at}.clear()")),
        "parameters": (
            "[torch.nn.Parameter(torch.tensor(2.0)), torch.nn.Parameter(torch.tensor(0.5))]",
            name,
            (f"{at}.pop()", f"{at}[0] = torch.nn.Parameter(torch.tensor(3.0))", f"{at}.reverse()"),
        ),
        "dict": (
            "{'a': 2.0, 'b': torch.tensor(3.0)}",
            f"{name}.values()",
            (f"{at}['a'] = 4.0", f"{at}['b'] = torch.tensor(0.5)", f"{at}['c'] = 2", f"{at}.pop('a')"),
        ),
        "ParameterList": (
            "torch.nn.ParameterList([torch.tensor(2.0), torch.tensor(3.0)])",
            name,
            (f"{at}.append(torch.tensor(0.5))", f"{at}[0] = torch.nn.Parameter(torch.tensor(4.0))"),
        ),
        "ParameterDict": (
            "torch.nn.ParameterDict({'a': torch.tensor(2.0), 'b': torch.tensor(3.0)})",
            f"{name}.values()",
            (f"{at}['c'] = torch.tensor(0.5)", f"{at}['a'] = torch.nn.Parameter(torch.tensor(4.0))", f"del {at}['a']"),
        ),
    }[kind]
    _add(scene, name, f"{name} = {value}")
    scene.changes.append(Change(kind="container", name=name, texts=texts))
    step = draw.choice(("{r} = {r} * value", "{r} = {r} + value"))
    text = f"{{{result}}} = {{{x}}}\nfor value in {loop}:\n    {step.replace('{r}', f'{{{result}}}')}"
    return Lines(text=text, uses=(x,), results=(result,))


def draw_cache_attribute(draw: Draw, scene: Scene) -> Statements:
    """A cache that forward keeps in the module for the next call; not for export, which drops it."""
    if scene.settings.focus == "export":
        return None
    x = _float(scene)
    name = _name(scene, "last")
    at = name.replace("self.", "target.")
    _add(scene, name, f"{name} = None")
    scene.changes.append(
        Change(
            kind="module attribute",
            name=name,
            texts=(f"{at} = None", f"{at} = torch.tensor(2.0)"),
            restore=f"{at} = None",
        )
    )
    result = scene.fresh()
    found = computation(draw, "float", "f", f"{{{x}}}")
    text = f"{{{result}}} = {{{x}}} if {name} is None else {{{x}}} + {name}\n{name} = ({found}).detach()"
    return Lines(text=text, uses=(x,), results=(result,))


def draw_own_submodule(draw: Draw, scene: Scene) -> Statements:
    """A submodule of a class of the program's own."""
    x = _float(scene)
    inner = f"Inner{len(scene.definitions)}"
    body = computation(draw, "float", "f", "x")
    scene.define(
        Definition(
            name=inner,
            text=(
                f"class {inner}(torch.nn.Module):\n"
                "    shift = 1\n\n"
                "    def __init__(self, scale):\n"
                "        super().__init__()\n"
                "        self.scale = scale\n"
                "        self.weight = torch.nn.Parameter(torch.tensor(2.0))\n"
                "        self.register_buffer('calls', torch.zeros(()))\n\n"
                "    def forward(self, x):\n"
                "        self.calls += 1\n"
                "        if self.training:\n"
                "            x = x * 3\n"
                f"        return {body} * self.scale * self.weight + self.shift + self.calls\n"
            ),
        )
    )
    name = _name(scene, "inner")
    word, at = name.removeprefix("self."), name.replace("self.", "target.")
    _add(scene, name, f"{name} = {inner}(2.0)")
    scene.changes.append(
        Change(
            kind="submodule",
            name=name,
            texts=(
                f"{at} = {inner}(5.0)",
                f"object.__setattr__(target, '{word}', {inner}(5.0))",
                f"target._modules['{word}'] = {inner}(4.0)",
                f"{at}.scale = 3.0",
                f"{at}.scale = torch.tensor(3.0)",
                f"{inner}.shift = 4",
                f"{at}.shift = 5",
                f"{at}.eval()",
                f"{at}.weight.data.fill_(0.5)",
                f"{at}.weight = torch.nn.Parameter(torch.tensor([3.0]))",
                f"{at}.calls = torch.tensor(7.0)",
                f"{inner}.forward = lambda self, x: x * self.scale",
                f"{at}.forward = lambda x: x - 4",
                f"{at} = torch.nn.ReLU()",
                f"{at}.weight.requires_grad_(False)",
            ),
            restore=f"target.__dict__.pop('{word}', None)\n{at} = {inner}(2.0)",
        )
    )
    result = scene.fresh()
    return OpCall(target=name, args=(Ref(x),), results=(result,))


def draw_over_parameters(draw: Draw, scene: Scene) -> Statements:
    """Iterate over a module's parameters, buffers, children or state."""
    assert scene.state is not None
    if not scene.state:
        return None
    x = _float(scene)
    result = scene.fresh()
    entry = draw.choice([entry.name for entry in scene.state])
    word = entry.removeprefix("self.")
    text = draw.choice(
        (
            "for name, value in self.named_parameters():\n    {r} = {r} + value.sum() * len(name)",
            "for value in self.parameters():\n    {r} = {r} * (1 + value.dim())",
            "for name, value in self.named_buffers():\n    {r} = {r} + value.sum() * len(name)",
            "for child in self.children():\n    {r} = {r} * (3 if child.training else 2)",
            f"if hasattr(self, '{word}') and not hasattr(self, '{word}_missing'):\n    {{r}} = {{r}} * 2",
            f"if '{word}' in self._parameters or '{word}' in self._buffers:\n    {{r}} = {{r}} * 2",
            "{r} = {r} * len(self.state_dict()) + len(self._modules)",
        )
    )
    text = f"{{{result}}} = {{{x}}}\n" + text.replace("{r}", f"{{{result}}}")
    return Lines(
        text=f"{text}\n{{{result}}} = {{{result}}} + (1 if {entry} is None else 0)", uses=(x,), results=(result,)
    )


def _binary(draw: Draw, scene: Scene, x: str, name: str) -> OpCall:
    """x and a piece of state."""
    target = draw.choice(("operator.mul", "operator.add", "operator.sub", "torch.maximum"))
    args = (Ref(x), Ref(name)) if draw.chance(0.8) else (Ref(name), Ref(x))
    return OpCall(target=target, args=args, results=(scene.fresh(),))


def _float(scene: Scene) -> str:
    return scene.pick(lambda tensor: kind_of(tensor) == "float") or scene.new_tensor(None, "float32")


def _name(scene: Scene, stem: str) -> str:
    assert scene.state is not None
    return f"self.{stem}{len(scene.state)}"


def _add(scene: Scene, name: str, text: str, *, needs: tuple[str, ...] = ()) -> None:
    scene.add_state(StateEntry(name=name, text=text, needs=needs))


def _of_module(rule: Callable[[Draw, Scene], Statements]) -> Callable[[Draw, Scene], Statements]:
    def draw_statements(draw: Draw, scene: Scene) -> Statements:
        return None if scene.state is None else rule(draw, scene)

    return draw_statements


RULES: tuple[Rule, ...] = tuple(
    Rule(name=name, family="state", draw_statements=_of_module(rule), weight=weight)
    for name, rule, weight in (
        ("layer", draw_layer, 4),
        ("parameter", draw_parameter, 2),
        ("buffer", draw_buffer, 2),
        ("tensor_attribute", draw_tensor_attribute, 1),
        ("number_attribute", draw_number_attribute, 1.5),
        ("flag_attribute", draw_flag_attribute, 1),
        ("container_attribute", draw_container_attribute, 1),
        ("cache_attribute", draw_cache_attribute, 0.7),
        ("own_submodule", draw_own_submodule, 1.5),
        ("over_parameters", draw_over_parameters, 0.7),
    )
)
