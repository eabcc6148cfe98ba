// CHECK(condition, values…) prints where, what and the values, and ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>

#define CHECK(condition, ...)                                                            \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " << #condition;              \
            check_print(__VA_ARGS__);                                                    \
            std::cerr << "\n";                                                           \
            std::exit(1);                                                                \
        }                                                                                \
    } while (false)

template <class... Values>
void check_print(const Values&... values) {
    ((std::cerr << " | " << values), ...);
}
