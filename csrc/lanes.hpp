// Sixteen floats side by side. GCC and clang know vectors of any width and make of them what the processor has; elsewhere
// they are loops over an array, which the compiler may or may not turn into vectors.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "platform.hpp"

namespace fledge {

constexpr std::size_t lanes = 16;
constexpr std::size_t whole_lanes(std::size_t count) { return (count + lanes - 1) / lanes * lanes; }

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
FLEDGE_INLINE void raise_to(Lanes& values, const Lanes& least) { values = values < least ? least : values; }

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

FLEDGE_INLINE void raise_to(Lanes& values, const Lanes& least) {
    for (std::size_t i = 0; i < lanes; ++i) {
        if (values.values[i] < least.values[i]) values.values[i] = least.values[i];
    }
}

FLEDGE_INLINE void multiply_by_power(Lanes& values, const Lanes& whole) {
    for (std::size_t i = 0; i < lanes; ++i) {
        values.values[i] *= std::bit_cast<float>((std::bit_cast<std::uint32_t>(whole.values[i]) + 127U) << 23U);
    }
}

#endif

FLEDGE_INLINE const Lanes& lanes_at(const float* place) { return *reinterpret_cast<const Lanes*>(place); }
FLEDGE_INLINE Lanes& lanes_at(float* place) { return *reinterpret_cast<Lanes*>(place); }

// x ← e^x for numbers that are not above 0; below −87 the result stays at 1.6e-38. Not-a-number stays what it is.
FLEDGE_INLINE void exponentiate(Lanes& x) {
    constexpr float shift = 12582912.0F;  // 1.5 · 2²³: added, the whole part of a number becomes its lowest bits
    raise_to(x, -87.0F);
    const Lanes shifted = x * 1.44269504F + shift, whole = shifted - shift;
    const Lanes rest = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;  // less whole · ln 2, in two parts
    Lanes sum = rest * (1 / 5040.0F) + 1 / 720.0F;
    for (const float term : {1 / 120.0F, 1 / 24.0F, 1 / 6.0F, 0.5F, 1.0F, 1.0F}) sum = sum * rest + term;
    multiply_by_power(sum, shifted);
    x = sum;
}

}  // namespace fledge
