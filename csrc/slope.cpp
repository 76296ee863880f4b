#include "slope.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "lanes.hpp"
#include "parallel.hpp"

namespace fledge {

namespace {

constexpr std::size_t piece = 64;  // rows that a thread takes at a time
constexpr std::size_t worth_a_thread = std::size_t{1} << 17;  // logits

FLEDGE_EACH_PROCESSOR
void read(const float* from, std::size_t count, float* to) { std::copy_n(from, count, to); }

FLEDGE_EACH_PROCESSOR
void read(const std::uint16_t* from, std::size_t count, float* to) {
    for (std::size_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(std::uint32_t{from[i]} << 16U);
}

FLEDGE_EACH_PROCESSOR
void write(const float* from, std::size_t count, float* to) { std::copy_n(from, count, to); }

// To the nearest, and to even where two are as near. What is not a number stays none: its lowest bits alone would not.
FLEDGE_EACH_PROCESSOR
void write(const float* from, std::size_t count, std::uint16_t* to) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(from[i]);
        const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
        to[i] = static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? 0x7FC0U : rounded);
    }
}

// A row's loss; the row, which has room for whole lanes, becomes its slope.
FLEDGE_EACH_PROCESSOR
double turn(const Slope& what, float* row, std::size_t target) {
    const std::size_t count = what.columns, padded = whole_lanes(count);
    const float chosen = row[target], share = 1 - what.smoothing, each = what.smoothing / static_cast<float>(count);
    float mean = 0;
    if (what.smoothing > 0) {
        std::fill(row + count, row + padded, 0.0F);
        Lanes sums = {};
        for (std::size_t i = 0; i < padded; i += lanes) sums += lanes_at(row + i);
        mean = sum_of(sums) / static_cast<float>(count);
    }
    std::fill(row + count, row + padded, -std::numeric_limits<float>::infinity());
    Lanes high = lanes_at(row);
    for (std::size_t i = lanes; i < padded; i += lanes) raise_to(high, lanes_at(row + i));
    float highest = high[0];
    for (std::size_t i = 1; i < lanes; ++i) highest = std::max(highest, high[i]);
    Lanes sums = {};
    for (std::size_t i = 0; i < padded; i += lanes) {
        lanes_at(row + i) -= highest;
        exponentiate(lanes_at(row + i));
        sums += lanes_at(row + i);
    }
    const float mass = sum_of(sums), norm = highest + std::log(mass);
    if (what.wanted) {
        const float factor = (1 + 2 * what.z_loss * norm) / mass;
        for (std::size_t i = 0; i < padded; i += lanes) lanes_at(row + i) = lanes_at(row + i) * factor - each;
        row[target] -= share;
    }
    return static_cast<double>(norm) - share * chosen - what.smoothing * mean + what.z_loss * norm * norm;
}

template <typename Number>
double turn_all(const Slope& what, Number* logits, const std::int64_t* targets, std::size_t rows, unsigned threads) {
    if (rows * what.columns < worth_a_thread) threads = 1;
    const std::size_t pieces = (rows + piece - 1) / piece;
    std::vector<double> losses(pieces);
    run_parallel(pieces, threads, [&] {
        return [&, row = std::vector<float>(whole_lanes(what.columns))](std::size_t number) mutable {
            for (std::size_t at = number * piece; at < std::min(rows, (number + 1) * piece); ++at) {
                Number* place = logits + at * what.columns;
                if (targets[at] == masked) {
                    if (what.wanted) std::fill_n(place, what.columns, Number{});
                    continue;
                }
                read(place, what.columns, row.data());
                losses[number] += turn(what, row.data(), static_cast<std::size_t>(targets[at]));
                if (what.wanted) write(row.data(), what.columns, place);
            }
        };
    });
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
}

}  // namespace

double Slope::operator()(float* logits, const std::int64_t* targets, std::size_t rows, unsigned threads) const {
    return turn_all(*this, logits, targets, rows, threads);
}

double Slope::operator()(std::uint16_t* bfloats, const std::int64_t* targets, std::size_t rows, unsigned threads) const {
    return turn_all(*this, bfloats, targets, rows, threads);
}

}  // namespace fledge
