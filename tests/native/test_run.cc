// Runs: chunks in pieces, frames end to end, records, alignment, and frames that are not the ones
// the caller means.
#include <cstring>
#include <memory>

#include "bytes.h"
#include "check.h"
#include "run.h"
#include "samples.h"

using namespace ogds;

namespace {

struct Run3 {
    std::vector<Bytes> words;
    std::vector<RunChunk> chunks;
    std::vector<Segment> segments;
    Bytes frames;
    Bytes records;
};

constexpr size_t kAlignBytes = 4096;

// Chunks of several dtypes, the second in three pieces that lie backwards in one buffer.
Run3 make_run() {
    Run3 run;
    run.words = {make_words(16, 9000, Look::kWeights, 1), make_words(18, 600, Look::kBlocks, 2),
                 make_words(10, 77, Look::kRandom, 3)};
    run.chunks = {{{5, 9000, 16}, 1}, {{6, 600, 18}, 3}, {{7, 77, 10}, 1}};
    run.segments = {{0, 0, 0, 9000},
                    {1, 4 * 300, 0, 300},
                    {1, 4 * 100, 300, 200},
                    {1, 0, 500, 100},
                    {2, 0, 0, 77}};
    run.frames.resize(max_run_bytes(run.chunks, kAlignBytes));
    run.records.resize(run.chunks.size() * kIndexRecordBytes);
    return run;
}

void code(Run3& run) {
    const std::vector<std::span<const uint8_t>> buffers(run.words.begin(), run.words.end());
    const auto workspace = std::make_unique<Workspace>();
    Bytes scratch(scratch_bytes(run.chunks));
    const RunResult result =
        encode_run(buffers, run.segments, run.chunks, {}, kAlignBytes, run.frames,
                   run.records.data(), scratch, *workspace);
    CHECK(result.status == Status::kOk, status_text(result.status), result.chunk);
    CHECK(result.n_bytes % kAlignBytes == 0, result.n_bytes);
    run.frames.resize(result.n_bytes);
    run.frames.shrink_to_fit();
}

RunResult decode(const Run3& run, std::vector<Bytes>& words) {
    const std::vector<std::span<uint8_t>> buffers(words.begin(), words.end());
    const auto workspace = std::make_unique<Workspace>();
    Bytes scratch(scratch_bytes(run.chunks));
    return decode_run(run.frames, run.records.data(), run.chunks, buffers, run.segments, scratch,
                      *workspace);
}

void pieces_come_back_to_their_places(const Run3& run) {
    std::vector<Bytes> words = run.words;
    for (Bytes& buffer : words) {
        std::memset(buffer.data(), 0xA5, buffer.size());
    }
    const RunResult result = decode(run, words);
    CHECK(result.status == Status::kOk, status_text(result.status));
    CHECK(words == run.words);
}

void frames_lie_end_to_end(const Run3& run) {
    size_t at = 0;
    for (size_t i = 0; i < run.chunks.size(); ++i) {
        const uint8_t* record = run.records.data() + i * kIndexRecordBytes;
        CHECK(load_u64le(record) == at, i);
        FrameHeader header;
        CHECK(read_frame_header(std::span(run.frames).subspan(at), header) == Status::kOk, i);
        CHECK(record_agrees(record, header) && header.chunk == run.chunks[i].shape.chunk, i);
        at += header.frame_bytes;
    }
    CHECK(at == run.frames.size());
}

// Words [200, 450) of the second chunk only.
void a_part_of_a_chunk_can_be_read(const Run3& run) {
    Run3 part = run;
    part.segments = {{0, 40, 200, 250}};
    part.chunks[0].n_segments = 0;
    part.chunks[1].n_segments = 1;
    part.chunks[2].n_segments = 0;
    std::vector<Bytes> words = {Bytes(40 + 1000)};
    CHECK(decode(part, words).status == Status::kOk);
    CHECK(std::memcmp(words[0].data() + 40, run.words[1].data() + 4 * 500, 400) == 0);
    CHECK(std::memcmp(words[0].data() + 440, run.words[1].data() + 4 * 100, 600) == 0);
}

// The second chunk, of float32, whole, and words [100, 400) of it rounded.
void a_chunk_is_also_given_rounded(const Run3& run) {
    Run3 both = run;
    both.segments = {{1, 2, 100, 300, kRounded}, {0, 0, 0, 600}};
    both.chunks[0].n_segments = 0;
    both.chunks[1].n_segments = 2;
    both.chunks[2].n_segments = 0;
    std::vector<Bytes> words = {Bytes(4 * 600), Bytes(2 + 2 * 300)};
    CHECK(decode(both, words).status == Status::kOk);
    CHECK(std::memcmp(words[0].data(), run.words[1].data() + 4 * 300, 4 * 300) == 0);
    const std::span<const uint8_t> source = std::span(words[0]).subspan(4 * 100, 4 * 300);
    const std::span<uint8_t> target = std::span(words[1]).subspan(2);
    CHECK(derives(source, target, Rule::kRound));
    target[2 * 299] ^= 1;
    CHECK(!derives(source, target, Rule::kRound));
    CHECK(!derives(source, target, Rule::kCopy));
}

void another_frame_than_meant_is_refused(const Run3& run) {
    std::vector<Bytes> words = run.words;
    const auto expect = [&](const Run3& changed, Status status) {
        const RunResult result = decode(changed, words);
        CHECK(result.status == status && result.chunk == 1, status_text(result.status));
    };
    Run3 changed = run;
    changed.chunks[1].shape.chunk = 9;
    expect(changed, Status::kLayoutMismatch);
    changed = run;
    changed.chunks[1].shape.dtype = 6;
    expect(changed, Status::kLayoutMismatch);
    changed = run;
    changed.records[kIndexRecordBytes + 20] ^= 1;
    expect(changed, Status::kIndexMismatch);
    changed = run;
    store_u64le(changed.records.data() + kIndexRecordBytes, ~uint64_t{0});
    expect(changed, Status::kFrameTruncated);
    changed = run;
    store_u64le(changed.records.data() + kIndexRecordBytes, 0);
    expect(changed, Status::kIndexMismatch);
    changed = run;
    store_u64le(changed.records.data() + kIndexRecordBytes, 1);
    expect(changed, Status::kFrameMagic);
}

}  // namespace

int main() {
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        Run3 run = make_run();
        code(run);
        frames_lie_end_to_end(run);
        pieces_come_back_to_their_places(run);
        a_part_of_a_chunk_can_be_read(run);
        a_chunk_is_also_given_rounded(run);
        another_frame_than_meant_is_refused(run);
    }
}
