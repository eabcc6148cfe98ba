// Runs that several threads code and write: the bytes of one thread, whoever does what, and an end
// when one of them is stopped or refused.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "bytes.h"
#include "check.h"
#include "run_writer.h"
#include "samples.h"

using namespace ogds;

namespace {

constexpr size_t kAlignBytes = 4096;
constexpr uint64_t kFirst = 8192;  // where the first run goes
constexpr size_t kThreads = 4;
constexpr auto kLong = std::chrono::minutes(1);

// A run of two chunks, unlike those of other numbers in words and length.
struct SampleRun {
    explicit SampleRun(uint32_t number)
        : words(make_words(16, 500 + 900 * (number % 5), Look::kWeights, number)),
          chunks{{{2 * number, 400, 16}, 1}, {{2 * number + 1, 100 + 900 * (number % 5), 16}, 1}},
          segments{{0, 0, 0, 400}, {0, 800, 0, 100 + 900 * (number % 5)}},
          buffers{std::span<const uint8_t>(words)},
          records(2 * kIndexRecordBytes) {}

    RunSource source() {
        RunSource found{};
        found.buffers = buffers;
        found.segments = segments;
        found.chunks = chunks;
        found.records = records.data();
        return found;
    }

    Bytes words;
    std::vector<RunChunk> chunks;
    std::vector<Segment> segments;
    std::vector<std::span<const uint8_t>> buffers;
    Bytes records;
};

// Runs, what each thread needs, and a file that is gone afterwards.
struct Stripe {
    explicit Stripe(uint32_t n_runs) : file(std::tmpfile()) {
        CHECK(file != nullptr);
        for (uint32_t i = 0; i < n_runs; ++i) {
            runs.push_back(std::make_unique<SampleRun>(i));
            sources.push_back(runs.back()->source());
            room_bytes = std::max(room_bytes, max_run_bytes(runs.back()->chunks, kAlignBytes));
        }
    }
    Stripe(const Stripe&) = delete;
    Stripe& operator=(const Stripe&) = delete;
    ~Stripe() { std::fclose(file); }

    Bytes content(size_t n_bytes) const {
        Bytes bytes(n_bytes);
        const ssize_t n = pread(fileno(file), bytes.data(), n_bytes, 0);
        CHECK(n == static_cast<ssize_t>(n_bytes), n, n_bytes);
        return bytes;
    }

    Bytes records() const {
        Bytes all;
        for (const auto& run : runs) {
            all.insert(all.end(), run->records.begin(), run->records.end());
        }
        return all;
    }

    std::FILE* file;
    std::vector<std::unique_ptr<SampleRun>> runs;
    std::vector<RunSource> sources;
    size_t room_bytes = 0;
};

// Calls `work(room, workspace)` in several threads and waits for all.
template <class Work>
void in_threads(const Stripe& stripe, size_t n_threads, const Work& work) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n_threads; ++i) {
        threads.emplace_back([&] {
            Bytes room(stripe.room_bytes);
            const auto workspace = std::make_unique<Workspace>();
            work(std::span(room), *workspace);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

RunWriter::Clock::time_point after(std::chrono::nanoseconds time) {
    return RunWriter::Clock::now() + time;
}

// What one thread makes of the runs, each in a call of its own.
struct Expected {
    explicit Expected(uint32_t n_runs) : stripe(n_runs) {
        RunWriter writer(kFirst, {}, kAlignBytes);
        writer.set_runs(stripe.sources);
        bytes.resize(kFirst);
        in_threads(stripe, 1, [&](std::span<uint8_t> room, Workspace& workspace) {
            for (size_t number = 0;; ++number) {
                const TurnResult result = writer.code(room, {}, workspace);
                if (result.turn != Turn::kCoded) {
                    CHECK(result.turn == Turn::kDone && number == stripe.runs.size(), number);
                    return;
                }
                CHECK(result.number == number && result.offset == bytes.size(), number);
                bytes.insert(bytes.end(), room.begin(),
                             room.begin() + static_cast<std::ptrdiff_t>(result.n_bytes));
            }
        });
        CHECK(writer.offset() == bytes.size(), writer.offset());
    }

    Stripe stripe;
    Bytes bytes;
};

void records_say_where_frames_lie(const Expected& expected) {
    for (const auto& run : expected.stripe.runs) {
        for (size_t i = 0; i < run->chunks.size(); ++i) {
            const uint8_t* const record = run->records.data() + i * kIndexRecordBytes;
            FrameHeader header;
            const auto frame = std::span(expected.bytes).subspan(load_u64le(record));
            CHECK(read_frame_header(frame, header) == Status::kOk, i);
            CHECK(header.chunk == run->chunks[i].shape.chunk, header.chunk);
        }
    }
}

// Threads that pause at once, after each run, or hardly ever; some write a run by themselves.
void bytes_do_not_depend_on_threads(const Expected& expected, std::chrono::nanoseconds slice) {
    Stripe stripe(static_cast<uint32_t>(expected.stripe.runs.size()));
    RunWriter writer(kFirst, {}, kAlignBytes);
    writer.set_runs(stripe.sources);
    const int descriptor = fileno(stripe.file);
    std::atomic<size_t> n_alone = 0;
    in_threads(stripe, kThreads, [&](std::span<uint8_t> room, Workspace& workspace) {
        for (bool alone = false;; alone = !alone) {
            const TurnResult result = alone ? writer.code(room, {}, workspace)
                                            : writer.write(descriptor, after(slice), room, {},
                                                           workspace);
            if (result.turn == Turn::kDone) {
                return;
            }
            CHECK(result.turn == (alone ? Turn::kCoded : Turn::kPaused));
            if (alone) {
                ++n_alone;
                CHECK(pwrite(descriptor, room.data(), result.n_bytes,
                             static_cast<off_t>(result.offset)) ==
                      static_cast<ssize_t>(result.n_bytes));
            }
            CHECK(writer.offset() >= kFirst && writer.times().write >= std::chrono::nanoseconds(0));
        }
    });
    CHECK(writer.offset() == expected.bytes.size(), writer.offset());
    Bytes content = stripe.content(expected.bytes.size());
    CHECK(content == expected.bytes);
    CHECK(stripe.records() == expected.stripe.records());
    CHECK((n_alone > 0) == (slice < kLong), n_alone);
    const WriterTimes times = writer.times();
    CHECK(times.encode.count() > 0 && times.busy.count() > 0);
    CHECK(times.busy <= times.write, times.busy.count(), times.write.count());
}

// Nobody waits for a run whose thread has gone.
void stopping_ends_all_that_wait() {
    Stripe stripe(400);
    RunWriter writer(kFirst, {}, kAlignBytes);
    writer.set_runs(stripe.sources);
    std::atomic<size_t> n_calls = 0;
    in_threads(stripe, kThreads, [&](std::span<uint8_t> room, Workspace& workspace) {
        if (n_calls++ == 1) {
            writer.stop();
        }
        CHECK(writer.write(fileno(stripe.file), after(kLong), room, {}, workspace).turn ==
              Turn::kDone);
    });
    Bytes room(stripe.room_bytes);
    const auto workspace = std::make_unique<Workspace>();
    CHECK(writer.code(room, {}, *workspace).turn == Turn::kDone);
}

// What the system refuses is left to its thread; the others go on.
void a_refused_run_has_its_place(const Expected& expected) {
    Stripe stripe(static_cast<uint32_t>(expected.stripe.runs.size()));
    RunWriter writer(kFirst, {}, kAlignBytes);
    writer.set_runs(stripe.sources);
    const int refusing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(refusing >= 0);
    Bytes content(expected.bytes.size());
    in_threads(stripe, kThreads, [&](std::span<uint8_t> room, Workspace& workspace) {
        for (;;) {
            const TurnResult result = writer.write(refusing, after(kLong), room, {}, workspace);
            if (result.turn == Turn::kDone) {
                return;
            }
            CHECK(result.turn == Turn::kCoded);
            CHECK(result.offset + result.n_bytes <= content.size(), result.offset);
            std::copy_n(room.begin(), result.n_bytes,
                        content.begin() + static_cast<std::ptrdiff_t>(result.offset));
        }
    });
    close(refusing);
    CHECK(content == expected.bytes);
}

void runs_that_were_let_go_of_are_not_touched() {
    Stripe stripe(3);
    RunWriter writer(kFirst, {}, kAlignBytes);
    writer.set_runs(stripe.sources);
    Bytes room(stripe.room_bytes);
    const auto workspace = std::make_unique<Workspace>();
    CHECK(writer.code(room, {}, *workspace).turn == Turn::kCoded);
    writer.set_runs({});
    CHECK(writer.code(room, {}, *workspace).turn == Turn::kDone);
}

}  // namespace

int main() {
    const Expected expected(60);
    records_say_where_frames_lie(expected);
    for (const auto slice : {std::chrono::nanoseconds(0), std::chrono::nanoseconds(kLong)}) {
        bytes_do_not_depend_on_threads(expected, slice);
    }
    a_refused_run_has_its_place(expected);
    stopping_ends_all_that_wait();
    runs_that_were_let_go_of_are_not_touched();
}
