#include "run_writer.h"

#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "queue_clock.h"

namespace ogds {
namespace {

using std::chrono::nanoseconds;

nanoseconds thread_cpu() noexcept {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

// Whether the system took all bytes. One that was interrupted or refused may be written again.
bool write_all(int descriptor, std::span<const uint8_t> bytes, uint64_t offset) noexcept {
    while (!bytes.empty()) {
        const ssize_t n = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (n <= 0) {
            return false;
        }
        bytes = bytes.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
    return true;
}

}  // namespace

// Counts what a write costs for as long as this lives.
class RunWriter::Writing {
public:
    Writing(RunWriter& writer, const QueueClock& queue) noexcept
        : writer_(writer), queue_(queue), cpu_(thread_cpu()), queued_(queue.now()) {
        const std::lock_guard lock(writer_.mutex_);
        began_ = Clock::now();
        if (writer_.n_writing_++ == 0) {
            writer_.writing_since_ = began_;
        }
    }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    ~Writing() {
        const nanoseconds cpu = thread_cpu() - cpu_;
        const nanoseconds queued = queue_.now() - queued_;
        const std::lock_guard lock(writer_.mutex_);
        const Clock::time_point now = Clock::now();
        if (--writer_.n_writing_ == 0) {
            writer_.times_.busy += now - writer_.writing_since_;
        }
        writer_.times_.write += now - began_;
        writer_.times_.write_cpu += cpu;
        writer_.times_.write_queued += queued;
    }

private:
    RunWriter& writer_;
    const QueueClock& queue_;
    const nanoseconds cpu_;
    const nanoseconds queued_;
    Clock::time_point began_;
};

void RunWriter::set_runs(std::span<const RunSource> runs) noexcept {
    const std::lock_guard lock(mutex_);
    runs_ = runs;
}

size_t RunWriter::scratch_bytes(const RunSource& run) const noexcept {
    return ogds::scratch_bytes(run.chunks) +
           (has_bases(run) ? BaseReader::scratch_bytes(run.chunks) : 0);
}

TurnResult RunWriter::code(std::span<uint8_t> out, std::span<uint8_t> scratch,
                           Workspace& workspace) noexcept {
    const std::optional<size_t> number = take();
    if (!number.has_value()) {
        return {};
    }
    const RunSource& run = runs_[*number];
    const Clock::time_point began = Clock::now();
    const size_t own_bytes = ogds::scratch_bytes(run.chunks);
    std::optional<BaseReader> bases;
    if (has_bases(run)) {
        bases.emplace(run.chunks, run.links, scratch.subspan(own_bytes), workspace, is_stopped_);
    }
    const RunResult coded =
        encode_run(run.buffers, run.segments, run.chunks, options_, align_bytes_, out, run.records,
                   scratch.first(own_bytes), workspace, bases.has_value() ? &*bases : nullptr);
    {
        const std::lock_guard lock(mutex_);
        times_.encode += Clock::now() - began;
        if (bases.has_value()) {
            times_.read_base += bases->read_time();
            times_.decode_base += bases->decode_time();
            times_.encode -= bases->read_time() + bases->decode_time();
        }
    }
    if (coded.status == Status::kStopped) {
        return {};
    }
    if (coded.status != Status::kOk) {
        return {Turn::kFailed, 0, 0, coded, *number};
    }
    uint64_t offset = 0;
    if (!place(*number, coded.n_bytes, offset)) {
        return {};
    }
    for (size_t i = 0; i < run.chunks.size(); ++i) {
        uint8_t* const record = run.records + i * kIndexRecordBytes;
        store_u64le(record, load_u64le(record) + offset);
    }
    return {Turn::kCoded, offset, coded.n_bytes, {}, *number};
}

TurnResult RunWriter::write(int descriptor, Clock::time_point until, std::span<uint8_t> out,
                            std::span<uint8_t> scratch, Workspace& workspace) noexcept {
    const QueueClock queue;
    do {
        const TurnResult result = code(out, scratch, workspace);
        if (result.turn != Turn::kCoded) {
            return result;
        }
        const Writing writing(*this, queue);
        if (!write_all(descriptor, out.first(result.n_bytes), result.offset)) {
            return result;
        }
    } while (Clock::now() < until);
    return {Turn::kPaused, 0, 0, {}, 0};
}

void RunWriter::stop() noexcept {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    placed_one_.notify_all();
}

uint64_t RunWriter::offset() noexcept {
    const std::lock_guard lock(mutex_);
    return offset_;
}

WriterTimes RunWriter::times() noexcept {
    const std::lock_guard lock(mutex_);
    return times_;
}

// Words that are not coded are not compared.
bool RunWriter::has_bases(const RunSource& run) const noexcept {
    return !run.links.empty() && options_.codec != CodecChoice::kRaw;
}

std::optional<size_t> RunWriter::take() noexcept {
    const std::lock_guard lock(mutex_);
    if (is_stopped_ || n_taken_ >= runs_.size()) {  // fewer once they are let go of
        return std::nullopt;
    }
    return n_taken_++;
}

// Waits for the runs before this one; false if the writer was stopped.
bool RunWriter::place(size_t number, size_t n_bytes, uint64_t& offset) noexcept {
    std::unique_lock lock(mutex_);
    placed_one_.wait(lock, [&] { return n_placed_ == number || is_stopped_; });
    if (is_stopped_) {
        return false;
    }
    offset = offset_;
    offset_ += n_bytes;
    ++n_placed_;
    placed_one_.notify_all();
    return true;
}

}  // namespace ogds
