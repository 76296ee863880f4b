// Finds documents that are copies, or nearly copies, of others. Each document leaves a 128-bit hash, 128 minima of hashed
// word shingles, folded into bands, and a sketch (the smallest hashes of its shingles). Equal bands name candidates;
// sketches decide, so that chance never joins two documents. Memory grows with the number of documents, never with
// their size: the sketches lie in a temporary file.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "key.hpp"
#include "file_parts.hpp"

namespace fledge {

// A temporary file without a name: it goes with the process.
class ScratchFile {
public:
    ScratchFile();
    ~ScratchFile() { close_file(file_); }
    ScratchFile(const ScratchFile&) = delete;
    ScratchFile& operator=(const ScratchFile&) = delete;
    std::uint64_t append(const void* data, std::size_t bytes);
    void read(std::uint64_t place, void* data, std::size_t bytes) const;

private:
    int file_;
    std::uint64_t size_ = 0;
};

struct Hash128 {
    std::uint64_t low, high;
    auto operator<=>(const Hash128&) const = default;
};

// SipHash-2-4 of 128 bits: without the key nobody can make two texts with the same hash.
Hash128 siphash(std::span<const Byte> text, std::uint64_t key_low, std::uint64_t key_high);

class NearCopies {
public:
    static constexpr std::size_t minima = 128, sketch_size = 512, most_words = 64;

    // Documents are near-copies where at least `threshold` of the shingles (of `words` words) in either are in both.
    NearCopies(double threshold, unsigned words, unsigned threads, Hash128 key);

    // Document i of this part is text[starts[i], ends[i]).
    void add(std::span<const Byte> text, std::span<const std::int64_t> starts, std::span<const std::int64_t> ends);

    std::size_t size() const { return documents_.size(); }
    const Hash128& hash(std::size_t document) const { return documents_[document].hash; }
    // For each document the number of the first one with the same bytes.
    std::vector<std::uint32_t> exact() const;
    // For each document the number of the first one of its group: near-copies of near-copies are one group.
    std::vector<std::uint32_t> groups() const;
    // The share of shingles that two documents have in common: exact up to `sketch_size` shingles, estimated beyond.
    double similarity(std::size_t left, std::size_t right) const;

private:
    struct Document {
        Hash128 hash;
        std::uint64_t sketch;  // where it lies in the file
        std::uint32_t kept, shingles;
    };
    struct Work;

    void describe(std::span<const Byte> text, Work& work, Document& document, std::uint32_t* bands) const;
    void shingle(std::span<const Byte> text, Work& work) const;
    std::size_t load(std::size_t document, std::uint32_t* sketch) const;

    double threshold_;
    unsigned words_, threads_, rows_, bands_;
    Hash128 key_;
    std::array<std::uint32_t, minima> factors_, shifts_;
    std::vector<Document> documents_;
    std::vector<std::uint32_t> band_hashes_;  // `bands_` for each document
    ScratchFile sketches_;
};

}  // namespace fledge
