#include "prediction.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bytes.h"

namespace ogds {
namespace {

constexpr uint32_t kSampledRows = 48;  // chosen: of more the time of the fit grows
// A strip is consecutive words of a row: a cache line.
template <class Word>
constexpr uint32_t kStripWords = 64 / sizeof(Word);
// Chosen by ratio against time: with one strip a row, bf16 moments are 0.29 % larger.
template <class Word>
constexpr uint32_t kStrips = sizeof(Word) == 2 ? 2 : 3;  // in a row
constexpr uint32_t kMostStrips = 3;
constexpr uint32_t kPrefetchRows = 16;  // no hardware foresees the strips of the next rows
constexpr uint32_t kPrefetchSampledRows = 2;
template <class Word>
constexpr uint32_t kSampledColumns = kStrips<Word> * kStripWords<Word>;
constexpr uint32_t kMostSampledColumns = 64;
constexpr uint32_t kColumnBlock = 1024;  // columns summed at once, bounds the memory

constexpr uint32_t kGridRows = 32;
constexpr uint32_t kTriesPerRow = 4;  // before a grid row is given up as zero
constexpr int32_t kOne = 16;          // means are in 1/16: the squares of a row fit 32 bits
// The variance of the exponents must be this many hundredths of what rows and columns leave of it:
// worth 0.07 bit a word, twice what the offsets of a 512 x 512 matrix take.
constexpr int64_t kMinGain = 110;

struct ExponentBits {
    uint32_t shift;
    uint32_t mask;
};

ExponentBits exponent_bits(const Dtype& dtype) noexcept {
    return {split_bits(dtype.split).mantissa, max_exponent(dtype.split)};
}

int32_t rounded(int32_t sum, int32_t n) noexcept {
    return (sum >= 0 ? sum + n / 2 : sum - n / 2) / n;
}

// 16 bytes of words: every machine adds these at once.
template <class Word>
struct Lanes {
    using Vector [[gnu::vector_size(16)]] = Word;
    static constexpr uint32_t kWords = 16 / sizeof(Word);

    static Vector load(const uint8_t* at) noexcept {
        Vector v;
        std::memcpy(&v, at, sizeof v);
        return v;
    }

    // Of the lanes, where it fits one.
    static uint32_t sum(Vector v) noexcept {
        constexpr uint64_t kOnes = ~uint64_t{0} / std::numeric_limits<Word>::max();  // in each lane
        uint64_t halves[2];
        std::memcpy(halves, &v, sizeof halves);
        return static_cast<uint32_t>((halves[0] + halves[1]) * kOnes >> (64 - 8 * sizeof(Word)));
    }
};

// The strips of a row of so many columns: where they begin.
struct Strips {
    uint32_t n;
    uint32_t first[kMostStrips];
};

// Spreads them evenly from edge to edge, as far as cache lines allow.
template <class Word>
Strips spread_strips(uint32_t columns) noexcept {
    constexpr uint32_t kWords = kStripWords<Word>;
    Strips strips = {std::min(kStrips<Word>, columns / kWords), {}};
    for (uint32_t s = 1; s < strips.n; ++s) {
        const uint64_t most = columns - kWords;
        const auto first = static_cast<uint32_t>(s * most / (strips.n - 1));
        strips.first[s] = first / kWords * kWords;
    }
    return strips;
}

// A chunk as a matrix; the last row may be shorter.
template <class Word>
class Matrix {
public:
    using Vector = typename Lanes<Word>::Vector;

    Matrix(const uint8_t* words, uint32_t n_words, uint32_t columns, ExponentBits bits) noexcept
        : words_(words), n_words_(n_words), columns_(columns), bits_(bits),
          strips_(spread_strips<Word>(columns)),
          last_strips_(spread_strips<Word>(n_words - (rows() - 1) * columns)) {}

    uint32_t rows() const noexcept { return (n_words_ + columns_ - 1) / columns_; }
    uint32_t columns() const noexcept { return columns_; }
    uint32_t columns_of(uint32_t row) const noexcept {
        return std::min(columns_, n_words_ - row * columns_);
    }

    const Strips& strips(uint32_t row) const noexcept {
        return columns_of(row) == columns_ ? strips_ : last_strips_;
    }

    const uint8_t* at(uint32_t row, uint32_t column) const noexcept {
        return words_ + (size_t{row} * columns_ + column) * sizeof(Word);
    }

    // Asks for the strips of a row, if there is one.
    void prefetch_strips(uint32_t row) const noexcept {
        for (uint32_t s = 0; row < rows() && s < strips_.n; ++s) {
            __builtin_prefetch(at(row, strips_.first[s]));
        }
    }

    // Asks for n words of a row, or for what comes after it where it is shorter.
    void prefetch(uint32_t row, uint32_t first, uint32_t n) const noexcept {
        for (uint32_t k = 0; k < n; k += kStripWords<Word>) {
            __builtin_prefetch(at(row, first + k));
        }
    }

    Vector exponents(const uint8_t* words) const noexcept {
        return Lanes<Word>::load(words) >> static_cast<Word>(bits_.shift) &
               static_cast<Word>(bits_.mask);
    }

    uint32_t exponent(const uint8_t* at) const noexcept {
        Word word;
        std::memcpy(&word, at, sizeof word);
        return static_cast<uint32_t>(word) >> bits_.shift & bits_.mask;
    }

private:
    const uint8_t* words_;
    uint32_t n_words_;
    uint32_t columns_;
    ExponentBits bits_;
    Strips strips_;
    Strips last_strips_;  // of the last row
};

// The rounded mean of the exponents other than 0 in the strips of a row, 0 if there is none.
template <class Word>
uint8_t mean_of_row(const Matrix<Word>& matrix, uint32_t row) noexcept {
    typename Matrix<Word>::Vector sums = {};
    typename Matrix<Word>::Vector counts = {};
    const Strips& strips = matrix.strips(row);
    for (uint32_t s = 0; s < strips.n; ++s) {
        const uint8_t* strip = matrix.at(row, strips.first[s]);
        for (uint32_t k = 0; k < kStripWords<Word>; k += Lanes<Word>::kWords) {
            const auto e = matrix.exponents(strip + k * sizeof(Word));
            sums += e;
            counts += e != 0 ? Word{1} : Word{0};
        }
    }
    const uint32_t sum = Lanes<Word>::sum(sums);
    const uint32_t n = Lanes<Word>::sum(counts);
    constexpr uint32_t kMost = kSampledColumns<Word>;
    if (n == kMost) {  // a division by a constant takes less
        return static_cast<uint8_t>((sum + kMost / 2) / kMost);
    }
    return static_cast<uint8_t>(n == 0 ? 0 : (sum + n / 2) / n);
}

// As wide as a word, so that one step of every machine is as many words as sums.
template <class Word>
using SumOf = std::make_signed_t<Word>;

// Adds the exponents of some columns of a row, less the row's mean.
template <class Word>
void add_to_columns(const Matrix<Word>& matrix, const uint8_t* words, uint32_t n, uint8_t mean,
                    SumOf<Word>* sums, SumOf<Word>* counts) noexcept {
    using Sum = SumOf<Word>;
    for (uint32_t k = 0; k < n; ++k) {
        const auto e = static_cast<Sum>(matrix.exponent(words + k * sizeof(Word)));
        const auto counted = static_cast<Sum>(-(e != 0));
        sums[k] = static_cast<Sum>(sums[k] + (static_cast<Sum>(e - mean) & counted));
        counts[k] = static_cast<Sum>(counts[k] - counted);
    }
}

// The columns' offsets, given the means of the rows in `of_row`.
template <class Word>
void fit_columns(const Matrix<Word>& matrix, const uint8_t* of_row, uint8_t* of_column) noexcept {
    uint32_t sampled[kSampledRows];
    uint32_t n_sampled = 0;
    const uint64_t n_rows = matrix.rows();
    for (uint32_t s = 0; s < kSampledRows; ++s) {
        const auto first = static_cast<uint32_t>(s * n_rows / kSampledRows);
        const auto end = static_cast<uint32_t>((s + 1) * n_rows / kSampledRows);
        const uint8_t* row = std::find_if(of_row + first, of_row + end,
                                          [](uint8_t mean) { return mean != 0; });
        if (row != of_row + end) {
            sampled[n_sampled++] = static_cast<uint32_t>(row - of_row);
        }
    }
    for (uint32_t first = 0; first < matrix.columns(); first += kColumnBlock) {
        const uint32_t n = std::min(kColumnBlock, matrix.columns() - first);
        SumOf<Word> sums[kColumnBlock] = {};
        SumOf<Word> counts[kColumnBlock] = {};
        for (uint32_t s = 0; s < n_sampled; ++s) {
            const uint32_t row = sampled[s];
            if (s + kPrefetchSampledRows < n_sampled) {
                matrix.prefetch(sampled[s + kPrefetchSampledRows], first, n);
            }
            const uint32_t have = matrix.columns_of(row);
            if (first < have) {
                add_to_columns(matrix, matrix.at(row, first), std::min(n, have - first),
                               of_row[row], sums, counts);
            }
        }
        for (uint32_t k = 0; k < n; ++k) {
            of_column[first + k] =
                static_cast<uint8_t>(counts[k] == 0 ? 0 : rounded(sums[k], counts[k]));
        }
    }
}

// Replaces the means of rows by their differences from the mean of all; rows without one by 0.
void center(uint8_t* of_row, uint32_t n_rows) noexcept {
    uint64_t sum = 0;
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_rows; ++i) {
        sum += of_row[i];
        n += of_row[i] != 0;
    }
    const auto mean = static_cast<uint8_t>(n == 0 ? 0 : (sum + n / 2) / n);
    for (uint32_t i = 0; i < n_rows; ++i) {
        of_row[i] = static_cast<uint8_t>(of_row[i] == 0 ? 0 : of_row[i] - mean);
    }
}

template <class Word>
void fit(const Matrix<Word>& matrix, uint8_t* of_row, uint8_t* of_column) noexcept {
    for (uint32_t i = 0; i < matrix.rows(); ++i) {
        matrix.prefetch_strips(i + kPrefetchRows);
        of_row[i] = mean_of_row(matrix, i);
    }
    fit_columns(matrix, of_row, of_column);
    center(of_row, matrix.rows());
}

// A few rows of strips and what an analysis of variance by rows and columns says of them.
class Grid {
public:
    template <class Word>
    explicit Grid(const Matrix<Word>& matrix) noexcept {
        constexpr uint32_t kAhead = 8;  // rows of the grid asked for early
        const uint64_t n_rows = matrix.rows();
        for (uint32_t g = 0; g < kGridRows; ++g) {
            const auto first = static_cast<uint32_t>(g * n_rows / kGridRows);
            const auto end = static_cast<uint32_t>((g + 1) * n_rows / kGridRows);
            matrix.prefetch_strips(static_cast<uint32_t>((g + kAhead) * n_rows / kGridRows));
            for (uint32_t row = first; row < std::min(end, first + kTriesPerRow); ++row) {
                if (add_row(matrix, row)) {
                    ++n_rows_;
                    break;
                }
            }
        }
    }

    // The variance before, as parts in 100 of the variance that is left: 100 means no help.
    int64_t gain() const noexcept {
        int64_t left = squares_in_rows_;
        int64_t n_columns = 0;
        for (uint32_t k = 0; k < kMostSampledColumns; ++k) {
            if (counts_[k] > 0) {
                left -= int64_t{sums_[k]} * sums_[k] / counts_[k];
                ++n_columns;
            }
        }
        // Means of so few words take variance out of noise as well.
        const int64_t degrees = n_ - n_rows_ - n_columns;
        if (n_rows_ < kGridRows / 4 || degrees <= 0 || left <= 0) {
            return n_rows_ < kGridRows / 4 || degrees <= 0 ? 0 : INT64_MAX;
        }
        const int64_t whole = squares_ - sum_ * sum_ / n_;
        return whole * kOne * kOne / n_ * degrees * 100 / left;
    }

private:
    // False if all exponents of the row are 0.
    template <class Word>
    bool add_row(const Matrix<Word>& matrix, uint32_t row) noexcept {
        int32_t e[kSampledColumns<Word>] = {};
        const Strips& strips = matrix.strips(row);
        for (uint32_t s = 0; s < strips.n; ++s) {
            const uint8_t* strip = matrix.at(row, strips.first[s]);
            for (uint32_t k = 0; k < kStripWords<Word>; ++k) {
                e[s * kStripWords<Word> + k] =
                    static_cast<int32_t>(matrix.exponent(strip + k * sizeof(Word)));
            }
        }
        int32_t sum = 0;
        int32_t squares = 0;
        int32_t n = 0;
        for (uint32_t k = 0; k < kSampledColumns<Word>; ++k) {
            sum += e[k];
            squares += e[k] * e[k];
            n += e[k] != 0;
        }
        if (n == 0) {
            return false;
        }
        const int32_t mean = rounded(sum * kOne, n);
        int32_t squares_in_row = 0;
        for (uint32_t k = 0; k < kSampledColumns<Word>; ++k) {
            const int32_t difference = e[k] != 0 ? e[k] * kOne - mean : 0;
            squares_in_row += difference * difference;
            sums_[k] += difference;
            counts_[k] += e[k] != 0;
        }
        n_ += n;
        sum_ += sum;
        squares_ += squares;
        squares_in_rows_ += squares_in_row;
        return true;
    }

    int64_t n_ = 0;        // exponents other than 0
    int64_t sum_ = 0;      // of them
    int64_t squares_ = 0;  // of them
    int64_t squares_in_rows_ = 0;  // of their differences from the means of rows, in 1/kOne
    int64_t n_rows_ = 0;
    int32_t sums_[kMostSampledColumns] = {};  // of these differences, by column
    int32_t counts_[kMostSampledColumns] = {};
};

template <class Use>
auto with_matrix(const uint8_t* words, uint32_t n_words, uint32_t columns, const Dtype& dtype,
                 Use use) noexcept {
    const ExponentBits bits = exponent_bits(dtype);
    return dtype.container_bytes == 2
               ? use(Matrix<uint16_t>(words, n_words, columns, bits))
               : use(Matrix<uint32_t>(words, n_words, columns, bits));
}

}  // namespace

bool is_predictable(const uint8_t* words, uint32_t n_words, uint32_t columns,
                    const Dtype& dtype) noexcept {
    return with_matrix(words, n_words, columns, dtype,
                       [](const auto& matrix) { return Grid(matrix).gain() >= kMinGain; });
}

Prediction fit_prediction(const uint8_t* words, uint32_t n_words, uint32_t columns,
                          const Dtype& dtype, uint8_t* offsets) noexcept {
    uint8_t* of_column = offsets + (size_t{n_words} + columns - 1) / columns;
    with_matrix(words, n_words, columns, dtype, [&](const auto& matrix) {
        fit(matrix, offsets, of_column);
        return true;
    });
    return {columns, offsets, of_column};
}

void predict(const Prediction& prediction, NormalRuns& runs, uint32_t m, const Dtype& dtype,
             uint8_t emax, uint8_t* predicted) noexcept {
    const auto mask = static_cast<uint8_t>(exponent_bits(dtype).mask);
    const uint32_t columns = prediction.columns;
    const PredictRowFn kernel = kernels().ladder->predict_row;
    while (m > 0) {
        Run run = runs.next(m);
        m -= run.n_words;
        uint32_t row = run.first / columns;
        uint32_t column = run.first % columns;
        while (run.n_words > 0) {
            const uint32_t n = std::min(run.n_words, columns - column);
            const auto of_row = static_cast<uint8_t>(emax + prediction.of_row[row]);
            kernel(prediction.of_column + column, n, of_row, mask, predicted);
            predicted += n;
            run.n_words -= n;
            column = 0;
            ++row;
        }
    }
}

bool write_offsets(Prediction& prediction, uint32_t n_words, PayloadWriter& out) noexcept {
    const size_t n_rows = offset_bytes(n_words, prediction.columns) - prediction.columns;
    uint8_t* of_row = out.reserve(n_rows);
    uint8_t* of_column = out.reserve(prediction.columns);
    if (of_row == nullptr || of_column == nullptr) {
        return false;
    }
    if (prediction.columns != 0) {
        std::memmove(of_row, prediction.of_row, n_rows);
        std::memmove(of_column, prediction.of_column, prediction.columns);
    }
    prediction.of_row = of_row;
    prediction.of_column = of_column;
    return true;
}

bool read_offsets(PayloadReader& in, uint32_t n_words, uint32_t columns,
                  Prediction& prediction) noexcept {
    prediction.columns = columns;
    prediction.of_row = in.take(offset_bytes(n_words, columns) - columns);
    prediction.of_column = in.take(columns);
    return prediction.of_row != nullptr && prediction.of_column != nullptr;
}

Predictor::Predictor(const Prediction& prediction, uint8_t emax, NormalRuns runs,
                     const Dtype& dtype, uint8_t* predicted) noexcept
    : prediction_(prediction), emax_(emax), runs_(runs), dtype_(dtype), predicted_(predicted) {
    if (prediction.columns == 0) {
        std::memset(predicted, emax, kSubBlockWords);
    }
}

const uint8_t* Predictor::next(uint32_t m) noexcept {
    if (prediction_.columns != 0) {
        predict(prediction_, runs_, m, dtype_, emax_, predicted_);
    }
    return predicted_;
}

}  // namespace ogds
