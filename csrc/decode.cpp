#include "decode.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lanes.hpp"
#include "team.hpp"

namespace fledge {

namespace {

constexpr std::size_t ahead = 4;  // neurons
constexpr std::size_t worth_a_thread = std::size_t{1} << 15;  // weights; below, handing out work costs more than it saves

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

// The weighted sum of some columns of the values, which stays in registers on its way over all keys.
template <std::size_t Blocks>
FLEDGE_INLINE void sum_values(const float* weights, const float* values, std::size_t used, std::size_t size, float sum,
                              float* out) {
    Lanes sums[Blocks] = {};
    for (std::size_t key = 0; key < used; ++key) {
        for (std::size_t i = 0; i < Blocks; ++i) sums[i] += weights[key] * lanes_at(values + key * size + i * lanes);
    }
    for (std::size_t i = 0; i < Blocks; ++i) lanes_at(out + i * lanes) = sums[i] / sum;
}

// Softmax-weighted values of one head; `weights` has room for `used`, in whole lanes.
FLEDGE_EACH_PROCESSOR
void attend_head(const float* query, const float* keys, const float* values, std::size_t used, std::size_t size,
                 float scale, float* weights, float* out) {
    const std::size_t padded = whole_lanes(used);
    for (std::size_t key = 0; key < used; ++key) weights[key] = scale * dot_product(keys + key * size, query, size);
    std::fill(weights + used, weights + padded, -INFINITY);
    const float highest = *std::max_element(weights, weights + used);
    Lanes sums = {};
    for (std::size_t key = 0; key < padded; key += lanes) {
        lanes_at(weights + key) -= highest;
        exponentiate(lanes_at(weights + key));
        sums += lanes_at(weights + key);
    }
    const float sum = sum_of(sums);
    std::size_t column = 0;
    for (; column + 4 * lanes <= size; column += 4 * lanes) sum_values<4>(weights, values + column, used, size, sum, out + column);
    for (; column + lanes <= size; column += lanes) sum_values<1>(weights, values + column, used, size, sum, out + column);
    std::fill(out + column, out + size, 0.0F);
    for (std::size_t key = 0; column < size && key < used; ++key) {
        for (std::size_t i = column; i < size; ++i) out[i] += weights[key] / sum * values[key * size + i];
    }
}

// The neurons of a share that are not silent, found without a branch: which ones they are, no processor guesses.
void find_active(const float* activity, Share share, std::vector<std::size_t>& active) {
    active.resize(share.last - share.first);
    std::size_t count = 0;
    for (std::size_t neuron = share.first; neuron < share.last; ++neuron) {
        active[count] = neuron;
        count += activity[neuron] != 0;
    }
    active.resize(count);
}

// Asks for the vector of the neuron that comes `ahead` places later: where some are left out, the processor cannot guess.
FLEDGE_INLINE void fetch_ahead(const std::vector<std::size_t>& active, std::size_t place, const float* vectors, std::size_t width) {
    if (place + ahead >= active.size()) return;
    const float* vector = vectors + active[place + ahead] * width;
    for (std::size_t i = 0; i < width; i += lanes) prefetch(vector + i);
}

FLEDGE_INLINE void add_scaled(float* sums, float factor, const float* vector, std::size_t width) {
    std::size_t i = 0;
    for (; i + lanes <= width; i += lanes) lanes_at(sums + i) += factor * lanes_at(vector + i);
    for (; i < width; ++i) sums[i] += factor * vector[i];
}

FLEDGE_EACH_PROCESSOR
void read_and_write(const float* keys, const float* x, float* synapses, std::size_t width, float* read,
                    const std::vector<std::size_t>& active) {
    for (std::size_t place = 0; place < active.size(); ++place) {
        fetch_ahead(active, place, synapses, width);
        const float key = keys[active[place]];
        float* vector = synapses + active[place] * width;
        add_scaled(read, key, vector, width);
        add_scaled(vector, key, x, width);
    }
}

FLEDGE_EACH_PROCESSOR
void sum_gated(const GatedSum& what, std::size_t head, const float* gates, const float* x, float* out,
               std::vector<std::size_t>& active, std::vector<float>& factors) {
    const std::size_t width = what.width, first = head * what.neurons * width;
    std::size_t kept = 0;
    for (std::size_t place = 0; place < active.size(); ++place) {
        fetch_ahead(active, place, what.inner + first, width);
        const float found = dot_product(what.inner + first + active[place] * width, x, width);
        factors[kept] = found * gates[active[place]];
        active[kept] = active[place];
        kept += !(found <= 0);  // what is not a number stays
    }
    active.resize(kept);
    for (std::size_t place = 0; place < kept; ++place) {
        fetch_ahead(active, place, what.outer + first, width);
        add_scaled(out, factors[place], what.outer + first + active[place] * width, width);
    }
}

Share share_of(std::size_t count, unsigned part, unsigned parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

// Sums of every part of a team, each vector in whole lines of the cache: what lies across two is slow to add to.
class PartialSums {
  public:
    PartialSums(unsigned parts, std::size_t vectors, std::size_t width)
        : vectors_(vectors), width_(width), lines_(whole_lanes(width) / lanes), sums_(parts * vectors * lines_) {}

    float* vector(unsigned part, std::size_t number) { return sums_[(part * vectors_ + number) * lines_].values; }

    void add_up(float* out) {
        for (std::size_t number = 0; number < vectors_; ++number) {
            std::copy_n(vector(0, number), width_, out + number * width_);
            for (unsigned part = 1; part * vectors_ * lines_ < sums_.size(); ++part) {
                for (std::size_t i = 0; i < width_; ++i) out[number * width_ + i] += vector(part, number)[i];
            }
        }
    }

  private:
    struct alignas(4 * lanes) Line {
        float values[lanes];
    };
    std::size_t vectors_, width_, lines_;
    std::vector<Line> sums_;
};

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
        std::vector<float> weights(whole_lanes(used));
        const Share share = share_of(rows * heads, part, parts);
        for (std::size_t place = share.first; place < share.last; ++place) {
            const std::size_t row = place / heads, head = place % heads;
            const std::size_t key_head = row * key_heads + head / (heads / key_heads);
            attend_head(queries + row * query_stride + head * size, keys + key_head * capacity * size,
                        values + key_head * capacity * size, used, size, scale, weights.data(), out + place * size);
        }
    });
}

void Synapses::operator()(const float* keys, const float* x, float* synapses, float* read, std::size_t rows,
                          unsigned threads) const {
    if (rows * heads * neurons * width < worth_a_thread) threads = 1;
    PartialSums sums(threads, rows * heads, width);
    run_on_team(threads, [&](unsigned part, unsigned parts) {
        std::vector<std::size_t> active;
        for (std::size_t place = 0; place < rows * heads; ++place) {
            find_active(keys + place * neurons, share_of(neurons, part, parts), active);
            read_and_write(keys + place * neurons, x + place / heads * width, synapses + place * neurons * width, width,
                           sums.vector(part, place), active);
        }
    });
    sums.add_up(read);
}

void GatedSum::operator()(const float* gates, const float* x, float* out, std::size_t rows, unsigned threads) const {
    if (rows * heads * neurons * width < worth_a_thread) threads = 1;
    PartialSums sums(threads, rows, width);
    run_on_team(threads, [&](unsigned part, unsigned parts) {
        std::vector<std::size_t> active;
        std::vector<float> factors(neurons);
        for (std::size_t place = 0; place < rows * heads; ++place) {
            find_active(gates + place * neurons, share_of(neurons, part, parts), active);
            sum_gated(*this, place % heads, gates + place * neurons, x + place * width,
                      sums.vector(part, place / heads), active, factors);
        }
    });
    sums.add_up(out);
}

}  // namespace fledge
