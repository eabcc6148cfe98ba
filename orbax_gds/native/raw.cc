#include "raw.h"

#include <cstring>

#include "bytes.h"
#include "stream_copy.h"

namespace ogds {
namespace {

// Between two checksums: their bytes stay in the second-level cache. Of words of 8 bits and more
// only to decode.
constexpr uint32_t kStepWords = 32768;
// Of words of 8 bits and more a piece is copied, checksummed and streamed to the frame: from the
// caller's words, which may change, each is read once. For every container these are whole blocks
// of words.
constexpr uint32_t kPieceBytes = 12288;

// Eight words at a time fill `bits` bytes exactly.
void pack(const uint8_t* words, uint32_t n, uint32_t bits, uint8_t* out) noexcept {
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    for (uint32_t i = 0; i < n; i += 8) {
        const uint32_t n_here = n - i < 8 ? n - i : 8;
        uint64_t packed = 0;
        for (uint32_t k = 0; k < n_here; ++k) {
            packed |= (words[i + k] & mask) << (k * bits);
        }
        store_partial_u64le(out + i / 8 * bits, (n_here * bits + 7) / 8, packed);
    }
}

void unpack(const uint8_t* in, uint32_t n, uint32_t bits, uint8_t* words) noexcept {
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    for (uint32_t i = 0; i < n; i += 8) {
        const uint32_t n_here = n - i < 8 ? n - i : 8;
        const uint64_t packed = load_partial_u64le(in + i / 8 * bits, (n_here * bits + 7) / 8);
        for (uint32_t k = 0; k < n_here; ++k) {
            words[i + k] = static_cast<uint8_t>((packed >> (k * bits)) & mask);
        }
    }
}

bool unused_bits_are_zero(const uint8_t* last_byte, uint32_t n, uint32_t bits) noexcept {
    const uint32_t used = n * bits % 8;
    return used == 0 || *last_byte >> used == 0;
}

}  // namespace

Status encode_raw(const uint8_t* words, NormalRuns runs, const Dtype& dtype, PayloadWriter& out,
                  uint32_t n_normal_words) noexcept {
    if (raw_bytes(dtype, n_normal_words) > out.room()) {
        return Status::kNoSpace;  // before gigabytes are copied in vain
    }
    alignas(64) uint8_t piece[kPieceBytes];
    const uint32_t step = dtype.bits >= 8 ? kPieceBytes / dtype.container_bytes : kStepWords;
    for (uint32_t done = 0; done < n_normal_words;) {
        const Run run = runs.next(step);
        const uint8_t* from = words + size_t{run.first} * dtype.container_bytes;
        if (dtype.bits >= 8) {
            const size_t n_bytes = size_t{run.n_words} * dtype.container_bytes;
            std::memcpy(piece, from, n_bytes);
            if (!out.append(piece, n_bytes)) {
                return Status::kNoSpace;
            }
        } else {
            uint8_t* to = out.reserve(raw_bytes(dtype, run.n_words));
            if (to == nullptr) {
                return Status::kNoSpace;
            }
            pack(from, run.n_words, dtype.bits, to);
            out.checksum();
        }
        done += run.n_words;
    }
    return Status::kOk;
}

Status decode_raw(PayloadReader& in, NormalRuns runs, const Dtype& dtype, uint32_t n_normal_words,
                  bool keeps_words, uint8_t* words) noexcept {
    for (uint32_t done = 0; done < n_normal_words;) {
        const Run run = runs.next(kStepWords);
        const size_t n_bytes = raw_bytes(dtype, run.n_words);
        const uint8_t* from = in.take(n_bytes);
        if (from == nullptr) {
            return Status::kPayloadShort;
        }
        if (dtype.bits < 8 && !unused_bits_are_zero(from + n_bytes - 1, run.n_words, dtype.bits)) {
            return Status::kRawUnusedBits;
        }
        in.checksum();
        done += run.n_words;
        if (words == nullptr) {
            continue;
        }
        uint8_t* to = words + size_t{run.first} * dtype.container_bytes;
        if (dtype.bits < 8) {
            unpack(from, run.n_words, dtype.bits, to);
        } else if (keeps_words) {
            std::memcpy(to, from, n_bytes);
        } else {
            stream_copy(to, from, n_bytes);
        }
    }
    return Status::kOk;
}

}  // namespace ogds
