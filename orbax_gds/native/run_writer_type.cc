#include "run_writer_type.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "lease.h"
#include "queue_clock.h"
#include "run_writer.h"
#include "zstd_calls.h"

namespace nb = nanobind;

namespace ogds {
namespace {

using Seconds = std::chrono::duration<double>;
using Placed = std::optional<std::pair<uint64_t, size_t>>;  // offset and bytes of a run

constexpr double kMostSecs = 60;  // chosen: a call that would not return for longer is a mistake

// Descriptors of its own for files of others, which may close theirs and open other files by the
// same number: as long as a file is held, no other one has its inode.
class HeldFiles {
public:
    HeldFiles() = default;
    HeldFiles(const HeldFiles&) = delete;
    HeldFiles& operator=(const HeldFiles&) = delete;
    ~HeldFiles() { clear(); }

    int hold(int descriptor) {
        struct stat status {};
        if (fstat(descriptor, &status) != 0) {
            raise_errno();
        }
        const auto [place, is_new] =
            own_.try_emplace(Key(descriptor, status.st_dev, status.st_ino), -1);
        if (is_new) {
            const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
            if (own < 0) {
                own_.erase(place);
                raise_errno();
            }
            place->second = own;
        }
        return place->second;
    }

    void clear() noexcept {
        for (const auto& [key, own] : own_) {
            close(own);
        }
        own_.clear();
    }

private:
    using Key = std::tuple<int, dev_t, ino_t>;  // a number, and the file that it meant

    [[noreturn]] static void raise_errno() {
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }

    std::map<Key, int> own_;
};

// A run, its buffers held.
class HeldRun {
public:
    HeldRun(nb::sequence buffers, nb::handle segments, nb::handle chunks, nb::handle records,
            nb::sequence links, nb::handle only_if_alike, HeldFiles& files)
        : run_(std::move(buffers), segments, chunks, Buffer::Access::kRead),
          records_(records, "records", Buffer::Access::kWrite) {
        run_.require_cover();
        check_records(records_, run_.chunks().size());
        run_.require_apart_from(records_, "records");
        for (nb::handle each : links) {
            int descriptor = -1;
            if (nb::len(each) != 2 || !read_integer(each, 0, descriptor)) {
                refuse("A link is the descriptor of a file and records.");
            }
            const Buffer& rows = base_records_.emplace_back(each[1], "records of a base",
                                                            Buffer::Access::kRead);
            check_records(rows, run_.chunks().size());
            require_apart(records_, "records", rows, "records of a base");
            links_.push_back({files.hold(descriptor), rows.bytes().data()});
        }
        if (!only_if_alike.is_none()) {
            only_if_alike_.emplace(only_if_alike, "only_if_alike", Buffer::Access::kRead);
            if (only_if_alike_->bytes().size() != run_.chunks().size()) {
                refuse("only_if_alike has ", only_if_alike_->bytes().size(), " bytes, but there are ",
                       run_.chunks().size(), " chunks.");
            }
        }
    }

    void require_apart_from(const Buffer& out) const {
        run_.require_apart_from(out, "out");
        require_apart(out, "out", records_, "records");
        for (const Buffer& rows : base_records_) {
            require_apart(out, "out", rows, "records of a base");
        }
    }

    RunSource source() const noexcept {
        RunLinks links{links_, {}};
        if (only_if_alike_.has_value()) {
            links.only_if_alike = only_if_alike_->bytes();
        }
        return {run_.readable(), run_.segments(), run_.chunks(), records_.bytes().data(), links};
    }

private:
    RunArguments run_;
    Buffer records_;
    std::deque<Buffer> base_records_;
    std::vector<FileLink> links_;
    std::optional<Buffer> only_if_alike_;
};

PyObject* broken_base = nullptr;  // the type; the module keeps it

[[noreturn]] void raise_broken_base(const RunSource& run, const TurnResult& result) {
    const uint32_t chunk = run.chunks[result.run.chunk].shape.chunk;
    std::string text = "The base of chunk " + std::to_string(chunk) + " cannot be read: link " +
                       std::to_string(result.run.link) + " of " +
                       std::to_string(run.links.links.size()) + ", from the oldest: " +
                       status_text(result.run.status);
    if (result.run.error != 0) {
        text += std::string(": ") + std::strerror(result.run.error);
    }
    const nb::object error = nb::handle(broken_base)(text + ".");
    error.attr("run") = result.number;
    error.attr("chunk") = chunk;
    error.attr("link") = result.run.link;
    error.attr("status") = static_cast<int>(result.run.status);
    error.attr("errno") = result.run.error;
    PyErr_SetObject(broken_base, error.ptr());
    throw nb::python_error();
}

// The runs and their writer. The members are touched with the GIL held, the core is not.
class PyRunWriter {
public:
    PyRunWriter(nb::iterable runs, uint64_t offset, const std::string& codec, size_t align_bytes,
                int zstd_level)
        : writer_(offset, options_of(codec, zstd_level, std::nullopt, false), align_bytes) {
        check_alignment(align_bytes);
        for (nb::handle each : runs) {  // a generator lets other threads have the GIL in between
            const auto run = nb::cast<nb::tuple>(each);
            if (run.size() != 6) {
                refuse("A run is buffers, segments, chunks, records, links and only_if_alike, not ",
                       run.size(), " objects.");
            }
            held_.emplace_back(nb::cast<nb::sequence>(run[0]), run[1], run[2], run[3],
                               nb::cast<nb::sequence>(run[4]), run[5], files_);
            const RunSource source = held_.back().source();
            room_bytes_ = std::max(room_bytes_, max_run_bytes(source.chunks, align_bytes));
            scratch_bytes_ = std::max(scratch_bytes_, writer_.scratch_bytes(source));
            sources_.push_back(source);
        }
        writer_.set_runs(sources_);
    }

    Placed code(nb::handle out) {
        return call(out, [this](std::span<uint8_t> room, std::span<uint8_t> words, Workspace& mine) {
            return writer_.code(room, words, mine);
        });
    }

    Placed write(int descriptor, nb::handle out, double most_secs) {
        if (!(most_secs >= 0 && most_secs <= kMostSecs)) {
            refuse("most_secs must be 0 to 60.");
        }
        const auto until = RunWriter::Clock::now() +
                           std::chrono::duration_cast<RunWriter::Clock::duration>(Seconds(most_secs));
        return call(out, [&](std::span<uint8_t> room, std::span<uint8_t> words, Workspace& mine) {
            return writer_.write(descriptor, until, room, words, mine);
        });
    }

    void stop() { writer_.stop(); }

    // Lets go of all buffers.
    void close() {
        if (n_calls_ != 0) {
            refuse("Another thread still writes: stop it and wait for it.");
        }
        writer_.set_runs({});
        sources_.clear();
        held_.clear();
        files_.clear();
    }

    uint64_t offset() { return writer_.offset(); }

    nb::dict secs() {
        const WriterTimes times = writer_.times();
        nb::dict secs;
        secs["read_base"] = Seconds(times.read_base).count();
        secs["decode_base"] = Seconds(times.decode_base).count();
        secs["encode"] = Seconds(times.encode).count();
        secs["write"] = Seconds(times.write).count();
        secs["busy"] = Seconds(times.busy).count();
        secs["write_cpu"] = Seconds(times.write_cpu).count();
        secs["write_queued"] = Seconds(times.write_queued).count();
        return secs;
    }

private:
    struct Call {
        explicit Call(size_t& n_calls) noexcept : n(n_calls) { ++n; }
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;
        ~Call() { --n; }
        size_t& n;
    };

    template <class Work>
    Placed call(nb::handle out, const Work& work) {
        const Call counted(n_calls_);
        const Buffer room(out, "out", Buffer::Access::kWrite);
        if (room.bytes().size() < room_bytes_) {
            refuse("out has ", room.bytes().size(), " bytes; a run may need ", room_bytes_, ".");
        }
        for (const HeldRun& run : held_) {
            run.require_apart_from(room);
        }
        const Lease mine;
        const ZstdCalls zstd(mine->workspace());
        TurnResult result;
        {
            const nb::gil_scoped_release release;
            result = work(room.bytes(), mine->words(scratch_bytes_), mine->workspace());
        }
        zstd.rethrow();
        switch (result.turn) {
            case Turn::kCoded:
                return std::pair{result.offset, result.n_bytes};
            case Turn::kPaused:
                return std::pair{uint64_t{0}, size_t{0}};
            case Turn::kDone:
                return std::nullopt;
            case Turn::kFailed:
                break;
        }
        if (result.run.link != RunResult::kNoLink) {
            raise_broken_base(sources_[result.number], result);
        }
        refuse_coding(("chunks[" + std::to_string(result.run.chunk) + "] of run " +
                       std::to_string(result.number)).c_str(), result.run.status);
    }

    HeldFiles files_;
    std::deque<HeldRun> held_;
    std::vector<RunSource> sources_;
    size_t room_bytes_ = 0;
    size_t scratch_bytes_ = 0;
    size_t n_calls_ = 0;
    RunWriter writer_;
};

}  // namespace

void add_run_writer(nb::module_& module) {
    broken_base = PyErr_NewException("orbax_gds._native.BrokenBase", PyExc_Exception, nullptr);
    if (broken_base == nullptr) {
        throw nb::python_error();
    }
    module.attr("BrokenBase") = nb::handle(broken_base);
    module.def("queued_secs", [] { return Seconds(QueueClock().now()).count(); });
    nb::class_<PyRunWriter>(module, "RunWriter")
        .def(nb::init<nb::iterable, uint64_t, const std::string&, size_t, int>(), nb::arg("runs"),
             nb::kw_only(), nb::arg("offset"), nb::arg("codec"), nb::arg("align_bytes"),
             nb::arg("zstd_level") = 0)
        .def("code", &PyRunWriter::code, nb::arg("out"))
        .def("write", &PyRunWriter::write, nb::arg("descriptor"), nb::arg("out"),
             nb::kw_only(), nb::arg("most_secs"))
        .def("stop", &PyRunWriter::stop)
        .def("close", &PyRunWriter::close)
        .def("secs", &PyRunWriter::secs)
        .def_prop_ro("offset", &PyRunWriter::offset);
}

}  // namespace ogds
