#include "trainer.hpp"

#include <algorithm>
#include <unordered_map>

#include "too_large.hpp"

namespace fledge {
namespace {

constexpr std::uint32_t none = 0xFFFFFFFF;

// One byte of one word. A symbol writes itself on its first and on its last position, so that both neighbours find it
// by its length; `pair` is the pair that starts here, none inside a symbol and at a word's last one.
struct Position {
    std::uint32_t symbol = none;
    std::uint32_t pair = none;
    std::uint32_t word = 0;
};

struct Pair {
    std::uint32_t left, right;
    std::uint64_t places = 0;  // where its list of positions starts in the arena
    std::uint32_t size = 0;
};

struct Candidate {
    std::uint64_t count;
    std::uint32_t pair;
};

class Trainer {
public:
    Trainer(const WordTable& words, const TrainRequest& request) : request_(request) {
        for (unsigned byte = 0; byte < 256; ++byte) add_symbol(std::string(1, static_cast<char>(byte)));
        lay_out(words);
        number_byte_pairs();
    }

    TrainResult run(TrainProgress progress, void* context) {
        TrainResult result;
        if (progress && !progress(context, 0)) return result;  // the pairs are counted
        while (result.merges.size() < request_.merges) {
            const std::uint32_t best = pop_best();
            if (best == none) break;
            const Pair pair = pairs_[best];
            const std::uint64_t count = counts_[best];
            result.merges.push_back({pair.left, pair.right, merge(best), count});
            if (progress && result.merges.size() % 256 == 0 && !progress(context, result.merges.size())) break;
        }
        result.tokens = std::move(tokens_);
        return result;
    }

private:
    std::uint32_t add_symbol(std::string bytes) {
        const auto symbol = static_cast<std::uint32_t>(tokens_.size());
        std::uint64_t prefix = 0;
        for (std::size_t i = 0; i < 8; ++i) {
            prefix = prefix << 8 | (i < bytes.size() ? static_cast<Byte>(bytes[i]) : 0u);
        }
        prefixes_.push_back(prefix);
        lengths_.push_back(static_cast<std::uint32_t>(bytes.size()));
        first_with_.emplace(bytes, symbol);
        tokens_.push_back(std::move(bytes));
        as_left_.push_back(0);
        as_right_.push_back(0);
        return symbol;
    }

    void lay_out(const WordTable& words) {
        std::size_t total = 1, kept = 0;
        words.each([&](const Byte*, std::size_t length, std::uint64_t) {
            if (length < 2) return;
            total += length + 1;
            ++kept;
        });
        if (total >= none || kept >= none) {
            refuse_as_too_large("the distinct words of this text take more than 4 GB; train on a part of it.");
        }
        positions_.resize(total);  // a border without symbol stands before the first word and after each
        weights_.reserve(kept);
        std::size_t at = 1;
        words.each([&](const Byte* word, std::size_t length, std::uint64_t count) {
            if (length < 2) return;
            const auto number = static_cast<std::uint32_t>(weights_.size());
            weights_.push_back(count);
            for (std::size_t i = 0; i < length; ++i) positions_[at++] = {word[i], none, number};
            ++at;
        });
    }

    void number_byte_pairs() {
        std::vector<std::uint32_t> sizes(65536);
        std::vector<std::uint64_t> counts(65536);
        for (std::size_t at = 1; at + 1 < positions_.size(); ++at) {
            if (positions_[at].symbol == none || positions_[at + 1].symbol == none) continue;
            const std::uint32_t pair = positions_[at].symbol << 8 | positions_[at + 1].symbol;
            ++sizes[pair];
            counts[pair] += weights_[positions_[at].word];
        }
        std::vector<std::uint32_t> number(65536, none);
        std::uint64_t start = 0;
        for (std::uint32_t pair = 0; pair < 65536; ++pair) {
            if (sizes[pair] == 0) continue;
            number[pair] = static_cast<std::uint32_t>(pairs_.size());
            pairs_.push_back({pair >> 8, pair & 255, start, 0});
            counts_.push_back(counts[pair]);
            start += sizes[pair];
        }
        arena_.resize(start);
        for (std::size_t at = 1; at + 1 < positions_.size(); ++at) {
            if (positions_[at].symbol == none || positions_[at + 1].symbol == none) continue;
            Pair& pair = pairs_[number[positions_[at].symbol << 8 | positions_[at + 1].symbol]];
            positions_[at].pair = static_cast<std::uint32_t>(&pair - pairs_.data());
            arena_[pair.places + pair.size++] = static_cast<std::uint32_t>(at);
        }
        for (std::uint32_t pair = 0; pair < pairs_.size(); ++pair) offer(pair);
    }

    // ---- the best pair -------------------------------------------------------------------------------------------

    bool less_bytes(std::uint32_t a, std::uint32_t b) const {
        if (prefixes_[a] != prefixes_[b]) return prefixes_[a] < prefixes_[b];
        return tokens_[a] < tokens_[b];
    }

    bool worse(const Candidate& a, const Candidate& b) const {
        if (a.count != b.count) return a.count < b.count;
        const Pair &first = pairs_[a.pair], &second = pairs_[b.pair];
        if (first.left != second.left) return less_bytes(first.left, second.left);
        return first.right != second.right && less_bytes(first.right, second.right);
    }

    void offer(std::uint32_t pair) {
        const std::uint64_t count = counts_[pair];
        if (count == 0 || count < request_.min_frequency) return;
        if (count < heap_floor_) {
            deferred_.push_back(pair);
            return;
        }
        heap_.push_back({count, pair});
        std::push_heap(heap_.begin(), heap_.end(), [this](auto& a, auto& b) { return worse(a, b); });
    }

    std::uint32_t pop_best() {
        while (true) {
            if (heap_.empty() && !lower_floor()) return none;
            const Candidate top = heap_.front();
            std::pop_heap(heap_.begin(), heap_.end(), [this](auto& a, auto& b) { return worse(a, b); });
            heap_.pop_back();
            if (top.count == counts_[top.pair]) return top.pair;
            offer(top.pair);
        }
    }

    // Lets the next rarer pairs into the empty heap: all that reach a quarter of the highest count outside, and no
    // pair below the limit, whose count may have fallen since it was put aside.
    bool lower_floor() {
        std::uint64_t highest = 0;
        std::erase_if(deferred_, [&](std::uint32_t pair) {
            highest = std::max(highest, counts_[pair]);
            return counts_[pair] == 0;
        });
        if (highest == 0 || highest < request_.min_frequency) return false;
        heap_floor_ = std::max(request_.min_frequency, highest - highest / 4 * 3);
        std::vector<std::uint32_t> waiting;
        waiting.swap(deferred_);
        for (const std::uint32_t pair : waiting) {
            if (counts_[pair] >= heap_floor_) {
                heap_.push_back({counts_[pair], pair});
            } else {
                deferred_.push_back(pair);
            }
        }
        std::make_heap(heap_.begin(), heap_.end(), [this](auto& a, auto& b) { return worse(a, b); });
        return true;
    }

    // ---- one merge -----------------------------------------------------------------------------------------------

    // The tables by neighbour hold the step in the upper half: an entry of an earlier step counts as absent.
    std::uint32_t pair_with(std::vector<std::uint64_t>& table, std::uint32_t neighbour, std::uint32_t left,
                            std::uint32_t right) {
        std::uint64_t& entry = table[neighbour];
        if (entry >> 32 != step_) {
            entry = step_ << 32 | pairs_.size();
            pairs_.push_back({left, right});
            counts_.push_back(0);
        }
        return static_cast<std::uint32_t>(entry);
    }
    std::uint32_t pair_before(std::uint32_t neighbour, std::uint32_t symbol) {
        if (neighbour == symbol) return pair_after(symbol, symbol);
        return pair_with(as_left_, neighbour, neighbour, symbol);
    }
    std::uint32_t pair_after(std::uint32_t symbol, std::uint32_t neighbour) {
        return pair_with(as_right_, neighbour, symbol, neighbour);
    }

    std::uint32_t merge(std::uint32_t best) {
        const Pair pair = pairs_[best];
        ++step_;
        const auto first_new = static_cast<std::uint32_t>(pairs_.size());
        std::string bytes = tokens_[pair.left] + tokens_[pair.right];
        // The same bytes are the same symbol, by whatever way they came about. It is rare that a second way exists.
        const bool again = first_with_.contains(bytes);
        const std::uint32_t created = add_symbol(std::move(bytes));
        const std::uint32_t symbol = again ? first_with_.find(tokens_[created])->second : created;
        if (again) recall_pairs_of(symbol);
        fresh_.clear();
        const std::uint32_t left_length = lengths_[pair.left], whole = left_length + lengths_[pair.right];
        for (std::uint32_t i = 0; i < pair.size; ++i) {
            if (i + 12 < pair.size) prefetch(&positions_[arena_[pair.places + i + 12]]);
            const std::uint32_t at = arena_[pair.places + i];
            if (positions_[at].pair == best) merge_at(at, symbol, left_length, whole);
        }
        counts_[best] = 0;
        list_fresh(first_new, again);
        return symbol;
    }

    void merge_at(std::uint32_t at, std::uint32_t symbol, std::uint32_t left_length, std::uint32_t whole) {
        Position* here = &positions_[at];
        Position* middle = here + left_length;
        const std::uint64_t weight = weights_[here->word];
        const std::uint32_t before = here[-1].symbol, after = here[whole].symbol;
        if (before != none) {
            Position* previous = here - lengths_[before];
            counts_[previous->pair] -= weight;
            previous->pair = pair_before(before, symbol);
            counts_[previous->pair] += weight;
            fresh_.push_back({previous->pair, at - lengths_[before]});
        }
        if (after != none) {
            counts_[middle->pair] -= weight;
            here->pair = pair_after(symbol, after);
            counts_[here->pair] += weight;
            fresh_.push_back({here->pair, at});
        } else {
            here->pair = none;
        }
        middle->pair = none;
        here->symbol = symbol;
        here[whole - 1].symbol = symbol;
    }

    // Sorts the fresh positions into one list for each new pair; each list is in the order of the text, as runs need it.
    void list_fresh(std::uint32_t first_new, bool again) {
        if (again) relist_known(first_new);
        for (const auto& [pair, at] : fresh_) ++pairs_[pair].size;
        std::uint64_t start = arena_.size();
        arena_.resize(start + fresh_.size());
        for (std::uint32_t pair = first_new; pair < pairs_.size(); ++pair) {
            pairs_[pair].places = start;
            start += pairs_[pair].size;
            pairs_[pair].size = 0;
        }
        for (const auto& [pair, at] : fresh_) arena_[pairs_[pair].places + pairs_[pair].size++] = at;
        for (std::uint32_t pair = first_new; pair < pairs_.size(); ++pair) offer(pair);
    }

    // ---- a symbol that came about before -------------------------------------------------------------------------

    void recall_pairs_of(std::uint32_t symbol) {
        for (std::uint32_t pair = 0; pair < pairs_.size(); ++pair) {
            if (pairs_[pair].left == symbol) as_right_[pairs_[pair].right] = step_ << 32 | pair;
            else if (pairs_[pair].right == symbol) as_left_[pairs_[pair].left] = step_ << 32 | pair;
        }
    }

    // Pairs that existed before get longer lists, and counts that may have risen: offered to the heap once more.
    void relist_known(std::uint32_t first_new) {
        std::stable_partition(fresh_.begin(), fresh_.end(), [&](auto& entry) { return entry.first >= first_new; });
        const auto known = std::find_if(fresh_.begin(), fresh_.end(), [&](auto& entry) { return entry.first < first_new; });
        std::vector<std::pair<std::uint32_t, std::uint32_t>> entries(known, fresh_.end());
        fresh_.erase(known, fresh_.end());
        std::sort(entries.begin(), entries.end());
        for (std::size_t from = 0, to = 0; from < entries.size(); from = to) {
            const std::uint32_t number = entries[from].first;
            std::vector<std::uint32_t> places;
            for (std::uint32_t i = 0; i < pairs_[number].size; ++i) places.push_back(arena_[pairs_[number].places + i]);
            for (to = from; to < entries.size() && entries[to].first == number; ++to) places.push_back(entries[to].second);
            std::sort(places.begin(), places.end());
            places.erase(std::unique(places.begin(), places.end()), places.end());
            pairs_[number].places = arena_.size();
            pairs_[number].size = static_cast<std::uint32_t>(places.size());
            arena_.insert(arena_.end(), places.begin(), places.end());
            offer(number);
        }
    }

    TrainRequest request_;
    std::vector<Position> positions_;
    std::vector<std::uint64_t> weights_;  // by word: how often it occurs
    std::vector<Pair> pairs_;
    std::vector<std::uint64_t> counts_;  // by pair
    std::vector<std::uint32_t> arena_;   // lists of positions
    std::vector<std::pair<std::uint32_t, std::uint32_t>> fresh_;  // (pair, position) of this step

    std::vector<std::string> tokens_;
    std::vector<std::uint64_t> prefixes_;  // by symbol: its first eight bytes, to compare without touching the string
    std::vector<std::uint32_t> lengths_;
    std::unordered_map<std::string, std::uint32_t, Hash> first_with_;

    std::vector<std::uint64_t> as_left_, as_right_;  // by neighbour: step, and the pair it forms with the new symbol
    std::uint64_t step_ = 0;

    std::vector<Candidate> heap_;
    std::vector<std::uint32_t> deferred_;  // pairs with counts below the floor
    std::uint64_t heap_floor_ = ~0ull;
};

}  // namespace

TrainResult train(const WordTable& words, const TrainRequest& request, TrainProgress progress, void* context) {
    return Trainer(words, request).run(progress, context);
}

}  // namespace fledge
