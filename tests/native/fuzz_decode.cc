// Fuzz target: any bytes as a frame. The CRCs are corrected first, so that the decoders behind them
// are reached; all kernels must agree on what they make of the bytes.
#include "bytes.h"
#include "check.h"
#include "frame_info.h"
#include "samples.h"

using namespace ogds;

namespace {

constexpr uint32_t kMaxWords = 3 * kSubBlockWords;  // bounds the time of one input

void same_on_every_isa(const Bytes& frame) {
    Decoded first = {};
    bool is_first = true;
    for (const std::string& isa : isas()) {
        use_kernels(isa.c_str());
        const Decoded decoded = decode(frame);
        CHECK(is_first || decoded.status == first.status, isa, status_text(decoded.status),
              status_text(first.status));
        CHECK(is_first || decoded.status != Status::kOk || decoded.words == first.words, isa);
        first = decoded;
        is_first = false;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    workspace().zstd = &stand_in_zstd();
    Bytes frame(data, data + size);
    FrameHeader header;
    if (read_frame_header(frame, header) == Status::kOk && header.n_words <= kMaxWords) {
        same_on_every_isa(frame);
    }
    frame.resize(std::max(size, kFrameHeaderBytes));
    store_u32le(frame.data() + 8, load_u32le(frame.data() + 8) % (kMaxWords + 1));
    seal(frame);
    if (read_frame_header(frame, header) != Status::kOk) {
        return 0;
    }
    same_on_every_isa(frame);
    FrameInfo info;
    const Status walked = read_frame_info(frame, header, workspace(), info);
    const Decoded decoded = decode(frame);
    CHECK(walked == Status::kOk || decoded.status != Status::kOk, status_text(walked));
    return 0;
}
