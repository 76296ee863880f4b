// The special tokens of a tokenizer, found in text from left to right; where several start at one place the longest
// wins. A special is never split and nothing merges across it: what lies between two of them is cut on its own. They are
// kept in order, so that each byte of the text narrows down those it may be: thousands are found as quickly as a few.
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
        std::sort(tokens_.begin(), tokens_.end());
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
            const Token* token = match_at(start, end);
            if (token && start + token->first.size() > cut) return true;
        }
        return false;
    }

private:
    using Token = std::pair<std::string, std::uint32_t>;

    static bool matches(const std::string& token, const Byte* text, const Byte* end) {
        return static_cast<std::size_t>(end - text) >= token.size() && std::memcmp(text, token.data(), token.size()) == 0;
    }

    // The longest token that starts at `text`: of those that agree with the text so far, the shortest stands first.
    const Token* match_at(const Byte* text, const Byte* end) const {
        const Token* longest = nullptr;
        auto first = tokens_.begin(), last = tokens_.end();
        for (std::size_t depth = 0; first != last; ++depth) {
            if (last - first == 1) return matches(first->first, text, end) ? &*first : longest;
            for (; first != last && first->first.size() == depth; ++first) longest = &*first;
            if (text + depth == end) break;
            const auto byte = [depth](const Token& token) { return static_cast<Byte>(token.first[depth]); };
            first = std::partition_point(first, last, [&](const Token& token) { return byte(token) < text[depth]; });
            last = std::partition_point(first, last, [&](const Token& token) { return byte(token) == text[depth]; });
        }
        return longest;
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

    std::vector<Token> tokens_;
    std::array<bool, 256> starts_{};
    int first_byte_count_ = 0;
    std::size_t longest_ = 0;
};

}  // namespace fledge
