// The operations of decoding that wait for memory, for a few rows at a time: matrix times vector, attention of one query
// over the keys so far, and the two of BDH over its neurons. Everything passes through the processor once, in the order
// in which it lies, and of what silent neurons would read nothing does.
#pragma once

#include <cstddef>

namespace fledge {

constexpr std::size_t most_rows = 8;  // beyond, a general matrix product is better

// out[b] = weight · x[b] (+ bias) (+ residual[b]) for up to `most_rows` rows b; weight has `outputs` rows of `inputs`.
struct Product {
    const float* weight;
    const float* bias;  // or null
    std::size_t outputs, inputs;

    void operator()(const float* x, const float* residual, float* out, std::size_t rows, unsigned threads) const;
};

// One query per row and head over `used` keys. Keys and values are [rows][key_heads][capacity][size], of which
// neighbouring query heads share one; queries and out are [rows][heads][size], queries `query_stride` apart by row.
struct Attention {
    std::size_t heads, key_heads, size, capacity;
    float scale;

    void operator()(const float* queries, std::size_t query_stride, const float* keys, const float* values,
                    std::size_t used, float* out, std::size_t rows, unsigned threads) const;
};

// BDH's linear attention: what each head reads of its synapses, which then learn the token at hand.
// read[b][h] = Σₙ keys[b][h][n] · synapses[b][h][n], and after it synapses[b][h][n] += keys[b][h][n] · x[b].
struct Synapses {
    std::size_t heads, neurons, width;

    void operator()(const float* keys, const float* x, float* synapses, float* read, std::size_t rows,
                    unsigned threads) const;
};

// BDH's feed-forward: out[b] = Σₕₙ gates[b][h][n] · max(0, inner[h][n] · x[b][h]) · outer[h][n].
struct GatedSum {
    const float* inner;
    const float* outer;
    std::size_t heads, neurons, width;

    void operator()(const float* gates, const float* x, float* out, std::size_t rows, unsigned threads) const;
};

}  // namespace fledge
