#include "chain.h"

#include <algorithm>

#include "bytes.h"

namespace ogds {
namespace {

// While it lives decoded words stay in the caches.
class KeptWords {
public:
    explicit KeptWords(Workspace& workspace) noexcept : workspace_(workspace) {
        workspace.keeps_words = true;
    }
    KeptWords(const KeptWords&) = delete;
    KeptWords& operator=(const KeptWords&) = delete;
    ~KeptWords() { workspace_.keeps_words = false; }

private:
    Workspace& workspace_;
};

}  // namespace

bool record_is_absent(const uint8_t* record) noexcept {
    return std::all_of(record, record + kIndexRecordBytes, [](uint8_t byte) { return byte == 0; });
}

Status find_frame(std::span<const uint8_t> frames, uint64_t start, const uint8_t* record,
                  const ChunkShape& shape, std::span<const uint8_t>& frame,
                  FrameHeader& header) noexcept {
    const uint64_t offset = load_u64le(record) - start;
    if (offset > frames.size()) {
        return Status::kFrameTruncated;
    }
    frame = frames.subspan(offset);
    if (const Status status = read_frame_header(frame, header); status != Status::kOk) {
        return status;
    }
    frame = frame.first(header.frame_bytes);
    if (!record_agrees(record, header)) {
        return Status::kIndexMismatch;
    }
    const bool as_laid_out = header.chunk == shape.chunk && header.n_words == shape.n_words &&
                             header.dtype == shape.dtype;
    return as_laid_out ? Status::kOk : Status::kLayoutMismatch;
}

Status decode_link(std::span<const uint8_t> frames, uint64_t start, const uint8_t* record,
                   const ChunkShape& shape, std::span<uint8_t> words, Workspace& workspace,
                   Base& base) noexcept {
    std::span<const uint8_t> frame;
    FrameHeader header;
    Status status = find_frame(frames, start, record, shape, frame, header);
    if (status == Status::kOk) {
        const KeptWords kept(workspace);
        status = decode_frame(frame, header, words, workspace, base);
    }
    if (status == Status::kOk) {
        base = {words.data(), header.payload_crc};
    }
    return status;
}

}  // namespace ogds
