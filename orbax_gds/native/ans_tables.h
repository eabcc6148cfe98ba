// The counts of codec 3 (FORMAT 7.7) and the tables that follow from them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ans_kernels.h"
#include "payload.h"
#include "status.h"

namespace ogds {

// f(y) of every byte; they sum up to 4096.
struct AnsCounts {
    uint16_t of[kAnsBytes];
};

// Counts in proportion to how often each byte occurs, at least 1 for each that does. At least one
// byte occurs, and none more than 2^28 times.
void fit_counts(const uint32_t (&occurrences)[kAnsBytes], AnsCounts& counts) noexcept;

constexpr size_t kAnsBitmapBytes = kAnsBytes / 8;

// Bitmap and counts as the header has them. False if there is no room.
bool write_counts(const AnsCounts& counts, PayloadWriter& out) noexcept;

// Inverse.
Status read_counts(PayloadReader& in, AnsCounts& counts) noexcept;

void build_table(const AnsCounts& counts, AnsEncodeTable& table) noexcept;
void build_table(const AnsCounts& counts, AnsDecodeTable& table) noexcept;

}  // namespace ogds
