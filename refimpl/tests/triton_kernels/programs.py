"""Programs that launch Triton kernels, each with arguments for one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from refimpl.tests.triton_kernels import kernels as kernels_

Program = Callable[..., Any]
kernels: Any = kernels_  # constexpr parameters take numbers
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(20.0), torch.linspace(-1.0, 1.0, 20)


def blocks(meta: Any) -> Any:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@program
def adds(x: Any, y: Any) -> Any:
    return kernels.add(x, y) * 2


@program
def grid_is_a_function(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.add_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, out, x.numel(), BLOCK=8)
    return out.sin()


@program
def grid_is_a_closure(x: Any, y: Any) -> Any:
    out, n, block = torch.empty_like(x), x.shape[0], 8

    def grid(meta: Any) -> Any:
        assert meta["BLOCK"] == block
        return (n // block + 1, 1)

    kernels.add_kernel[grid](x, y, out, n, block)
    return out


@program
def arguments_by_name(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.add_kernel[(3, 1, 1)](n=x.numel(), out_ptr=out, y_ptr=y, x_ptr=x, BLOCK=8, num_warps=2)
    return out


@program
def a_parameter_has_a_default(x: Any, y: Any) -> Any:
    z = x + y
    kernels.scale_kernel[blocks](z, z.numel(), 0.5)
    return z


@program
def by_run(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.add_kernel.run(x, y, out, x.numel(), BLOCK=8, grid=(3,), warmup=False)
    return out


@program
def kernel_in_a_variable(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    launch = kernels.add_kernel[(3,)]
    launch(x, y, out, x.numel(), 8)
    launch(out, y, out, x.numel(), BLOCK=8)
    return out


@program
def writes_an_argument(x: Any, y: Any) -> Any:
    before = x.sum()
    kernels.scale_kernel[(2,)](x, x.numel(), 2.5)
    return before, x + y


@program
def writes_a_view_of_an_argument(x: Any, y: Any) -> Any:
    kernels.scale_kernel[(1,)](x[3:9], 6, 2.0)
    return x.view(4, 5)[1]


@program
def writes_views_of_one_tensor(x: Any, y: Any) -> Any:
    z = x * 2
    kernels.scale_kernel[(1,)](z[2:7], 5, 3.0)
    kernels.scale_kernel[(1,)](z[5:], 3, factor=2)
    return z, z[3:]


@program
def writes_one_buffer_twice(x: Any, y: Any) -> Any:
    out = torch.zeros_like(x)
    kernels.add_kernel[(3,)](x, y, out, x.numel(), BLOCK=8)
    first = out.clone()
    kernels.add_kernel[(3,)](out, first, out, x.numel(), BLOCK=8)
    return first, out


@program
def operators_between_launches(x: Any, y: Any) -> Any:
    out = torch.zeros_like(x)
    kernels.add_kernel[(3,)](x, y, out, x.numel(), BLOCK=8)
    out.mul_(3)
    z = out.relu()
    kernels.scale_kernel[(2,)](out, 10, 2)
    return z, out, out[::2].sum()


@program
def reads_what_another_program_writes(x: Any, y: Any) -> Any:
    z = x.clone()
    kernels.shift_kernel[(19,)](z, z, 19, BLOCK=1)
    return z


@program
def two_views_share_memory(x: Any, y: Any) -> Any:
    z = x.clone()
    kernels.shift_kernel[(10,)](z[:15], z[2:], 10, BLOCK=1)
    return z


@program
def two_arguments_of_the_kernel_are_one_input(x: Any, y: Any) -> Any:
    kernels.shift_kernel[(10,)](x[1:], x.view(-1), 10, BLOCK=1)
    return x * y


@program
def writes_nothing(x: Any, y: Any) -> Any:
    kernels.nothing_kernel[(1,)](x, x.numel(), BLOCK=32)
    return x + y


@program
def writes_two_results(x: Any, y: Any) -> Any:
    first, second = torch.empty_like(x), torch.empty_like(y)
    kernels.two_results_kernel[(2,)](x, first, second, x.numel(), BLOCK=16)
    return second, first - y


@program
def grid_is_empty(x: Any, y: Any) -> Any:
    out = torch.zeros(0)
    kernels.add_kernel[blocks](x[:0], y[:0], out, 0, BLOCK=8)
    return out.sum() + x


@program
def adds_atomically(x: Any, y: Any) -> Any:
    count = torch.zeros(1)
    kernels.count_kernel[(3,)](x, count, x.numel(), BLOCK=8)
    return count / 2


@program
def gathers(x: Any, y: Any) -> Any:
    index, out = torch.arange(19, -1, -1), torch.empty_like(x)
    kernels.gather_kernel[(2,)](x, index, out, 20, BLOCK=16)
    return out, index


@program
def an_argument_is_none(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.optional_kernel[(3,)](x, None, out, x.numel(), BLOCK=8)
    kernels.optional_kernel[(3,)](out, y, out, x.numel(), BLOCK=8)
    return out


@program
def an_argument_is_a_function(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.applied_kernel[(3,)](x, out, x.numel(), kernels.squared, 8)
    again = torch.empty_like(x)
    kernels.applied_kernel[(3,)](out, again, x.numel(), FUNCTION=kernels.doubled, BLOCK=8)
    return out, again


@program
def an_argument_is_a_type(x: Any, y: Any) -> Any:
    out = torch.empty_like(x, dtype=torch.int32)
    kernels.cast_kernel[(3,)](x, out, x.numel(), DTYPE=kernels.tl.int32, BLOCK=8)
    return out


@program
def arguments_are_in_a_tuple(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.tuple_kernel[(2,)]((x, y), out, x.numel(), (0.5, 2), BLOCK=16)
    return out


@program
def calls_a_function_that_stores(x: Any, y: Any) -> Any:
    out = torch.ones_like(x)
    kernels.through_helper_kernel[(2,)](x, out, 15, BLOCK=8)
    return out


@program
def reads_a_global(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.global_kernel[(3,)](x, out, x.numel(), BLOCK=8)
    return out


@program
def autotuned(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.tuned_add_kernel[blocks](x, y, out, x.numel())
    return out


@program
def autotuned_of_several(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.several_add_kernel[blocks](x, y, out, n=x.numel())
    return out


@program
def autotuned_on_a_plain_grid(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.several_add_kernel[(3,)](x, y, out, x.numel())
    return out


@program
def heuristics(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.heuristic_add_kernel[blocks](x, y, out, x.numel())
    kernels.heuristic_add_kernel[blocks](out, y, out, 5)
    return out


@program
def heuristics_within_autotuning(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    kernels.tuned_heuristic_kernel[blocks](x, y, out, x.numel())
    return out


@program
def autotuned_and_cleared(x: Any, y: Any) -> Any:
    count = torch.full((1,), 5.0)
    kernels.cleared_count_kernel[(3,)](x, count, x.numel())
    return count * 0 + x  # the first call clears it, later ones do not


@program
def wrapped_for_traces(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    torch.library.wrap_triton(kernels.add_kernel)[(3,)](x, y, out, x.numel(), 8)
    return out


@program
def arguments_are_not_contiguous(x: Any, y: Any) -> Any:
    z, out = x.view(4, 5).t(), torch.zeros(4, 5)
    by_rows = (z.stride(0), z.stride(1), out.t().stride(0), out.t().stride(1))
    kernels.strided_kernel[(5,)](z, out.t(), 5, 4, *by_rows, BLOCK=4)
    return out


@program
def an_intermediate_is_not_contiguous(x: Any, y: Any) -> Any:
    z = (x.view(4, 5) + 1).t().relu()
    kernels.scale_kernel[(2,)](z, 7, 10.0)  # in the order of memory
    return z


@program
def an_intermediate_is_written_before(x: Any, y: Any) -> Any:
    z = (x.view(4, 5) * 2).t()
    z[1] = 7.0
    z.add_(1)
    kernels.scale_kernel[(2,)](z, 7, 10.0)
    return z, z.contiguous()


@program
def launched_in_a_loop(x: Any, y: Any) -> Any:
    z = x.clone()
    for block in (4, 8, 32):
        kernels.scale_kernel[(triton.cdiv(20, block),)](z, 20, 0.5 * block, BLOCK=block)
    return z


@program
def returns_the_result_of_a_launch(x: Any, y: Any) -> Any:
    z = x.clone()
    return kernels.scale_kernel[(2,)](z, 20, 3.0), z


@program
def writes_a_tensor_of_integers(x: Any, y: Any) -> Any:
    z = torch.arange(20)
    kernels.scale_kernel[(2,)](z, z.numel(), 3)
    return z


@program
def writes_half_numbers(x: Any, y: Any) -> Any:
    z = x.to(torch.float16)
    kernels.scale_kernel[(2,)](z, z.numel(), 2)
    return z.float() + y


def added_by_kernel(x: Any, y: Any) -> Any:
    out = torch.zeros_like(x)
    kernels.add_kernel[(3,)](x, y, out, 20, BLOCK=8)
    return out


def in_a_branch(x: Any, y: Any) -> Any:
    """A launch in a branch. It is not in the table, because torch.cond compiles itself in eager mode."""
    return torch.cond(x.sum() > 0, added_by_kernel, lambda a, b: a - b, (x, y))


@program
def in_a_nested_function(x: Any, y: Any) -> Any:
    def add(*tensors: Any, **options: Any) -> Any:
        out = torch.empty_like(x)
        kernels.add_kernel[(3,)](*tensors, out, x.numel(), **options)
        return out

    return add(add(x, y, BLOCK=8), y, BLOCK=16)


@program
def through_an_operator_of_a_library(x: Any, y: Any) -> Any:
    return kernels.add_operator(x, y).cos()


@program
def through_an_operator_that_writes(x: Any, y: Any) -> Any:
    z = x * y
    kernels.scale_operator(z, 3.0)
    return z
