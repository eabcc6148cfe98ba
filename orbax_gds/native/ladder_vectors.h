// The ladder's kernels put together from a register V and a way with bits.
//
// Include only from files of one instruction set.
#pragma once

#include "ladder_levels.h"
#include "ladder_words.h"
#include "modelled_vectors.h"

namespace ogds {
namespace {

template <class V, class Bits>
constexpr LadderKernels make_kernels() noexcept {
    LadderKernels kernels{};
    const auto set = [&kernels]<class F>(F) {
        kernels.split[static_cast<uint32_t>(F::kSplit)] = split<V, F>;
        kernels.merge[static_cast<uint32_t>(F::kSplit)] = merge<V, F>;
    };
    set(Bf16{});
    set(Fp16{});
    set(Fp32{});
    set(Fp64{});
    set(Small<Split::kE4m3>{});
    set(Small<Split::kE5m2>{});
    set(Small<Split::kE3m4>{});
    set(Small<Split::kE8m0>{});
    set(Small<Split::kE2m1>{});
    set(Small<Split::kE2m3>{});
    set(Small<Split::kE3m2>{});
    kernels.encode_level = encode_level<Bits>;
    kernels.decode_level = decode_level<Bits>;
    kernels.fill_sign_slot = fill_signs<V>;
    kernels.read_sign_slot = read_signs<V>;
    kernels.predict_row = predict_words<V>;
    return kernels;
}

}  // namespace
}  // namespace ogds
