#include "chained_deltas.h"

#include <algorithm>

namespace ogds {

Status ChainedDeltas::start(Delta& delta, HuffmanDecodeTable& table, const Base& base) noexcept {
    delta.in = PayloadReader(delta.frame.subspan(kFrameHeaderBytes, delta.header.payload_bytes));
    if (const Status status = read_base(delta.in, base); status != Status::kOk) {
        return status;
    }
    delta.is_unchanged = read_unchanged(delta.in);
    return delta.is_unchanged
               ? Status::kOk
               : start_delta(delta.in, dtype_of(delta.header.dtype), table, delta.decoder);
}

Status ChainedDeltas::decode(std::span<uint8_t> words, Workspace& workspace,
                             Base& base) noexcept {
    const std::span<Delta> deltas(deltas_, n_);
    n_ = 0;
    Base before = base;
    for (size_t i = 0; i < deltas.size(); ++i) {
        if (const Status status = start(deltas[i], workspace.delta.decode[i], before);
            status != Status::kOk) {
            return status;
        }
        before.payload_crc = deltas[i].header.payload_crc;
    }
    const uint32_t n_words = deltas.empty() ? 0 : deltas[0].header.n_words;
    for (uint32_t done = 0; done < n_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_words - done);
        for (Delta& delta : deltas) {
            const Dtype& dtype = dtype_of(delta.header.dtype);
            uint8_t* const place = words.data() + size_t{done} * dtype.container_bytes;
            NormalRuns runs(nullptr, m);
            if (delta.is_unchanged) {
                continue;
            }
            if (const Status status =
                    decode_delta_sub_block(delta.in, delta.decoder, m, runs, place, dtype, place,
                                           workspace);
                status != Status::kOk) {
                return status;
            }
        }
        done += m;
    }
    for (Delta& delta : deltas) {
        if (const Status status = finish_frame(delta.frame, delta.header, delta.in, Status::kOk);
            status != Status::kOk) {
            return status;
        }
    }
    base = before;
    return Status::kOk;
}

}  // namespace ogds
