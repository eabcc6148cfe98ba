// Parts of a sub-block that the codings on top of the ladder share: FORMAT 7.4 and 7.6.
#pragma once

#include "block_map.h"
#include "dtypes.h"
#include "ladder_tables.h"
#include "payload.h"
#include "prediction.h"
#include "workspace.h"

namespace ogds {

// The next m normal words: where they lie if that is one piece, else gathered in `scratch`.
const uint8_t* gather(const uint8_t* words, NormalRuns& runs, uint32_t m, uint32_t word_bytes,
                      uint8_t* scratch) noexcept;

// The places of normal words that are decoded a sub-block at a time: in a cache, from where they
// are streamed to memory unless they are to be kept there. With words == nullptr nothing is kept.
class Places {
public:
    Places(uint8_t* words, NormalRuns runs, uint32_t word_bytes, bool keeps_words) noexcept
        : words_(words), runs_(runs), word_bytes_(word_bytes), keeps_words_(keeps_words) {}

    // How many of the next m words, at least one, lie in one piece.
    uint32_t piece(uint32_t m) const noexcept;

    // Where the next m words are merged: in their place if that is one piece and can be streamed
    // to, else in `scratch`.
    MergeTarget target(uint32_t m, uint8_t* scratch) const noexcept;

    // Brings the next m words, which lie at `from`, to their places.
    void put(const uint8_t* from, uint32_t m) noexcept;

    // The same for words that lie in a target.
    void put(const MergeTarget& target, uint32_t m) noexcept;

private:
    uint8_t* words_;
    NormalRuns runs_;
    uint32_t word_bytes_;
    bool keeps_words_;
};

// The counts in the head of a sub-block and where its parts lie.
struct SubBlockHead {
    uint32_t n_values[kMaxLevels];
    uint32_t n_escapes;
    size_t level_bytes[kMaxLevels];
    size_t fields_bytes;
    size_t levels_bytes;
    size_t escapes_bytes;
};

// Reads the counts of a sub-block of m words, of whose rest `rest_bits` are written. With a sign
// slot the first bitmap of level 0 is not among the levels.
Status read_level_counts(PayloadReader& in, uint32_t m, Split split, uint32_t rest_bits,
                   const LadderTables& tables, SubBlockHead& head) noexcept;

// Where the levels of a sub-block leave the sign slot: nowhere if `bytes` is nullptr.
struct SignSlot {
    uint8_t* bytes = nullptr;  // of the first field
    bool is_free = true;       // no byte had a sign
};

// Writes the levels of the m ranks in workspace.planes[0], the first bitmap of level 0 to the sign
// slot if there is one, then the n_escapes escapes in workspace.escapes. The counts go to the 2
// bytes a level at `counts`.
Status write_levels(uint32_t m, Split split, const LadderTables& tables, uint32_t n_escapes,
                    uint8_t* counts, SignSlot& slot, PayloadWriter& out,
                    Workspace& workspace) noexcept;

// Decodes the levels that begin at `levels`, last to first, into workspace.planes[0]. What is in
// the sign slot, if there is one, is in workspace.bitmaps.
Status read_levels(const uint8_t* levels, const SubBlockHead& head,
                   const LadderTables& tables, Workspace& workspace) noexcept;

// A sub-block whose levels were read.
struct MergeParts {
    uint32_t m;
    Split split;
    const LadderTables& tables;
    const uint8_t* fields;  // of full rests
    const uint8_t* escapes;
    uint32_t n_escapes;
    Ahead ahead;
};

// Merges the ranks in workspace.planes[0] with the rest and brings the words to their places;
// `predictor` is nullptr without predictions.
Status merge_sub_block(const MergeParts& parts, Predictor* predictor, Places& places,
                       Workspace& workspace) noexcept;

// Whether n escaped exponents are exponents of the split at all.
bool escapes_fit(Split split, const uint8_t* escapes, uint32_t n) noexcept;

}  // namespace ogds
