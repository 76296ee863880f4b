// Sixteen floats side by side. GCC and clang know vectors of any width and make of them what the processor has; elsewhere
// they are loops over an array, which the compiler may or may not turn into vectors.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "platform.hpp"

namespace fledge {

constexpr std::size_t lanes = 16;

#if defined(FLEDGE_GNU) && !defined(FLEDGE_PLAIN_LANES)

typedef float Lanes __attribute__((vector_size(4 * lanes), aligned(4)));
typedef unsigned LaneBits __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef float Quarter __attribute__((vector_size(lanes)));

// By halves: sixteen additions one after the other would take longer than reading the values.
FLEDGE_INLINE float sum_of(const Lanes& values) {
    Quarter sum = {};
    for (std::size_t i = 0; i < lanes; i += 4) sum += Quarter{values[i], values[i + 1], values[i + 2], values[i + 3]};
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

FLEDGE_INLINE void raise_to(Lanes& values, float least) { values = values < least ? Lanes{} + least : values; }

// By 2^n, for whole numbers n that lie in the lowest bits of floats.
FLEDGE_INLINE void multiply_by_power(Lanes& values, const Lanes& whole) { values *= (Lanes)(((LaneBits)whole + 127U) << 23U); }

#else

struct Lanes {
    float values[lanes];

    float operator[](std::size_t i) const { return values[i]; }
    Lanes& operator+=(const Lanes& other) { return *this = *this + other; }
    Lanes& operator-=(float other) { return *this = *this - other; }

    friend Lanes operator+(const Lanes& a, const Lanes& b) {
        return each([&](std::size_t i) { return a.values[i] + b.values[i]; });
    }
    friend Lanes operator-(const Lanes& a, const Lanes& b) {
        return each([&](std::size_t i) { return a.values[i] - b.values[i]; });
    }
    friend Lanes operator*(const Lanes& a, const Lanes& b) {
        return each([&](std::size_t i) { return a.values[i] * b.values[i]; });
    }
    friend Lanes operator+(const Lanes& a, float b) {
        return each([&](std::size_t i) { return a.values[i] + b; });
    }
    friend Lanes operator-(const Lanes& a, float b) {
        return each([&](std::size_t i) { return a.values[i] - b; });
    }
    friend Lanes operator*(const Lanes& a, float b) {
        return each([&](std::size_t i) { return a.values[i] * b; });
    }
    friend Lanes operator*(float a, const Lanes& b) { return b * a; }
    friend Lanes operator/(const Lanes& a, float b) {
        return each([&](std::size_t i) { return a.values[i] / b; });
    }

    template <typename Of>
    static FLEDGE_INLINE Lanes each(Of of) {
        Lanes made;
        for (std::size_t i = 0; i < lanes; ++i) made.values[i] = of(i);
        return made;
    }
};

FLEDGE_INLINE float sum_of(const Lanes& values) {
    float sum[4] = {};
    for (std::size_t i = 0; i < lanes; ++i) sum[i % 4] += values[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

FLEDGE_INLINE void raise_to(Lanes& values, float least) {
    for (float& value : values.values) value = value < least ? least : value;
}

FLEDGE_INLINE void multiply_by_power(Lanes& values, const Lanes& whole) {
    for (std::size_t i = 0; i < lanes; ++i) {
        values.values[i] *= std::bit_cast<float>((std::bit_cast<std::uint32_t>(whole.values[i]) + 127U) << 23U);
    }
}

#endif

FLEDGE_INLINE const Lanes& lanes_at(const float* place) { return *reinterpret_cast<const Lanes*>(place); }
FLEDGE_INLINE Lanes& lanes_at(float* place) { return *reinterpret_cast<Lanes*>(place); }

}  // namespace fledge
