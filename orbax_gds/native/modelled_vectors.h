// The passes of codec 2 around the ladder (FORMAT 7.6) for any register V (vector_*.h).
//
// Include only from files of one instruction set. Everything here is in an unnamed namespace: the
// linker must not merge it with a copy that other files were given by other instruction sets.
#pragma once

#include "bytes.h"
#include "ladder_kernels.h"
#include "rest_planes.h"

namespace ogds {
namespace {

template <class V>
bool fill_signs(const uint8_t* bitmap, uint32_t m, uint8_t* bytes) noexcept {
    constexpr uint32_t kGroup = 128;  // words of 16 bytes of bitmap
    alignas(32) uint8_t places[V::kBytes];
    alignas(32) uint8_t weights[V::kBytes];
    for (uint32_t i = 0; i < V::kBytes; ++i) {
        places[i] = static_cast<uint8_t>(i / 8);
        weights[i] = static_cast<uint8_t>(1u << i % 8);
    }
    const auto first = V::load_whole(places);
    const auto weight = V::load_whole(weights);
    const auto sign = V::splat(0x80);
    auto all = V::splat(0);
    uint32_t i = 0;
    for (; i + kGroup <= m; i += kGroup) {
        const auto bits = V::table(bitmap + i / 8);
        auto place = first;
        for (uint32_t k = i; k < i + kGroup; k += V::kBytes) {
            const auto old = V::load_whole(bytes + k);
            const auto set = V::equal8(V::and_(V::lookup(bits, place), weight), weight);
            V::store_whole(bytes + k, V::or_(old, V::and_(set, sign)));
            all = V::or_(all, old);
            place = V::add8(place, V::splat(V::kBytes / 8));
        }
    }
    return fill_sign_slot(bitmap + i / 8, m - i, bytes + i) && !V::any(V::and_(all, sign));
}

template <class V>
void read_signs(const uint8_t* bytes, uint32_t m, uint8_t* bitmap) noexcept {
    uint32_t i = 0;
    for (; i + V::kBytes <= m; i += V::kBytes) {
        store_partial_u64le(bitmap + i / 8, V::kBytes / 8, V::signs(V::load_whole(bytes + i)));
    }
    read_sign_slot(bytes + i, m - i, bitmap + i / 8);
}

template <class V>
void predict_words(const uint8_t* of_column, uint32_t n, uint8_t of_row, uint8_t mask,
                   uint8_t* predicted) noexcept {
    const auto row = V::splat(of_row);
    const auto bits = V::splat(mask);
    const auto predict = [&](uint32_t k) {
        V::store_whole(predicted + k, V::and_(V::add8(V::load_whole(of_column + k), row), bits));
    };
    if (n < V::kBytes) {
        predict_row(of_column, n, of_row, mask, predicted);
        return;
    }
    for (uint32_t k = 0; k < n - V::kBytes; k += V::kBytes) {
        predict(k);
    }
    predict(n - V::kBytes);  // some words of the step before once more
}

}  // namespace
}  // namespace ogds
