// Runs coded against bases in files: the same bytes from any number of threads, words that come
// back through the chain, and errors that name what is wrong with a base.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "bytes.h"
#include "check.h"
#include "run_writer.h"
#include "samples.h"

using namespace ogds;

namespace {

// What the files of this test are read like.
struct Reads {
    size_t most = ~size_t{0};  // bytes at once
    size_t aligned_to = 1;     // offsets; others are refused
};
Reads reads;

}  // namespace

// In place of that of the library, for all that this test is linked of.
extern "C" ssize_t pread(int descriptor, void* to, size_t n, off_t offset) {
    if (static_cast<size_t>(offset) % reads.aligned_to != 0) {
        errno = EINVAL;
        return -1;
    }
    const iovec whole = {to, std::min(n, reads.most)};
    return preadv(descriptor, &whole, 1, offset);
}

namespace {

constexpr size_t kAlignBytes = 4096;
constexpr uint64_t kOffset = 8192;
constexpr size_t kPerRun = 3;

// A file without a name.
class File {
public:
    File() : file_(std::tmpfile()) { CHECK(file_ != nullptr, errno); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() { std::fclose(file_); }

    int descriptor() const { return fileno(file_); }

    Bytes content() const {
        Bytes bytes(static_cast<size_t>(lseek(descriptor(), 0, SEEK_END)));
        const ssize_t n = pread(descriptor(), bytes.data(), bytes.size(), 0);
        CHECK(n == static_cast<ssize_t>(bytes.size()));
        return bytes;
    }

    void flip(uint64_t offset) const {
        uint8_t byte = 0;
        CHECK(pread(descriptor(), &byte, 1, static_cast<off_t>(offset)) == 1);
        byte ^= 1;
        CHECK(pwrite(descriptor(), &byte, 1, static_cast<off_t>(offset)) == 1);
    }

private:
    std::FILE* file_;
};

// A step of a chain: chunks, and the file that their frames lie in.
struct Step {
    explicit Step(std::vector<Bytes> these, uint8_t dtype_id)
        : words(std::move(these)), records(words.size() * kIndexRecordBytes) {
        const size_t word_bytes = dtype_of(dtype_id).container_bytes;
        for (const Bytes& chunk : words) {
            const auto n = static_cast<uint32_t>(chunk.size() / word_bytes);
            chunks.push_back({{static_cast<uint32_t>(chunks.size()), n, dtype_id}, 1});
            buffers.emplace_back(chunk);
            segments.push_back({segments.size() % kPerRun, 0, 0, n});
        }
    }

    std::vector<Bytes> words;
    std::vector<RunChunk> chunks;
    std::vector<std::span<const uint8_t>> buffers;
    std::vector<Segment> segments;
    Bytes records;
    File file;
};

using Chain = std::vector<std::unique_ptr<Step>>;

// The runs of a step, and the links they are coded against.
struct Runs {
    Runs(Step& step, const Chain& chain, size_t n_links) {
        const size_t n = step.chunks.size();
        links.resize((n + kPerRun - 1) / kPerRun);
        for (size_t first = 0; first < n; first += kPerRun) {
            const size_t count = std::min(kPerRun, n - first);
            std::vector<FileLink>& mine = links[first / kPerRun];
            for (size_t i = 0; i < n_links; ++i) {
                mine.push_back({chain[i]->file.descriptor(),
                                chain[i]->records.data() + first * kIndexRecordBytes});
            }
            sources.push_back({std::span(step.buffers).subspan(first, count),
                               std::span(step.segments).subspan(first, count),
                               std::span(step.chunks).subspan(first, count),
                               step.records.data() + first * kIndexRecordBytes, {mine, {}}});
        }
    }

    std::vector<std::vector<FileLink>> links;
    std::vector<RunSource> sources;
};

// Writes a step from so many threads; returns what failed first.
RunResult write(Step& step, const Chain& chain, size_t n_threads,
                size_t align_bytes = kAlignBytes) {
    const Runs runs(step, chain, chain.size());
    RunWriter writer(kOffset, {}, align_bytes);
    writer.set_runs(runs.sources);
    std::vector<TurnResult> ended(n_threads);
    std::vector<std::thread> threads;
    for (TurnResult& mine : ended) {
        threads.emplace_back([&runs, &writer, &step, &mine, align_bytes] {
            const auto own = std::make_unique<Workspace>();
            Bytes scratch(writer.scratch_bytes(runs.sources[0]));
            Bytes out(max_run_bytes(step.chunks, align_bytes));
            do {
                mine = writer.write(step.file.descriptor(), RunWriter::Clock::now(), out, scratch,
                                    *own);
            } while (mine.turn == Turn::kPaused);
            if (mine.turn == Turn::kFailed) {
                writer.stop();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const TurnResult& each : ended) {
        if (each.turn == Turn::kFailed) {
            return each.run;
        }
        CHECK(each.turn == Turn::kDone);
    }
    return {};
}

void comes_back(const Step& step, const Chain& chain) {
    std::vector<Bytes> frames;
    std::vector<BaseLink> links;
    frames.reserve(chain.size());
    for (const auto& each : chain) {
        frames.push_back(each->file.content());
        links.push_back({frames.back(), each->records.data()});
    }
    std::vector<Bytes> out;
    for (const Bytes& chunk : step.words) {
        out.emplace_back(chunk.size(), uint8_t{0xA5});
    }
    const std::vector<std::span<uint8_t>> buffers(out.begin(), out.end());
    std::vector<Segment> segments = step.segments;
    for (size_t i = 0; i < segments.size(); ++i) {
        segments[i].buffer = i;
    }
    Bytes scratch(scratch_bytes(step.chunks));
    const Bytes own = step.file.content();
    const RunResult result = decode_run(own, step.records.data(), step.chunks, buffers, segments,
                                        scratch, workspace(), links);
    CHECK(result.status == Status::kOk, status_text(result.status), result.chunk);
    CHECK(out == step.words);
}

std::vector<Bytes> changed(uint8_t dtype, uint64_t seed) {
    std::vector<Bytes> words;
    for (uint32_t n_words : {5000u, 40u, 300u, 9001u, 2000u, 1u, 4097u}) {
        words.push_back(make_changed(dtype, n_words, seed + n_words));
    }
    return words;
}

Chain make_chain(uint8_t dtype, size_t n_steps) {
    Chain chain;
    for (size_t i = 0; i < n_steps; ++i) {
        auto step = std::make_unique<Step>(changed(dtype, i), dtype);
        CHECK(write(*step, chain, 3).status == Status::kOk);
        comes_back(*step, chain);
        chain.push_back(std::move(step));
    }
    return chain;
}

void bytes_do_not_depend_on_threads(uint8_t dtype) {
    const Chain chain = make_chain(dtype, 3);
    Step one(changed(dtype, 9), dtype);
    Step four(changed(dtype, 9), dtype);
    CHECK(write(one, chain, 1).status == Status::kOk);
    CHECK(write(four, chain, 4).status == Status::kOk);
    CHECK(one.file.content() == four.file.content() && one.records == four.records);
    comes_back(four, chain);
    bool has_deltas = false;
    for (size_t i = 0; i < one.chunks.size(); ++i) {
        has_deltas |= (one.records[i * kIndexRecordBytes + 26] & kFlagDelta) != 0;
    }
    CHECK(has_deltas);
}

void faults_of_a_base_are_told(uint8_t dtype) {
    Chain chain = make_chain(dtype, 2);
    Step step(changed(dtype, 9), dtype);
    const auto expect = [&](Status status, size_t chunk_in_run) {
        const RunResult result = write(step, chain, 2);
        CHECK(result.status == status, status_text(result.status));
        CHECK(result.link == 1 && result.chunk == chunk_in_run, result.link, result.chunk);
    };
    uint8_t* const record = chain[1]->records.data() + 4 * kIndexRecordBytes;
    const uint64_t offset = load_u64le(record);
    chain[1]->file.flip(offset + 40);
    expect(Status::kPayloadCrc, 1);
    chain[1]->file.flip(offset + 40);
    store_u64le(record, ~uint64_t{0});
    expect(Status::kFrameTruncated, 1);
    store_u64le(record, uint64_t{1} << 40);
    expect(Status::kFrameTruncated, 1);
    store_u64le(record, offset);
    const uint32_t frame_bytes = load_u32le(record + 8);
    store_u32le(record + 8, ~uint32_t{0});
    expect(Status::kFrameLength, 1);
    store_u32le(record + 8, frame_bytes);
    CHECK(ftruncate(chain[1]->file.descriptor(), static_cast<off_t>(offset + 20)) == 0);
    expect(Status::kFrameTruncated, 1);
}

// FORMAT 6 sets no limit to the zeros behind a payload.
void a_base_lengthened_by_much_is_none(uint8_t dtype) {
    for (const size_t n_links : {size_t{1}, size_t{2}}) {
        Chain chain = make_chain(dtype, n_links - 1);
        auto lengthened = std::make_unique<Step>(changed(dtype, 5), dtype);
        CHECK(write(*lengthened, chain, 1, size_t{1} << 18).status == Status::kOk);
        chain.push_back(std::move(lengthened));
        for (const uint64_t seed : {uint64_t{5}, uint64_t{9}}) {
            Step step(changed(dtype, seed), dtype);
            const RunResult result = write(step, chain, 2);
            CHECK(result.status == Status::kOk, status_text(result.status), n_links, seed);
            comes_back(step, chain);
        }
    }
}

// A network's files give a part of what is asked for; those read directly are read from pages.
void short_reads_are_read_on(uint8_t dtype) {
    const Chain chain = make_chain(dtype, 2);
    Step whole(changed(dtype, 9), dtype);
    CHECK(write(whole, chain, 1).status == Status::kOk);
    for (const Reads each : {Reads{1000, 1}, Reads{4097, 1}, Reads{8192, 4096}, Reads{6000, 4096},
                             Reads{~size_t{0}, 4096}}) {
        Step step(changed(dtype, 9), dtype);
        reads = each;
        const RunResult result = write(step, chain, 2);
        reads = {};
        CHECK(result.status == Status::kOk, status_text(result.status), each.most);
        CHECK(step.records == whole.records && step.file.content() == whole.file.content());
    }
    CHECK(ftruncate(chain[1]->file.descriptor(), 20) == 0);
    Step step(changed(dtype, 9), dtype);
    reads = {6000, 4096};
    const RunResult result = write(step, chain, 1);
    reads = {};
    CHECK(result.status == Status::kFrameTruncated && result.link == 1, status_text(result.status));
}

void a_stopped_writer_reads_no_base() {
    const Chain chain = make_chain(16, 2);
    Step step(changed(16, 9), 16);
    const Runs runs(step, chain, 2);
    const RunSource& run = runs.sources[0];
    const std::atomic<bool> is_stopped = true;
    Bytes scratch(BaseReader::scratch_bytes(run.chunks));
    BaseReader reader(run.chunks, run.links, scratch, workspace(), is_stopped);
    Base base;
    CHECK(reader.find(0, base).status == Status::kStopped);
}

}  // namespace

int main() {
    workspace().zstd = nullptr;
    for (uint8_t dtype : {uint8_t{9}, uint8_t{12}, uint8_t{16}, uint8_t{18}}) {
        bytes_do_not_depend_on_threads(dtype);
    }
    faults_of_a_base_are_told(18);
    a_base_lengthened_by_much_is_none(16);
    short_reads_are_read_on(16);
    a_stopped_writer_reads_no_base();
}
