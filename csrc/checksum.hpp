// CRC-32 (the one of zlib), of one stretch of bytes or of many documents in one call. Where the processor multiplies
// without carries, 64 bytes are folded at a step; elsewhere sixteen tables take sixteen.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "platform.hpp"

#if defined(FLEDGE_X86_64)
#include <immintrin.h>
#endif

namespace fledge {

namespace crc {

constexpr std::uint32_t polynomial = 0xEDB88320u;
using Tables = std::array<std::array<std::uint32_t, 256>, 16>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? polynomial : 0u);
        tables[0][byte] = value;
    }
    for (std::size_t step = 1; step < tables.size(); ++step) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[step - 1][byte];
            tables[step][byte] = (before >> 8) ^ tables[0][before & 0xFFu];
        }
    }
    return tables;
}

inline constexpr Tables tables = make_tables();

// The register after more bytes, by tables.
inline std::uint32_t by_tables(std::uint32_t value, const unsigned char* p, const unsigned char* end) {
    for (; end - p >= 16; p += 16) {
        value = tables[15][p[0] ^ (value & 0xFFu)] ^ tables[14][p[1] ^ ((value >> 8) & 0xFFu)] ^
                tables[13][p[2] ^ ((value >> 16) & 0xFFu)] ^ tables[12][p[3] ^ (value >> 24)] ^ tables[11][p[4]] ^
                tables[10][p[5]] ^ tables[9][p[6]] ^ tables[8][p[7]] ^ tables[7][p[8]] ^ tables[6][p[9]] ^
                tables[5][p[10]] ^ tables[4][p[11]] ^ tables[3][p[12]] ^ tables[2][p[13]] ^ tables[1][p[14]] ^
                tables[0][p[15]];
    }
    for (; p < end; ++p) value = (value >> 8) ^ tables[0][(value ^ *p) & 0xFFu];
    return value;
}

#if defined(FLEDGE_X86_64)
// The power of x by which 64 bits are multiplied when they move `bits` further, as the register holds polynomials: the
// lowest power in the highest bit. The product of two such numbers lies one bit too low, hence the shift.
constexpr long long power(int bits) {
    std::uint32_t value = 0x80000000u;
    for (int i = 0; i < bits; ++i) value = (value >> 1) ^ ((value & 1u) != 0 ? polynomial : 0u);
    return static_cast<long long>(value) << 1;
}

FLEDGE_TARGET("pclmul") inline __m128i fold(__m128i value, __m128i powers, __m128i next) {
    return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(value, powers, 0x00),
                                             _mm_clmulepi64_si128(value, powers, 0x11)));
}

// Four registers side by side, each moved over the 64 bytes that follow it; joined at the end into sixteen bytes with
// the same remainder, which the tables finish together with the rest. At least 64 bytes.
FLEDGE_TARGET("pclmul") inline std::uint32_t by_folding(std::uint32_t value, const unsigned char* p,
                                                                  const unsigned char* end) {
    const auto load = [](const unsigned char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
    const __m128i far = _mm_set_epi64x(power(512 - 32), power(512 + 32));
    const __m128i near = _mm_set_epi64x(power(128 - 32), power(128 + 32));
    __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(value)));
    __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
    for (p += 64; end - p >= 64; p += 64) {
        a = fold(a, far, load(p));
        b = fold(b, far, load(p + 16));
        c = fold(c, far, load(p + 32));
        d = fold(d, far, load(p + 48));
    }
    a = fold(fold(fold(a, near, b), near, c), near, d);
    for (; end - p >= 16; p += 16) a = fold(a, near, load(p));
    alignas(16) unsigned char joined[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(joined), a);
    return by_tables(by_tables(0, joined, joined + 16), p, end);
}
#endif

}  // namespace crc

// The CRC-32 of bytes that follow others whose CRC-32 is `before`.
inline std::uint32_t checksum(std::span<const unsigned char> bytes, std::uint32_t before = 0) {
    const unsigned char *start = bytes.data(), *end = start + bytes.size();
#if defined(FLEDGE_X86_64)
    static const bool can_fold = has_clmul();
    if (can_fold && bytes.size() >= 64) return ~crc::by_folding(~before, start, end);
#endif
    return ~crc::by_tables(~before, start, end);
}

}  // namespace fledge
