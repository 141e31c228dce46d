"""Python features that read properties of a tensor: sizes, dtype, strides, flags, values, NumPy."""

from __future__ import annotations

from fuzz.vocabulary.statements.python_template import Template, Varies, any_kind, rules_of

_ANY = any_kind()
_NUMERIC = ("float", "integer", "complex")
QUERIES: tuple[Template, ...] = (
    Template(
        name="shape_compared",
        text="""
            if {x}.size() != torch.Size([3, 4]) and tuple({x}.shape) != (2,):
                {r} = $f({x})
            else:
                {r} = $g({x}) * 5
        """,
        kinds=_ANY,
    ),
    Template(
        name="shape_arithmetic",
        text="""
            rows = {x}.shape[0]
            half = (rows + 1) // 2
            {r} = $f({x})[:half] * rows
            {s} = {x}[half - 1 :] + rows % 3
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0 and tensor.shape[0] > 0,
        weight=1.5,
    ),
    Template(
        name="shape_flattened",
        text="""
            *front, last = {x}.shape
            {r} = $f({x}).reshape(-1, last) * len(front)
            {s} = {r}.view(*front, last) + last
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0 and tensor.numel() > 0,
    ),
    Template(
        name="size_arithmetic",
        text="""
            shape = {x}.shape[:-1] + (1,) + torch.Size([2])
            {r} = $f({x}).sum(-1)[..., None, None].expand(shape) * shape.numel()
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0 and tensor.numel() <= 512,
    ),
    Template(
        name="shape_reversed",
        text="""
            {r} = {x}.new_ones({x}.shape[::-1]) * {x}.numel()
            {s} = $f({x}) + torch.full({x}.shape, len({x}.shape), dtype={x}.dtype)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="shape_product",
        text="""
            count = 1
            for size in {x}.shape:
                count *= size
            {r} = $f({x}).flatten() * count if count > 4 else {x}.reshape(count) - count
        """,
        kinds=_NUMERIC,
    ),
    Template(
        name="divisible",
        text="""
            size = {x}.shape[-1]
            if size % 2 == 0 and size > 0:
                {r} = $f({x}).unflatten(-1, (size // 2, 2)).sum(-1)
            else:
                {r} = $g({x}) * size
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0,
        weight=1.5,
    ),
    Template(
        name="size_in_factory",
        text="""
            at = torch.arange({x}.shape[-1], dtype={x}.dtype)
            {r} = $f({x}) + at * $n
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0,
    ),
    Template(
        name="size_in_loop",
        text="""
            {r} = {x}.sum(0)
            for i in range({x}.shape[0]):
                {r} = {r} * 0.5 + $f({x})[i]
        """,
        condition=lambda tensor: tensor.dim() > 0 and tensor.shape[0] < 9,
    ),
    Template(
        name="rank_dispatch",
        text="""
            if {x}.ndim == 0:
                {r} = $f({x})
            elif {x}.ndim == 1:
                {r} = {x} * {x}.shape[0]
            elif {x}.ndim % 2:
                {r} = $g({x}).transpose(0, -1)
            else:
                {r} = $h({x}).mT + len({x})
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="dtype_dispatch",
        text="""
            if {x}.dtype == torch.float64:
                {r} = $f({x}) * 2
            elif {x}.dtype in (torch.bfloat16, torch.float16):
                {r} = $g({x}).float()
            elif {x}.is_floating_point():
                {r} = $h({x}) + 1
            else:
                {r} = {x} - $k
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="dtype_table",
        definitions=("$D = {torch.float32: $n, torch.float64: $m, torch.int64: 7}",),
        text="{r} = $f({x}) * $D.get({x}.dtype, $o)",
        varies=(Varies(kind="container", name="$D", texts=("$D[torch.float32] = $o", "$D.clear()")),),
        kinds=("float", "integer"),
    ),
    Template(
        name="device_query",
        text="""
            scale = $n if {x}.device.type == 'cpu' and not {x}.is_cuda else $m
            {r} = $f({x}) * scale + torch.ones((), device={x}.device)
        """,
    ),
    Template(
        name="stride_query",
        text="""
            if {x}.stride() == {x}.contiguous().stride():
                {r} = $f({x}) * 2
            else:
                {r} = $g({x}) + {x}.stride(-1)
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0,
    ),
    Template(
        name="contiguity_query",
        text="""
            if {x}.is_contiguous():
                {r} = $f({x}).view(-1)
            else:
                {r} = $g({x}).reshape(-1) * 3
        """,
        kinds=_NUMERIC,
        weight=1.3,
    ),
    Template(
        name="channels_last_query",
        text="""
            is_last = {x}.dim() == 4 and {x}.is_contiguous(memory_format=torch.channels_last)
            {r} = $f({x}) * 2 if is_last else $g({x}) - 1
        """,
    ),
    Template(
        name="offset_query",
        text="""
            if {x}.storage_offset():
                {r} = $f({x}) * {x}.storage_offset()
            else:
                {r} = $g({x}) - {x}.element_size()
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="requires_grad_query",
        text="""
            if {x}.requires_grad:
                {r} = $f({x}) * 2
            else:
                {r} = $g({x}) + 5
        """,
        weight=1.3,
    ),
    Template(
        name="grad_mode_query",
        text="""
            if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                {r} = $f({x}) * 2
            else:
                {r} = $g({x}) + 5
        """,
    ),
    Template(
        name="leaf_query",
        text="""
            {r} = $f({x})
            {s} = {r} * 3 if {x}.is_leaf and {x}.grad_fn is None else {r} - 2
        """,
    ),
    Template(
        name="set_requires_grad",
        text="""
            detached = {x}.detach().clone().requires_grad_()
            {r} = $f(detached) * $n
        """,
    ),
    Template(
        name="own_gradient",
        text="""
            with torch.enable_grad():
                inner = {x}.detach().clone().requires_grad_()
                loss = ($f(inner) * inner).sum()
                (found,) = torch.autograd.grad(loss, inner)
            {r} = found * $n + {x}
        """,
        condition=lambda tensor: tensor.numel() > 0,
    ),
    Template(
        name="finfo",
        text="{r} = torch.clamp($f({x}), min=torch.finfo({x}.dtype).tiny) + torch.finfo({x}.dtype).bits",
    ),
    Template(
        name="promotion_query",
        text="{r} = $f({x}).to(torch.promote_types({x}.dtype, {y}.dtype)) * torch.result_type({x}, $n).itemsize",
    ),
    Template(
        name="default_dtype",
        text="""
            kept = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                {r} = $f({x}) + torch.tensor([$n])
            finally:
                torch.set_default_dtype(kept)
            {s} = {x} + torch.tensor([$m])
        """,
        kinds=("integer", "float"),
        weight=0.7,
    ),
    Template(
        name="item_arithmetic",
        text="""
            count = int(({x} > 0).sum().item())
            {r} = $f({x}) * count
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="item_as_size",
        text="""
            count = ({x} > 0).sum().item()
            {r} = torch.ones(count % 4 + 1) * {x}.sum().detach()
        """,
    ),
    Template(
        name="item_branch",
        text="""
            largest = {x}.max().item()
            if largest > 1:
                {r} = $f({x}) * 2
            elif largest != largest:
                {r} = {x} - 1
            else:
                {r} = $g({x}) + 7
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.numel() > 0,
    ),
    Template(
        name="tolist",
        text="""
            values = ({x} > 0).flatten()[:3].tolist()
            {r} = $f({x}) * (1 + sum(values))
            {s} = torch.tensor(values, dtype={x}.dtype)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="nonzero_shape",
        text="""
            at = ({x} > 0).nonzero()
            {r} = $f({x}) * at.shape[0]
            {s} = {x}[{x} > 0] + len(at)
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0,
    ),
    Template(
        name="numpy_function",
        definitions=("import numpy as np\n\n\n$D = np.sin",),
        text="""
            {r} = torch.from_numpy($D({x}.detach().numpy()) * $n) + {x}
        """,
        kinds=("float",),
        condition=lambda tensor: tensor.dim() > 0 and tensor.itemsize >= 4 and not tensor.is_neg(),
    ),
    Template(
        name="numpy_shares_memory",
        text="""
            copied = {x}.detach().clone()
            array = copied.numpy()
            array += $n
            {r} = $f(copied) * array.shape[0]
        """,
        condition=lambda tensor: tensor.dim() > 0 and tensor.itemsize >= 4 and not tensor.is_neg(),
    ),
    Template(
        name="numpy_scalars",
        definitions=("import numpy as np\n\n\n$D = np.float32($n)",),
        text="""
            {r} = {x} * float($D) + int(np.prod({x}.shape))
            {s} = $f({x}) * np.int64($k).item()
        """,
        varies=(
            Varies(
                kind="global",
                name="$D",
                texts=("$D = np.float32($m)", "$D = np.int64(2)"),
                restore="$D = np.float32($n)",
            ),
        ),
        weight=0.7,
    ),
    Template(
        name="iterate_over_rows",
        text="""
            {r} = 0
            for at, row in enumerate({x}):
                {r} = {r} + $f(row) * at
            {r} = {r} + {x}
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0 and 0 < tensor.shape[0] < 9,
    ),
    Template(
        name="unpack_rows",
        text="""
            first, *rest = {x}.unbind(0)
            {r} = $f(first) * len(rest)
            {s} = {x}.sum(0) - first
        """,
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0 and 0 < tensor.shape[0] < 9,
    ),
    Template(
        name="method_by_name",
        text="""
            {r} = getattr({x}, {A})()
            if hasattr({r}, 'numel') and {r}.numel() == {x}.numel():
                {r} = {r} * 2
        """,
        argument=("sin", "abs", "neg", "sum", "flatten"),
        kinds=("float", "integer"),
    ),
    Template(
        name="type_query",
        text="""
            is_plain = type({x}) is torch.Tensor and not isinstance({x}, torch.nn.Parameter)
            {r} = $f({x}) * 2 if is_plain and torch.is_tensor({x}) else $g({x}) + 5
        """,
    ),
    Template(
        name="data_attribute",
        text="""
            {r} = {x}.data * $n
            {s} = $f({x}) + {x}.detach()
        """,
        kinds=_NUMERIC,
    ),
    Template(
        name="torch_function_subclass",
        definitions=(
            """
            class $D(torch.Tensor):
                @classmethod
                def __torch_function__(cls, func, types, args=(), kwargs=None):
                    if func is torch.add or func is torch.Tensor.add:
                        return super().__torch_function__(torch.sub, types, args, kwargs or {})
                    return super().__torch_function__(func, types, args, kwargs or {})
            """,
        ),
        text="""
            wrapped = {x}.detach().as_subclass($D)
            {r} = torch.add(wrapped, $n).as_subclass(torch.Tensor)
            {s} = torch.sin(wrapped).as_subclass(torch.Tensor) * {x}
        """,
    ),
    Template(
        name="torch_function_object",
        definitions=(
            """
            class $D:
                def __init__(self, value):
                    self.value = value

                @classmethod
                def __torch_function__(cls, func, types, args=(), kwargs=None):
                    args = [getattr(arg, 'value', arg) for arg in args]
                    return func(*args, **(kwargs or {})) * $n
            """,
        ),
        text="{r} = torch.add($D({x}), $D({y}))",
        kinds=("float", "integer"),
        weight=0.7,
    ),
    Template(
        name="torch_function_mode",
        definitions=(
            """
            import torch.overrides


            class $D(torch.overrides.TorchFunctionMode):
                def __torch_function__(self, func, types, args=(), kwargs=None):
                    if func is torch.sin:
                        func = torch.cos
                    return func(*args, **(kwargs or {}))
            """,
        ),
        text="""
            with $D():
                {r} = torch.sin({x}) * $n
            {s} = torch.sin({x}) + {r}
        """,
    ),
)

RULES = rules_of(QUERIES)
