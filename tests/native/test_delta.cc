// Delta: words come back from their base and the frame on every kernel, in the base's place, too,
// and what the format does not allow is refused.
#include <cstdlib>
#include <memory>

#include "bytes.h"
#include "delta.h"
#include "delta_plan.h"
#include "laws.h"
#include "sampling.h"

using namespace ogds;

namespace {

constexpr EncodeOptions kForced = {CodecChoice::kDelta, MapChoice::kNever};

void comes_back_from_base(const Bytes& words, uint8_t dtype, const EncodeOptions& options) {
    Bytes first;
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const Bytes frame = encode(words, dtype, options, 0, 0, true);
        CHECK(first.empty() || frame == first, isa, int{dtype}, words.size());
        first = frame;
        const Decoded decoded = decode(frame);
        CHECK(decoded.status == Status::kOk, status_text(decoded.status), isa, int{dtype});
        CHECK(decoded.words == words, isa, int{dtype}, words.size());
    }
}

void every_frame_comes_back() {
    for (const uint8_t dtype : all_dtypes()) {
        for (const uint32_t n_words : {1u, 7u, 130u, 300u, 1061u}) {
            for (const MapChoice map : {MapChoice::kNever, MapChoice::kAlways}) {
                for (const Look look : kLooks) {
                    comes_back_from_base(make_words(dtype, n_words, look, n_words), dtype,
                                         {CodecChoice::kDelta, map});
                }
                for (uint64_t seed = 0; seed < 3; ++seed) {
                    const Bytes words = make_changed(dtype, n_words, seed);
                    comes_back_from_base(words, dtype, {CodecChoice::kDelta, map});
                    comes_back_from_base(words, dtype, {CodecChoice::kAuto, map});
                }
            }
        }
    }
}

void long_chunks_come_back() {
    for (const uint8_t dtype : {uint8_t{2}, uint8_t{9}, uint8_t{16}, uint8_t{18}, uint8_t{20}}) {
        for (const uint32_t n_words :
             {kSubBlockWords, kSubBlockWords + 1, 2 * kSubBlockWords + 700}) {
            for (uint64_t seed = 0; seed < 2; ++seed) {
                const Bytes words = make_changed(dtype, n_words, seed);
                comes_back_from_base(words, dtype, kForced);
                comes_back_from_base(words, dtype, {CodecChoice::kMax});
            }
        }
        const Bytes far = make_words(dtype, kSubBlockWords + 9, Look::kRandom, 3);
        comes_back_from_base(far, dtype, kForced);
    }
}

void what_is_the_base_costs_a_line() {
    for (const uint8_t dtype : all_dtypes()) {
        const Bytes frame = encode(base_words(dtype, 5000), dtype, {}, 0, 0, true);
        CHECK(frame.size() == kFrameAlignment, int{dtype}, frame.size());
        CHECK(decode(frame).words == base_words(dtype, 5000), int{dtype});
    }
}

// Whatever more room there is, far words take no more than without a base.
void far_words_cost_no_more() {
    for (const uint8_t dtype : {uint8_t{16}, uint8_t{18}}) {
        const Bytes words = make_words(dtype, 3 * kSubBlockWords, Look::kWeights, 77);
        const size_t alone = encode(words, dtype).size();
        CHECK(encode(words, dtype, {}, 0, 0, true).size() <= alone + alone / 100, int{dtype});
    }
}

// A plane that few words have bits in, but all words of some groups, from a bit on that begins no
// byte: more bits than eight bytes have from there.
void few_words_with_bits_may_be_neighbours() {
    constexpr uint32_t kWords = 4000;
    constexpr uint32_t kFirst = 1003;
    constexpr uint32_t kNear = 200;
    Random random(7);
    Bytes base(2 * kWords);
    Bytes words(2 * kWords);
    for (uint32_t i = 0; i < kWords; ++i) {
        const bool is_near = i - kFirst < kNear;
        const uint32_t before = (is_near ? 126u : 130u) << 7 | 64u;
        store_u16le(base.data() + 2 * i, static_cast<uint16_t>(before));
        store_u16le(words.data() + 2 * i,
                    static_cast<uint16_t>(before + random.below(is_near ? 60 : 4)));
    }
    const Base of = {base.data(), kBaseCrc};
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        Bytes frame(max_forced_frame_bytes(kWords, dtype_of(16)));
        FrameHeader header;
        CHECK(encode_frame(words, {0, kWords, 16, 0}, kForced, frame, workspace(), header, of) ==
              Status::kOk);
        frame.resize(header.frame_bytes);
        PayloadReader in({frame.begin() + kFrameHeaderBytes + kBaseCrcBytes, frame.end()});
        DeltaPlan plan;
        DeltaHead head;
        CHECK(read_delta_header(in, dtype_of(16), plan) == Status::kOk);
        CHECK(read_delta_head(in, kWords, dtype_of(16), plan.tables, head) == Status::kOk);
        CHECK(head.n_planes > 0 && head.plane_bits[0] == kNear, head.n_planes);
        Bytes out(words.size());
        CHECK(decode_frame(frame, header, out, workspace(), of) == Status::kOk, isa);
        CHECK(out == words, isa);
    }
}

// However long a chunk is, what it is coded with is chosen by words from all of it.
void plans_look_at_all_of_a_chunk() {
    constexpr uint32_t kLeastGroups = 64;
    const Dtype& dtype = dtype_of(16);
    for (uint32_t n_words = 1u << 10; n_words <= 1u << 25; n_words *= 2) {
        const std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(n_words, 2),
                                                                &std::free);
        const auto* const words = static_cast<const uint8_t*>(zeros.get());
        const ChunkWords chunk = {words, nullptr, n_words, n_words, 0, words};
        DeltaPlan plan;
        const uint32_t n_groups = plan_delta(chunk, dtype, plan).total / kGroupWords;
        CHECK(n_groups >= std::min(kLeastGroups, n_words / kGroupWords), n_words, n_groups);
    }
}

void malformed_frames_are_refused() {
    const uint32_t n_words = 501;
    const Bytes words = make_changed(16, n_words, 40);
    const Bytes frame = encode(words, 16, kForced);
    const size_t header = kFrameHeaderBytes + kBaseCrcBytes;
    is_refused(frame, header, 8, Status::kDeltaHeader);       // decay of 16 bits
    is_refused(frame, header, 32, Status::kDeltaHeader);
    is_refused(frame, header, 5, Status::kDeltaHeader);       // unchanged, and more
    is_refused(frame, header + 1, 1, Status::kDeltaHeader);
    is_refused(frame, header + 3, 1, Status::kLadderHeader);  // shift
    is_refused(frame, header + 14, 2, Status::kDeltaHeader);  // low bytes of 16 bits
    is_refused(frame, header + 15, 1, Status::kDeltaHeader);
    is_refused(frame, header + 6, 0x01, Status::kLadderSymbols);
    is_refused(frame, 6, 2, Status::kUnknownCodec);           // no delta after all
    is_refused_as(Codec::kDelta, 16, Status::kUnknownCodec);
    // Of a dtype without exponents.
    const Bytes bytes = encode(make_changed(2, n_words, 40), 2, kForced);
    is_refused(bytes, header, 1, Status::kDeltaHeader);
    is_refused(bytes, header + 2, 8, Status::kDeltaHeader);   // shift without exponents
    is_refused(bytes, header + 14, 1, Status::kDeltaHeader);
}

// A chunk of 5000 words whose differences are coded with a scale, alone in exact memory.
struct Coded {
    static constexpr uint32_t kWords = 5000;
    Bytes base;
    DeltaPlan plan;
    Bytes payload;

    Coded(uint8_t id, DeltaScale scale) : base(make_words(id, kWords, Look::kRandom, 6)) {
        const Dtype& dtype = dtype_of(id);
        const Bytes words = make_words(id, kWords, Look::kRandom, 5);
        const ChunkWords chunk = {words.data(), nullptr, kWords, kWords, 0, base.data()};
        plan_delta(chunk, dtype, plan);
        set_scale(plan.tables, scale);
        payload.resize(6 * kWords);
        PayloadWriter out(payload);
        CHECK(encode_delta(chunk, base.data(), dtype, plan, out, workspace()) == Status::kOk);
        payload.resize(out.size());
    }

    void is_refused(uint8_t id) {
        payload.shrink_to_fit();
        for (const std::string& isa : isas()) {
            CHECK(use_kernels(isa.c_str()), isa);
            PayloadReader in(payload);
            Bytes decoded(base.size());
            const Status status = decode_delta(in, NormalRuns(nullptr, kWords), kWords, base.data(),
                                               dtype_of(id), decoded.data(), workspace());
            CHECK(status == Status::kDeltaSymbols, isa, int{id}, status_text(status));
        }
    }
};

// Symbols of words near their base's, said to be those of far ones.
void differences_that_no_words_have_are_refused() {
    const auto swapped = [](uint8_t id, DeltaScale scale) {
        Coded coded(id, scale);
        for (uint8_t& symbol : coded.plan.tables.ladder.symbol_of_rank) {
            symbol = symbol == 1 ? 14 : symbol == 14 ? 1 : symbol;
        }
        write_ladder_header(coded.plan.tables.ladder, coded.payload.data() + 2);
        coded.is_refused(id);
    };
    swapped(2, {7, 0, false});
    swapped(4, {7, 1, false});
    swapped(10, {3, 0, false});
}

// Of ranks that say more escapes than there are none is read behind the last, whichever batch of
// words they are in: here behind them the memory ends.
void more_escapes_than_there_are_are_refused() {
    constexpr uint32_t kFewer = 2100;
    Coded coded(4, {});
    PayloadReader in(coded.payload);
    DeltaHead head;
    CHECK(read_delta_header(in, dtype_of(4), coded.plan) == Status::kOk);
    const size_t counts = in.taken();
    CHECK(read_delta_head(in, Coded::kWords, dtype_of(4), coded.plan.tables, head) == Status::kOk);
    CHECK(head.ladder.n_escapes > 2 * kFewer && head.planes_bytes == 0);
    store_u16le(coded.payload.data() + counts + 2 * coded.plan.tables.ladder.n_levels - 2, kFewer);
    coded.payload.resize(coded.payload.size() - 2 * (head.ladder.n_escapes - kFewer));
    coded.is_refused(4);
}

// Planes without bits, of words that have some: 400 bytes follow, of which a batch of words may be
// given some, but not the next one more.
void more_bits_than_there_are_are_refused() {
    Coded coded(4, {7, 1, false});
    const size_t counts = kDeltaHeaderBytes + 2 * size_t{coded.plan.tables.ladder.n_levels};
    PayloadReader in(coded.payload);
    DeltaHead head;
    CHECK(read_delta_header(in, dtype_of(4), coded.plan) == Status::kOk);
    CHECK(read_delta_head(in, Coded::kWords, dtype_of(4), coded.plan.tables, head) == Status::kOk);
    CHECK(head.n_planes == kMaxLowPlanes && !coded.plan.tables.has_lengths);
    for (uint32_t plane = 0; plane < kMaxLowPlanes; ++plane) {
        store_u16le(coded.payload.data() + counts + kDeltaHeadBytes + 2 * plane,
                    plane + 1 < kMaxLowPlanes ? 0 : 8 * 400);
    }
    const size_t planes = head.planes_bytes - Coded::kWords;
    coded.payload.resize(coded.payload.size() - planes + 400);
    coded.is_refused(4);
}

void another_base_is_refused() {
    const Bytes words = make_changed(16, 300, 9);
    const Bytes frame = encode(words, 16, kForced);
    FrameHeader header;
    CHECK(read_frame_header(frame, header) == Status::kOk);
    Bytes out(words.size());
    const Bytes& base = base_words(16, 300);
    CHECK(decode_frame(frame, header, out, workspace()) == Status::kDeltaBaseAbsent);
    CHECK(decode_frame(frame, header, out, workspace(), {base.data(), kBaseCrc + 1}) ==
          Status::kDeltaBaseDiffers);
    CHECK(decode_frame(frame, header, out, workspace(), {base.data(), kBaseCrc}) == Status::kOk);
    CHECK(out == words);
}

}  // namespace

int main() {
    workspace().zstd = &stand_in_zstd();
    every_frame_comes_back();
    long_chunks_come_back();
    what_is_the_base_costs_a_line();
    far_words_cost_no_more();
    few_words_with_bits_may_be_neighbours();
    plans_look_at_all_of_a_chunk();
    more_escapes_than_there_are_are_refused();
    more_bits_than_there_are_are_refused();
    differences_that_no_words_have_are_refused();
    malformed_frames_are_refused();
    another_base_is_refused();
}
