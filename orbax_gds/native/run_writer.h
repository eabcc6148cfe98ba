// Codes the runs of a stripe in several threads and writes each at its place, in their order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>

#include "base_reader.h"
#include "run.h"

namespace ogds {

// A run to code. What it refers to stays where it is.
struct RunSource {
    std::span<const std::span<const uint8_t>> buffers;
    std::span<const Segment> segments;
    std::span<const RunChunk> chunks;
    uint8_t* records;
    RunLinks links = {};  // of the bases to code against
};

// Where the time went, summed over threads; `busy` passed while at least one of them wrote.
struct WriterTimes {
    std::chrono::nanoseconds read_base{};
    std::chrono::nanoseconds decode_base{};
    std::chrono::nanoseconds encode{};
    std::chrono::nanoseconds write{};
    std::chrono::nanoseconds busy{};
    std::chrono::nanoseconds write_cpu{};
    std::chrono::nanoseconds write_queued{};  // ready to run, without a processor
};

enum class Turn {
    kCoded,   // a run lies in the caller's memory and has its place, and is not written
    kPaused,  // the time is over; there may be more
    kDone,    // no run is left, or the writer was stopped
    kFailed,  // a run cannot be coded
};

struct TurnResult {
    Turn turn = Turn::kDone;
    uint64_t offset = 0;  // of a coded run, in the file
    size_t n_bytes = 0;
    RunResult run;  // why coding failed
    size_t number = 0;  // of that run
};

// Any thread may call anything at any time. The bytes depend neither on their number nor on what
// each of them does: a run takes its place when those before it have theirs.
class RunWriter {
public:
    using Clock = std::chrono::steady_clock;

    // The first run goes to `offset`; each is a multiple of `align_bytes` long.
    RunWriter(uint64_t offset, const EncodeOptions& options, size_t align_bytes) noexcept
        : options_(options), align_bytes_(align_bytes), offset_(offset) {}

    // Says what to write. The runs must outlive the last call.
    void set_runs(std::span<const RunSource> runs) noexcept;

    // What `code` and `write` need for this run.
    size_t scratch_bytes(const RunSource& run) const noexcept;

    // Codes the next run into `out`, which has the room for it, and gives it its place.
    TurnResult code(std::span<uint8_t> out, std::span<uint8_t> scratch,
                    Workspace& workspace) noexcept;

    // Codes and writes runs to a file until none is left or `until` has come. A run that the system
    // refuses to write is left coded in `out`: the caller knows what to do or to say.
    TurnResult write(int descriptor, Clock::time_point until, std::span<uint8_t> out,
                     std::span<uint8_t> scratch, Workspace& workspace) noexcept;

    // Makes all calls return soon, those of other threads too.
    void stop() noexcept;

    uint64_t offset() noexcept;
    WriterTimes times() noexcept;

private:
    class Writing;

    std::optional<size_t> take() noexcept;
    bool has_bases(const RunSource& run) const noexcept;
    bool place(size_t number, size_t n_bytes, uint64_t& offset) noexcept;

    const EncodeOptions options_;
    const size_t align_bytes_;
    std::span<const RunSource> runs_;

    std::mutex mutex_;  // of all that follows
    std::condition_variable placed_one_;
    size_t n_taken_ = 0;
    size_t n_placed_ = 0;
    uint64_t offset_;
    std::atomic<bool> is_stopped_ = false;  // read without it while bases are read
    WriterTimes times_;
    size_t n_writing_ = 0;
    Clock::time_point writing_since_;
};

}  // namespace ogds
