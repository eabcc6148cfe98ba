// orbax_gds._native: validate, release the GIL, one call, map the status.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "frame_info.h"
#include "isa.h"
#include "lease.h"
#include "run_writer_type.h"
#include "zstd_calls.h"

namespace nb = nanobind;
using namespace ogds;

namespace {

uint32_t crc32c(nb::handle data, uint32_t value) {
    const Buffer buffer(data, "data", Buffer::Access::kRead);
    const nb::gil_scoped_release release;
    return kernels().crc32c(buffer.bytes().data(), buffer.bytes().size(), value);
}

std::vector<std::string> isas() {
    const Kernels* tables[8];
    const size_t n = available_kernels(tables, 8);
    std::vector<std::string> names;
    for (size_t i = 0; i < n; ++i) {
        names.emplace_back(tables[i]->name);
    }
    return names;
}

void use_isa(const std::string& name) {
    if (use_kernels(name.c_str())) {
        return;
    }
    std::string known;
    for (const std::string& isa : isas()) {
        known += (known.empty() ? "" : ", ") + isa;
    }
    refuse("This machine cannot run the kernels '", name, "'; it can run: ", known, ".");
}

const Dtype& checked_dtype(uint32_t id) {
    if (id > 255 || dtype_of(static_cast<uint8_t>(id)).bits == 0) {
        refuse("dtype ", id, " is no id of FORMAT §5.");
    }
    return dtype_of(static_cast<uint8_t>(id));
}

void check_n_words(size_t n_words) {
    if (n_words == 0 || n_words > kMaxChunkWords) {
        refuse("A chunk has 1 to ", kMaxChunkWords, " words, not ", n_words, ".");
    }
}

size_t py_max_frame_bytes(size_t n_words, uint32_t dtype) {
    const Dtype& known = checked_dtype(dtype);
    check_n_words(n_words);
    return max_frame_bytes(static_cast<uint32_t>(n_words), known);
}

size_t py_encode_run(nb::sequence buffers, nb::handle segments, nb::handle chunks, nb::handle out,
                     nb::handle records, const std::string& codec, size_t align_bytes,
                     int zstd_level, nb::sequence bases) {
    const EncodeOptions options = options_of(codec, zstd_level, std::nullopt, false);
    const RunArguments run(buffers, segments, chunks, Buffer::Access::kRead);
    run.require_cover();
    check_alignment(align_bytes);
    const Buffer out_buffer(out, "out", Buffer::Access::kWrite);
    const Buffer record_buffer(records, "records", Buffer::Access::kWrite);
    check_records(record_buffer, run.chunks().size());
    const BaseArguments links(bases, run.chunks().size());
    links.require_apart_from(out_buffer, "out");
    links.require_apart_from(record_buffer, "records");
    run.require_apart_from(out_buffer, "out");
    run.require_apart_from(record_buffer, "records");
    require_apart(out_buffer, "out", record_buffer, "records");
    const size_t needed = max_run_bytes(run.chunks(), align_bytes);
    if (out_buffer.bytes().size() < needed) {
        refuse("out has ", out_buffer.bytes().size(), " bytes; these ", run.chunks().size(),
               " chunks may need ", needed, ".");
    }
    const Lease mine;
    const ZstdCalls zstd(mine->workspace());
    RunResult result;
    {
        const nb::gil_scoped_release release;
        result = encode_run(run.readable(), run.segments(), run.chunks(), options, align_bytes,
                            out_buffer.bytes(), record_buffer.bytes().data(),
                            mine->words(scratch_bytes(run.chunks(), !links.links().empty())),
                            mine->workspace(), links.links());
    }
    zstd.rethrow();
    if (result.status != Status::kOk) {
        const std::string base =
            result.link == RunResult::kNoLink ? "" : "bases[" + std::to_string(result.link) + "] of ";
        refuse_coding((base + "chunks[" + std::to_string(result.chunk) + "]").c_str(),
                      result.status);
    }
    return result.n_bytes;
}

std::pair<int, size_t> py_decode_run(nb::handle frames, nb::handle records, nb::handle chunks,
                                     nb::sequence buffers, nb::handle segments, bool check_only,
                                     nb::sequence bases, uint64_t start) {
    const RunArguments run(buffers, segments, chunks, Buffer::Access::kWrite, !check_only);
    const Buffer frame_buffer(frames, "frames", Buffer::Access::kRead);
    const Buffer record_buffer(records, "records", Buffer::Access::kRead);
    check_records(record_buffer, run.chunks().size());
    run.require_apart_from(frame_buffer, "frames");
    run.require_apart_from(record_buffer, "records");
    const BaseArguments links(bases, run.chunks().size());
    for (size_t i = 0; i < run.buffers().size(); ++i) {
        links.require_apart_from(run.buffer(i), ("buffer " + std::to_string(i)).c_str());
    }
    const Lease mine;
    const ZstdCalls zstd(mine->workspace());
    RunResult result;
    {
        const nb::gil_scoped_release release;
        const bool needs_none = run.segments().empty() && links.links().empty();
        const size_t needed = needs_none ? 0 : scratch_bytes(run.chunks());
        result = decode_run(frame_buffer.bytes(), record_buffer.bytes().data(), run.chunks(),
                            run.buffers(), run.segments(), mine->words(needed), mine->workspace(),
                            links.links(), start);
    }
    zstd.rethrow();
    return {static_cast<int>(result.status), result.chunk};
}

// Whether the file filled the buffer.
bool fill(int descriptor, uint64_t offset, std::span<uint8_t> out) noexcept {
    while (!out.empty()) {
        const ssize_t n = pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        offset += static_cast<uint64_t>(n);
        out = out.subspan(static_cast<size_t>(n));
    }
    return true;
}

size_t py_read_files(nb::sequence reads) {
    struct Read {
        int descriptor;
        uint64_t offset;
    };
    std::vector<Read> places;
    std::deque<Buffer> outs;
    for (nb::handle each : reads) {
        Read read{};
        if (nb::len(each) != 3 || !read_integer(each, 0, read.descriptor) ||
            !read_integer(each, 1, read.offset)) {
            refuse("reads holds descriptors, offsets and buffers.");
        }
        places.push_back(read);
        outs.emplace_back(each[2], "a buffer of reads", Buffer::Access::kWrite);
    }
    const nb::gil_scoped_release release;
    size_t n_filled = 0;
    while (n_filled < places.size() && fill(places[n_filled].descriptor, places[n_filled].offset,
                                            outs[n_filled].bytes())) {
        ++n_filled;
    }
    return n_filled;
}

// The caller vouches for the addresses: that so many bytes can be read there as long as it runs. It
// keeps the interpreter to itself, so that no other thread of Python lets go of them.
void py_gather(nb::handle pieces, nb::handle out) {
    const Buffer rows(pieces, "pieces", Buffer::Access::kRead);
    const Buffer to(out, "out", Buffer::Access::kWrite);
    std::span<uint8_t> left = to.bytes();
    for (size_t i = 0; i < rows.rows("pieces", 2, sizeof(uint64_t)); ++i) {
        uint64_t row[2];
        std::memcpy(row, rows.bytes().data() + i * sizeof row, sizeof row);
        if (row[1] > left.size()) {
            refuse("out has ", to.bytes().size(), " bytes, too few for piece ", i, ".");
        }
        std::memcpy(left.data(), reinterpret_cast<const uint8_t*>(row[0]), row[1]);
        left = left.subspan(row[1]);
    }
    if (!left.empty()) {
        refuse("out has ", left.size(), " bytes more than the pieces.");
    }
}

bool py_derives(nb::handle source, nb::handle target, int rule) {
    if (rule != static_cast<int>(Rule::kCopy) && rule != static_cast<int>(Rule::kRound)) {
        refuse("rule must be 1 (copy) or 2 (round), not ", rule, ".");
    }
    const Buffer from(source, "source", Buffer::Access::kRead);
    const Buffer to(target, "target", Buffer::Access::kRead);
    const nb::gil_scoped_release release;
    return derives(from.bytes(), to.bytes(), static_cast<Rule>(rule));
}

nb::bytes py_encode_frame(nb::handle words, uint32_t dtype, uint32_t chunk,
                          const std::string& codec, std::optional<bool> block_map,
                          int zstd_level, uint32_t columns, nb::object base,
                          uint32_t base_crc32c) {
    const Dtype& known = checked_dtype(dtype);
    const EncodeOptions options = options_of(codec, zstd_level, block_map, true);
    const Buffer buffer(words, "words", Buffer::Access::kRead);
    const size_t n_words = buffer.words("words", known);
    check_n_words(n_words);
    const auto n = static_cast<uint32_t>(n_words);
    if (columns > n) {
        refuse("There are ", columns, " columns, but only ", n, " words.");
    }
    const BaseWords base_words(base, base_crc32c, known, n);
    const size_t room = max_forced_frame_bytes(n, known);
    const auto out = std::make_unique_for_overwrite<uint8_t[]>(room);
    FrameHeader header;
    const Lease mine;
    const ZstdCalls zstd(mine->workspace());
    Status status;
    {
        const nb::gil_scoped_release release;
        status = encode_frame(buffer.bytes(), {chunk, n, static_cast<uint8_t>(dtype), columns},
                              options, {out.get(), room}, mine->workspace(), header,
                              base_words.base());
    }
    zstd.rethrow();
    if (status != Status::kOk) {
        refuse_coding("words", status);
    }
    return nb::bytes(out.get(), header.frame_bytes);
}

int py_decode_frame(nb::handle frame, nb::handle words, nb::object base, uint32_t base_crc32c) {
    const Buffer buffer(frame, "frame", Buffer::Access::kRead);
    const Buffer out(words, "words_out", Buffer::Access::kWrite);
    require_apart(out, "words_out", buffer, "frame");
    FrameHeader header;
    Status status = read_frame_header(buffer.bytes(), header);
    if (status == Status::kOk &&
        out.words("words_out", dtype_of(header.dtype)) != header.n_words) {
        status = Status::kLayoutMismatch;
    }
    if (status != Status::kOk) {
        return static_cast<int>(status);
    }
    const BaseWords base_words(base, base_crc32c, dtype_of(header.dtype), header.n_words);
    base_words.require_apart_from(out, "words_out");
    const Lease mine;
    const ZstdCalls zstd(mine->workspace());
    {
        const nb::gil_scoped_release release;
        status = decode_frame(buffer.bytes(), header, out.bytes(), mine->workspace(),
                              base_words.base());
    }
    zstd.rethrow();
    return static_cast<int>(status);
}

nb::dict streams_of(const FrameInfo& info) {
    nb::dict streams;
    const auto add = [&](const char* name, size_t n_bytes) {
        if (n_bytes != 0) {
            streams[name] = n_bytes;
        }
    };
    add("base", info.base_bytes);
    add("block_map", info.map_bytes);
    add("constants", info.constants_bytes);
    add("raw", info.raw_bytes);
    add("zstd", info.zstd_bytes);
    add("heads", info.heads_bytes);
    add("offsets", info.offsets_bytes);
    add("counts", info.counts_bytes);
    add("lengths", info.lengths_bytes);
    add("fields", info.fields_bytes);
    add("ans", info.ans_bytes);
    add("huffman", info.huffman_bytes);
    for (uint32_t l = 0; l < info.tables.n_levels; ++l) {
        streams[("level " + std::to_string(l)).c_str()] = info.level_bytes[l];
    }
    add("escapes", info.escape_bytes);
    add("planes", info.plane_bytes);
    return streams;
}

nb::dict py_frame_info(nb::handle frame) {
    const Buffer buffer(frame, "frame", Buffer::Access::kRead);
    FrameHeader header;
    FrameInfo info;
    const Lease mine;
    Status status = read_frame_header(buffer.bytes(), header);
    if (status == Status::kOk) {
        status = read_frame_info(buffer.bytes(), header, mine->workspace(), info);
    }
    if (status != Status::kOk) {
        refuse("This is no readable frame: ", status_text(status), ".");
    }
    nb::dict result;
    result["codec"] = static_cast<int>(header.codec);
    result["dtype"] = static_cast<int>(header.dtype);
    result["flags"] = static_cast<int>(header.flags);
    result["n_words"] = header.n_words;
    result["payload_bytes"] = header.payload_bytes;
    result["frame_bytes"] = header.frame_bytes;
    result["chunk"] = header.chunk;
    result["n_zero_blocks"] = info.blocks.n_zero;
    result["n_constant_blocks"] = info.blocks.n_constant;
    result["n_same_blocks"] = info.blocks.n_same;
    result["columns"] = info.columns;
    result["sign_slot"] = info.sign_slot;
    result["no_signs"] = info.no_signs;
    result["trimmed_bits"] = info.trimmed_bits;
    result["n_escapes"] = info.n_escapes;
    nb::list levels;
    for (uint32_t l = 0; l < info.tables.n_levels; ++l) {
        levels.append(static_cast<int>(info.tables.widths[l]));
    }
    result["levels"] = levels;
    result["stream_bytes"] = streams_of(info);
    return result;
}

nb::dict status_texts() {
    nb::dict texts;
    for (int i = 0; i < static_cast<int>(Status::kEnd); ++i) {
        texts[nb::int_(i)] = status_text(static_cast<Status>(i));
    }
    return texts;
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("STATUS") = status_texts();
    m.def("crc32c", &crc32c, nb::arg("data"), nb::arg("value") = 0);
    m.def("isa", [] { return std::string(kernels().name); });
    m.def("isas", &isas);
    m.def("use_isa", &use_isa, nb::arg("name"));
    m.def("max_frame_bytes", &py_max_frame_bytes, nb::arg("n_words"), nb::arg("dtype"));
    m.def("encode_run", &py_encode_run, nb::arg("buffers"), nb::arg("segments"), nb::arg("chunks"),
          nb::arg("out"), nb::arg("records"), nb::kw_only(), nb::arg("codec"),
          nb::arg("align_bytes"), nb::arg("zstd_level") = 0, nb::arg("bases") = nb::tuple());
    add_run_writer(m);
    m.def("decode_run", &py_decode_run, nb::arg("frames"), nb::arg("records"), nb::arg("chunks"),
          nb::arg("buffers"), nb::arg("segments"), nb::kw_only(), nb::arg("check_only") = false,
          nb::arg("bases") = nb::tuple(), nb::arg("start") = 0);
    m.def("read_files", &py_read_files, nb::arg("reads"));
    m.def("gather", &py_gather, nb::arg("pieces"), nb::arg("out"));
    m.def("derives", &py_derives, nb::arg("source"), nb::arg("target"), nb::arg("rule"));
    m.def("encode_frame", &py_encode_frame, nb::arg("words"), nb::arg("dtype"), nb::kw_only(),
          nb::arg("chunk") = 0, nb::arg("codec") = "auto", nb::arg("block_map") = nb::none(),
          nb::arg("zstd_level") = 3, nb::arg("columns") = 0, nb::arg("base") = nb::none(),
          nb::arg("base_crc32c") = 0);
    m.def("decode_frame", &py_decode_frame, nb::arg("frame"), nb::arg("words_out"), nb::kw_only(),
          nb::arg("base") = nb::none(), nb::arg("base_crc32c") = 0);
    m.def("frame_info", &py_frame_info, nb::arg("frame"));
    if (const char* forced = std::getenv("ORBAX_GDS_ISA"); forced != nullptr && *forced != '\0') {
        use_isa(forced);
    }
}
