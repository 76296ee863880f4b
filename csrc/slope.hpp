// Cross-entropy of rows of logits, with its slope put in their place while a row is in the cache: one pass over memory
// where one operation after the other would take eight.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fledge {

constexpr std::int64_t masked = -100;  // a target that does not count: its row costs nothing and has no slope

// Loss of a row: norm − (1 − smoothing) · logit of the target − smoothing · mean logit + z_loss · norm², where norm is
// the logarithm of the sum of e^logit.
struct Slope {
    std::size_t columns;
    float smoothing, z_loss;
    bool wanted;  // or the loss alone, and the logits stay as they are

    // The sum of the losses, which does not depend on the threads. The targets are below `columns`, or masked.
    double operator()(float* logits, const std::int64_t* targets, std::size_t rows, unsigned threads) const;
    double operator()(std::uint16_t* bfloats, const std::int64_t* targets, std::size_t rows, unsigned threads) const;
};

}  // namespace fledge
