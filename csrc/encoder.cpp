#include "encoder.hpp"

#include <array>

#include "cuts.hpp"
#include "ordered.hpp"
#include "parallel.hpp"

namespace fledge {
namespace {

constexpr std::size_t part_size = std::size_t{1} << 20;
constexpr std::size_t generous_size = std::size_t{256} << 20;
constexpr std::size_t parts_at_once = generous_size / part_size;
constexpr std::size_t longest_kept = 1 << 10;  // pre-tokens that are longer hardly come twice
constexpr std::size_t most_ids_kept = 1 << 20;  // the room that a longer one took is given back

std::array<std::uint32_t, 256> byte_ids(const Tokens& tokens) {
    std::array<std::uint32_t, 256> ids;
    ids.fill(Merges::none);
    for (const auto& [bytes, id] : tokens) {
        if (bytes.size() == 1 && ids[static_cast<Byte>(bytes[0])] == Merges::none) ids[static_cast<Byte>(bytes[0])] = id;
    }
    return ids;
}

}  // namespace

template <typename Id>
class Encoder<Id>::Lease {
public:
    explicit Lease(Encoder& encoder) : encoder_(encoder) {
        {
            const std::lock_guard guard(encoder.lock_);
            if (!encoder.idle_caches_.empty()) {
                cache_ = std::move(encoder.idle_caches_.back());
                encoder.idle_caches_.pop_back();
            }
        }
        if (!cache_) cache_ = encoder.new_cache();
    }
    ~Lease() {
        const std::lock_guard guard(encoder_.lock_);
        encoder_.idle_caches_.push_back(std::move(cache_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    WordCache<Id>& cache() { return *cache_; }

private:
    Encoder& encoder_;
    std::unique_ptr<WordCache<Id>> cache_;
};

template <typename Id>
Encoder<Id>::Encoder(EncoderSettings settings)
    : pattern_(settings.pattern),
      merges_(byte_ids(settings.tokens), settings.merges),
      specials_(settings.specials),
      always_(settings.always) {
    // The tokens themselves are the most frequent pre-tokens: those that the merges of their bytes lead to are entered
    // into every table before it sees any text.
    std::vector<std::uint32_t> ids;
    for (const auto& [bytes, id] : settings.tokens) {
        const auto* word = reinterpret_cast<const Byte*>(bytes.data());
        const bool is_short = bytes.size() <= short_length;
        if (bytes.empty() || !(is_short || settings.whole_words) || !merges_.knows_bytes_of(word, bytes.size())) continue;
        ids.resize(bytes.size());
        const bool leads_here = merges_.apply(word, bytes.size(), ids.data()) == 1 && ids[0] == id;
        if (leads_here && is_short) seeds_.emplace_back(make_key_at_end(word, bytes.size()), id);
        if (!leads_here && settings.whole_words) unmerged_.emplace(bytes, id);
    }
    idle_caches_.push_back(new_cache());
}

template <typename Id>
std::unique_ptr<WordCache<Id>> Encoder<Id>::new_cache() const {
    auto cache = std::make_unique<WordCache<Id>>(seeds_.size());
    seed(*cache);
    return cache;
}

template <typename Id>
void Encoder<Id>::seed(WordCache<Id>& cache) const {
    for (const auto& [key, id] : seeds_) cache.insert(key, hash_key(key), &id, 1);
}

template <typename Id>
void Encoder<Id>::learn(const Byte* word, std::size_t length, Key key, std::uint64_t hash, WordCache<Id>& cache,
                        Buffer<Id>& out) const {
    thread_local std::vector<std::uint32_t> ids;
    if (ids.size() < length) ids.resize(length);
    cache.prefetch_admission(hash);
    const auto whole = unmerged_.empty() ? unmerged_.end() : unmerged_.find({reinterpret_cast<const char*>(word), length});
    const std::size_t count = whole == unmerged_.end() ? merges_.apply(word, length, ids.data()) : 1;
    if (whole != unmerged_.end()) ids[0] = whole->second;
    out.append(ids.data(), count);
    if (length > most_ids_kept) std::vector<std::uint32_t>().swap(ids);
    if (length > longest_kept || !cache.admits(hash)) return;
    if (cache.make_room()) seed(cache);
    if (length <= short_length) {
        cache.insert(key, hash, ids.data(), count);
    } else {
        cache.insert_long(word, length, hash, ids.data(), count);
    }
}

template <typename Id>
void Encoder<Id>::encode_word(const Byte* word, std::size_t length, WordCache<Id>& cache, Buffer<Id>& out) const {
    const bool is_short = length <= short_length;
    const Key key = is_short ? make_key_at_end(word, length) : Key{};
    encode_word(word, length, key, is_short ? hash_key(key) : hash_bytes(word, length), cache, out);
}

template <typename Id>
void Encoder<Id>::encode_word(const Byte* word, std::size_t length, Key key, std::uint64_t hash, WordCache<Id>& cache,
                              Buffer<Id>& out) const {
    const auto* slot = length <= short_length ? cache.find(key, hash) : cache.find_long(word, length, hash);
    if (slot) {
        const std::span<const Id> ids = cache.ids(*slot);
        out.append(ids.data(), ids.size());
    } else {
        learn(word, length, key, hash, cache, out);
    }
}

// In rounds of a few words: first their places in the table are asked for, then the ids are taken from there. A round
// leaves room for its ids before it starts, so that taking them needs no check.
template <typename Id>
void Encoder<Id>::encode_batch(const Batch& batch, WordCache<Id>& cache, Buffer<Id>& out) const {
    constexpr std::size_t round = 64, room = (round + 1) * WordCache<Id>::inline_ids;
    Key keys[round];
    std::uint64_t hashes[round];
    const Secret own = secret;
    std::size_t elsewhere = 0;  // words of the last round that were not in their place, or not whole
    for (std::size_t first = 0; first < batch.roomy; first += round) {
        const std::size_t count = std::min(round, batch.roomy - first);
        const std::uint32_t* starts = batch.starts + first;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t length = starts[i + 1] - starts[i];
            if (length <= short_length) [[likely]] {
                keys[i] = make_key(batch.base + starts[i], length);
                hashes[i] = hash_key(keys[i], own);
            } else {
                keys[i] = {0, 1};  // no slot has this key
                hashes[i] = hash_bytes(batch.base + starts[i], length);
            }
            cache.prefetch(hashes[i]);
        }
        // Text of rare words waits for the arenas too; in common text the question would cost more than it saves.
        if (elsewhere > round / 8) {
            for (std::size_t i = 0; i < count; ++i) cache.prefetch_arenas(hashes[i]);
        }
        elsewhere = 0;
        out.reserve(room);
        Id* to = out.data() + out.size();
        for (std::size_t i = 0; i < count; ++i) {
            const auto& home = cache.home(hashes[i]);
            if (home.is(keys[i])) [[likely]] {
                home.copy_ids(to);
                to += home.count();
            } else {
                ++elsewhere;
                out.set_size(static_cast<std::size_t>(to - out.data()));
                encode_word(batch.base + starts[i], starts[i + 1] - starts[i], keys[i], hashes[i], cache, out);
                out.reserve(room);
                to = out.data() + out.size();
            }
        }
        out.set_size(static_cast<std::size_t>(to - out.data()));
    }
    for (std::size_t i = batch.roomy; i < batch.count; ++i) {
        encode_word(batch.base + batch.starts[i], batch.starts[i + 1] - batch.starts[i], cache, out);
    }
}

template <typename Id>
void Encoder<Id>::encode_segment(const Byte* text, const Byte* end, WordCache<Id>& cache, Buffer<Id>& out) const {
    with_scanner(pattern_, text, end, [&](auto& scanner) {
        Batch batch;
        while (scanner.next(batch)) encode_batch(batch, cache, out);
    });
}

template <typename Id>
void Encoder<Id>::encode_part(std::span<const Byte> text, SpecialMode mode, WordCache<Id>& cache, Buffer<Id>& out) const {
    const Byte *at = text.data(), *end = at + text.size();
    // There are never more ids than bytes. Room that is not used is address space only, but a system may refuse too much.
    out.reserve((text.size() <= generous_size ? text.size() : text.size() / 2) + 64);
    const Specials& specials = specials_for(mode);
    while (at < end) {
        const Specials::Match special = specials.find(at, end);
        encode_segment(at, special.at, cache, out);
        if (special.at == end) break;
        out.push_back(static_cast<Id>(special.id));
        at = special.at + special.length;
    }
}

template <typename Id>
void Encoder<Id>::refuse_specials(std::span<const Byte> text, std::size_t span) const {
    const Byte *at = text.data(), *end = at + text.size();
    for (Specials::Match found = specials_.find(at, end); found.at < end; found = specials_.find(at, end)) {
        at = found.at + found.length;
        if (always_.find(found.at, at).length == found.length) continue;
        throw SpecialRefused(std::string(reinterpret_cast<const char*>(found.at), found.length),
                             static_cast<std::size_t>(found.at - text.data()), span);
    }
}

template <typename Id>
Buffer<Id> Encoder<Id>::encode(std::span<const Byte> text, SpecialMode mode, unsigned threads) {
    if (mode == SpecialMode::refuse) refuse_specials(text);
    Buffer<Id> out;
    if (threads <= 1 || text.size() < 2 * part_size) {
        Lease lease(*this);
        encode_part(text, mode, lease.cache(), out);
        out.shrink();
        return out;
    }
    const auto bounds = cut_into_parts(text.data(), text.data() + text.size(), part_size, specials_for(mode));
    const std::size_t parts = bounds.size() - 1;
    for (std::size_t first = 0; first < parts; first += parts_at_once) {
        const std::size_t count = std::min(parts_at_once, parts - first);
        encode_parts(count, static_cast<std::size_t>(bounds[first + count] - bounds[first]), threads, out,
                     [&](std::size_t i, WordCache<Id>& cache, Buffer<Id>& part) {
                         encode_part(std::span(bounds[first + i], bounds[first + i + 1]), mode, cache, part);
                     },
                     [](std::size_t, std::size_t) {});
    }
    out.shrink();
    return out;
}

template <typename Id>
template <typename Encode, typename Placed>
void Encoder<Id>::encode_parts(std::size_t count, std::size_t bytes, unsigned threads, Buffer<Id>& out,
                               const Encode& encode, const Placed& placed) {
    out.reserve(bytes);  // there are never more ids than bytes
    Ordered<Id> ordered(out, count);
    run_parallel(count, threads, [&] {
        return [&, lease = std::make_unique<Lease>(*this)](std::size_t i) {
            Buffer<Id> part = ordered.borrow();
            encode(i, lease->cache(), part);
            ordered.hand_in(i, std::move(part), placed);
        };
    });
}

template <typename Id>
Buffer<Id> Encoder<Id>::encode_spans(std::span<const Byte> buffer, std::span<const std::uint64_t> bounds,
                                     SpecialMode mode, unsigned threads, std::uint64_t* starts) {
    const std::size_t spans = bounds.size() - 1;
    // A group is a run of spans of about a megabyte: one piece of work.
    std::vector<std::size_t> groups{0};
    for (std::size_t i = 1; i <= spans; ++i) {
        if (i == spans || bounds[i] - bounds[groups.back()] >= part_size) groups.push_back(i);
    }
    Buffer<Id> out;
    encode_parts(groups.size() - 1, bounds[spans] - bounds[0], threads, out,
                 [&](std::size_t group, WordCache<Id>& cache, Buffer<Id>& part) {
                     for (std::size_t i = groups[group]; i < groups[group + 1]; ++i) {
                         const auto text = buffer.subspan(bounds[i], bounds[i + 1] - bounds[i]);
                         if (mode == SpecialMode::refuse) refuse_specials(text, i);
                         starts[i] = part.size();
                         encode_part(text, mode, cache, part);
                     }
                 },
                 [&](std::size_t group, std::size_t start) {
                     for (std::size_t i = groups[group]; i < groups[group + 1]; ++i) starts[i] += start;
                 });
    out.shrink();
    starts[spans] = out.size();
    return out;
}

template <typename Id>
Buffer<Id> Encoder<Id>::encode_words(std::span<const Byte> buffer, std::span<const std::uint64_t> bounds) {
    Buffer<Id> out;
    Lease lease(*this);
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
        if (bounds[i + 1] == bounds[i]) continue;
        encode_word(buffer.data() + bounds[i], bounds[i + 1] - bounds[i], lease.cache(), out);
    }
    return out;
}

template <typename Id>
std::size_t Encoder<Id>::last_cut(std::span<const Byte> text, SpecialMode mode) const {
    const Byte* start = text.data();
    return static_cast<std::size_t>(fledge::last_cut(start, start + text.size(), specials_for(mode)) - start);
}

template class Encoder<std::uint16_t>;
template class Encoder<std::uint32_t>;

}  // namespace fledge
