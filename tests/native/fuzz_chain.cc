// Fuzz target: any bytes as the frames of a chunk's chain, one behind the other, the oldest first.
// What lies before the decoders is corrected; a run must come to what its frames do one by one, on
// every kernel.
#include <algorithm>

#include "bytes.h"
#include "check.h"
#include "run.h"
#include "samples.h"

using namespace ogds;

namespace {

constexpr uint32_t kMaxWords = 2 * kSubBlockWords;  // bounds the time of one input
constexpr size_t kMostFrames = 4;

struct Chain {
    std::vector<Bytes> frames;
    std::vector<Bytes> records;
    ChunkShape shape;
};

std::vector<Bytes> cut(const uint8_t* data, size_t size) {
    std::vector<Bytes> frames;
    while (size > 0 && frames.size() < kMostFrames) {
        size_t n = size;
        if (frames.size() + 1 < kMostFrames && size > kFrameHeaderBytes) {
            n = std::clamp<size_t>(load_u32le(data + 16), kFrameHeaderBytes, size);
        }
        frames.emplace_back(data, data + n);
        data += n;
        size -= n;
    }
    return frames;
}

// Gives the frames of one chunk: all are as long as the first, and a delta names the frame before.
Chain chain_of(std::vector<Bytes> frames) {
    Chain chain;
    uint32_t crc_before = 0;
    for (Bytes& frame : frames) {
        frame.resize(std::max(frame.size(), kFrameHeaderBytes + kBaseCrcBytes));
        const Bytes& first = chain.frames.empty() ? frame : chain.frames[0];
        frame[5] = first[5];
        store_u32le(frame.data() + 8, load_u32le(first.data() + 8) % (kMaxWords + 1));
        store_u32le(frame.data() + 20, 0);
        if ((frame[6] & kFlagDelta) != 0) {
            store_u32le(frame.data() + kFrameHeaderBytes, crc_before);
        }
        seal(frame);
        crc_before = load_u32le(frame.data() + 24);
        FrameHeader header;
        if (read_frame_header(frame, header) != Status::kOk) {
            return {};
        }
        chain.shape = {0, header.n_words, header.dtype};
        chain.records.emplace_back(kIndexRecordBytes);
        write_index_record(header, 0, chain.records.back().data());
        chain.frames.push_back(std::move(frame));
    }
    return chain;
}

Decoded one_by_one(const Chain& chain, size_t n_bytes) {
    Decoded decoded = {Status::kOk, {}};
    Base base;
    Bytes before;
    for (const Bytes& frame : chain.frames) {
        FrameHeader header;
        CHECK(read_frame_header(frame, header) == Status::kOk);
        Bytes words(n_bytes, 0xA5);
        decoded.status = decode_frame(frame, header, words, workspace(), base);
        if (decoded.status != Status::kOk) {
            return decoded;
        }
        before = std::move(words);
        base = {before.data(), header.payload_crc};
    }
    decoded.words = std::move(before);
    return decoded;
}

Decoded as_run(const Chain& chain, size_t n_bytes, bool keeps) {
    std::vector<BaseLink> bases;
    for (size_t i = 0; i + 1 < chain.frames.size(); ++i) {
        bases.push_back({chain.frames[i], chain.records[i].data()});
    }
    Decoded decoded = {Status::kOk, Bytes(n_bytes, 0x5A)};
    const std::span<uint8_t> buffers[] = {decoded.words};
    const Segment segment = {0, 0, 0, chain.shape.n_words};
    const RunChunk chunk = {chain.shape, keeps ? 1u : 0u};
    Bytes scratch(scratch_bytes({&chunk, 1}, true));
    decoded.status = decode_run(chain.frames.back(), chain.records.back().data(), {&chunk, 1},
                                buffers, {&segment, chunk.n_segments}, scratch, workspace(), bases)
                         .status;
    return decoded;
}

// Links that the last frame does not need are not looked at, so that what is wrong with them is not
// seen.
bool needs_links(const Chain& chain) { return (chain.frames.back()[6] & kFlagDelta) != 0; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    workspace().zstd = &stand_in_zstd();
    Chain chain = chain_of(cut(data, size));
    if (chain.frames.empty()) {
        return 0;
    }
    if (!needs_links(chain)) {
        chain.frames.erase(chain.frames.begin(), chain.frames.end() - 1);
        chain.records.erase(chain.records.begin(), chain.records.end() - 1);
    }
    const size_t n_bytes = size_t{chain.shape.n_words} * dtype_of(chain.shape.dtype).container_bytes;
    use_kernels(isas().front().c_str());
    const Decoded expected = one_by_one(chain, n_bytes);
    for (const std::string& isa : isas()) {
        use_kernels(isa.c_str());
        for (const bool keeps : {true, false}) {
            const Decoded decoded = as_run(chain, n_bytes, keeps);
            CHECK(decoded.status == expected.status, isa, status_text(decoded.status),
                  status_text(expected.status));
            CHECK(!keeps || decoded.status != Status::kOk || decoded.words == expected.words, isa);
        }
    }
    return 0;
}
