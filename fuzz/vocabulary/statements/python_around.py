"""Python features: less common changes of a function's surroundings between two calls.

`fuzz.vocabulary.statements.python_names` has the common ones. Here values are held by objects rather than bound to names: partial
objects, properties, nested containers, tensors whose metadata changes in place, shadowed builtins.
"""

from __future__ import annotations

from fuzz.vocabulary.statements.python_template import Template, Varies, rules_of

_NUMERIC = ("float", "integer")
AROUND: tuple[Template, ...] = (
    Template(
        name="shadowed_builtin",
        definitions=("def $D(x):\n    return abs(x) * len(x.shape) + max(x.dim(), $k)",),
        text="{r} = $D({x})",
        varies=(Varies(kind="builtin", name="$D", texts=("len = lambda value: 7", "abs = torch.neg", "max = min")),),
    ),
    Template(
        name="partial_object",
        definitions=(
            """
            import functools


            def $D(x, scale, shift=0):
                return $f(x) * scale + shift
            """,
            "$E = functools.partial($D, scale=$n)",
        ),
        text="{r} = $E({x})",
        varies=(
            Varies(
                kind="partial object",
                name="$E",
                texts=(
                    "$E.keywords['scale'] = $m",
                    "$E.keywords['shift'] = $m",
                    "$E = functools.partial($D, scale=$o)",
                ),
                restore="$E = functools.partial($D, scale=$n)",
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="global_matrix",
        definitions=("$D = torch.arange(4.0).reshape(2, 2)",),
        text="""
            {r} = $f({x}).sum() * $D + $D.dim()
            if $D.is_contiguous():
                {r} = {r} * 2
            if $D.requires_grad:
                {r} = {r} + 3
        """,
        varies=(
            Varies(
                kind="tensor",
                name="$D",
                texts=(
                    "$D.t_()",
                    "$D.unsqueeze_(0)",
                    "$D.requires_grad_()",
                    "$D.data = torch.ones(3)",
                    "$D.set_(torch.full((2, 2), 5.0))",
                    "$D.as_strided_((2,), (1,))",
                    "$D = $D.expand(3, 2, 2)",
                    "$D = $D.T",
                    "$D.swapaxes_(0, 1).mul_(2)",
                ),
                restore="$D = torch.arange(4.0).reshape(2, 2)",
            ),
        ),
        weight=1.5,
    ),
    Template(
        name="global_view_and_base",
        definitions=("$D = torch.ones(4)", "$E = $D[1:3]"),
        text="{r} = $f({x}).sum() + $E * (2 if $E._base is $D else 3)",
        varies=(
            Varies(
                kind="tensor",
                name="$E",
                texts=("$D.fill_($m)", "$D[1] = $m", "$E = $D[::2]", "$E = $D[1:3].clone()", "$D = torch.zeros(4)"),
            ),
        ),
    ),
    Template(
        name="replaced_property",
        definitions=(
            """
            class $D:
                factor = $n

                @property
                def scale(self):
                    return self.factor * 2
            """,
            "$E = $D()",
        ),
        text="{r} = $f({x}) * $E.scale",
        varies=(
            Varies(
                kind="class attribute",
                name="$E",
                texts=("$D.scale = property(lambda self: $m)", "$D.factor = $m", "$E.factor = $m", "$D.scale = $m"),
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="shadowed_class_attribute",
        definitions=(
            """
            class $D:
                scale = $n

                def apply(self, x):
                    return $f(x) * self.scale


            class $DOther:
                scale = $m

                def apply(self, x):
                    return $g(x) - self.scale
            """,
            "$E = $D()",
        ),
        text="{r} = $E.apply({x})",
        varies=(
            Varies(
                kind="instance attribute",
                name="$E",
                texts=("$E.scale = $o", "$E.__dict__['scale'] = $o", "$E.__class__ = $DOther", "$E = $DOther()"),
                restore="$E = $D()",
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="descriptor_object",
        definitions=(
            """
            class $D:
                def __init__(self, scale):
                    self.scale = scale

                def __get__(self, instance, owner):
                    return self.scale
            """,
            """
            class $E:
                weight = $D($n)
            """,
        ),
        text="{r} = $f({x}) * $E().weight",
        varies=(
            Varies(kind="class attribute", name="$E", texts=("$E.__dict__['weight'].scale = $m", "$E.weight = $D($m)")),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="object_in_containers",
        definitions=(
            """
            class $D:
                def __init__(self, scale):
                    self.scale = scale
                    self.table = {'inner': [scale, (scale,)]}
            """,
            "$E = {'a': [$D($n), $D($m)]}",
        ),
        text="""
            {r} = $f({x})
            for holder in $E['a']:
                {r} = {r} * holder.scale + holder.table['inner'][0]
        """,
        varies=(
            Varies(
                kind="container",
                name="$E",
                texts=(
                    "$E['a'][0].scale = $o",
                    "$E['a'][1].table['inner'][0] = $o",
                    "$E['a'].append($D($o))",
                    "$E['a'][0] = $E['a'][1]",
                    "$E['a'].reverse()",
                ),
                restore="$E = {'a': [$D($n), $D($m)]}",
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="containers_that_are_one",
        definitions=("$D = [[$n], [$n]]",),
        text="{r} = $f({x}) * $D[0][0] if $D[0] is $D[1] else {x} + $D[1][0]",
        varies=(Varies(kind="container", name="$D", texts=("$D[1] = $D[0]", "$D[:] = [$D[1]] * 2", "$D[1] = [$m]")),),
        kinds=_NUMERIC,
    ),
    Template(
        name="tuple_of_constants",
        definitions=("$D = ($n, 'mean', None, True)",),
        text="""
            scale, how, extra, flag = $D
            {r} = $f({x}) * scale if flag is True else $g({x}) - scale
            if how == 'mean' and extra is None:
                {r} = {r} + 2
        """,
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=("$D = ($n, 'mean', None, 1)", "$D = ($m, 'sum', 0, True)", "$D = ($n, 'mean', False, True)"),
                restore="$D = ($n, 'mean', None, True)",
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="number_of_another_type",
        definitions=("$D = 1",),
        text="{r} = ({x} * $D if isinstance($D, bool) else {x} + $D) / (1 if type($D) is int else 2)",
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=(
                    "$D = True",
                    "$D = 1.0",
                    "$D = 1 + 0j",
                    "$D = float('nan')",
                    "$D = -0.0",
                    "$D = torch.tensor(1)",
                ),
                restore="$D = 1",
            ),
        ),
    ),
    Template(
        name="sign_of_zero",
        definitions=("$D = 0.0",),
        text="{r} = torch.copysign($f({x}), torch.tensor($D)) + torch.ones(()) / ({x} * 0 + $D)",
        varies=(Varies(kind="global", name="$D", texts=("$D = -0.0", "$D = 0"), restore="$D = 0.0"),),
        weight=0.7,
    ),
    Template(
        name="ordered_containers",
        definitions=(
            """
            import collections

            $D = collections.OrderedDict(a=$n, b=$m)
            """,
            "$E = collections.deque([$n, $m], maxlen=3)",
        ),
        text="""
            {r} = $f({x})
            for name, value in $D.items():
                {r} = {r} * value + ord(name)
            for value in $E:
                {r} = {r} * 2 - value
        """,
        varies=(
            Varies(kind="container", name="$D", texts=("$D.move_to_end('a')", "$D['a'] = $o", "$D.popitem()")),
            Varies(kind="container", name="$E", texts=("$E.rotate(1)", "$E.append($o)", "$E[0] = $o", "$E.clear()")),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="default_of_missing_key",
        definitions=("import collections\n\n$D = collections.defaultdict(lambda: $n, known=$m)",),
        text="{r} = $f({x}) * $D['known'] + $D[{A}] + len($D)",
        argument=("known", "other", "third"),
        varies=(
            Varies(
                kind="container", name="$D", texts=("$D.default_factory = lambda: $o", "$D['other'] = $o", "$D.clear()")
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="decorated_function",
        definitions=(
            """
            import functools


            def $D(function):
                @functools.wraps(function)
                def wrapped(x):
                    return function(x) * wrapped.scale

                wrapped.scale = $n
                return wrapped
            """,
            """
            @$D
            def $E(x):
                return $f(x)
            """,
        ),
        text="{r} = $E({x})",
        varies=(
            Varies(
                kind="function attribute",
                name="$E",
                texts=("$E.scale = $m", "$E.__closure__[0].cell_contents = torch.neg", "$E = $E.__wrapped__"),
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="bound_method",
        definitions=(
            """
            class $D:
                def __init__(self, scale):
                    self.scale = scale

                def apply(self, x):
                    return $f(x) * self.scale
            """,
            "$E = $D($n).apply",
        ),
        text="{r} = $E({x})",
        varies=(Varies(kind="bound method", name="$E", texts=("$E.__self__.scale = $m", "$E = $D($m).apply")),),
        kinds=_NUMERIC,
    ),
    Template(
        name="metaclass_attribute",
        definitions=(
            """
            class $DMeta(type):
                scale = $n


            class $D(metaclass=$DMeta):
                pass
            """,
        ),
        text="{r} = $f({x}) * $D.scale",
        varies=(Varies(kind="class attribute", name="$D", texts=("$DMeta.scale = $m", "$D.scale = $m")),),
        kinds=_NUMERIC,
        weight=0.5,
    ),
    Template(
        name="attribute_that_comes_and_goes",
        definitions=("import types\n\n$D = types.SimpleNamespace()",),
        text="""
            if hasattr($D, 'scale'):
                {r} = $f({x}) * $D.scale
            else:
                {r} = $g({x}) + getattr($D, 'shift', 1)
        """,
        varies=(
            Varies(
                kind="instance attribute",
                name="$D",
                texts=("$D.scale = $n", "$D.shift = $m", "$D.__dict__.update(scale=$o)"),
                restore="$D.__dict__.clear()",
            ),
        ),
        kinds=_NUMERIC,
    ),
    Template(
        name="range_and_slice",
        definitions=("$D = range(2)", "$E = slice(0, 2)"),
        text="""
            {r} = {x}
            for i in $D:
                {r} = $f({r}) + i
            {s} = {r}.flatten()[$E] * 2
        """,
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=("$D = range(3, 0, -1)", "$D = range(0)", "$D = (1, 5)"),
                restore="$D = range(2)",
            ),
            Varies(
                kind="global", name="$E", texts=("$E = slice(1, None)", "$E = slice(0, 1)"), restore="$E = slice(0, 2)"
            ),
        ),
    ),
)

RULES = rules_of(AROUND)
