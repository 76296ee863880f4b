#include "count.hpp"

#include <algorithm>
#include <atomic>

#include "file_parts.hpp"
#include "parallel.hpp"
#include "scanner.hpp"

namespace fledge {
namespace {

constexpr std::size_t part_size = std::size_t{1} << 20;
constexpr std::uint64_t bytes_per_thread = std::uint64_t{16} << 20;
constexpr unsigned parts_between_looks = 16;  // some tens of milliseconds

Specials with_numbers(const std::vector<std::string>& texts) {
    std::vector<std::pair<std::string, std::uint32_t>> tokens;
    for (const std::string& text : texts) tokens.emplace_back(text, static_cast<std::uint32_t>(tokens.size()));
    return Specials(std::move(tokens));
}

// In rounds of a few words: first their places in the table are asked for, then they are counted.
void count_batch(const Batch& batch, WordTable& table) {
    constexpr std::size_t round = 32;
    Key keys[round];
    std::uint64_t hashes[round];
    const Secret own = secret;
    for (std::size_t first = 0; first < batch.count; first += round) {
        const std::size_t last = std::min(first + round, batch.count), roomy = std::min(last, batch.roomy);
        for (std::size_t i = first; i < roomy; ++i) {
            const std::size_t length = batch.starts[i + 1] - batch.starts[i];
            keys[i - first] = make_key(batch.base + batch.starts[i], std::min(length, short_length));
            hashes[i - first] = hash_key(keys[i - first], own);
            table.prefetch(hashes[i - first]);
        }
        for (std::size_t i = first; i < last; ++i) {
            const std::size_t length = batch.starts[i + 1] - batch.starts[i];
            if (i < roomy && length <= short_length) {
                table.add_short(keys[i - first], hashes[i - first], 1);
            } else {
                table.add(batch.base + batch.starts[i], length, 1);
            }
        }
    }
}

}  // namespace

PretokenCounter::PretokenCounter(Pattern pattern, const std::vector<std::string>& specials, unsigned threads)
    : pattern_(pattern), specials_(with_numbers(specials)), threads_(threads), tables_(threads) {}

// Each thread fills a table of its own, with much the same words, that is added up in the end. For less text than this
// it costs more than it saves.
unsigned PretokenCounter::useful_threads() const {
    return static_cast<unsigned>(std::clamp<std::uint64_t>(source_bytes_ / bytes_per_thread, 1, std::max(threads_, 1u)));
}

void PretokenCounter::count_part(const Byte* text, const Byte* end, WordTable& table) const {
    while (text < end) {
        const Specials::Match special = specials_.find(text, end);
        with_scanner(pattern_, text, special.at, [&](auto& scanner) {
            Batch batch;
            while (scanner.next(batch)) count_batch(batch, table);
        });
        text = special.at + special.length;
    }
}

void PretokenCounter::add_text(std::span<const Byte> text) {
    source_bytes_ += text.size();
    const auto bounds = cut_into_parts(text.data(), text.data() + text.size(), part_size, specials_);
    std::atomic<unsigned> worker{0};
    run_parallel(bounds.size() - 1, useful_threads(), [&] {
        return [&, &table = tables_[worker++]](std::size_t i) { count_part(bounds[i], bounds[i + 1], table); };
    });
}

void PretokenCounter::add_spans(std::span<const Byte> buffer, std::span<const std::uint64_t> bounds) {
    const std::size_t spans = bounds.size() - 1;
    std::vector<std::size_t> groups{0};
    for (std::size_t i = 1; i <= spans; ++i) {
        if (i == spans || bounds[i] - bounds[groups.back()] >= part_size) groups.push_back(i);
    }
    source_bytes_ += bounds[spans] - bounds[0];
    std::atomic<unsigned> worker{0};
    run_parallel(groups.size() - 1, useful_threads(), [&] {
        return [&, &table = tables_[worker++]](std::size_t group) {
            for (std::size_t i = groups[group]; i < groups[group + 1]; ++i) {
                count_part(buffer.data() + bounds[i], buffer.data() + bounds[i + 1], table);
            }
        };
    });
}

void PretokenCounter::add_file(const std::string& path, const std::function<void()>& look_up) {
    FileParts parts(path, part_size, specials_);
    source_bytes_ += parts.size();
    std::atomic<unsigned> worker{0};
    const auto caller = std::this_thread::get_id();
    const auto count_all = [&](WordTable& table) {
        const bool looks = look_up && std::this_thread::get_id() == caller;
        std::vector<Byte> room;
        unsigned done = 0;
        for (auto part = parts.next(room); !part.empty(); part = parts.next(room)) {
            count_part(part.data(), part.data() + part.size(), table);
            if (looks && ++done % parts_between_looks == 0) look_up();
        }
    };
    run_parallel(useful_threads(), useful_threads(), [&] {
        return [&, &table = tables_[worker++]](std::size_t) {
            try {
                count_all(table);
            } catch (...) {
                parts.stop();
                throw;
            }
        };
    });
    parts.require_unchanged();
}

const WordTable& PretokenCounter::total() {
    for (std::size_t i = 1; i < tables_.size(); ++i) {
        tables_[0].add_all(tables_[i]);
        tables_[i].clear();
    }
    return tables_[0];
}

std::size_t PretokenCounter::last_cut(std::span<const Byte> text) const {
    const Byte* start = text.data();
    return static_cast<std::size_t>(fledge::last_cut(start, start + text.size(), specials_) - start);
}

}  // namespace fledge
