// Headers and index records: bytes to fields and back.
#include <cstring>

#include "bytes.h"
#include "frame.h"
#include "isa.h"

namespace ogds {
namespace {

constexpr uint8_t kMagic[4] = {'O', 'G', 'F', '1'};
constexpr uint16_t kKnownFlags = kFlagBlockMap | kFlagDelta;

constexpr bool is_known(uint8_t codec) noexcept {
    switch (static_cast<Codec>(codec)) {
        case Codec::kRaw:
        case Codec::kLadder:
        case Codec::kModelled:
        case Codec::kAns:
        case Codec::kZstd:
        case Codec::kHuffman:
        case Codec::kDelta: return true;
    }
    return false;
}

}  // namespace

void write_frame_header(const FrameHeader& header, uint8_t* out) noexcept {
    std::memcpy(out, kMagic, sizeof kMagic);
    out[4] = static_cast<uint8_t>(header.codec);
    out[5] = header.dtype;
    store_u16le(out + 6, header.flags);
    store_u32le(out + 8, header.n_words);
    store_u32le(out + 12, header.payload_bytes);
    store_u32le(out + 16, header.frame_bytes);
    store_u32le(out + 20, header.chunk);
    store_u32le(out + 24, header.payload_crc);
    store_u32le(out + 28, kernels().crc32c(out, 28, 0));
}

Status read_frame_header(std::span<const uint8_t> frame, FrameHeader& header) noexcept {
    if (frame.size() < kFrameHeaderBytes) {
        return Status::kFrameTruncated;
    }
    const uint8_t* in = frame.data();
    if (std::memcmp(in, kMagic, sizeof kMagic) != 0) {
        return Status::kFrameMagic;
    }
    if (load_u32le(in + 28) != kernels().crc32c(in, 28, 0)) {
        return Status::kHeaderCrc;
    }
    if (!is_known(in[4])) {
        return Status::kUnknownCodec;
    }
    header.codec = static_cast<Codec>(in[4]);
    header.dtype = in[5];
    header.flags = load_u16le(in + 6);
    if (header.codec == Codec::kDelta && (header.flags & kFlagDelta) == 0) {
        return Status::kUnknownCodec;
    }
    header.n_words = load_u32le(in + 8);
    header.payload_bytes = load_u32le(in + 12);
    header.frame_bytes = load_u32le(in + 16);
    header.chunk = load_u32le(in + 20);
    header.payload_crc = load_u32le(in + 24);
    if (dtype_of(header.dtype).bits == 0) {
        return Status::kUnknownDtype;
    }
    if ((header.flags & ~kKnownFlags) != 0) {
        return Status::kUnknownFlag;
    }
    if (header.n_words == 0 || header.n_words > kMaxChunkWords) {
        return Status::kWordCount;
    }
    const size_t frame_bytes = header.frame_bytes;
    if (frame_bytes % kFrameAlignment != 0 || frame_bytes > kMaxFrameBytes ||
        frame_bytes < kFrameHeaderBytes || header.payload_bytes > frame_bytes - kFrameHeaderBytes) {
        return Status::kFrameLength;
    }
    return frame.size() < frame_bytes ? Status::kFrameTruncated : Status::kOk;
}

void write_index_record(const FrameHeader& header, uint64_t offset, uint8_t* record) noexcept {
    store_u64le(record, offset);
    store_u32le(record + 8, header.frame_bytes);
    store_u32le(record + 12, header.n_words);
    store_u32le(record + 16, header.payload_bytes);
    store_u32le(record + 20, header.payload_crc);
    record[24] = static_cast<uint8_t>(header.codec);
    record[25] = header.dtype;
    store_u16le(record + 26, header.flags);
    store_u32le(record + 28, 0);
}

bool record_agrees(const uint8_t* record, const FrameHeader& header) noexcept {
    uint8_t expected[kIndexRecordBytes];
    write_index_record(header, load_u64le(record), expected);
    return std::memcmp(record, expected, kIndexRecordBytes) == 0;
}

}  // namespace ogds
