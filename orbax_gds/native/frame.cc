#include "frame.h"

#include <algorithm>
#include <cstring>

#include "ans.h"
#include "block_map.h"
#include "bytes.h"
#include "choice_delta.h"
#include "delta.h"
#include "huffman.h"
#include "ladder.h"
#include "modelled.h"
#include "payload.h"
#include "raw.h"
#include "zstd.h"

namespace ogds {
namespace {

size_t frame_bytes_for(size_t payload_bytes) noexcept {
    return align_up(kFrameHeaderBytes + payload_bytes, kFrameAlignment);
}

// Writes the block map if it is wanted; leaves in `chunk` where it is and what is left to code.
// With a base whose words it does not take, and without one, `counts` are of no meaning.
Status encode_map(const Dtype& dtype, MapChoice choice, uint8_t* map, PayloadWriter& out,
                  ChunkWords& chunk, MapCounts& counts) noexcept {
    chunk.map = nullptr;
    chunk.n_normal_words = chunk.n_words;
    counts = {};
    if (choice == MapChoice::kNever) {
        return Status::kOk;
    }
    const PayloadWriter before = out;
    const bool written =
        write_block_map(chunk.words, chunk.base, chunk.n_words, dtype, map, out, counts);
    if (!written ||
        (choice == MapChoice::kWhenSmaller && !map_pays(counts, chunk.n_words, dtype))) {
        out = before;
        counts.n_same = 0;
        return choice == MapChoice::kAlways ? Status::kNoSpace : Status::kOk;
    }
    chunk.map = map;
    chunk.n_normal_words = counts.n_normal_words;
    return Status::kOk;
}

// Codes a chunk against its base if that pays: false, and nothing written, if not.
bool encode_with_base(ChunkWords chunk, const Base& base, const Dtype& dtype,
                      const EncodeOptions& options, PayloadWriter& out, Workspace& workspace,
                      FrameHeader& header) noexcept {
    PayloadWriter delta = out;
    uint8_t* crc = delta.reserve(kBaseCrcBytes);
    if (crc == nullptr) {
        return false;
    }
    store_u32le(crc, base.payload_crc);
    const PayloadWriter before = delta;
    chunk.base = base.words;
    MapCounts counts;
    if (encode_map(dtype, options.block_map, workspace.map, delta, chunk, counts) !=
        Status::kOk) {
        return false;
    }
    header.flags = static_cast<uint16_t>(kFlagDelta | (chunk.map != nullptr ? kFlagBlockMap : 0));
    if (counts.n_unchanged == n_blocks_of(chunk.n_words) &&
        options.block_map == MapChoice::kWhenSmaller) {
        delta = before;
        header.flags = kFlagDelta;
        header.codec = Codec::kDelta;
        if (encode_unchanged(delta) != Status::kOk) {
            return false;
        }
    } else if (encode_delta_words(chunk, dtype, options, are_worth_base(counts, options), delta,
                                  workspace, header.codec) != Status::kOk) {
        return false;
    }
    delta.checksum();
    out = delta;
    return true;
}

Status decode_words(PayloadReader& in, const FrameHeader& header, NormalRuns runs,
                    uint32_t n_normal, const Base& base, uint8_t* words,
                    Workspace& workspace) noexcept {
    const Dtype& dtype = dtype_of(header.dtype);
    switch (header.codec) {
        case Codec::kRaw: return decode_raw(in, runs, dtype, n_normal, workspace.keeps_words, words);
        case Codec::kLadder: return decode_ladder(in, runs, n_normal, dtype, words, workspace);
        case Codec::kModelled:
            return decode_modelled(in, runs, header.n_words, n_normal, dtype, words, workspace);
        case Codec::kAns:
            return decode_ans(in, runs, header.n_words, n_normal, dtype, words, workspace);
        case Codec::kZstd: return decode_zstd(in, runs, n_normal, dtype, words, workspace);
        case Codec::kHuffman:
            return decode_huffman(in, runs, n_normal, dtype, words, workspace);
        case Codec::kDelta:
            return base.words == nullptr
                       ? Status::kDeltaBaseAbsent
                       : decode_delta(in, runs, n_normal, base.words, dtype, words, workspace);
    }
    return Status::kUnknownCodec;
}

// Whether the base is there, and the one that the frame was coded against. A frame without the flag
// leaves `base` without words.
Status check_base(PayloadReader& in, const FrameHeader& header, Base& base) noexcept {
    if ((header.flags & kFlagDelta) == 0) {
        base = {};
        return Status::kOk;
    }
    const uint8_t* crc = in.take(kBaseCrcBytes);
    if (crc == nullptr) {
        return Status::kPayloadShort;
    }
    if (base.words == nullptr) {
        return Status::kDeltaBaseAbsent;
    }
    return load_u32le(crc) == base.payload_crc ? Status::kOk : Status::kDeltaBaseDiffers;
}

Status decode_payload(PayloadReader& in, const FrameHeader& header, const Dtype& dtype, Base base,
                      uint8_t* words, Workspace& workspace) noexcept {
    if (const Status status = check_base(in, header, base); status != Status::kOk) {
        return status;
    }
    BlockMap map;
    map.counts.n_normal_words = header.n_words;
    if ((header.flags & kFlagBlockMap) != 0) {
        const bool has_base = base.words != nullptr;
        if (const Status status =
                read_block_map(in, header.n_words, dtype, has_base, workspace.map, map);
            status != Status::kOk) {
            return status;
        }
        if (words != nullptr) {
            fill_blocks(map, header.n_words, dtype, base.words, words);
        }
    }
    const uint32_t n_normal = map.counts.n_normal_words;
    const NormalRuns runs(map.map, header.n_words);
    if (const Status status = decode_words(in, header, runs, n_normal, base, words, workspace);
        status != Status::kOk) {
        return status;
    }
    return in.left() == 0 ? Status::kOk : Status::kPayloadLong;
}

}  // namespace

size_t max_frame_bytes(uint32_t n_words, const Dtype& dtype) noexcept {
    return frame_bytes_for(raw_bytes(dtype, n_words));
}

size_t max_forced_frame_bytes(uint32_t n_words, const Dtype& dtype) noexcept {
    const size_t map = map_bytes_of(n_words) + size_t{n_blocks_of(n_words)} * dtype.container_bytes;
    // Per word at most 15 bits in levels (rank 15 through three of width 1, four of width 2 and the
    // last) and 8 of escape less 4 or more of exponent (fp64: 16 less 11).
    // Per sub-block counts and partial bytes of the bitmaps.
    const size_t ladder = raw_bytes(dtype, n_words) + size_t{n_words} * 3 + kLadderHeaderBytes +
                          ceil_div(n_words, kSubBlockWords) * 5 * size_t{kMaxLevels};
    // Beside the ladder's, offsets of at most every word and one column.
    const size_t modelled = kModelledHeaderBytes + size_t{n_words} + 1 +
                            ceil_div(n_words, kSubBlockWords) * kModelledHeadBytes;
    // A byte takes at most 12 bits in a stream of ans or huffman, less than in levels.
    return frame_bytes_for(map + ladder + modelled + kMaxAnsCountsBytes);
}

Status encode_frame(std::span<const uint8_t> words, const ChunkShape& shape,
                    const EncodeOptions& options, std::span<uint8_t> out, Workspace& workspace,
                    FrameHeader& header, const Base& base) noexcept {
    const Dtype& dtype = dtype_of(shape.dtype);
    if (dtype.bits == 0) {
        return Status::kUnknownDtype;
    }
    if (shape.n_words == 0 || shape.n_words > kMaxChunkWords ||
        words.size() != size_t{shape.n_words} * dtype.container_bytes) {
        return Status::kWordCount;
    }
    if (options.codec == CodecChoice::kLadder && dtype.split == Split::kNone) {
        return Status::kLadderDtype;
    }
    if (options.codec == CodecChoice::kModelled && !is_modelled(dtype.split)) {
        return Status::kModelledDtype;
    }
    if (options.codec == CodecChoice::kAns && !is_modelled(dtype.split)) {
        return Status::kAnsDtype;
    }
    if (options.codec == CodecChoice::kHuffman && !is_huffman(dtype)) {
        return Status::kHuffmanDtype;
    }
    if (options.codec == CodecChoice::kDelta && base.words == nullptr) {
        return Status::kDeltaBaseAbsent;
    }
    if (out.size() < frame_bytes_for(0)) {
        return Status::kNoSpace;
    }
    // A bound that depends on the chunk alone: where there is room for it, more room in `out`
    // changes no byte.
    const bool forced = options.codec == CodecChoice::kLadder ||
                        options.codec == CodecChoice::kZstd ||
                        options.codec == CodecChoice::kModelled ||
                        options.codec == CodecChoice::kAns ||
                        options.codec == CodecChoice::kHuffman ||
                        options.codec == CodecChoice::kDelta ||
                        options.block_map == MapChoice::kAlways;
    const size_t most = forced ? max_forced_frame_bytes(shape.n_words, dtype)
                               : max_frame_bytes(shape.n_words, dtype);
    const size_t room =
        std::min({out.size(), most, kMaxFrameBytes}) / kFrameAlignment * kFrameAlignment;
    PayloadWriter writer(out.subspan(kFrameHeaderBytes, room - kFrameHeaderBytes));
    header = {};
    const PayloadWriter before = writer;
    ChunkWords chunk = {words.data(), nullptr, shape.n_words, shape.n_words, shape.columns};
    const bool is_delta =
        base.words != nullptr &&
        encode_with_base(chunk, base, dtype, options, writer, workspace, header);
    Status status = is_delta ? Status::kOk : Status::kNoSpace;
    if (!is_delta && options.codec != CodecChoice::kDelta) {
        writer = before;
        MapCounts counts;
        status = encode_map(dtype, options.block_map, workspace.map, writer, chunk, counts);
        if (status != Status::kOk) {
            return status;
        }
        header.flags = chunk.map != nullptr ? kFlagBlockMap : 0;
        status = encode_words(chunk, dtype, options, writer, workspace, header.codec);
    }
    if (status != Status::kOk) {
        const bool too_long = std::min(out.size(), most) > kMaxFrameBytes;
        return status == Status::kNoSpace && too_long ? Status::kFrameTooLong : status;
    }
    header.dtype = shape.dtype;
    header.n_words = shape.n_words;
    header.chunk = shape.chunk;
    header.payload_bytes = static_cast<uint32_t>(writer.size());
    header.frame_bytes = static_cast<uint32_t>(kFrameHeaderBytes + writer.size());
    header.payload_crc = writer.crc();
    return lengthen_frame(out, frame_bytes_for(writer.size()), header);
}

Status lengthen_frame(std::span<uint8_t> frame, size_t frame_bytes, FrameHeader& header) noexcept {
    if (frame_bytes > kMaxFrameBytes) {
        return Status::kFrameTooLong;
    }
    if (frame_bytes > frame.size()) {
        return Status::kNoSpace;
    }
    uint8_t* zeros = frame.data() + header.frame_bytes;
    const size_t n_zeros = frame_bytes - header.frame_bytes;
    std::memset(zeros, 0, n_zeros);
    header.payload_crc = kernels().crc32c(zeros, n_zeros, header.payload_crc);
    header.frame_bytes = static_cast<uint32_t>(frame_bytes);
    write_frame_header(header, frame.data());
    return Status::kOk;
}

Status decode_frame(std::span<const uint8_t> frame, const FrameHeader& header,
                    std::span<uint8_t> words, Workspace& workspace, const Base& base) noexcept {
    const Dtype& dtype = dtype_of(header.dtype);
    if (frame.size() != header.frame_bytes) {
        return Status::kFrameLength;
    }
    if (!words.empty() && words.size() != size_t{header.n_words} * dtype.container_bytes) {
        return Status::kWordCount;
    }
    const std::span<const uint8_t> payload =
        frame.subspan(kFrameHeaderBytes, header.payload_bytes);
    const std::span<const uint8_t> padding = frame.subspan(kFrameHeaderBytes + payload.size());
    PayloadReader reader(payload);
    const Status status =
        decode_payload(reader, header, dtype, base, words.empty() ? nullptr : words.data(),
                       workspace);
    const uint32_t crc =
        kernels().crc32c(padding.data(), padding.size(), reader.finish());
    if (crc != header.payload_crc) {
        return Status::kPayloadCrc;  // whatever the decoder made of the bytes, this is the cause
    }
    if (status != Status::kOk) {
        return status;
    }
    const bool all_zero =
        std::all_of(padding.begin(), padding.end(), [](uint8_t byte) { return byte == 0; });
    return all_zero ? Status::kOk : Status::kPaddingNotZero;
}

}  // namespace ogds
