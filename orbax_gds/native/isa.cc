#include "isa.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ogds {
namespace {

constexpr Kernels kScalar = {"scalar", crc32c_table, crc32c_copy_table, &kLadderScalar,
                             &kAnsPortable, &kAnsWordsScalar, &kHuffmanPortable, &kDeltaScalar};

#if defined(__x86_64__)

constexpr Kernels kSse42 = {"sse42", crc32c_sse42, crc32c_copy_sse42, &kLadderSse42, &kAnsPortable,
                            &kAnsWordsSse42, &kHuffmanPortable, &kDeltaSse42};
constexpr Kernels kAvx2 = {"avx2", crc32c_sse42, crc32c_copy_sse42, &kLadderAvx2, &kAnsBmi2,
                           &kAnsWordsAvx2, &kHuffmanBmi2, &kDeltaAvx2};
// Slow pext and pdep say nothing of the shifts of BMI2, which ans and huffman have their speed
// from.
constexpr Kernels kAvx2Softbits = {"avx2-softbits", crc32c_sse42, crc32c_copy_sse42,
                                   &kLadderAvx2Softbits, &kAnsBmi2, &kAnsWordsAvx2, &kHuffmanBmi2,
                                   &kDeltaAvx2Softbits};
constexpr Kernels kAvx2WithoutBmi2 = {"avx2-softbits", crc32c_sse42, crc32c_copy_sse42,
                                      &kLadderAvx2Softbits, &kAnsPortable, &kAnsWordsAvx2,
                                      &kHuffmanPortable, &kDeltaAvx2Softbits};

bool has_sse42() noexcept {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("popcnt");
}

bool has_avx2() noexcept {
    return has_sse42() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
}

// With lzcnt, which every processor with BMI2 has so far; compilers differ in its name.
bool has_bmi2() noexcept {
    uint32_t eax = 0;
    uint32_t ebx = 0;
    uint32_t ecx = 0;
    uint32_t edx = 0;
    return __builtin_cpu_supports("bmi2") &&
           __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_LZCNT) != 0;
}

// AMD's processors before Zen 3 (families 15h and 17h, and Hygon's 18h, made from it) take pext and
// pdep apart into steps for each bit.
bool bits_are_slow() noexcept {
    uint32_t eax = 0;
    uint32_t registers[3];
    char vendor[12];
    if (__get_cpuid(0, &eax, &registers[0], &registers[2], &registers[1]) == 0) {
        return false;
    }
    std::memcpy(vendor, registers, sizeof vendor);
    const bool known = std::memcmp(vendor, "AuthenticAMD", sizeof vendor) == 0 ||
                       std::memcmp(vendor, "HygonGenuine", sizeof vendor) == 0;
    if (!known || __get_cpuid(1, &eax, &registers[0], &registers[1], &registers[2]) == 0) {
        return false;
    }
    const uint32_t base = (eax >> 8) & 15;
    const uint32_t family = base + (base == 15 ? (eax >> 20) & 255 : 0);
    return family < 0x19;
}

#elif defined(__aarch64__)

constexpr Kernels kNeon = {"neon", crc32c_armv8, crc32c_copy_armv8, &kLadderNeon, &kAnsPortable,
                           &kAnsWordsNeon, &kHuffmanPortable, &kDeltaNeon};

bool has_crc() noexcept {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return true;  // every 64-bit Apple processor
#endif
}

#endif

const Kernels* best_kernels() noexcept {
    const Kernels* best[1];
    available_kernels(best, 1);
    return best[0];
}

std::atomic<const Kernels*> current{nullptr};

}  // namespace

size_t available_kernels(const Kernels** tables, size_t capacity) noexcept {
    size_t n = 0;
    const auto add = [&](const Kernels& table) {
        if (n < capacity) {
            tables[n++] = &table;
        }
    };
#if defined(__x86_64__)
    if (has_avx2()) {
        const bool slow = bits_are_slow();
        if (has_bmi2() && !slow) {
            add(kAvx2);
        }
        add(has_bmi2() ? kAvx2Softbits : kAvx2WithoutBmi2);
        if (has_bmi2() && slow) {
            add(kAvx2);
        }
    }
    if (has_sse42()) {
        add(kSse42);
    }
#elif defined(__aarch64__)
    if (has_crc()) {
        add(kNeon);
    }
#endif
    add(kScalar);
    return n;
}

const Kernels& kernels() noexcept {
    const Kernels* table = current.load(std::memory_order_acquire);
    if (table == nullptr) {
        table = best_kernels();
        current.store(table, std::memory_order_release);
    }
    return *table;
}

bool use_kernels(const char* name) noexcept {
    const Kernels* tables[8];
    const size_t n = available_kernels(tables, 8);
    for (size_t i = 0; i < n; ++i) {
        if (std::strcmp(tables[i]->name, name) == 0) {
            use_kernels(*tables[i]);
            return true;
        }
    }
    return false;
}

void use_kernels(const Kernels& table) noexcept {
    current.store(&table, std::memory_order_release);
}

}  // namespace ogds
