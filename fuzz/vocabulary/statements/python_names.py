"""Python features: globals, closures and attributes that a function reads, and that may change before the next call."""

from __future__ import annotations

from fuzz.vocabulary.statements.python_template import Template, Varies, any_kind, rules_of

_ANY = any_kind()
NAMES: tuple[Template, ...] = (
    Template(
        name="global_number",
        definitions=("$D = $n",),
        text="{r} = $f({x}) * $D",
        varies=(Varies(kind="global", name="$D", texts=("$D = $m", "$D += 1", "$D = True"), restore="$D = $n"),),
        kinds=_ANY,
        weight=1.5,
    ),
    Template(
        name="global_flag",
        definitions=("$D = True",),
        text="""
            if $D:
                {r} = $f({x})
            else:
                {r} = $g({x}) - 1
        """,
        varies=(Varies(kind="global", name="$D", texts=("$D = False", "$D = None", "$D = 0"), restore="$D = True"),),
        kinds=("float", "complex", "integer"),
    ),
    Template(
        name="global_tensor",
        definitions=("$D = torch.tensor([$n])",),
        text="{r} = {x} + $D",
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=(
                    "$D = torch.tensor([$m])",
                    "$D.add_(1)",
                    "$D = torch.tensor($m, dtype=torch.float64)",
                    "$D = $m",
                    "$D = torch.tensor([$m], requires_grad=True)",
                ),
                restore="$D = torch.tensor([$n])",
            ),
        ),
    ),
    Template(
        name="global_counter",
        definitions=(
            "$D = 0",
            """
            def $E(x):
                global $D
                $D += 1
                return $f(x) * $D
            """,
        ),
        text="{r} = $E({x})",
        varies=(Varies(kind="global", name="$E", texts=("$D = 5", "$D = -1"), restore="$D = 0"),),
        kinds=("float", "integer"),
    ),
    Template(
        name="global_tensor_rebound",
        definitions=(
            "$D = torch.zeros(())",
            """
            def $E(x):
                global $D
                $D = $D + x.detach().sum()
                return $f(x) + $D
            """,
        ),
        text="{r} = $E({x})",
        varies=(Varies(kind="global", name="$E", texts=("$D = torch.ones(())",), restore="$D = torch.zeros(())"),),
    ),
    Template(
        name="global_list",
        definitions=("$D = [$n]",),
        text="""
            $D.append($m)
            {r} = {x} * len($D) + $D[0]
        """,
        varies=(Varies(kind="global", name="$D", texts=("$D.clear(); $D.append($o)", "$D[0] = $o", "$D = [$o, $n]")),),
        kinds=("float", "integer"),
    ),
    Template(
        name="global_dict",
        definitions=("$D = {'scale': $n, 'shift': $m}",),
        text="{r} = $f({x}) * $D['scale'] + $D.get('shift', 1)",
        varies=(
            Varies(
                kind="container",
                name="$D",
                texts=("$D['scale'] = $o", "$D.pop('shift')", "$D = {'scale': $o}", "$D.update(scale=$o, other=1)"),
                restore="$D = {'scale': $n, 'shift': $m}",
            ),
        ),
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="global_dict_of_tensors",
        definitions=("$D = {'a': torch.tensor($n), 'b': torch.tensor($m)}",),
        text="""
            {r} = {x}
            for name, value in $D.items():
                {r} = {r} * value + len(name)
        """,
        varies=(
            Varies(
                kind="container",
                name="$D",
                texts=(
                    "$D['a'] = torch.tensor($o)",
                    "$D['a'] = $D.pop('a')",
                    "$D['cc'] = torch.tensor($o)",
                    "del $D['b']",
                ),
                restore="$D = {'a': torch.tensor($n), 'b': torch.tensor($m)}",
            ),
        ),
    ),
    Template(
        name="global_set",
        definitions=("$D = {0, 2, 4}",),
        text="{r} = $f({x}) if {x}.dim() in $D else $g({x}) * 3",
        varies=(
            Varies(
                kind="container",
                name="$D",
                texts=("$D.clear()", "$D.update(range(8))", "$D = frozenset((1, 3))"),
                restore="$D = {0, 2, 4}",
            ),
        ),
        kinds=("float", "integer"),
    ),
    Template(
        name="global_function",
        definitions=(
            """
            def $D(x):
                return $f(x)
            """,
            """
            def $E(x):
                return $b(x, x) * 3
            """,
        ),
        text="{r} = $D({x})",
        varies=(Varies(kind="function", name="$D", texts=("$D = $E", "$D.__code__ = $E.__code__", "$D = torch.neg")),),
    ),
    Template(
        name="global_dtype",
        definitions=("$D = torch.float64",),
        text="{r} = $f({x}).to($D)",
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=("$D = torch.float32", "$D = torch.bfloat16", "$D = torch.complex64"),
                restore="$D = torch.float64",
            ),
        ),
    ),
    Template(
        name="global_name_of_function",
        definitions=("$D = 'sin'",),
        text="{r} = getattr(torch, $D)({x})",
        varies=(Varies(kind="global", name="$D", texts=("$D = 'cos'", "$D = 'exp'"), restore="$D = 'sin'"),),
    ),
    Template(
        name="class_attribute",
        definitions=(
            """
            class $D:
                scale = $n
            """,
        ),
        text="{r} = $f({x}) * $D.scale",
        varies=(
            Varies(
                kind="class attribute",
                name="$D",
                texts=("$D.scale = $m", "$D.scale = $D.scale + 1"),
                restore="$D.scale = $n",
            ),
        ),
        kinds=_ANY,
        weight=1.5,
    ),
    Template(
        name="inherited_attribute",
        definitions=(
            """
            class $D:
                scale = $n
            """,
            """
            class $E($D):
                def apply(self, x):
                    return $f(x) * self.scale
            """,
        ),
        text="{r} = $E().apply({x})",
        varies=(
            Varies(
                kind="class attribute",
                name="$E",
                texts=("$D.scale = $m", "$E.scale = $o", "$E.apply = lambda self, x: x - self.scale"),
            ),
        ),
        kinds=("float", "integer"),
    ),
    Template(
        name="instance_attribute",
        definitions=(
            """
            class $D:
                offset = $m

                def __init__(self):
                    self.scale = $n

                def apply(self, x):
                    return $f(x) * self.scale + self.offset
            """,
            "$E = $D()",
        ),
        text="{r} = $E.apply({x})",
        varies=(
            Varies(
                kind="instance attribute",
                name="$E",
                texts=("$E.scale = $o", "$E.offset = $o", "$D.offset = $o", "del $E.scale; $D.scale = $o"),
                restore="$E.scale = $n; $E.offset = $m",
            ),
        ),
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="instance_counter",
        definitions=(
            """
            class $D:
                def __init__(self):
                    self.count = 0
                    self.seen = []

                def __call__(self, x):
                    self.count += 1
                    self.seen.append(x.dim())
                    return $f(x) * self.count + len(self.seen)
            """,
            "$E = $D()",
        ),
        text="{r} = $E({x})",
        varies=(Varies(kind="instance attribute", name="$E", texts=("$E.count = 7", "$E.seen = []", "$E = $D()")),),
        kinds=("float", "integer"),
    ),
    Template(
        name="instance_tensor",
        definitions=(
            """
            class $D:
                def __init__(self):
                    self.total = torch.tensor($n)

                def add(self, x):
                    self.total = self.total + x.detach().sum()
                    return $f(x) + self.total
            """,
            "$E = $D()",
        ),
        text="{r} = $E.add({x})",
        varies=(
            Varies(
                kind="instance attribute",
                name="$E",
                texts=("$E.total = torch.tensor($m)", "$E.total = torch.tensor([$m, $n])", "$E.total.zero_()"),
            ),
        ),
    ),
    Template(
        name="lazy_attribute",
        definitions=(
            """
            class $D:
                cached = None

                def get(self, x):
                    if self.cached is None:
                        self.cached = $f(x).detach()
                    return self.cached
            """,
            "$E = $D()",
        ),
        text="{r} = {x} * $E.get({x})",
        varies=(
            Varies(kind="instance attribute", name="$E", texts=("$E.cached = None", "$E.cached = torch.tensor($n)")),
        ),
    ),
    Template(
        name="namespace_object",
        definitions=("import types\n\n$D = types.SimpleNamespace(scale=$n, inner=types.SimpleNamespace(shift=$m))",),
        text="{r} = {x} * $D.scale + $D.inner.shift",
        varies=(
            Varies(
                kind="instance attribute",
                name="$D",
                texts=("$D.scale = $o", "$D.inner.shift = $o", "$D.inner = types.SimpleNamespace(shift=$o)"),
                restore="$D.scale = $n; $D.inner.shift = $m",
            ),
        ),
        kinds=("float", "integer"),
    ),
    Template(
        name="closure",
        definitions=(
            """
            def make_$D(scale):
                def scaled(x):
                    return $f(x) * scale

                return scaled


            $D = make_$D($n)
            """,
        ),
        text="{r} = $D({x})",
        varies=(
            Varies(
                kind="closure",
                name="$D",
                texts=("$D.__closure__[0].cell_contents = $m", "$D = make_$D($m)", "$D = make_$D(torch.tensor($m))"),
                restore="$D = make_$D($n)",
            ),
        ),
        kinds=("float", "integer", "complex"),
        weight=1.5,
    ),
    Template(
        name="closure_counter",
        definitions=(
            """
            def make_$D():
                count = 0

                def counted(x):
                    nonlocal count
                    count += 1
                    return $f(x) * count

                return counted


            $D = make_$D()
            """,
        ),
        text="{r} = $D({x})",
        varies=(
            Varies(kind="closure", name="$D", texts=("$D.__closure__[0].cell_contents = 4",), restore="$D = make_$D()"),
        ),
        kinds=("float", "integer"),
    ),
    Template(
        name="closure_over_list",
        definitions=(
            "$D = [$n, $m]",
            """
            def make_$E(values):
                def summed(x):
                    for value in values:
                        x = x * value + 1
                    return x

                return summed


            $E = make_$E($D)
            """,
        ),
        text="{r} = $E({x})",
        varies=(
            Varies(
                kind="closure",
                name="$E",
                texts=("$D.append($o)", "$D[0] = $o", "$D.reverse()", "$D.clear()", "$E = make_$E([$o])"),
                restore="$D[:] = [$n, $m]; $E = make_$E($D)",
            ),
        ),
        kinds=("float", "integer"),
    ),
    Template(
        name="default_argument",
        definitions=(
            """
            def $D(x, scale=$n, *, shift=$m):
                return $f(x) * scale + shift
            """,
        ),
        text="{r} = $D({x})",
        varies=(
            Varies(
                kind="function default",
                name="$D",
                texts=("$D.__defaults__ = ($o,)", "$D.__kwdefaults__ = {'shift': $o}"),
                restore="$D.__defaults__ = ($n,); $D.__kwdefaults__ = {'shift': $m}",
            ),
        ),
        kinds=("float", "integer"),
        weight=0.7,
    ),
    Template(
        name="mutable_default",
        definitions=(
            """
            def $D(x, seen=[]):
                seen.append(len(seen))
                return $f(x) + len(seen)
            """,
        ),
        text="{r} = $D({x})",
        kinds=("float", "integer"),
    ),
    Template(
        name="function_attribute",
        definitions=(
            """
            def $D(x):
                return $f(x) * $D.scale


            $D.scale = $n
            """,
        ),
        text="{r} = $D({x})",
        varies=(Varies(kind="function attribute", name="$D", texts=("$D.scale = $m",), restore="$D.scale = $n"),),
        kinds=("float", "integer"),
    ),
    Template(
        name="dispatch_table",
        definitions=("$D = {'a': torch.sin, 'b': torch.abs, 'c': lambda x: $f(x)}",),
        text="{r} = $D[{A}]({x})",
        argument=("a", "b", "c"),
        varies=(Varies(kind="container", name="$D", texts=("$D['a'] = torch.cos", "$D['b'] = $D['c']")),),
    ),
    Template(
        name="list_of_functions",
        definitions=("$D = [torch.sin, torch.tanh]",),
        text="""
            {r} = {x}
            for function in $D:
                {r} = function({r})
        """,
        varies=(
            Varies(
                kind="container",
                name="$D",
                texts=("$D.append(torch.relu)", "$D.reverse()", "$D[0] = torch.cos", "$D.pop()"),
            ),
        ),
    ),
    Template(
        name="global_slice",
        definitions=("$D = slice(None, None, 2)",),
        text="{r} = $f({x})[..., $D]",
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=("$D = slice(0, 1)", "$D = slice(1, None)", "$D = slice(-1, None)"),
                restore="$D = slice(None, None, 2)",
            ),
        ),
        kinds=_ANY,
        condition=lambda tensor: tensor.dim() > 0,
    ),
)

RULES = rules_of(NAMES)
