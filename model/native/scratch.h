// Memory of one thread that is kept from call to call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace jev {

struct Scratch {
    uint8_t* memory = nullptr;
    size_t size = 0;
    size_t used = 0;

    ~Scratch() { free(memory); }

    bool reserve(size_t bytes) {
        used = 0;
        if (bytes <= size) return true;
        free(memory);
        size = 0;
        memory = static_cast<uint8_t*>(aligned_alloc(64, (bytes + 4095) / 4096 * 4096));
        if (memory != nullptr) size = bytes;
        return memory != nullptr;
    }
    template <class T>
    static size_t bytes(int64_t count) { return (count * sizeof(T) + 63) / 64 * 64; }
    template <class T>
    T* take(int64_t count) {
        T* taken = reinterpret_cast<T*>(memory + used);
        used += bytes<T>(count);
        return taken;
    }
};

}  // namespace jev
