// The cursor over a payload that is written, and the copy past the caches that it ends with.
#include <algorithm>

#include "check.h"
#include "payload.h"
#include "samples.h"
#include "stream_copy.h"

using namespace ogds;

namespace {

constexpr uint8_t kUntouched = 0xA5;

Bytes random_bytes(size_t n) {
    Random random(n);
    Bytes bytes(n);
    std::generate(bytes.begin(), bytes.end(),
                  [&random] { return static_cast<uint8_t>(random.next()); });
    return bytes;
}

bool untouched(const Bytes& bytes, size_t first, size_t end) {
    return std::all_of(bytes.data() + first, bytes.data() + end,
                       [](uint8_t byte) { return byte == kUntouched; });
}

void copies_what_it_is_given_and_nothing_else(size_t n, size_t to, size_t from) {
    const Bytes source = random_bytes(from + n);
    Bytes target(to + n + 64, kUntouched);
    stream_copy(target.data() + to, source.data() + from, n);
    CHECK(std::equal(source.begin() + static_cast<ptrdiff_t>(from), source.end(),
                     target.begin() + static_cast<ptrdiff_t>(to)), n, to, from);
    CHECK(untouched(target, 0, to) && untouched(target, to + n, target.size()), n, to, from);
}

// What was reserved before comes before, and is in the checksum.
void appends_after_what_was_reserved(size_t n, size_t n_reserved) {
    const Bytes bytes = random_bytes(n_reserved + n);
    Bytes out(n_reserved + n, kUntouched);
    PayloadWriter writer(out);
    std::copy_n(bytes.data(), n_reserved, writer.reserve(n_reserved));
    CHECK(writer.append(bytes.data() + n_reserved, n), n, n_reserved);
    CHECK(out == bytes && writer.size() == bytes.size(), n, n_reserved);
    CHECK(writer.crc() == kernels().crc32c(bytes.data(), bytes.size(), 0), n, n_reserved);
}

void appends_all_or_nothing(size_t n) {
    const Bytes bytes = random_bytes(n);
    Bytes out(n, kUntouched);
    PayloadWriter writer(std::span<uint8_t>(out).first(n - 1));
    CHECK(!writer.append(bytes.data(), n), n);
    CHECK(writer.size() == 0 && writer.crc() == 0 && untouched(out, 0, n), n);
}

}  // namespace

int main() {
    for (const size_t n : {1u, 63u, 64u, 4095u, 4096u, 4097u, 4160u, 12289u, 40000u}) {
        for (const size_t to : {0u, 1u, 15u, 16u, 63u}) {
            for (const size_t from : {0u, 1u, 32u}) {
                copies_what_it_is_given_and_nothing_else(n, to, from);
            }
        }
        for (const size_t n_reserved : {0u, 1u, 100u}) {
            appends_after_what_was_reserved(n, n_reserved);
        }
    }
    for (const size_t n : {1u, 12288u, 12289u, 100000u}) {
        appends_all_or_nothing(n);
    }
}
