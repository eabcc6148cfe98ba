// Runs a fuzz target without libFuzzer: on every file of the corpus, then on a fixed number of
// mutations of the corpus and, unless told not to, of fresh frames. The same inputs in every run.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "check.h"
#include "samples.h"

using namespace ogds;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr uint32_t kMutationsEach = 150;
constexpr uint32_t kMutationsOfLong = 50;  // they take longer
constexpr size_t kLongBytes = 30000;

void run(const Bytes& input) {
    const Bytes exact(input);
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::vector<Bytes> corpus(const char* folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    std::vector<Bytes> inputs;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return inputs;
}

std::vector<Bytes> fresh_frames() {
    std::vector<Bytes> frames;
    workspace().zstd = &stand_in_zstd();
    const auto add = [&frames](uint8_t dtype, uint32_t n_words, Look look) {
        const bool ladder = dtype_of(dtype).split != Split::kNone;
        const EncodeOptions options = {ladder ? CodecChoice::kLadder : CodecChoice::kRaw,
                                       look == Look::kBlocks ? MapChoice::kAlways
                                                             : MapChoice::kNever};
        frames.push_back(encode(make_words(dtype, n_words, look, 7), dtype, options));
    };
    for (Look look : {Look::kWeights, Look::kWide, Look::kBlocks}) {
        for (uint8_t dtype : {uint8_t{2}, uint8_t{12}, uint8_t{16}, uint8_t{18}, uint8_t{20}}) {
            for (uint32_t n_words : {40u, 300u, 1500u, 8700u}) {
                add(dtype, n_words, look);
            }
        }
        for (uint8_t dtype : {uint8_t{17}, uint8_t{19}, uint8_t{21}, uint8_t{26}, uint8_t{27},
                              uint8_t{29}}) {
            add(dtype, 700, look);
        }
    }
    for (uint8_t dtype : {uint8_t{17}, uint8_t{19}, uint8_t{20}, uint8_t{21}, uint8_t{26},
                          uint8_t{27}, uint8_t{28}, uint8_t{30}}) {
        const Bytes words = make_words(dtype, 700, Look::kWide, 7);
        frames.push_back(encode(words, dtype, {CodecChoice::kLadder, MapChoice::kNever}));
    }
    for (uint8_t dtype : {uint8_t{16}, uint8_t{17}, uint8_t{18}}) {
        for (uint32_t columns : {0u, 33u, 700u}) {
            const Bytes words = make_words(dtype, 700, Look::kWide, 7);
            const EncodeOptions options = {CodecChoice::kModelled, MapChoice::kNever};
            frames.push_back(encode(words, dtype, options, 0, columns));
        }
        for (CodecChoice codec : {CodecChoice::kModelled, CodecChoice::kAns}) {
            const Bytes words = make_words(dtype, 2300, Look::kBlocks, 7);
            frames.push_back(encode(words, dtype, {codec, MapChoice::kAlways}, 0, 700));
        }
    }
    for (uint8_t dtype : {uint8_t{2}, uint8_t{4}, uint8_t{9}, uint8_t{13}}) {
        for (MapChoice map : {MapChoice::kNever, MapChoice::kAlways}) {
            const Bytes words = make_words(dtype, 1500, Look::kBlocks, 7);
            frames.push_back(encode(words, dtype, {CodecChoice::kZstd, map, 1}));
        }
    }
    for (uint8_t dtype : {uint8_t{16}, uint8_t{17}, uint8_t{18}}) {
        for (uint32_t n_words : {40u, 1500u}) {
            const EncodeOptions options = {CodecChoice::kAns, MapChoice::kNever};
            frames.push_back(encode(make_words(dtype, n_words, Look::kWide, 7), dtype, options));
        }
    }
    for (uint8_t dtype : {uint8_t{2}, uint8_t{12}, uint8_t{20}}) {
        for (uint32_t n_words : {40u, 1500u}) {
            const EncodeOptions options = {CodecChoice::kHuffman, MapChoice::kNever};
            frames.push_back(encode(make_words(dtype, n_words, Look::kWide, 7), dtype, options));
        }
    }
    for (uint8_t dtype : {uint8_t{2}, uint8_t{9}, uint8_t{10}, uint8_t{12}, uint8_t{14}, uint8_t{16},
                          uint8_t{18}, uint8_t{20}, uint8_t{28}, uint8_t{29}, uint8_t{30}}) {
        for (uint32_t n_words : {40u, 301u, 1500u}) {
            for (uint64_t seed : {1u, 2u}) {
                const MapChoice map = seed == 1 ? MapChoice::kNever : MapChoice::kAlways;
                frames.push_back(encode(make_changed(dtype, n_words, seed + n_words), dtype,
                                        {CodecChoice::kDelta, map}));
            }
        }
    }
    frames.push_back(encode(make_changed(16, 30000, 5), 16, {CodecChoice::kDelta}));
    // The second sub-block is so short that its head is in what `place` calls the end.
    for (uint8_t dtype : {uint8_t{16}, uint8_t{18}}) {
        for (uint32_t more : {20u, 300u}) {
            const Bytes words = make_words(dtype, kSubBlockWords + more, Look::kWeights, 7);
            frames.push_back(encode(words, dtype, {CodecChoice::kLadder, MapChoice::kNever}));
        }
    }
    return frames;
}

// Mostly where the structure is: header, map and counts at the start, the last sub-block's counts
// near the end.
size_t place(Random& random, const Bytes& input) {
    const auto n = static_cast<uint32_t>(input.size());
    switch (random.below(4)) {
        case 0: return random.below(n);
        case 1: return n - 1 - random.below(std::min(n, 192u));
        default: return random.below(std::min(n, 80u));
    }
}

Bytes mutated(Bytes input, Random& random) {
    for (uint32_t n = 1 + random.below(4); n > 0 && !input.empty(); --n) {
        uint8_t& byte = input[place(random, input)];
        switch (random.below(5)) {
            case 0: byte = static_cast<uint8_t>(byte ^ 1 << random.below(8)); break;
            case 1: byte = static_cast<uint8_t>(random.next()); break;
            case 2: byte = static_cast<uint8_t>(byte + 1 - 2 * random.below(2)); break;
            case 3: byte = random.below(2) == 0 ? 0 : 255; break;
            default: input.resize(random.below(static_cast<uint32_t>(input.size()) + 1)); break;
        }
    }
    return input;
}

}  // namespace

int main(int argc, char** argv) {
    const bool with_fresh = argc == 2;
    CHECK(with_fresh || (argc == 3 && std::string(argv[2]) == "--corpus-only"),
          "usage: fuzz_regression CORPUS_FOLDER [--corpus-only]");
    std::vector<Bytes> inputs = corpus(argv[1]);
    CHECK(!inputs.empty(), argv[1]);
    for (const Bytes& input : inputs) {
        run(input);
    }
    if (with_fresh) {
        for (Bytes& frame : fresh_frames()) {
            inputs.push_back(std::move(frame));
        }
    }
    Random random(1);
    uint32_t n_mutations = 0;
    for (const Bytes& input : inputs) {
        const uint32_t n = input.size() < kLongBytes ? kMutationsEach : kMutationsOfLong;
        for (uint32_t i = 0; i < n; ++i) {
            run(mutated(input, random));
        }
        n_mutations += n;
    }
    std::cout << n_mutations << " mutations of " << inputs.size() << " inputs\n";
}
