#include "samples.h"

#include <algorithm>
#include <map>
#include <cstring>
#include <memory>

#include "bytes.h"
#include "check.h"

namespace ogds {

uint64_t Random::next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545F4914F6CDD1Du;
}

std::vector<uint8_t> all_dtypes() {
    std::vector<uint8_t> ids;
    for (int id = 0; id < 256; ++id) {
        if (dtype_of(static_cast<uint8_t>(id)).bits != 0) {
            ids.push_back(static_cast<uint8_t>(id));
        }
    }
    return ids;
}

namespace {

// Exponents below the middle of those that a split has: of bf16, those near 120.
uint64_t exponent(Random& random, Split split, Look look) {
    const uint32_t n = max_exponent(split) + 1;
    const uint32_t top = n - n / 2 - n / 16;
    switch (look) {
        case Look::kNarrow: return top - random.below(3);
        case Look::kWide:
            return random.below(4) == 0 ? random.below(n)
                                        : top - random.below(std::min(n / 4, 12u));
        default: break;
    }
    if (random.below(500) == 0) {
        return random.below(n);
    }
    uint64_t e = top;
    const uint64_t least = top - std::min(top, 30u);
    while (e > least && random.below(2) == 0) {
        --e;
    }
    return e;
}

uint64_t word(Random& random, const Dtype& dtype, Look look) {
    const uint64_t bits = random.next();
    if (look == Look::kRandom || dtype.split == Split::kNone) {
        return bits;
    }
    const uint32_t shift = split_bits(dtype.split).mantissa;
    const uint64_t rest = bits & ~(uint64_t{max_exponent(dtype.split)} << shift);
    return rest | exponent(random, dtype.split, look) << shift;
}

}  // namespace

Workspace& workspace() {
    static const auto instance = std::make_unique<Workspace>();
    return *instance;
}

Bytes make_words(uint8_t id, uint32_t n_words, Look look, uint64_t seed) {
    const Dtype& dtype = dtype_of(id);
    Random random(seed + 1000 * id + static_cast<uint64_t>(look));
    const uint64_t mask = dtype.bits == 64 ? ~uint64_t{0} : (uint64_t{1} << dtype.bits) - 1;
    Bytes words(size_t{n_words} * dtype.container_bytes);
    const uint64_t constant = word(random, dtype, Look::kWeights) | 1;
    uint32_t kind = 0;
    for (uint32_t i = 0; i < n_words; ++i) {
        if (i % 256 == 0) {
            kind = look == Look::kBlocks ? random.below(4) : 3;
        }
        uint64_t value = word(random, dtype, look == Look::kBlocks ? Look::kWeights : look);
        if (look == Look::kZero || kind == 0) {
            value = 0;
        } else if (look == Look::kConstant || kind == 1) {
            value = constant;
        }
        value &= mask;
        std::memcpy(words.data() + size_t{i} * dtype.container_bytes, &value,
                    dtype.container_bytes);
    }
    return words;
}

std::vector<std::string> isas() {
    const Kernels* tables[8];
    const size_t n = available_kernels(tables, 8);
    std::vector<std::string> names;
    for (size_t i = 0; i < n; ++i) {
        names.emplace_back(tables[i]->name);
    }
    return names;
}

namespace {

// A result lies alone on the heap until the next call.
Bytes stand_in_result;
Bytes stand_in_room;

uint8_t* stand_in_take_room(void*, size_t n_bytes) noexcept {
    stand_in_room = Bytes(n_bytes, 0xA5);
    return stand_in_room.data();
}

Status stand_in_encode(void*, std::span<const uint8_t> content, int,
                       std::span<const uint8_t>& coded) noexcept {
    bool all_zero = true;
    for (size_t i = 0; i < content.size(); i += 4) {
        all_zero = all_zero && content[i] == 0;
    }
    stand_in_result = {static_cast<uint8_t>(all_zero)};
    for (size_t i = 0; i < content.size(); ++i) {
        if (!all_zero || i % 4 != 0) {
            stand_in_result.push_back(static_cast<uint8_t>(~content[i]));
        }
    }
    stand_in_result.shrink_to_fit();
    coded = stand_in_result;
    return Status::kOk;
}

Status stand_in_decode(void*, std::span<const uint8_t> coded, size_t n_bytes,
                       std::span<const uint8_t>& content) noexcept {
    if (coded.empty() || coded[0] > 1) {
        return Status::kZstdFrame;
    }
    const bool all_zero = coded[0] == 1;
    if (coded.size() - 1 != (all_zero ? n_bytes - ceil_div(n_bytes, 4) : n_bytes)) {
        return Status::kZstdSize;
    }
    stand_in_result = Bytes(n_bytes);
    size_t at = 1;
    for (size_t i = 0; i < n_bytes; ++i) {
        if (!all_zero || i % 4 != 0) {
            stand_in_result[i] = static_cast<uint8_t>(~coded[at++]);
        }
    }
    content = stand_in_result;
    return Status::kOk;
}

}  // namespace

const ForeignCodec& stand_in_zstd() {
    static const ForeignCodec stand_in = {nullptr, stand_in_take_room, stand_in_encode,
                                          stand_in_decode};
    return stand_in;
}

const Bytes& base_words(uint8_t dtype, uint32_t n_words) {
    static std::map<std::pair<uint8_t, uint32_t>, Bytes> made;
    Bytes& words = made[{dtype, n_words}];
    if (words.empty()) {
        words = make_words(dtype, n_words, n_words % 2 == 0 ? Look::kBlocks : Look::kWeights, 11);
    }
    return words;
}

Bytes make_changed(uint8_t dtype, uint32_t n_words, uint64_t seed) {
    Random random(seed);
    Bytes words = base_words(dtype, n_words);
    const Bytes far = make_words(dtype, n_words, Look::kRandom, seed);
    const size_t word_bytes = dtype_of(dtype).container_bytes;
    const uint32_t share = random.below(101);
    for (size_t at = 0; at < words.size(); at += word_bytes) {
        if (random.below(100) >= share) {
            continue;
        }
        if (random.below(8) == 0) {
            std::copy_n(far.begin() + static_cast<ptrdiff_t>(at), word_bytes,
                        words.begin() + static_cast<ptrdiff_t>(at));
        } else if (words[at] % 4 != 3) {
            words[at] = static_cast<uint8_t>(words[at] + 1);
        }
    }
    if (dtype_of(dtype).bits < 8) {
        for (uint8_t& word : words) {
            word = static_cast<uint8_t>(word & word_mask(dtype_of(dtype)));
        }
    }
    return words;
}

Bytes encode(const Bytes& words, uint8_t id, const EncodeOptions& options, uint32_t chunk,
             uint32_t columns, bool has_base) {
    const Dtype& dtype = dtype_of(id);
    const auto n_words = static_cast<uint32_t>(words.size() / dtype.container_bytes);
    const bool forced =
        (options.codec != CodecChoice::kAuto && options.codec != CodecChoice::kRaw &&
         options.codec != CodecChoice::kMax) ||
        options.block_map == MapChoice::kAlways;
    Bytes out(forced ? max_forced_frame_bytes(n_words, dtype) : max_frame_bytes(n_words, dtype));
    FrameHeader header;
    Base base;
    if (has_base || options.codec == CodecChoice::kDelta) {
        base = {base_words(id, n_words).data(), kBaseCrc};
    }
    const Status status =
        encode_frame(words, {chunk, n_words, id, columns}, options, out, workspace(), header,
                     base);
    CHECK(status == Status::kOk, status_text(status), int{id}, n_words);
    out.resize(header.frame_bytes);
    out.shrink_to_fit();
    return out;
}

Decoded decode(const Bytes& frame) {
    FrameHeader header;
    const Status status = read_frame_header(frame, header);
    if (status != Status::kOk) {
        return {status, {}};
    }
    const size_t word_bytes = dtype_of(header.dtype).container_bytes;
    Decoded decoded = {Status::kOk, Bytes(header.n_words * word_bytes, 0xA5)};
    Base base;
    if ((header.flags & kFlagDelta) != 0) {
        base.words = base_words(header.dtype, header.n_words).data();
        base.payload_crc =
            header.payload_bytes >= 4 ? load_u32le(frame.data() + kFrameHeaderBytes) : 0;
    }
    decoded.status = decode_frame(frame, header, decoded.words, workspace(), base);
    const Status checked = decode_frame(frame, header, {}, workspace(), base);
    CHECK(checked == decoded.status, status_text(checked), status_text(decoded.status));
    if (base.words != nullptr) {
        Bytes in_place = base_words(header.dtype, header.n_words);
        base.words = in_place.data();
        const Status status_there = decode_frame(frame, header, in_place, workspace(), base);
        CHECK(status_there == decoded.status, status_text(status_there));
        CHECK(status_there != Status::kOk || in_place == decoded.words);
    }
    return decoded;
}

void seal(Bytes& frame) {
    frame.resize(std::max<size_t>(align_up(frame.size(), kFrameAlignment), kFrameAlignment));
    frame.shrink_to_fit();
    std::memcpy(frame.data(), "OGF1", 4);
    const uint32_t room = static_cast<uint32_t>(frame.size() - kFrameHeaderBytes);
    store_u32le(frame.data() + 12, std::min(load_u32le(frame.data() + 12), room));
    store_u32le(frame.data() + 16, static_cast<uint32_t>(frame.size()));
    store_u32le(frame.data() + 24, crc32c_table(frame.data() + kFrameHeaderBytes, room, 0));
    store_u32le(frame.data() + 28, crc32c_table(frame.data(), 28, 0));
}

}  // namespace ogds
