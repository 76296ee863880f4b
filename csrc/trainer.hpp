// Learns the merges of byte-pair encoding from counted words, exactly: the pair with the highest count wins, a tie goes
// to the greater pair of byte strings.
//
// Why it is fast: no hash map is touched while merging. All words lie one after the other in one flat array; every
// position knows the number of the pair that starts there, so a neighbour's count is corrected by an index. A pair of
// two symbols can only come into being in the step that creates the newer of the two, so two small tables, indexed by
// the neighbour and emptied at each step, are enough to number new pairs. Counts of known pairs only fall, so a heap of
// possibly outdated counts, checked when popped, finds the best; pairs too rare to win soon wait outside the heap.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "counter.hpp"

namespace fledge {

struct TrainedMerge {
    std::uint32_t left, right, result;  // 0..255 are the bytes; merge i creates symbol 256 + i
    std::uint64_t count;
};

struct TrainRequest {
    std::uint64_t merges;         // how many are wanted
    std::uint64_t min_frequency;  // stop when the best pair occurs less often
};

// `progress` is called when all pairs are counted, with 0, and now and then with the number of merges so far; what it
// returns says whether to go on.
using TrainProgress = bool (*)(void* context, std::uint64_t merges);

struct TrainResult {
    std::vector<TrainedMerge> merges;
    std::vector<std::string> tokens;  // the bytes of every symbol, the first 256 included
};

TrainResult train(const WordTable& words, const TrainRequest& request, TrainProgress progress, void* context);

}  // namespace fledge
