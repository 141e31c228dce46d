"""Which aten operators are exact functions of their inputs: a table of data for `oracle.noise`.

An operator is exact if every correct implementation returns the same bits for the same input bits: there is nothing to
round, or the result is one of a few numbers the inputs define (a comparison, a floor). Rounding noise leaves these alone,
so that only results that another order of operations could change are moved.

Names are those of overload packets without a trailing underscore: `add_` is looked up as `add`.
"""

from __future__ import annotations

EXACT_OPS: dict[str, str] = {}  # name -> reason


def _exact(reason: str, names: str) -> None:
    for name in names.split():
        EXACT_OPS[name] = reason


_exact(
    "moves elements, computes nothing",
    """clone copy _copy_from lift_fresh lift_fresh_copy contiguous _unsafe_view _reshape_copy cat _cat concat stack hstack
    vstack dstack index _unsafe_index index_select gather take take_along_dim scatter index_copy index_fill select_scatter
    slice_scatter diagonal_scatter as_strided_scatter select_backward slice_backward diagonal_backward where masked_select
    masked_fill _masked_fill masked_scatter masked_scatter_backward fill put roll flip fliplr flipud rot90 repeat
    repeat_interleave tile tril triu diag diag_embed diag_part permute_copy expand_copy view_copy constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle im2col unfold_copy upsample_nearest1d
    upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    embedding resize set block_diag meshgrid split_with_sizes_copy unbind_copy alias_copy detach_copy t_copy
    transpose_copy squeeze_copy unsqueeze_copy slice_copy select_copy as_strided_copy diagonal_copy real_copy complex
    polar_copy view_as_real_copy view_as_complex_copy _conj_physical _to_dense _to_sparse to_padded_tensor _pin_memory
    _foreach_copy _foreach_clone _foreach_zero zero max_unpool2d max_unpool3d""",
)
_exact(
    "one of the inputs, or its sign, magnitude or parts",
    """neg negative positive abs absolute relu relu6 relu_ clamp clamp_min clamp_max clip hardtanh threshold hardshrink
    maximum minimum fmax fmin max min amax amin aminmax _aminmax cummax cummin _cummax_helper _cummin_helper sort msort topk
    kthvalue median nanmedian mode argmax argmin argsort max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices max_pool1d max_pool2d max_pool3d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
    fractional_max_pool3d mkldnn_max_pool2d threshold_backward hardtanh_backward hardshrink_backward copysign nan_to_num
    conj_physical real imag isreal _foreach_neg _foreach_abs _foreach_maximum _foreach_minimum _foreach_clamp_max
    _foreach_clamp_min unique _unique _unique2 unique_dim unique_consecutive nonzero nonzero_static frexp""",
)
_exact(
    "a comparison or a predicate",
    """eq ne lt le gt ge equal isclose allclose isnan isinf isfinite isposinf isneginf signbit logical_and logical_or
    logical_not logical_xor all any is_nonzero isin searchsorted bucketize _is_all_true _is_any_true _local_scalar_dense
    item heaviside histc histogram _histogramdd_bin_edges bincount""",
)
_exact(
    "discontinuous, and defined to the bit by its inputs: moving the inputs would answer another question",
    """floor ceil round trunc fix frac sign sgn floor_divide fmod bitwise_and bitwise_or bitwise_not bitwise_xor
    bitwise_left_shift bitwise_right_shift nextafter ldexp _foreach_floor _foreach_ceil _foreach_round _foreach_trunc
    _foreach_frac _foreach_sign fake_quantize_per_tensor_affine_cachemask
    fake_quantize_per_channel_affine_cachemask quantize_per_tensor quantize_per_channel dequantize""",
)
_exact(
    "makes a tensor from constants",
    """empty empty_like empty_strided new_empty new_empty_strided empty_permuted full full_like new_full zeros zeros_like
    new_zeros ones ones_like new_ones arange range linspace eye scalar_tensor tril_indices triu_indices _efficientzerotensor
    logspace""",
)
_exact(
    "random: it must draw the same numbers, and scales them in one step",
    """bernoulli dropout native_dropout normal normal_functional uniform rand rand_like randn randn_like randint randint_like
    randperm random exponential cauchy log_normal geometric multinomial poisson binomial rrelu_with_noise
    rrelu_with_noise_functional _standard_gamma _sample_dirichlet _fused_dropout""",
)

# Copies, negations and the like give NaN the sign that it had, or the other (IEEE 754, 5.5.1). The sign of NaN as the result of
# anything else the standard leaves open (6.3), and eager's vector loops and the scalar ones at their ends differ in it: `pow`,
# `fmod`, `atan2`, `maximum`, and for bfloat16 nearly everything.
KEEPS_SIGN_OF_NAN = frozenset(
    name
    for name, reason in EXACT_OPS.items()
    if reason.startswith(("moves elements", "makes a tensor from constants", "random"))
) | {
    "neg", "negative", "positive", "abs", "absolute", "copysign", "nan_to_num", "conj_physical", "real", "imag", "_foreach_neg",
    "_foreach_abs", "index_put", "_index_put_impl", "_unsafe_index_put",
}  # fmt: skip

# Of bfloat16 these go by way of float32, and back to what the loop at hand takes for NaN: in eager the sign depends on the place.
CONVERTS_BFLOAT16 = frozenset(["neg", "negative", "_foreach_neg", "gather"])

# Sums, differences and products of integers are exact while nothing exceeds 1/eps, in any order.
RING_OPS = frozenset(
    """add sub subtract rsub mul multiply sum cumsum prod cumprod mm bmm mv dot vdot addmm baddbmm addmv addbmm addr
    convolution square nansum trace index_add scatter_add col2im embedding_dense_backward
    _foreach_add _foreach_sub _foreach_mul""".split()  # noqa: SIM905  (a table reads better as text)
)

# Their domains end at 0, 1 or -1: moved inputs would leave them and give NaN or an error. Outputs are moved.
BOUNDED_DOMAIN_OPS = frozenset(
    """acos acosh asin atanh erfinv logit ndtri special_ndtri log1p xlogy special_xlog1py special_xlogy
    binary_cross_entropy binary_cross_entropy_backward special_entr logit_backward cholesky linalg_cholesky_ex
    cholesky_solve cholesky_inverse linalg_eigh _linalg_eigh
    igamma igammac i0 polygamma digamma lgamma special_zeta zeta""".split()  # noqa: SIM905
)
# x times (1 + t) / 2, t a sigmoid function that is rounded near -1: what is left of the difference is a rounding of 1, however
# small the result. -> where the argument x stands.
SATURATES = {"gelu": 0, "gelu_backward": 1}
SATURATED_AT = 8.0  # t is -1 beyond, in float64 too

# Their results end at numbers that these dtypes have, where no kernel goes beyond: what draws by them, or takes a logarithm of
# 1 - x, would refuse or be NaN. Moved results stay inside.
BOUNDED_RESULTS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(["sigmoid", "special_expit", "hardsigmoid", "softmax", "_softmax"], (0.0, 1.0)),
    **dict.fromkeys(["tanh", "erf", "special_erf", "sin", "cos"], (-1.0, 1.0)),
}
# Documented as a - a.div(b, rounding_mode="floor") * b: exact in eager, but a result that follows the formula is off by one
# rounding of `a`, however small the result. Only the result is moved, by that much; moved inputs would jump by a whole `b`.
ROUNDED_AS_FIRST_INPUT = frozenset({"remainder"})
# Write to an argument that the schema calls read-only, or check one against another bit by bit: inputs stay the originals.
INPUTS_STAY = frozenset(
    """native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm miopen_batch_norm
    batch_norm_update_stats multilabel_margin_loss_backward _fused_moving_avg_obs_fq_helper _thnn_fused_lstm_cell""".split()  # noqa: SIM905
)

# Their other results are masks of floats whose range their backward checks.
FIRST_RESULT_MOVES = frozenset(["multilabel_margin_loss_forward"])

# Of those, what normalises its first argument and writes to none but running statistics: that argument is moved.
FIRST_INPUT_MOVES = frozenset(["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"])

# Their first argument is converted to the `dtype` that is asked for before anything else: this is what is added up.
CONVERTS_FIRST = frozenset(["sum", "nansum", "mean", "prod", "cumsum", "cumprod"])

# Maximum + log(s), s a sum that is at least 1: a rounding of s is one of 1 in the result, however small that is.
LOGARITHMS_OF_SUMS = frozenset(["_log_softmax", "logsumexp", "logaddexp", "logaddexp2"])

# Between elements, at coordinates that are rounded: they move as the coordinates do, whatever the size of the result.
INTERPOLATES = frozenset(
    f"{name}{suffix}"
    for name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
                 "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
    for suffix in ("", "_backward")
) | {"grid_sampler_2d", "grid_sampler_3d"}  # fmt: skip

# Differences of cosines and the like, of the size of 1 inside: what is 0 by cancellation is 0 but for a rounding.
WINDOWS = frozenset(["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"])

CHOOSES_AMONG: dict[
    str, str
] = {}  # name -> what is chosen from; of 0 and -0, which are equal, a kernel may give either


def _chooses(among: str, names: str) -> None:
    for name in names.split():
        CHOOSES_AMONG[name] = among


_chooses(
    "elements",
    """maximum minimum fmax fmin max min amax amin aminmax _aminmax cummax cummin _cummax_helper _cummin_helper sort msort topk
    kthvalue median nanmedian mode max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices max_pool1d
    max_pool2d max_pool3d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d
    mkldnn_max_pool2d _foreach_maximum _foreach_minimum unique _unique _unique2 unique_dim unique_consecutive scatter_reduce
    index_reduce""",
)
_chooses("elements and bounds", "clamp clamp_min clamp_max clip hardtanh _foreach_clamp_max _foreach_clamp_min")
_chooses("elements and zero", "relu relu6")
