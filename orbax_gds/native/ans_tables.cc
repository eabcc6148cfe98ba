#include "ans_tables.h"

#include <cstring>

#include "bytes.h"

namespace ogds {
namespace {

constexpr uint32_t kStep = 2563;

uint32_t floor_log2(uint32_t value) noexcept {
    return 31 - static_cast<uint32_t>(__builtin_clz(value));
}

// The byte of each state.
void spread(const AnsCounts& counts, uint8_t (&bytes)[kAnsStates]) noexcept {
    uint32_t position = 0;
    for (uint32_t y = 0; y < kAnsBytes; ++y) {
        for (uint32_t k = 0; k < counts.of[y]; ++k) {
            bytes[position] = static_cast<uint8_t>(y);
            position = (position + kStep) % kAnsStates;
        }
    }
}

// A count f costs a byte that occurs c times c * log2(4096 / f) bits. One more state saves about
// 2 c / (2 f + 1) of them, one less costs 2 c / (2 f - 1): `a` over `b`, compared as products.
struct Slope {
    uint64_t c;
    uint64_t f;
    bool operator<(const Slope& other) const noexcept { return c * other.f < other.c * f; }
};

}  // namespace

void fit_counts(const uint32_t (&occurrences)[kAnsBytes], AnsCounts& counts) noexcept {
    uint64_t total = 0;
    for (const uint32_t occurrence : occurrences) {
        total += occurrence;
    }
    uint8_t present[kAnsBytes];
    uint32_t n_present = 0;
    uint32_t sum = 0;
    for (uint32_t y = 0; y < kAnsBytes; ++y) {
        const uint64_t share = (uint64_t{occurrences[y]} * kAnsStates + total / 2) / total;
        counts.of[y] = static_cast<uint16_t>(share == 0 && occurrences[y] != 0 ? 1 : share);
        sum += counts.of[y];
        if (occurrences[y] != 0) {
            present[n_present++] = static_cast<uint8_t>(y);
        }
    }
    while (sum != kAnsStates) {
        const bool grow = sum < kAnsStates;
        uint32_t best = kAnsBytes;
        Slope best_slope = {};
        for (uint32_t i = 0; i < n_present; ++i) {
            const uint32_t y = present[i];
            const Slope slope = {occurrences[y], 2u * counts.of[y] + (grow ? 1 : 0) -
                                                     (grow ? 0 : 1)};
            const bool is_better = grow ? best_slope < slope : slope < best_slope;
            if ((grow || counts.of[y] > 1) && (best == kAnsBytes || is_better)) {
                best = y;
                best_slope = slope;
            }
        }
        counts.of[best] = static_cast<uint16_t>(counts.of[best] + (grow ? 1 : -1));
        sum += grow ? 1 : ~uint32_t{0};
    }
}

bool write_counts(const AnsCounts& counts, PayloadWriter& out) noexcept {
    uint8_t* bitmap = out.reserve(kAnsBitmapBytes);
    if (bitmap == nullptr) {
        return false;
    }
    std::memset(bitmap, 0, kAnsBitmapBytes);
    for (uint32_t y = 0; y < kAnsBytes; ++y) {
        if (counts.of[y] != 0) {
            bitmap[y / 8] = static_cast<uint8_t>(bitmap[y / 8] | 1u << (y % 8));
            uint8_t* count = out.reserve(2);
            if (count == nullptr) {
                return false;
            }
            store_u16le(count, counts.of[y]);
        }
    }
    return true;
}

Status read_counts(PayloadReader& in, AnsCounts& counts) noexcept {
    const uint8_t* bitmap = in.take(kAnsBitmapBytes);
    if (bitmap == nullptr) {
        return Status::kPayloadShort;
    }
    uint32_t sum = 0;
    counts = {};
    for (uint32_t y = 0; y < kAnsBytes; ++y) {
        if (((bitmap[y / 8] >> (y % 8)) & 1) == 0) {
            continue;
        }
        const uint8_t* count = in.take(2);
        if (count == nullptr) {
            return Status::kPayloadShort;
        }
        counts.of[y] = load_u16le(count);
        sum += counts.of[y];
        if (counts.of[y] == 0) {
            return Status::kAnsCounts;
        }
    }
    return sum == kAnsStates ? Status::kOk : Status::kAnsCounts;
}

void build_table(const AnsCounts& counts, AnsEncodeTable& table) noexcept {
    uint16_t next[kAnsBytes];  // where the next state of a byte goes
    uint32_t first = 0;
    table.unknown = {};
    for (uint32_t y = 0; y < kAnsBytes; ++y) {
        const uint32_t f = counts.of[y];
        next[y] = static_cast<uint16_t>(first);
        if (f == 0) {
            table.of_byte[y] = {0, ~kAnsStates + 1};
            add_byte(table.unknown, y);
            continue;
        }
        // The most bits that y writes, and the state from which on it does.
        const uint32_t most = f == 1 ? kAnsStateBits : kAnsStateBits - floor_log2(f - 1);
        table.of_byte[y] = {(most << 16) - (f << most), first - f};
        first += f;
    }
    uint8_t bytes[kAnsStates];
    spread(counts, bytes);
    for (uint32_t state = 0; state < kAnsStates; ++state) {
        table.next[next[bytes[state]]++] = static_cast<uint16_t>(kAnsStates + state);
    }
}

void build_table(const AnsCounts& counts, AnsDecodeTable& table) noexcept {
    uint8_t bytes[kAnsStates];
    spread(counts, bytes);
    AnsCounts q = counts;
    for (uint32_t state = 0; state < kAnsStates; ++state) {
        const uint32_t y = bytes[state];
        const uint32_t number = q.of[y]++;
        const uint32_t n_bits = kAnsStateBits - floor_log2(number);
        table.of_state[state] = n_bits | y << 8 | ((number << n_bits) - kAnsStates) << 16;
    }
}

}  // namespace ogds
