// Extraction and deposit of bits for machines without pext and pdep, or with slow ones: the
// compress and expand of Hacker's Delight, 7-4 and 7-5. Bits move by 1, 2, 4, …, 32 places; which
// ones move in a step follows from the mask alone and is worked out once for four planes.
#pragma once

#include "bit_group.h"

namespace ogds {
namespace {

struct BitsPortable {
    static Group extract(const Group& v, uint64_t mask) noexcept {
        const Steps steps(mask);
        Group out = {v.b0 & mask, v.b1 & mask, v.b2 & mask, v.b3 & mask};
        for (int i = 0; i < 6; ++i) {
            const uint64_t moving = steps.moving[i];
            out = {down(out.b0, moving, i), down(out.b1, moving, i), down(out.b2, moving, i),
                   down(out.b3, moving, i)};
        }
        return out;
    }

    static Group deposit(const Group& v, uint64_t mask) noexcept {
        const Steps steps(mask);
        Group out = v;
        for (int i = 5; i >= 0; --i) {
            const uint64_t moving = steps.moving[i];
            out = {up(out.b0, moving, i), up(out.b1, moving, i), up(out.b2, moving, i),
                   up(out.b3, moving, i)};
        }
        return {out.b0 & mask, out.b1 & mask, out.b2 & mask, out.b3 & mask};
    }

private:
    // The bits that step i moves by 2^i: those with an odd number of 2^i zeros below them.
    struct Steps {
        uint64_t moving[6];

        explicit Steps(uint64_t mask) noexcept {
            uint64_t zeros = ~mask << 1;
            for (int i = 0; i < 6; ++i) {
                uint64_t parity = zeros;
                for (int shift = 1; shift < 64; shift *= 2) {
                    parity ^= parity << shift;
                }
                moving[i] = parity & mask;
                mask = (mask ^ moving[i]) | moving[i] >> (1 << i);
                zeros &= ~parity;
            }
        }
    };

    static uint64_t down(uint64_t v, uint64_t moving, int step) noexcept {
        const uint64_t moved = v & moving;
        return (v ^ moved) | moved >> (1 << step);
    }
    static uint64_t up(uint64_t v, uint64_t moving, int step) noexcept {
        return (v & ~moving) | (v << (1 << step) & moving);
    }
};

}  // namespace
}  // namespace ogds
