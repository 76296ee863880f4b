#include "decode.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "team.hpp"

// The compiler makes versions of a function for processors with wider vectors; the loader chooses one.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FLEDGE_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FLEDGE_EACH_PROCESSOR
#endif
#define FLEDGE_INLINE inline __attribute__((always_inline))

namespace fledge {

namespace {

constexpr std::size_t lanes = 16;
constexpr std::size_t worth_a_thread = std::size_t{1} << 15;  // weights; below, handing out work costs more than it saves
typedef float Lanes __attribute__((vector_size(4 * lanes), aligned(4)));

FLEDGE_INLINE const Lanes& lanes_at(const float* place) { return *reinterpret_cast<const Lanes*>(place); }

FLEDGE_INLINE float sum_of(const Lanes& values) {
    float sum = 0;
    for (std::size_t i = 0; i < lanes; ++i) sum += values[i];
    return sum;
}

// One dot product, in four sums so that additions need not wait for one another.
FLEDGE_INLINE float dot_product(const float* weight, const float* x, std::size_t count) {
    Lanes parts[4] = {};
    std::size_t i = 0;
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
        for (std::size_t part = 0; part < 4; ++part) {
            parts[part] += lanes_at(weight + i + part * lanes) * lanes_at(x + i + part * lanes);
        }
    }
    for (; i + lanes <= count; i += lanes) parts[0] += lanes_at(weight + i) * lanes_at(x + i);
    float sum = sum_of((parts[0] + parts[1]) + (parts[2] + parts[3]));
    for (; i < count; ++i) sum += weight[i] * x[i];
    return sum;
}

// The dot products of some outputs with some rows: each value that was read serves several of them.
template <std::size_t Outputs, std::size_t Rows>
FLEDGE_INLINE void dot_products(const float* weight, const float* x, std::size_t inputs, float (&sums)[Outputs][Rows]) {
    Lanes parts[Outputs][Rows] = {};
    std::size_t i = 0;
    for (; i + lanes <= inputs; i += lanes) {
        for (std::size_t row = 0; row < Rows; ++row) {
            for (std::size_t output = 0; output < Outputs; ++output) {
                parts[output][row] += lanes_at(weight + output * inputs + i) * lanes_at(x + row * inputs + i);
            }
        }
    }
    for (std::size_t output = 0; output < Outputs; ++output) {
        for (std::size_t row = 0; row < Rows; ++row) {
            float sum = sum_of(parts[output][row]);
            for (std::size_t rest = i; rest < inputs; ++rest) sum += weight[output * inputs + rest] * x[row * inputs + rest];
            sums[output][row] = sum;
        }
    }
}

struct Share {
    std::size_t first, last;
};

// Where a product's sums go, with what is added to them.
struct Target {
    const Product& product;
    const float* residual;
    float* out;

    void put(std::size_t row, std::size_t output, float sum) const {
        const std::size_t place = row * product.outputs + output;
        out[place] = sum + (product.bias ? product.bias[output] : 0) + (residual ? residual[place] : 0);
    }
};

template <std::size_t Outputs, std::size_t Rows>
FLEDGE_INLINE void multiply_block(const Target& target, const float* x, std::size_t row, std::size_t output) {
    const Product& product = target.product;
    float sums[Outputs][Rows];
    dot_products(product.weight + output * product.inputs, x + row * product.inputs, product.inputs, sums);
    for (std::size_t i = 0; i < Outputs; ++i) {
        for (std::size_t j = 0; j < Rows; ++j) target.put(row + j, output + i, sums[i][j]);
    }
}

template <std::size_t Outputs>
FLEDGE_INLINE void multiply_rows(const Target& target, const float* x, std::size_t rows, std::size_t output) {
    std::size_t row = 0;
    for (; row + 4 <= rows; row += 4) multiply_block<Outputs, 4>(target, x, row, output);
    for (; row + 2 <= rows; row += 2) multiply_block<Outputs, 2>(target, x, row, output);
    for (; row < rows; ++row) multiply_block<Outputs, 1>(target, x, row, output);
}

FLEDGE_EACH_PROCESSOR
void multiply(const Target& target, const float* x, std::size_t rows, Share share) {
    const Product& product = target.product;
    std::size_t output = share.first;
    if (rows > 1) {
        for (; output + 4 <= share.last; output += 4) multiply_rows<4>(target, x, rows, output);
        for (; output < share.last; ++output) multiply_rows<1>(target, x, rows, output);
    }
    for (; output < share.last; ++output) {
        target.put(0, output, dot_product(product.weight + output * product.inputs, x, product.inputs));
    }
}

// Softmax-weighted values of one head; `weights` has room for `used`.
FLEDGE_EACH_PROCESSOR
void attend_head(const float* query, const float* keys, const float* values, std::size_t used, std::size_t size,
                 float scale, float* weights, float* out) {
    float highest = -INFINITY;
    for (std::size_t key = 0; key < used; ++key) {
        weights[key] = scale * dot_product(keys + key * size, query, size);
        highest = std::max(highest, weights[key]);
    }
    float sum = 0;
    for (std::size_t key = 0; key < used; ++key) sum += weights[key] = std::exp(weights[key] - highest);
    std::fill_n(out, size, 0.0F);
    for (std::size_t key = 0; key < used; ++key) {
        for (std::size_t i = 0; i < size; ++i) out[i] += weights[key] * values[key * size + i];
    }
    for (std::size_t i = 0; i < size; ++i) out[i] /= sum;
}

Share share_of(std::size_t count, unsigned part, unsigned parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

}  // namespace

void Product::operator()(const float* x, const float* residual, float* out, std::size_t rows, unsigned threads) const {
    if (outputs * inputs < worth_a_thread) threads = 1;
    run_on_team(threads, [&](unsigned part, unsigned parts) {
        multiply({*this, residual, out}, x, rows, share_of(outputs, part, parts));
    });
}

void Attention::operator()(const float* queries, std::size_t query_stride, const float* keys, const float* values,
                           std::size_t used, float* out, std::size_t rows, unsigned threads) const {
    if (rows * heads * used * size < worth_a_thread) threads = 1;
    run_on_team(threads, [&](unsigned part, unsigned parts) {
        std::vector<float> weights(used);
        const Share share = share_of(rows * heads, part, parts);
        for (std::size_t place = share.first; place < share.last; ++place) {
            const std::size_t row = place / heads, head = place % heads;
            const std::size_t key_head = row * key_heads + head / (heads / key_heads);
            attend_head(queries + row * query_stride + head * size, keys + key_head * capacity * size,
                        values + key_head * capacity * size, used, size, scale, weights.data(), out + place * size);
        }
    });
}

}  // namespace fledge
