// Words that someone writes to while they are coded: what is coded of them is a whole frame, with
// the words that stayed in their places, or the error that says so.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "huffman.h"
#include "samples.h"

using namespace ogds;

namespace {

constexpr uint32_t kWords = kSubBlockWords + 1000;
constexpr uint32_t kStayingWords = 3;  // of seven
constexpr uint8_t kDtypes[] = {2, 10, 16, 18, 19, 20};

bool stays(size_t word) { return word % 7 < kStayingWords; }

// Words and what else they may be.
struct Words {
    Bytes before;
    Bytes now;
    std::vector<Bytes> others;
    size_t next = 0;

    Words(uint8_t dtype, Look first) : before(make_words(dtype, kWords, first, 1)), now(before) {
        const size_t word_bytes = dtype_of(dtype).container_bytes;
        for (const Look look : {Look::kRandom, Look::kWeights, Look::kZero, Look::kWide,
                                Look::kBlocks, Look::kNarrow, Look::kConstant}) {
            Bytes other = make_words(dtype, kWords, look, 2);
            for (size_t i = 0; i < kWords; ++i) {
                if (stays(i)) {
                    std::memcpy(other.data() + i * word_bytes, before.data() + i * word_bytes,
                                word_bytes);
                }
            }
            others.push_back(std::move(other));
        }
    }

    void change() noexcept {
        const Bytes& other = others[next++ % others.size()];
        std::memcpy(now.data(), other.data(), other.size());
    }
};

Words* changing = nullptr;            // by every call of a kernel
const Kernels* undisturbed = nullptr;
size_t split_in_use = 0;              // of those that kernels are indexed by
size_t container_in_use = 0;          // its logarithm

uint32_t crc32c_and_change(const uint8_t* data, size_t n, uint32_t crc) noexcept {
    const uint32_t result = undisturbed->crc32c(data, n, crc);
    changing->change();
    return result;
}

uint32_t crc32c_copy_and_change(uint8_t* to, const uint8_t* from, size_t n,
                                uint32_t crc) noexcept {
    const uint32_t result = crc32c_and_change(from, n, crc);
    std::memcpy(to, from, n);
    return result;
}

uint32_t split_and_change(const uint8_t* words, uint32_t m, const LadderTables& tables,
                          const uint8_t* prediction, uint8_t* fields, RankPlanes& ranks,
                          uint8_t* escapes) noexcept {
    const uint32_t result = undisturbed->ladder->split[split_in_use](words, m, tables, prediction,
                                                                     fields, ranks, escapes);
    changing->change();
    return result;
}

void count_and_change(const uint8_t* y, size_t n, uint32_t* counts) noexcept {
    undisturbed->ans->count_bytes(y, n, counts);
    changing->change();
}

uint32_t split_ans_and_change(const uint8_t* words, uint32_t m, const uint8_t* predicted,
                              uint8_t* y, uint8_t* rests, uint8_t* escapes,
                              uint32_t& any_rest) noexcept {
    const uint32_t result = undisturbed->ans_words->split[split_in_use](words, m, predicted, y,
                                                                        rests, escapes, any_rest);
    changing->change();
    return result;
}

uint32_t split_delta_and_change(const uint8_t* words, const uint8_t* base, uint32_t m,
                                const DeltaFormat& format, const DeltaTables& tables,
                                RankPlanes& ranks, uint8_t* escapes, LowBits& below) noexcept {
    const uint32_t result = undisturbed->delta->split[container_in_use](
        words, base, m, format, tables, ranks, escapes, below);
    changing->change();
    return result;
}

Status encode_zstd_and_change(void* context, std::span<const uint8_t> content, int level,
                              std::span<const uint8_t>& coded) noexcept {
    const uint8_t* words = changing->now.data();
    CHECK(content.data() + content.size() <= words ||
              content.data() >= words + changing->now.size(),
          "zstd is given words that may change");
    changing->change();
    return stand_in_zstd().encode(context, content, level, coded);
}

// The kernels in use, each of which changes the words when it has looked at them.
class Disturbed {
public:
    Disturbed() : ladder_(*kernels().ladder), ans_(*kernels().ans),
                  ans_words_(*kernels().ans_words), delta_(*kernels().delta),
                  table_(kernels()) {
        undisturbed = &kernels();
        for (size_t split = 1; split < kSplits; ++split) {
            ladder_.split[split] = split_and_change;
            ans_words_.split[split] = split_ans_and_change;
        }
        std::fill_n(delta_.split, 4, split_delta_and_change);
        ans_.count_bytes = count_and_change;
        table_.crc32c = crc32c_and_change;
        table_.crc32c_copy = crc32c_copy_and_change;
        table_.ladder = &ladder_;
        table_.ans = &ans_;
        table_.ans_words = &ans_words_;
        table_.delta = &delta_;
        use_kernels(table_);
        zstd_ = stand_in_zstd();
        zstd_.encode = encode_zstd_and_change;
        workspace().zstd = &zstd_;
    }
    Disturbed(const Disturbed&) = delete;
    Disturbed& operator=(const Disturbed&) = delete;
    ~Disturbed() {
        use_kernels(*undisturbed);
        workspace().zstd = &stand_in_zstd();
    }

private:
    LadderKernels ladder_;
    AnsKernels ans_;
    AnsWordKernels ans_words_;
    DeltaKernels delta_;
    Kernels table_;
    ForeignCodec zstd_;
};

struct Coding {
    EncodeOptions options;
    bool has_base;
};

std::vector<Coding> every_coding_of(const Dtype& dtype) {
    std::vector<CodecChoice> codecs = {CodecChoice::kFast, CodecChoice::kAuto, CodecChoice::kMax,
                                       CodecChoice::kRaw, CodecChoice::kZstd};
    if (dtype.split != Split::kNone) {
        codecs.push_back(CodecChoice::kLadder);
    }
    if (is_modelled(dtype.split)) {
        codecs.push_back(CodecChoice::kModelled);
        codecs.push_back(CodecChoice::kAns);
    }
    if (is_huffman(dtype)) {
        codecs.push_back(CodecChoice::kHuffman);
    }
    std::vector<Coding> codings;
    for (const CodecChoice codec : codecs) {
        for (const MapChoice map : {MapChoice::kNever, MapChoice::kAlways}) {
            codings.push_back({{codec, map, 1}, false});
        }
    }
    for (const CodecChoice codec : {CodecChoice::kDelta, CodecChoice::kAuto, CodecChoice::kMax}) {
        for (const MapChoice map : {MapChoice::kNever, MapChoice::kWhenSmaller}) {
            codings.push_back({{codec, map, 1}, true});
        }
    }
    return codings;
}

Status encode_into(Bytes& frame, const Bytes& words, uint8_t dtype, const Coding& coding) {
    FrameHeader header;
    frame.resize(max_forced_frame_bytes(kWords, dtype_of(dtype)));
    Base base;
    if (coding.has_base) {
        base = {base_words(dtype, kWords).data(), kBaseCrc};
    }
    const Status status =
        encode_frame(words, {0, kWords, dtype, 100}, coding.options, frame, workspace(), header,
                     base);
    frame.resize(status == Status::kOk ? header.frame_bytes : 0);
    return status;
}

// `before`: what the words that stay are.
void is_whole(const Bytes& frame, const Bytes& before, uint8_t dtype) {
    const Decoded decoded = decode(frame);
    CHECK(decoded.status == Status::kOk, status_text(decoded.status), int{dtype}, int{frame[4]});
    const size_t word_bytes = dtype_of(dtype).container_bytes;
    for (size_t i = 0; i < kWords; ++i) {
        CHECK(!stays(i) || std::memcmp(decoded.words.data() + i * word_bytes,
                                       before.data() + i * word_bytes, word_bytes) == 0,
              int{dtype}, int{frame[4]}, i);
    }
}

void words_change_whenever_they_were_looked_at(Words& words, uint8_t dtype) {
    split_in_use = static_cast<size_t>(dtype_of(dtype).split);
    container_in_use = static_cast<size_t>(__builtin_ctz(dtype_of(dtype).container_bytes));
    changing = &words;
    for (const Coding& coding : every_coding_of(dtype_of(dtype))) {
        words.now = words.before;
        words.next = 0;
        Bytes frame;
        Status status;
        {
            const Disturbed disturbed;
            status = encode_into(frame, words.now, dtype, coding);
        }
        CHECK(words.next > 0, int{dtype});
        if (status == Status::kOk) {
            is_whole(frame, words.before, dtype);
        } else {
            CHECK(status == Status::kWordsChanged, status_text(status), int{dtype});
        }
    }
}

// Inside the kernels, too; how often is up to the machine.
void words_change_at_any_time(Words& words, uint8_t dtype) {
    std::atomic<bool> done = false;
    std::thread writer([&] {
        while (!done) {
            words.change();
        }
    });
    for (const Coding& coding : every_coding_of(dtype_of(dtype))) {
        Bytes frame;
        if (encode_into(frame, words.now, dtype, coding) == Status::kOk) {
            is_whole(frame, words.before, dtype);
        }
    }
    done = true;
    writer.join();
}

}  // namespace

int main() {
    workspace().zstd = &stand_in_zstd();
    for (const uint8_t dtype : kDtypes) {
        Words words(dtype, Look::kNarrow);
        for (const std::string& isa : isas()) {
            CHECK(use_kernels(isa.c_str()), isa);
            words_change_whenever_they_were_looked_at(words, dtype);
            words_change_at_any_time(words, dtype);
        }
    }
}
