#include "huffman.h"

#include <algorithm>
#include <cstring>

#include "byte_counts.h"
#include "bytes.h"
#include "isa.h"
#include "sub_block.h"

namespace ogds {
namespace {

template <class Use>
Status each_sub_block(uint32_t n_words, Use use) noexcept {
    for (uint32_t done = 0; done < n_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_words - done);
        if (const Status status = use(m); status != Status::kOk) {
            return status;
        }
        done += m;
    }
    return Status::kOk;
}

// The bytes of the next m words, bits that do not count 0.
const uint8_t* next_bytes(const ChunkWords& chunk, NormalRuns& runs, uint32_t m,
                          const Dtype& dtype, Workspace& workspace) noexcept {
    const uint8_t* words = gather(chunk.words, runs, m, 1, workspace.words);
    if (dtype.bits == 8) {
        return words;
    }
    const auto mask = static_cast<uint8_t>(word_mask(dtype));
    for (uint32_t i = 0; i < m; ++i) {
        workspace.bytes[i] = words[i] & mask;
    }
    return workspace.bytes;
}

// The words are read twice: should someone write to them, this finds bytes that the first pass did
// not see.
Status encode_sub_block(const uint8_t* y, uint32_t m, PayloadWriter& out,
                        Workspace& workspace) noexcept {
    HuffmanStreams& streams = workspace.huffman.streams;
    if (!kernels().huffman->encode(y, m, workspace.huffman.encode, streams)) {
        return Status::kWordsChanged;
    }
    uint8_t* head = out.reserve(kHuffmanHeadBytes);
    if (head == nullptr) {
        return Status::kNoSpace;
    }
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        uint8_t* stream = out.reserve(streams.n_bytes[s]);
        if (stream == nullptr) {
            return Status::kNoSpace;
        }
        store_u16le(head + 2 * s, static_cast<uint16_t>(streams.n_bytes[s]));
        std::memcpy(stream, streams.of[s], streams.n_bytes[s]);
    }
    out.checksum();
    return Status::kOk;
}

Status decode_sub_block(PayloadReader& in, uint32_t m, uint8_t* y, Workspace& workspace) noexcept {
    uint32_t ends[kHuffmanStreams];
    if (const Status status = read_huffman_head(in, ends); status != Status::kOk) {
        return status;
    }
    const uint8_t* streams = in.take(ends[kHuffmanStreams - 1]);
    if (streams == nullptr) {
        return Status::kPayloadShort;
    }
    in.checksum();
    const bool ended = kernels().huffman->decode(streams, ends, workspace.huffman.decode, m, y);
    return ended ? Status::kOk : Status::kHuffmanStream;
}

}  // namespace

Status read_huffman_head(PayloadReader& in, uint32_t (&ends)[kHuffmanStreams]) noexcept {
    const uint8_t* head = in.take(kHuffmanHeadBytes);
    if (head == nullptr) {
        return Status::kPayloadShort;
    }
    uint32_t end = 0;
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        end += load_u16le(head + 2 * s);
        ends[s] = end;
    }
    return Status::kOk;
}

void plan_huffman(const ChunkWords& chunk, const Dtype& dtype, HuffmanPlan& plan,
                  Workspace& workspace) noexcept {
    plan = {};
    if (chunk.n_normal_words == 0) {
        return;
    }
    ByteCounts counts;
    NormalRuns runs(chunk.map, chunk.n_words);
    each_sub_block(chunk.n_normal_words, [&](uint32_t m) {
        counts.add(next_bytes(chunk, runs, m, dtype, workspace), m);
        return Status::kOk;
    });
    std::copy_n(counts.of(), kHuffmanBytes, plan.occurrences);
    fit_lengths(plan.occurrences, plan.lengths);
    uint64_t n_words = 0;
    uint64_t bits = 0;
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        n_words += plan.occurrences[y];
        bits += uint64_t{plan.occurrences[y]} * plan.lengths.of[y];
    }
    plan.n_bytes = kHuffmanHeaderBytes +
                   kHuffmanHeadBytes * ceil_div(chunk.n_normal_words, kSubBlockWords) +
                   bits * chunk.n_normal_words / n_words / 8;
}

Status encode_huffman(const ChunkWords& chunk, const Dtype& dtype, const HuffmanPlan& plan,
                      PayloadWriter& out, Workspace& workspace) noexcept {
    if (chunk.n_normal_words == 0) {
        return Status::kOk;
    }
    uint8_t* header = out.reserve(kHuffmanHeaderBytes);
    if (header == nullptr) {
        return Status::kNoSpace;
    }
    write_lengths(plan.lengths, header);
    build_table(plan.lengths, workspace.huffman.encode);
    NormalRuns runs(chunk.map, chunk.n_words);
    return each_sub_block(chunk.n_normal_words, [&](uint32_t m) {
        return encode_sub_block(next_bytes(chunk, runs, m, dtype, workspace), m, out, workspace);
    });
}

Status decode_huffman(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                      const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept {
    if (!is_huffman(dtype)) {
        return Status::kHuffmanDtype;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    const uint8_t* header = in.take(kHuffmanHeaderBytes);
    if (header == nullptr) {
        return Status::kPayloadShort;
    }
    HuffmanLengths lengths;
    if (const Status status = read_lengths(header, 1u << dtype.bits, lengths);
        status != Status::kOk) {
        return status;
    }
    build_table(lengths, workspace.huffman.decode);
    Places places(words, runs, 1, workspace.keeps_words);
    return each_sub_block(n_normal_words, [&](uint32_t m) {
        const Status status = decode_sub_block(in, m, workspace.words, workspace);
        if (status == Status::kOk) {
            places.put(workspace.words, m);
        }
        return status;
    });
}

}  // namespace ogds
