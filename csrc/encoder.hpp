// Text to ids. A pre-token that was seen before is one lookup in a table that fits the cache; what is new is merged
// once and remembered. Every worker has a table of its own, kept for the next call: threads share nothing that changes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "merges.hpp"
#include "patterns.hpp"
#include "scanner.hpp"
#include "specials.hpp"
#include "word_cache.hpp"

namespace fledge {

enum class SpecialMode : std::uint8_t { recognise, text, refuse };

struct SpecialRefused : std::runtime_error {
    SpecialRefused(std::string token, std::size_t at, std::size_t span)
        : std::runtime_error("a special token is refused"), token(std::move(token)), at(at), span(span) {}
    std::string token;
    std::size_t at, span;  // the byte of which of the texts
};

using Tokens = std::vector<std::pair<std::string, std::uint32_t>>;

struct EncoderSettings {
    Tokens tokens;  // the ordinary ones, special tokens aside
    std::vector<Merge> merges;
    Tokens specials;
    Tokens always;  // those of the specials that are found in plain text too
    Pattern pattern = Pattern::gpt2;
    bool whole_words = false;  // a pre-token that is a token becomes it, wherever its merges lead
};

template <typename Id>
class Encoder {
public:
    explicit Encoder(EncoderSettings settings);

    Buffer<Id> encode(std::span<const Byte> text, SpecialMode mode, unsigned threads);

    // Every span on its own; `bounds` has one entry more than there are spans, and `starts` gets as many.
    Buffer<Id> encode_spans(std::span<const Byte> buffer, std::span<const std::uint64_t> bounds, SpecialMode mode,
                            unsigned threads, std::uint64_t* starts);

    // Pre-tokens that a regular expression of the user's cut: merged as they are.
    Buffer<Id> encode_words(std::span<const Byte> buffer, std::span<const std::uint64_t> bounds);

    // How many bytes of `text` can be encoded before what follows them is known; 0 where no place is safe.
    std::size_t last_cut(std::span<const Byte> text, SpecialMode mode) const;

private:
    class Lease;  // a cache for the time of a call

    // Parts 0 to count-1 of `bytes` in all, each by encode(part, cache, buffer), to the end of `out` in their order;
    // placed(part, start) tells where each begins there.
    template <typename Encode, typename Placed>
    void encode_parts(std::size_t count, std::size_t bytes, unsigned threads, Buffer<Id>& out, const Encode& encode,
                      const Placed& placed);
    void encode_part(std::span<const Byte> text, SpecialMode mode, WordCache<Id>& cache, Buffer<Id>& out) const;
    void encode_segment(const Byte* text, const Byte* end, WordCache<Id>& cache, Buffer<Id>& out) const;
    void encode_batch(const Batch& batch, WordCache<Id>& cache, Buffer<Id>& out) const;
    void encode_word(const Byte* word, std::size_t length, WordCache<Id>& cache, Buffer<Id>& out) const;
    void encode_word(const Byte* word, std::size_t length, Key key, std::uint64_t hash, WordCache<Id>& cache,
                     Buffer<Id>& out) const;
    void learn(const Byte* word, std::size_t length, Key key, std::uint64_t hash, WordCache<Id>& cache,
               Buffer<Id>& out) const;

    std::unique_ptr<WordCache<Id>> new_cache() const;
    void seed(WordCache<Id>& cache) const;
    void refuse_specials(std::span<const Byte> text, std::size_t span = 0) const;
    const Specials& specials_for(SpecialMode mode) const {
        return mode == SpecialMode::recognise ? specials_ : always_;
    }

    Pattern pattern_;
    Merges merges_;
    Specials specials_, always_;
    std::vector<std::pair<Key, std::uint32_t>> seeds_;
    std::unordered_map<std::string, std::uint32_t> unmerged_;  // with whole words: the tokens that no merges lead to
    std::mutex lock_;
    std::vector<std::unique_ptr<WordCache<Id>>> idle_caches_;
};

extern template class Encoder<std::uint16_t>;
extern template class Encoder<std::uint32_t>;

}  // namespace fledge
