// The merges behind a list of tokens that come with nothing but their order: two pieces merge where their bytes together
// are a token, the lowest first, so the last merge of a token is what is left when all before it have been made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "key.hpp"

namespace fledge {

// For every token, the length of the left half of its last merge; 0 for single bytes and where no merge makes it.
inline std::vector<std::uint32_t> last_merges(const std::vector<std::string_view>& tokens) {
    std::unordered_map<std::string_view, std::uint32_t, Hash> ranks;
    ranks.reserve(tokens.size());
    for (const std::string_view token : tokens) ranks.emplace(token, static_cast<std::uint32_t>(ranks.size()));
    std::vector<std::uint32_t> found(tokens.size(), 0), starts, order;
    for (std::uint32_t rank = 0; rank < tokens.size(); ++rank) {
        const std::string_view token = tokens[rank];
        const auto rank_of = [&](std::size_t piece) {  // of this piece and the next; `rank` where they do not merge
            const auto known = ranks.find(token.substr(starts[piece], starts[piece + 2] - starts[piece]));
            return known == ranks.end() ? rank : std::min(known->second, rank);
        };
        starts.clear();  // of the pieces, and the end
        for (std::uint32_t i = 0; i <= token.size(); ++i) starts.push_back(i);
        order.clear();
        for (std::size_t i = 0; i + 2 < starts.size(); ++i) order.push_back(rank_of(i));
        while (!order.empty()) {
            const auto lowest = std::min_element(order.begin(), order.end());
            if (*lowest >= rank) break;
            const auto place = static_cast<std::size_t>(lowest - order.begin());
            starts.erase(starts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
            order.erase(lowest);
            if (place > 0) order[place - 1] = rank_of(place - 1);
            if (place < order.size()) order[place] = rank_of(place);
        }
        if (order.size() == 1) found[rank] = starts[1];
    }
    return found;
}

}  // namespace fledge
