// The facts that hold for any bytes, as one function: the tests call it on chosen and random texts, the fuzzer on what
// it finds. A broken fact is printed with the text that broke it, and ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "count.hpp"
#include "cuts.hpp"
#include "encoder.hpp"
#include "scanner.hpp"
#include "trainer.hpp"
#include "validity.hpp"

namespace fledge_test {

using namespace fledge;

inline std::span<const Byte> bytes_of(const std::string& text) {
    return {reinterpret_cast<const Byte*>(text.data()), text.size()};
}

inline void require(bool fact, const char* what, const std::string& text) {
    if (fact) return;
    std::fprintf(stderr, "broken: %s\ntext (%zu bytes):", what, text.size());
    for (std::size_t i = 0; i < std::min<std::size_t>(text.size(), 4000); ++i) {
        std::fprintf(stderr, " %02x", static_cast<Byte>(text[i]));
    }
    std::fprintf(stderr, "\n");
    std::abort();
}

// A small vocabulary with merges of several lengths, runs among them; bytes have scattered ids, as GPT-2's have.
inline EncoderSettings small_settings(Pattern pattern) {
    EncoderSettings settings;
    settings.pattern = pattern;
    std::map<std::string, std::uint32_t> ids;
    for (unsigned byte = 0; byte < 256; ++byte) ids[std::string(1, static_cast<char>(byte))] = (byte * 37) % 256;
    std::uint32_t rank = 0;
    const auto merge = [&](const std::string& left, const std::string& right) {
        const auto id = static_cast<std::uint32_t>(256 + rank);
        ids.emplace(left + right, id);
        settings.merges.push_back({ids.at(left), ids.at(right), ids.at(left + right)});
        ++rank;
    };
    merge("t", "h"), merge("th", "e"), merge(" ", "the"), merge("a", "a"), merge("aa", "aa"), merge("0", "0");
    merge("aaaa", "a"), merge("a", "Z"), merge("\xE6", "\xBC"), merge("\xE6\xBC", "\xA2"), merge("\xD0", "\xB6");
    for (const auto& [bytes, id] : ids) settings.tokens.emplace_back(bytes, id);
    settings.specials = {{"<|endoftext|>", 300}, {"<|end|>", 301}, {"<|", 302}};
    settings.always = {{"<|", 302}};
    return settings;
}

template <Pattern pattern>
void check_scanner(const std::string& text) {
    const Byte *at = bytes_of(text).data(), *end = at + text.size();
    Scanner<pattern> scanner(at, end);
    Batch batch;
    while (scanner.next(batch)) {
        require(batch.base == at && batch.starts[0] == 0, "batches follow each other without a gap", text);
        for (std::size_t i = 0; i < batch.count; ++i) {
            at = next_pretoken<pattern>(at, end);
            require(batch.base + batch.starts[i + 1] == at, "the fast scanner cuts like the exact one", text);
        }
    }
    require(at == end, "the scanner reaches the end", text);
}

template <Pattern pattern>
void check_cuts(const std::string& text) {
    const Byte *start = bytes_of(text).data(), *end = start + text.size();
    std::vector<bool> is_start(text.size() + 1);
    for (const Byte* at = start; at < end; at = next_pretoken<pattern>(at, end)) is_start[static_cast<std::size_t>(at - start)] = true;
    for (std::size_t i = 1; i < text.size(); ++i) {
        if (!is_safe_cut(start, start + i, end)) continue;
        require(is_start[i], "a safe cut is a border of pre-tokens", text);
        // Nor does the part before it change when the rest is not there.
        const Byte* at = start;
        while (at < start + i) {
            require(is_start[static_cast<std::size_t>(at - start)], "a part is cut like the whole", text);
            at = next_pretoken<pattern>(at, start + i);
        }
        if (i > 512) break;
    }
}

template <typename Id>
std::vector<Id> ids_of(Buffer<Id> buffer) {
    return {buffer.data(), buffer.data() + buffer.size()};
}

// Ids by way of nothing but the exact pattern and the merges.
inline std::vector<std::uint16_t> plain_ids(const EncoderSettings& settings, const std::string& text) {
    std::map<std::uint32_t, std::string> bytes;
    for (const auto& [token, id] : settings.tokens) bytes[id] = token;
    std::map<std::pair<std::uint32_t, std::uint32_t>, const Merge*> merges;
    for (const Merge& merge : settings.merges) merges[{merge.left, merge.right}] = &merge;
    std::vector<std::uint16_t> out;
    const Specials specials(settings.specials);
    const Byte *at = bytes_of(text).data(), *end = at + text.size();
    std::map<Byte, std::uint32_t> byte_ids;
    for (const auto& [token, id] : settings.tokens) {
        if (token.size() == 1) byte_ids[static_cast<Byte>(token[0])] = id;
    }
    while (at < end) {
        const auto special = specials.find(at, end);
        while (at < special.at) {
            const Byte* stop = settings.pattern == Pattern::gpt2     ? next_gpt2(at, special.at)
                               : settings.pattern == Pattern::cl100k ? next_cl100k(at, special.at)
                                                                     : next_o200k(at, special.at);
            std::vector<std::uint32_t> symbols;
            for (; at < stop; ++at) symbols.push_back(byte_ids.at(*at));
            while (true) {
                const Merge* best = nullptr;
                std::size_t place = 0;
                for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
                    const auto found = merges.find({symbols[i], symbols[i + 1]});
                    if (found != merges.end() && (!best || found->second < best)) best = found->second, place = i;  // in order of rank
                }
                if (!best) break;
                symbols[place] = best->result;
                symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
            }
            out.insert(out.end(), symbols.begin(), symbols.end());
        }
        if (special.at < end) out.push_back(static_cast<std::uint16_t>(special.id));
        at = special.at + special.length;
    }
    return out;
}

inline void check_encoder(Encoder<std::uint16_t>& encoder, const EncoderSettings& settings, const std::string& text) {
    const auto whole = ids_of(encoder.encode(bytes_of(text), SpecialMode::recognise, 1));
    if (text.size() < 3000) require(whole == plain_ids(settings, text), "ids are those of the plain way", text);
    std::map<std::uint32_t, std::string> tokens;
    for (const auto& list : {settings.tokens, settings.specials}) {
        for (const auto& [bytes, id] : list) tokens[id] = bytes;
    }
    std::string back;
    for (const auto id : whole) back += tokens.at(id);
    require(back == text, "decoding gives the text back", text);
    // In two parts, cut where it is safe.
    const std::size_t cut = encoder.last_cut(bytes_of(text), SpecialMode::recognise);
    auto parts = ids_of(encoder.encode(bytes_of(text).first(cut), SpecialMode::recognise, 1));
    const auto rest = ids_of(encoder.encode(bytes_of(text).subspan(cut), SpecialMode::recognise, 1));
    parts.insert(parts.end(), rest.begin(), rest.end());
    require(parts == whole, "parts give the ids of the whole", text);
    // As spans.
    const std::uint64_t bounds[] = {0, text.size() / 3, text.size() / 3, text.size()};
    std::uint64_t starts[4];
    const auto spans = ids_of(encoder.encode_spans(bytes_of(text), bounds, SpecialMode::text, 2, starts));
    for (int i = 0; i < 3; ++i) {
        const auto one = ids_of(encoder.encode(bytes_of(text).subspan(bounds[i], bounds[i + 1] - bounds[i]), SpecialMode::text, 1));
        require(std::vector(spans.begin() + static_cast<std::ptrdiff_t>(starts[i]), spans.begin() + static_cast<std::ptrdiff_t>(starts[i + 1])) == one,
                "a span has the ids of its text", text);
    }
}

inline void check_all(const std::string& text) {
    check_scanner<Pattern::gpt2>(text);
    check_scanner<Pattern::cl100k>(text);
    check_scanner<Pattern::o200k>(text);
    if (text.size() < 2000) {
        check_cuts<Pattern::gpt2>(text);
        check_cuts<Pattern::cl100k>(text);
        check_cuts<Pattern::o200k>(text);
    }
    for (const Pattern pattern : {Pattern::gpt2, Pattern::cl100k, Pattern::o200k}) {
        static const EncoderSettings settings[] = {small_settings(Pattern::gpt2), small_settings(Pattern::cl100k),
                                                   small_settings(Pattern::o200k)};
        static Encoder<std::uint16_t> encoders[] = {Encoder<std::uint16_t>(settings[0]), Encoder<std::uint16_t>(settings[1]),
                                                    Encoder<std::uint16_t>(settings[2])};
        const auto i = static_cast<std::size_t>(pattern);
        check_encoder(encoders[i], settings[i], text);
    }
}

}  // namespace fledge_test
