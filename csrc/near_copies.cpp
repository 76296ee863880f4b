#include "near_copies.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "parallel.hpp"
#include "platform.hpp"

namespace fledge {
namespace {

constexpr std::uint64_t roll = 0x9E3779B97F4A7C15ull;
constexpr std::size_t part_bytes = std::size_t{1} << 18;
constexpr std::size_t compared = 64;  // members of one bucket that are all compared with each other
constexpr std::uint8_t patience = 32;  // comparisons in larger buckets for one document, over all bands: lines of one
                                        // form, which are a little less alike than the threshold, meet in every band

std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

// What a byte is to a word: 0 for what stands between words, else the byte in lower case. Bytes beyond ASCII belong to
// words; punctuation and signs among them, and scripts without blanks, are seen by their first byte.
constexpr std::array<Byte, 256> make_letters() {
    std::array<Byte, 256> letters{};
    for (int byte = 0; byte < 256; ++byte) {
        const bool upper = byte >= 'A' && byte <= 'Z';
        const bool kept = upper || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte >= 0x80;
        letters[static_cast<std::size_t>(byte)] = static_cast<Byte>(kept ? (upper ? byte + 32 : byte) : 0);
    }
    return letters;
}
constexpr std::array<Byte, 256> letters = make_letters();

std::size_t width_of(Byte lead) { return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2; }

FLEDGE_EACH_PROCESSOR void lower(const std::uint32_t* hashes, std::size_t count, const std::uint32_t* factors,
                                 const std::uint32_t* shifts, std::uint32_t* minima) {
    constexpr std::size_t tile = 32;
    for (std::size_t first = 0; first < NearCopies::minima; first += tile) {
        std::uint32_t least[tile], factor[tile], shift[tile];
        for (std::size_t i = 0; i < tile; ++i) {
            least[i] = minima[first + i];
            factor[i] = factors[first + i];
            shift[i] = shifts[first + i];
        }
        for (std::size_t place = 0; place < count; ++place) {
            const std::uint32_t hash = hashes[place];
            for (std::size_t i = 0; i < tile; ++i) least[i] = std::min(least[i], hash * factor[i] + shift[i]);
        }
        for (std::size_t i = 0; i < tile; ++i) minima[first + i] = least[i];
    }
}

// As few bands as find nearly all pairs at the threshold: then few pairs far below it become candidates.
unsigned rows_for(double threshold) {
    unsigned rows = 1;
    for (unsigned tried = 2; tried <= 16; ++tried) {
        const double bands = static_cast<double>(NearCopies::minima / tried);
        if (1 - std::pow(1 - std::pow(threshold, tried), bands) >= 0.985) rows = tried;
    }
    return rows;
}

struct Groups {
    std::vector<std::uint32_t> parent;

    explicit Groups(std::vector<std::uint32_t> start) : parent(std::move(start)) {}
    std::uint32_t root(std::uint32_t i) {
        while (parent[i] != i) i = parent[i] = parent[parent[i]];
        return i;
    }
    void join(std::uint32_t left, std::uint32_t right) {
        left = root(left), right = root(right);
        parent[std::max(left, right)] = std::min(left, right);
    }
};

using Pair = std::pair<std::uint32_t, std::uint32_t>;

}  // namespace

ScratchFile::ScratchFile() {
    std::string place;
    file_ = open_scratch(place);
    if (file_ < 0) throw FileError(errno, place);
}

std::uint64_t ScratchFile::append(const void* data, std::size_t bytes) {
    const std::uint64_t place = size_;
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const std::ptrdiff_t done = write_at(file_, at, bytes, size_);
        if (done <= 0) throw FileError(done < 0 ? errno : ENOSPC, "the temporary folder");
        at += done;
        bytes -= static_cast<std::size_t>(done);
        size_ += static_cast<std::uint64_t>(done);
    }
    return place;
}

void ScratchFile::read(std::uint64_t place, void* data, std::size_t bytes) const {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        const std::ptrdiff_t done = read_at(file_, at, bytes, place);
        if (done <= 0) throw FileError(done < 0 ? errno : EIO, "the temporary folder");
        at += done;
        bytes -= static_cast<std::size_t>(done);
        place += static_cast<std::uint64_t>(done);
    }
}

Hash128 siphash(std::span<const Byte> text, std::uint64_t key_low, std::uint64_t key_high) {
    std::uint64_t v0 = key_low ^ 0x736f6d6570736575ull, v1 = key_high ^ 0x646f72616e646f6dull ^ 0xee;
    std::uint64_t v2 = key_low ^ 0x6c7967656e657261ull, v3 = key_high ^ 0x7465646279746573ull;
    const auto turn = [&](int times) {
        for (int i = 0; i < times; ++i) {
            v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
            v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
            v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
            v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
        }
    };
    const std::size_t whole = text.size() / 8 * 8;
    for (std::size_t i = 0; i < whole; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, text.data() + i, 8);
        v3 ^= word;
        turn(2);
        v0 ^= word;
    }
    std::uint64_t last = static_cast<std::uint64_t>(text.size()) << 56;
    for (std::size_t i = whole; i < text.size(); ++i) last |= static_cast<std::uint64_t>(text[i]) << 8 * (i - whole);
    v3 ^= last;
    turn(2);
    v0 ^= last;
    v2 ^= 0xee;
    turn(4);
    const std::uint64_t low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    turn(4);
    return {low, v0 ^ v1 ^ v2 ^ v3};
}

struct NearCopies::Work {
    std::array<std::uint64_t, most_words> recent;
    std::array<std::uint32_t, NearCopies::minima> minima;
    std::vector<std::uint32_t> hashes, smallest;

    // The smallest distinct hashes of all that were given.
    void keep_smallest() {
        std::sort(smallest.begin(), smallest.end());
        smallest.erase(std::unique(smallest.begin(), smallest.end()), smallest.end());
        if (smallest.size() > sketch_size) smallest.resize(sketch_size);
    }
};

NearCopies::NearCopies(double threshold, unsigned words, unsigned threads, Hash128 key)
    : threshold_(threshold), words_(words), threads_(threads), key_(key) {
    if (!(threshold > 0 && threshold <= 1)) throw std::invalid_argument("the threshold lies between 0 and 1");
    if (words < 1 || words > most_words) throw std::invalid_argument("a shingle has 1 to 64 words");
    rows_ = rows_for(threshold);
    bands_ = static_cast<unsigned>(minima) / rows_;
    for (std::size_t i = 0; i < minima; ++i) {  // the same in every process, so that groups are, too
        factors_[i] = static_cast<std::uint32_t>(mixed(2 * i + 1) >> 32) | 1;
        shifts_[i] = static_cast<std::uint32_t>(mixed(2 * i + 2) >> 32);
    }
}

// The hashes of all shingles of a document; one that is shorter than a shingle is one shingle of all its words.
void NearCopies::shingle(std::span<const Byte> text, Work& work) const {
    work.hashes.clear();
    std::uint64_t power = 1, sum = 0, word = 0;
    for (unsigned i = 0; i < words_; ++i) power *= roll;
    std::size_t count = 0, slot = 0;
    const auto end_word = [&] {
        word = mixed(word);
        sum = sum * roll + word;
        if (count >= words_) sum -= work.recent[slot] * power;
        work.recent[slot] = word;
        slot = slot + 1 == words_ ? 0 : slot + 1;
        word = 0;
        if (++count >= words_) work.hashes.push_back(static_cast<std::uint32_t>(mixed(sum) >> 32));
    };
    for (std::size_t i = 0; i < text.size();) {
        const Byte letter = letters[text[i]];
        if (letter < 0xC2 || (letter > 0xC2 && letter < 0xE2)) {
            if (letter != 0) {
                word = (word ^ letter) * 0x100000001B3ull + 1;
            } else if (word != 0) {
                end_word();
            }
            ++i;
            continue;
        }
        const std::size_t width = std::min(width_of(letter), text.size() - i);
        if (word != 0) end_word();
        if (letter > 0xE2) {  // ideographs and the like: each is a word
            for (std::size_t j = 0; j < width; ++j) word = (word ^ text[i + j]) * 0x100000001B3ull + 1;
            end_word();
        }
        i += width;
    }
    if (word != 0) end_word();
    if (work.hashes.empty()) {
        const std::uint64_t whole = count > 0 ? sum : siphash(text, 0, 0).low;
        work.hashes.push_back(static_cast<std::uint32_t>(mixed(whole) >> 32));
    }
}

void NearCopies::describe(std::span<const Byte> text, Work& work, Document& document, std::uint32_t* bands) const {
    shingle(text, work);
    work.minima.fill(~0u);
    lower(work.hashes.data(), work.hashes.size(), factors_.data(), shifts_.data(), work.minima.data());
    for (unsigned band = 0; band < bands_; ++band) {
        std::uint64_t hash = band;
        for (unsigned row = 0; row < rows_; ++row) hash = mixed(hash + roll) ^ work.minima[band * rows_ + row];
        bands[band] = static_cast<std::uint32_t>(mixed(hash) >> 32);
    }
    work.smallest.clear();
    std::uint32_t limit = ~0u;
    for (const std::uint32_t hash : work.hashes) {
        if (hash > limit) continue;
        work.smallest.push_back(hash);
        if (work.smallest.size() >= 8 * sketch_size) {
            work.keep_smallest();
            if (work.smallest.size() == sketch_size) limit = work.smallest.back();
        }
    }
    work.keep_smallest();
    document.hash = siphash(text, key_.low, key_.high);
    document.kept = static_cast<std::uint32_t>(work.smallest.size());
    // Of more shingles than the sketch holds, their number follows from how close the smallest lie.
    document.shingles = document.kept;
    if (document.kept == sketch_size) {
        const double distinct = (sketch_size - 1) / ((work.smallest.back() + 1.0) / 4294967296.0);
        document.shingles = static_cast<std::uint32_t>(std::min(distinct, 4e9));
    }
}

void NearCopies::add(std::span<const Byte> text, std::span<const std::int64_t> starts,
                     std::span<const std::int64_t> ends) {
    if (starts.size() != ends.size()) throw std::invalid_argument("as many starts as ends");
    for (std::size_t i = 0; i < starts.size(); ++i) {
        if (starts[i] < 0 || starts[i] > ends[i] || static_cast<std::uint64_t>(ends[i]) > text.size()) {
            throw std::invalid_argument("a document lies outside the text");
        }
    }
    if (documents_.size() + starts.size() >= ~0u) throw std::length_error("more than four billion documents");
    std::vector<std::size_t> parts{0};
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < starts.size(); ++i) {
        bytes += static_cast<std::size_t>(ends[i] - starts[i]) + 64;
        if (bytes >= part_bytes || i + 1 == starts.size()) parts.push_back(i + 1), bytes = 0;
    }
    const std::size_t before = documents_.size();
    documents_.resize(before + starts.size());
    band_hashes_.resize((before + starts.size()) * bands_);
    std::vector<std::vector<std::uint32_t>> sketches(parts.size() - 1);
    try {
        run_parallel(parts.size() - 1, threads_, [&] {
            return [&, work = Work{}](std::size_t part) mutable {
                for (std::size_t i = parts[part]; i < parts[part + 1]; ++i) {
                    const auto start = static_cast<std::size_t>(starts[i]);
                    const auto document = text.subspan(start, static_cast<std::size_t>(ends[i]) - start);
                    describe(document, work, documents_[before + i], band_hashes_.data() + (before + i) * bands_);
                    documents_[before + i].sketch = sketches[part].size();
                    sketches[part].insert(sketches[part].end(), work.smallest.begin(), work.smallest.end());
                }
            };
        });
        for (std::size_t part = 0; part + 1 < parts.size(); ++part) {
            const std::uint64_t place = sketches_.append(sketches[part].data(), 4 * sketches[part].size());
            for (std::size_t i = parts[part]; i < parts[part + 1]; ++i) {
                documents_[before + i].sketch = place + 4 * documents_[before + i].sketch;
            }
        }
    } catch (...) {
        documents_.resize(before);
        band_hashes_.resize(before * bands_);
        throw;
    }
}

std::vector<std::uint32_t> NearCopies::exact() const {
    std::vector<std::uint32_t> order(documents_.size()), first(documents_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](std::uint32_t left, std::uint32_t right) {
        const auto found = documents_[left].hash <=> documents_[right].hash;
        return found != 0 ? found < 0 : left < right;
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
        const bool copy = i > 0 && documents_[order[i]].hash == documents_[order[i - 1]].hash;
        first[order[i]] = copy ? first[order[i - 1]] : order[i];
    }
    return first;
}

std::size_t NearCopies::load(std::size_t document, std::uint32_t* sketch) const {
    const Document& found = documents_[document];
    sketches_.read(found.sketch, sketch, 4 * std::size_t{found.kept});
    return found.kept;
}

double NearCopies::similarity(std::size_t left, std::size_t right) const {
    if (left >= size() || right >= size()) throw std::invalid_argument("there is no such document");
    std::uint32_t one[sketch_size], other[sketch_size];
    const std::size_t ones = load(left, one), others = load(right, other);
    std::size_t i = 0, j = 0, both = 0, all = 0;
    while ((i < ones || j < others) && all < sketch_size) {  // a full sketch says nothing of hashes beyond its end
        if (j == others || (i < ones && one[i] < other[j])) {
            ++i;
        } else if (i == ones || other[j] < one[i]) {
            ++j;
        } else {
            ++i, ++j, ++both;
        }
        ++all;
    }
    return static_cast<double>(both) / static_cast<double>(all);
}

std::vector<std::uint32_t> NearCopies::groups() const {
    Groups groups(exact());
    std::vector<std::uint32_t> leaders;
    for (std::uint32_t i = 0; i < size(); ++i) {
        if (groups.parent[i] == i) leaders.push_back(i);
    }
    std::vector<std::uint64_t> entries(leaders.size()), sorted(leaders.size());
    std::vector<Pair> pairs;
    std::vector<Byte> same;
    std::vector<std::uint8_t> tries(size());
    const auto decide = [&] {
        same.assign(pairs.size(), 0);
        constexpr std::size_t step = 256;
        run_parallel((pairs.size() + step - 1) / step, threads_, [&] {
            return [&](std::size_t part) {
                for (std::size_t i = part * step; i < std::min(pairs.size(), (part + 1) * step); ++i) {
                    const auto [left, right] = pairs[i];
                    const double a = documents_[left].shingles, b = documents_[right].shingles;
                    // Sizes this far apart decide alone; those of long documents are estimates, hence the margin.
                    if (std::min(a, b) < 0.8 * threshold_ * std::max(a, b)) continue;
                    same[i] = similarity(left, right) >= threshold_;
                }
            };
        });
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (same[i]) groups.join(pairs[i].first, pairs[i].second);
        }
        pairs.clear();
    };
    const auto propose = [&](std::uint32_t left, std::uint32_t right) {
        if (groups.root(left) != groups.root(right)) pairs.emplace_back(left, right);
    };
    for (unsigned band = 0; band < bands_; ++band) {
        for (std::size_t i = 0; i < leaders.size(); ++i) {
            entries[i] = std::uint64_t{band_hashes_[std::size_t{leaders[i]} * bands_ + band]} << 32 | leaders[i];
        }
        for (unsigned shift = 32; shift < 64; shift += 11) {  // by the hash; the order of documents stays within it
            std::array<std::size_t, 2049> places{};
            for (const std::uint64_t entry : entries) ++places[(entry >> shift & 2047) + 1];
            std::partial_sum(places.begin(), places.end(), places.begin());
            for (const std::uint64_t entry : entries) sorted[places[entry >> shift & 2047]++] = entry;
            entries.swap(sorted);
        }
        std::vector<std::pair<std::size_t, std::size_t>> crowds;
        for (std::size_t i = 0, end; i < entries.size(); i = end) {
            for (end = i + 1; end < entries.size() && entries[end] >> 32 == entries[i] >> 32;) ++end;
            const auto member = [&](std::size_t place) { return static_cast<std::uint32_t>(entries[place]); };
            if (end - i > compared) {  // first each with its neighbours; what is still apart is looked at again
                crowds.emplace_back(i, end);
                for (std::size_t j = i + 1; j < end; ++j) {
                    if (tries[member(j)] >= patience) continue;
                    tries[member(j)] += 2;
                    propose(member(i), member(j));
                    propose(member(j - 1), member(j));
                }
            } else {
                for (std::size_t j = i; j < end; ++j) {
                    for (std::size_t k = j + 1; k < end; ++k) propose(member(j), member(k));
                }
            }
            if (pairs.size() > std::size_t{1} << 20) decide();
        }
        decide();
        for (const auto& [first, end] : crowds) {
            std::vector<std::uint32_t> apart;
            for (std::size_t i = first; i < end; ++i) {
                const auto document = static_cast<std::uint32_t>(entries[i]);
                if (tries[document] >= patience) continue;
                const std::uint32_t root = groups.root(document);
                const bool known = std::any_of(apart.begin(), apart.end(), [&](auto one) { return groups.root(one) == root; });
                if (known) continue;
                tries[document] = static_cast<std::uint8_t>(std::min<std::size_t>(patience, tries[document] + apart.size()));
                for (const std::uint32_t one : apart) propose(one, document);
                if (apart.size() < patience / 2) apart.push_back(document);
                if (pairs.size() > std::size_t{1} << 20) decide();
            }
        }
        decide();
    }
    for (std::uint32_t i = 0; i < size(); ++i) groups.parent[i] = groups.root(i);
    return groups.parent;
}

}  // namespace fledge
