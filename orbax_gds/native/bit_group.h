// 64 values of the ladder as bit planes.
#pragma once

#include <cstdint>

namespace ogds {
namespace {

struct Group {
    uint64_t b0, b1, b2, b3;
};

}  // namespace
}  // namespace ogds
