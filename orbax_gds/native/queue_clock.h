// For how long a thread was ready to run without a processor.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace ogds {

// The clock of the thread that makes it; it stands where the kernel does not count.
class QueueClock {
public:
    QueueClock() noexcept
        : descriptor_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
    QueueClock(const QueueClock&) = delete;
    QueueClock& operator=(const QueueClock&) = delete;
    ~QueueClock() {
        if (descriptor_ >= 0) {
            close(descriptor_);
        }
    }

    std::chrono::nanoseconds now() const noexcept {
        char text[128];
        const ssize_t n = descriptor_ < 0 ? -1 : pread(descriptor_, text, sizeof text - 1, 0);
        if (n <= 0) {
            return {};
        }
        text[n] = '\0';
        const char* const second = std::strchr(text, ' ');
        return std::chrono::nanoseconds(second == nullptr ? 0
                                                          : std::strtoll(second, nullptr, 10));
    }

private:
    int descriptor_;
};

}  // namespace ogds
