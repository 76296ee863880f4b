// The special tokens of a tokenizer, found in text from left to right; where several start at one place the longest
// wins. A special is never split and nothing merges across it: what lies between two of them is cut on its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "key.hpp"

namespace fledge {

class Specials {
public:
    struct Match {
        const Byte* at;  // `end` when there is none
        std::size_t length;
        std::uint32_t id;
    };

    Specials() = default;

    explicit Specials(std::vector<std::pair<std::string, std::uint32_t>> tokens) : tokens_(std::move(tokens)) {
        std::stable_sort(tokens_.begin(), tokens_.end(),
                         [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
        for (const auto& [text, id] : tokens_) {
            first_byte_count_ += !starts_[static_cast<Byte>(text[0])];
            starts_[static_cast<Byte>(text[0])] = true;
            longest_ = std::max(longest_, text.size());
        }
    }

    bool empty() const { return tokens_.empty(); }
    std::size_t longest() const { return longest_; }

    Match find(const Byte* text, const Byte* end) const {
        for (text = candidate(text, end); text < end; text = candidate(text + 1, end)) {
            if (const auto* token = match_at(text, end)) return {text, token->first.size(), token->second};
        }
        return {end, 0, 0};
    }

    // Whether some special lies across `cut`, so that it would be lost if the text were cut there.
    bool spans(const Byte* text, const Byte* cut, const Byte* end) const {
        if (empty()) return false;
        const std::size_t before = std::min<std::size_t>(longest_ - 1, static_cast<std::size_t>(cut - text));
        for (const Byte* start = cut - before; start < cut; ++start) {
            if (!starts_[*start]) continue;
            for (const auto& [token, id] : tokens_) {
                if (start + token.size() > cut && matches(token, start, end)) return true;
            }
        }
        return false;
    }

private:
    static bool matches(const std::string& token, const Byte* text, const Byte* end) {
        return static_cast<std::size_t>(end - text) >= token.size() && std::memcmp(text, token.data(), token.size()) == 0;
    }

    const std::pair<std::string, std::uint32_t>* match_at(const Byte* text, const Byte* end) const {
        for (const auto& token : tokens_) {
            if (matches(token.first, text, end)) return &token;
        }
        return nullptr;
    }

    const Byte* candidate(const Byte* text, const Byte* end) const {
        if (empty() || text >= end) return end;
        if (first_byte_count_ == 1) {
            const void* found = std::memchr(text, tokens_[0].first[0], static_cast<std::size_t>(end - text));
            return found ? static_cast<const Byte*>(found) : end;
        }
        while (text < end && !starts_[*text]) ++text;
        return text;
    }

    std::vector<std::pair<std::string, std::uint32_t>> tokens_;  // the longest first
    std::array<bool, 256> starts_{};
    int first_byte_count_ = 0;
    std::size_t longest_ = 0;
};

}  // namespace fledge
