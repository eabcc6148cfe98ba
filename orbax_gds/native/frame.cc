#include "frame.h"

#include <algorithm>
#include <cstring>

#include "ans.h"
#include "block_map.h"
#include "bytes.h"
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

// Writes the block map if it is wanted; n_normal is the number of words left to code.
Status encode_map(std::span<const uint8_t> words, const ChunkShape& shape, const Dtype& dtype,
                  MapChoice choice, uint8_t* map, PayloadWriter& out,
                  uint32_t& n_normal) noexcept {
    n_normal = shape.n_words;
    if (choice == MapChoice::kNever) {
        return Status::kOk;
    }
    const PayloadWriter before = out;
    MapCounts counts;
    const bool written = write_block_map(words.data(), shape.n_words, dtype, map, out, counts);
    if (!written || (choice == MapChoice::kWhenSmaller &&
                     !map_pays(counts, shape.n_words, dtype))) {
        out = before;
        return choice == MapChoice::kAlways ? Status::kNoSpace : Status::kOk;
    }
    n_normal = counts.n_normal_words;
    return Status::kOk;
}

Status decode_words(PayloadReader& in, const FrameHeader& header, NormalRuns runs,
                    uint32_t n_normal, uint8_t* words, Workspace& workspace) noexcept {
    const Dtype& dtype = dtype_of(header.dtype);
    switch (header.codec) {
        case Codec::kRaw: return decode_raw(in, runs, dtype, n_normal, words);
        case Codec::kLadder: return decode_ladder(in, runs, n_normal, dtype, words, workspace);
        case Codec::kModelled:
            return decode_modelled(in, runs, header.n_words, n_normal, dtype, words, workspace);
        case Codec::kAns:
            return decode_ans(in, runs, header.n_words, n_normal, dtype, words, workspace);
        case Codec::kZstd: return decode_zstd(in, runs, n_normal, dtype, words, workspace);
        case Codec::kHuffman:
            return decode_huffman(in, runs, n_normal, dtype, words, workspace);
    }
    return Status::kUnknownCodec;
}

Status decode_payload(PayloadReader& in, const FrameHeader& header, const Dtype& dtype,
                      uint8_t* words, Workspace& workspace) noexcept {
    BlockMap map;
    map.counts.n_normal_words = header.n_words;
    if ((header.flags & kFlagBlockMap) != 0) {
        if (const Status status = read_block_map(in, header.n_words, dtype, workspace.map, map);
            status != Status::kOk) {
            return status;
        }
        if (words != nullptr) {
            fill_blocks(map, header.n_words, dtype, words);
        }
    }
    const uint32_t n_normal = map.counts.n_normal_words;
    const NormalRuns runs(map.map, header.n_words);
    if (const Status status = decode_words(in, header, runs, n_normal, words, workspace);
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
                    FrameHeader& header) noexcept {
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
                        options.block_map == MapChoice::kAlways;
    const size_t most = forced ? max_forced_frame_bytes(shape.n_words, dtype)
                               : max_frame_bytes(shape.n_words, dtype);
    const size_t room =
        std::min({out.size(), most, kMaxFrameBytes}) / kFrameAlignment * kFrameAlignment;
    PayloadWriter writer(out.subspan(kFrameHeaderBytes, room - kFrameHeaderBytes));
    header = {};
    uint32_t n_normal = 0;
    if (const Status status =
            encode_map(words, shape, dtype, options.block_map, workspace.map, writer, n_normal);
        status != Status::kOk) {
        return status;
    }
    header.flags = writer.size() != 0 ? kFlagBlockMap : 0;
    const uint8_t* map = header.flags != 0 ? workspace.map : nullptr;
    const ChunkWords chunk = {words.data(), map, shape.n_words, n_normal, shape.columns};
    if (const Status status =
            encode_words(chunk, dtype, options, writer, workspace, header.codec);
        status != Status::kOk) {
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
                    std::span<uint8_t> words, Workspace& workspace) noexcept {
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
        decode_payload(reader, header, dtype, words.empty() ? nullptr : words.data(), workspace);
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
