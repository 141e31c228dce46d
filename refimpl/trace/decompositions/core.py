"""The core set: the ops that rules decompose into. No op in it has a rule.

Counterpart: torch.Tag.core, torch/_decomp/__init__.py core_aten_decompositions
Differs: without norms, softmax, embedding, folding, padding other than by a constant, and activations beyond relu and sigmoid.
With `copy_`, into which in-place and out variants decompose; views of complex tensors; `signbit`, which no other op computes for
NaN; and special functions that would lose accuracy in simpler ops.
"""

from __future__ import annotations

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.registry import aten

_NAMES = """
abs.default acos.default acosh.default _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default
_adaptive_avg_pool3d.default add.Scalar add.Tensor addmm.default alias.default amax.default amin.default
any.default any.dim any.dims arange.start_step argmax.default argmin.default as_strided.default
as_strided_scatter.default asin.default asinh.default atan.default atan2.default atanh.default avg_pool2d.default
avg_pool2d_backward.default avg_pool3d.default bitwise_and.Scalar bitwise_and.Tensor bitwise_left_shift.Tensor
bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor bitwise_right_shift.Tensor bitwise_xor.Scalar
bitwise_xor.Tensor bmm.default bucketize.Tensor cat.default ceil.default clamp.Tensor clamp.default clone.default
complex.default _conj.default _conj_physical.default constant_pad_nd.default convolution.default
convolution_backward.default copy.default copy_.default cos.default cosh.default cummax.default cummin.default
cumprod.default cumsum.default diagonal.default digamma.default div.Scalar div.Scalar_mode div.Tensor
div.Tensor_mode _embedding_bag.default empty.memory_format empty_like.default empty_strided.default eq.Scalar
eq.Tensor erf.default erfc.default erfinv.default exp.default expand.default expm1.default _fft_c2r.default
_fft_r2c.default fill.Scalar flip.default floor.default fmod.Scalar fmod.Tensor full.default full_like.default
gather.default gcd.default ge.Scalar ge.Tensor grid_sampler_2d.default gt.Scalar gt.Tensor i0.default
igamma.default igammac.default index.Tensor index_put.default index_select.default isinf.default isnan.default
lcm.default le.Scalar le.Tensor lgamma.default lift_fresh_copy.default _local_scalar_dense.default log.default
log10.default log1p.default log2.default logcumsumexp.default logical_and.default logical_not.default
logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_scatter.default max.dim
max_pool2d_with_indices.default max_pool2d_with_indices_backward.default max_pool3d_with_indices.default
maximum.default mean.default mean.dim min.dim minimum.default mm.default mul.Scalar mul.Tensor
native_dropout.default ne.Scalar ne.Tensor neg.default nextafter.default nonzero.default _pdist_forward.default
permute.default polygamma.default pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int
rand.default randn.default randperm.default reciprocal.default relu.default remainder.Scalar remainder.Tensor
repeat.default resize_.default round.default rsqrt.default scalar_tensor.default scatter.src scatter.value
scatter_add.default scatter_reduce.two searchsorted.Tensor select.int sigmoid.default sign.default signbit.default sin.default
sinh.default slice.Tensor slice_scatter.default sort.default special_erfcx.default special_i0e.default
special_i1.default special_i1e.default special_ndtri.default split_with_sizes.default sqrt.default squeeze.dim
squeeze.dims sub.Scalar sub.Tensor sum.dim_IntList sym_numel.default sym_size.int sym_storage_offset.default
sym_stride.int tan.default tanh.default _to_copy.default topk.default trunc.default unsqueeze.default
var.correction view.default view_as_complex.default view_as_real.default where.self
"""


def _overload(name: str) -> OpOverload:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


CORE_OPS: tuple[OpOverload, ...] = tuple(map(_overload, _NAMES.split()))
