// CRC-32 (the one of zlib) of many documents in one buffer. One call for a block of text, where a call for each
// document would cost more than the checksum; sixteen tables take sixteen bytes a step.
#pragma once

#include <array>
#include <cstdint>
#include <span>

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

}  // namespace crc

inline std::uint32_t checksum(std::span<const unsigned char> bytes) {
    const auto& table = crc::tables;
    std::uint32_t value = 0xFFFFFFFFu;
    std::size_t at = 0;
    for (; at + 16 <= bytes.size(); at += 16) {
        const unsigned char* p = bytes.data() + at;
        value = table[15][p[0] ^ (value & 0xFFu)] ^ table[14][p[1] ^ ((value >> 8) & 0xFFu)] ^
                table[13][p[2] ^ ((value >> 16) & 0xFFu)] ^ table[12][p[3] ^ (value >> 24)] ^ table[11][p[4]] ^
                table[10][p[5]] ^ table[9][p[6]] ^ table[8][p[7]] ^ table[7][p[8]] ^ table[6][p[9]] ^
                table[5][p[10]] ^ table[4][p[11]] ^ table[3][p[12]] ^ table[2][p[13]] ^ table[1][p[14]] ^
                table[0][p[15]];
    }
    for (; at < bytes.size(); ++at) value = (value >> 8) ^ table[0][(value ^ bytes[at]) & 0xFFu];
    return ~value;
}

}  // namespace fledge
