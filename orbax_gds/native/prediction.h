// Exponents predicted by the row and the column of a word: FORMAT 7.6.
//
// The exponents of an optimizer's moments are about the sum of a row's and a column's share, as a
// gradient is about a product. Arithmetic is modulo 256, integers only: the fit is the same on
// every machine.
#pragma once

#include "block_map.h"
#include "dtypes.h"
#include "ladder_kernels.h"

namespace ogds {

// The offsets of a chunk, a byte each; columns = 0: none.
struct Prediction {
    uint32_t columns = 0;
    const uint8_t* of_row = nullptr;
    const uint8_t* of_column = nullptr;
};

// In the flags of the headers of codecs 2 and 3: there is a prediction.
inline constexpr uint16_t kFlagPrediction = 1;

constexpr size_t offset_bytes(uint32_t n_words, uint32_t columns) noexcept {
    return columns == 0 ? 0 : (size_t{n_words} + columns - 1) / columns + columns;
}

// Whether rows and columns of a chunk seem to predict its exponents, judged by a small grid of
// words. `columns` > 0.
bool is_predictable(const uint8_t* words, uint32_t n_words, uint32_t columns,
                    const Dtype& dtype) noexcept;

// Fits the offsets to samples of every row and column. `offsets` has room for offset_bytes.
Prediction fit_prediction(const uint8_t* words, uint32_t n_words, uint32_t columns,
                          const Dtype& dtype, uint8_t* offsets) noexcept;

// Writes the predicted exponents of the next m normal words, emax added.
void predict(const Prediction& prediction, NormalRuns& runs, uint32_t m, const Dtype& dtype,
             uint8_t emax, uint8_t* predicted) noexcept;

// Writes the offsets, which may lie where they go, and leaves in `prediction` where they are now.
// False if there is no room.
bool write_offsets(Prediction& prediction, uint32_t n_words, PayloadWriter& out) noexcept;

// Inverse, for at most n_words columns. False if the payload ends before.
bool read_offsets(PayloadReader& in, uint32_t n_words, uint32_t columns,
                  Prediction& prediction) noexcept;

// The predicted exponents of the sub-blocks of a chunk, one after the other.
class Predictor {
public:
    // `predicted` has room for the words of a sub-block.
    Predictor(const Prediction& prediction, uint8_t emax, NormalRuns runs, const Dtype& dtype,
              uint8_t* predicted) noexcept;

    // Of the next m words.
    const uint8_t* next(uint32_t m) noexcept;

private:
    Prediction prediction_;
    uint8_t emax_;
    NormalRuns runs_;
    Dtype dtype_;
    uint8_t* predicted_;
};

}  // namespace ogds
