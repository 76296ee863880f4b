// Text that is unkind to tokenizers: every character class next to every other, runs, half characters, and pieces that
// the patterns treat apart. The same seed gives the same text.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace fledge_test {

inline std::string random_text(std::mt19937_64& random, std::size_t pieces) {
    static const char* const known[] = {
        " ", " ", " ", "  ", "   ", "\n", "\n", "\r\n", "\t", "\v", "'", "'s", "'S", "'ll", "'LL", "'Ve", "'re", "'x", "'\xC5\xBF",
        "a", "b", "the", "The", "WORLD", "camelCase", "X", "\xC3\xA9", "\xC3\x89", "\xD0\x96", "\xD0\xB6\xD0\xB8", "\xC7\x85",
        "\xCA\xB0", "\xE6\xBC\xA2", "\xE5\xAD\x97", "\xE0\xA4\x95", "\xE0\xA4\xBE", "\xCC\x81", "\xD7\xA9", "1", "23", "456", "7890",
        "\xD9\xA3", "\xC2\xBD", "\xE2\x85\xA7", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\xA8", "\xC2\x85", "\xE2\x80\x89", "!", ".", ",", "/", "//", "\"", "(",
        "\xE2\x80\x9C", "\xE2\x80\x99", "\xE2\x80\x94", "\xF0\x9F\x98\x80", "\xF0\x9D\x92\x9C", "\xFF", "\xC3", "\xE2\x80", "\xF0\x9F\x98", "\x80", "\xED\xA0\x80",
        "<|endoftext|>", "<|end|>", "<|", "<", "aa", "aaaa", "00000000", "        ", "\n\n\n",
    };
    constexpr std::size_t count = sizeof known / sizeof *known;
    std::string text;
    for (std::size_t i = 0; i < pieces; ++i) {
        const std::uint64_t choice = random();
        if (choice % 97 == 0) text.push_back(static_cast<char>(random() & 0xFF));
        else if (choice % 211 == 0) text.append(random() % 300, known[random() % count][0]);
        else if (choice % 401 == 0) text.append(random() % 5000, "a Z1\n'"[random() % 6]);
        else text += known[(choice >> 20) % count];
    }
    return text;
}

}  // namespace fledge_test
