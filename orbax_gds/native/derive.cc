#include "derive.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"

namespace ogds {
namespace {

constexpr uint32_t kSignless = 0x7FFFFFFF;
constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint32_t kQuiet = 0x40;

// Words rounded at once when two buffers are compared; what they become stays in the L1 cache.
constexpr size_t kBlockWords = 4096;

bool rounds_to(std::span<const uint8_t> source, std::span<const uint8_t> target) noexcept {
    const size_t n_words = source.size() / kRoundFromBytes;
    if (source.size() != n_words * kRoundFromBytes || target.size() != n_words * kRoundToBytes) {
        return false;
    }
    uint8_t rounded[kBlockWords * kRoundToBytes];
    for (size_t at = 0; at < n_words; at += kBlockWords) {
        const size_t n = std::min(kBlockWords, n_words - at);
        round_words(source.data() + at * kRoundFromBytes, n, rounded);
        if (std::memcmp(rounded, target.data() + at * kRoundToBytes, n * kRoundToBytes) != 0) {
            return false;
        }
    }
    return true;
}

bool equal(std::span<const uint8_t> source, std::span<const uint8_t> target) noexcept {
    if (source.size() != target.size()) {
        return false;
    }
    return source.data() == target.data() || source.empty() ||
           std::memcmp(source.data(), target.data(), source.size()) == 0;
}

}  // namespace

// Without a branch, so that compilers make vectors of it: as plain SSE2 it already reads faster
// than memcpy copies, which is why there is one variant only.
void round_words(const uint8_t* words, size_t n, uint8_t* rounded) noexcept {
    for (size_t i = 0; i < n; ++i) {
        const uint32_t word = load_u32le(words + i * kRoundFromBytes);
        const uint32_t high = word >> 16;
        const uint32_t nearest = (word + 0x7FFF + (high & 1)) >> 16;
        const uint32_t is_nan = (word & kSignless) > kInfinity ? ~uint32_t{0} : 0;
        const uint32_t result = (nearest & ~is_nan) | ((high | kQuiet) & is_nan);
        store_u16le(rounded + i * kRoundToBytes, static_cast<uint16_t>(result));
    }
}

bool derives(std::span<const uint8_t> source, std::span<const uint8_t> target,
             Rule rule) noexcept {
    return rule == Rule::kRound ? rounds_to(source, target) : equal(source, target);
}

}  // namespace ogds
