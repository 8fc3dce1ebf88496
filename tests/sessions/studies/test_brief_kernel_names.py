"""A kernel's name says what it computes, in the room that a table has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.studies.kernel_names import brief

ATEN = "void at::native::"
HIDDEN = f"{ATEN}(anonymous namespace)::"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(long)#1}"
SIGNATURES = {
    f"{ATEN}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)":
        "vectorized_elementwise_kernel, FillFunctor",
    f"{HIDDEN}multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor"
    "<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double>(float const*, double)":
        "multi_tensor_apply_kernel, FusedAdamMathFunctor",
    f"{ATEN}elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    f"at::native::direct_copy_kernel_cuda{LAMBDA}>>(at::TensorIteratorBase&)":
        "elementwise_kernel, direct_copy_kernel_cuda",
    f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>>, unsigned int, float, 4> >(int)":
        "reduce_kernel, sum_functor",
    f"{HIDDEN}cunn_SoftMaxForward<4, float, float, float, "
    "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)":
        "cunn_SoftMaxForward, LogSoftMaxForwardEpilogue",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, unsigned int, float)":
        "compute_dot_do_o_specialized",
    "void splitKreduce_kernel(float const*, int)": "splitKreduce_kernel",
    "Memcpy DtoD (Device -> Device)": "Memcpy DtoD (Device -> Device)",
    "Memset (Device)": "Memset (Device)",
    "_rms_norm_forward_kernel": "_rms_norm_forward_kernel",
    "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT":
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT",
    "aten::mm": "aten::mm",
}  # fmt: skip


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_signature_is_told_by_the_kernel_and_what_it_computes(signature):
    assert brief(signature) == SIGNATURES[signature]


@given(st.text(max_size=60))
def test_whatever_a_kernel_is_called_it_has_a_name(name):
    assert brief(name) or not name
