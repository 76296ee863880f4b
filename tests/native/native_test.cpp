// The native core's own tests, run under AddressSanitizer and UBSan by run-sanitized.sh.
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "checks.hpp"
#include "checksum.hpp"
#include "decode.hpp"
#include "file_parts.hpp"
#include "gather.hpp"
#include "near_copies.hpp"
#include "random_text.hpp"
#include "slope.hpp"

using namespace fledge_test;

namespace {

// The rule, as plainly as it can be said: symbols are byte strings.
std::vector<std::pair<std::string, std::string>> naive_merges(const std::map<std::string, std::uint64_t>& words, std::size_t wanted) {
    std::vector<std::pair<std::vector<std::string>, std::uint64_t>> split;
    for (const auto& [word, count] : words) {
        std::vector<std::string> symbols;
        for (const char byte : word) symbols.emplace_back(1, byte);
        split.emplace_back(symbols, count);
    }
    const auto unsigned_bytes = [](const std::pair<std::string, std::string>& pair) {
        return std::pair(std::vector<Byte>(pair.first.begin(), pair.first.end()), std::vector<Byte>(pair.second.begin(), pair.second.end()));
    };
    std::vector<std::pair<std::string, std::string>> merges;
    while (merges.size() < wanted) {
        std::map<std::pair<std::string, std::string>, std::uint64_t> counts;
        for (const auto& [symbols, count] : split) {
            for (std::size_t i = 0; i + 1 < symbols.size(); ++i) counts[{symbols[i], symbols[i + 1]}] += count;
        }
        if (counts.empty()) break;
        const auto best = std::max_element(counts.begin(), counts.end(), [&](const auto& a, const auto& b) {
            return std::pair(a.second, unsigned_bytes(a.first)) < std::pair(b.second, unsigned_bytes(b.first));
        });
        const auto pair = best->first;
        merges.push_back(pair);
        for (auto& [symbols, count] : split) {
            std::vector<std::string> merged;
            for (std::size_t i = 0; i < symbols.size(); ++i) {
                if (i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second) {
                    merged.push_back(symbols[i] + symbols[i + 1]);
                    ++i;
                } else {
                    merged.push_back(symbols[i]);
                }
            }
            symbols = std::move(merged);
        }
    }
    return merges;
}

void test_trainer(std::mt19937_64& random) {
    for (int round = 0; round < 300; ++round) {
        std::map<std::string, std::uint64_t> words;
        WordTable table;
        const std::size_t letters = 1 + random() % 4;
        for (std::size_t i = 0, count = 1 + random() % 12; i < count; ++i) {
            std::string word;
            for (std::size_t j = 0, length = 1 + random() % 24; j < length; ++j) word.push_back("ab\xFFz"[random() % letters]);
            const std::uint64_t times = 1 + random() % 5;
            words[word] += times;
            table.add(bytes_of(word).data(), word.size(), times);
        }
        const TrainResult result = train(table, {60, 1}, nullptr, nullptr);
        const auto expected = naive_merges(words, 60);
        require(result.merges.size() == expected.size(), "as many merges as the naive trainer", words.begin()->first);
        for (std::size_t i = 0; i < expected.size(); ++i) {
            require(result.tokens[result.merges[i].left] == expected[i].first && result.tokens[result.merges[i].right] == expected[i].second,
                    "merges are those of the naive trainer", words.begin()->first);
        }
    }
}

void test_large_counts() {
    WordTable table;
    table.add(bytes_of("abab").data(), 4, 1ull << 40);
    table.add(bytes_of("cd").data(), 2, (1ull << 40) + 1);
    const TrainResult result = train(table, {2, 1}, nullptr, nullptr);
    require(result.merges[0].count == 2ull << 40 && result.merges[1].count == (1ull << 40) + 1, "counts past 32 bits", "");
}

void test_threads(std::mt19937_64& random) {
    std::string text;
    while (text.size() < (5u << 20)) text += random_text(random, 10000);
    for (const Pattern pattern : {Pattern::gpt2, Pattern::cl100k, Pattern::o200k}) {
        Encoder<std::uint16_t> encoder(small_settings(pattern));
        const auto one = ids_of(encoder.encode(bytes_of(text), SpecialMode::recognise, 1));
        require(one == ids_of(encoder.encode(bytes_of(text), SpecialMode::recognise, 3)), "threads change no id", "");
        std::map<std::string, std::uint64_t> counts[2];
        for (const unsigned threads : {1u, 3u}) {
            PretokenCounter counter(pattern, {"<|endoftext|>", "<|end|>"}, threads);
            counter.add_source_bytes(std::uint64_t{1} << 30);  // as if this were the end of a long text: a short one is not shared
            counter.add_text(bytes_of(text));
            counter.total().each([&](const Byte* word, std::size_t length, std::uint64_t count) {
                counts[threads / 3][std::string(reinterpret_cast<const char*>(word), length)] += count;
            });
        }
        require(counts[0] == counts[1], "threads change no count", "");
    }
}

// More distinct words than a table may hold: it starts anew, and the ids stay right.
void test_many_words() {
    EncoderSettings settings = small_settings(Pattern::gpt2);
    Encoder<std::uint16_t> encoder(settings);
    std::string text;
    for (int i = 0; i < 600000; ++i) {  // twice each: a table that is large keeps no others
        const std::string word = " w" + std::to_string(i * 7919LL) + "x" + (i % 9 ? "" : "averyveryverylongword");
        text += word + word;
    }
    const auto ids = ids_of(encoder.encode(bytes_of(text), SpecialMode::text, 1));
    std::map<std::uint32_t, std::string> tokens;
    for (const auto& [bytes, id] : settings.tokens) tokens[id] = bytes;
    std::string back;
    for (const auto id : ids) back += tokens.at(id);
    require(back == text, "a full table loses nothing", "");
}

void test_long_pretoken() {
    for (const char* unit : {"a", "ab", "th", "\xE6\xBC\xA2"}) {
        std::string text;
        while (text.size() < 200000) text += unit;
        for (const Pattern pattern : {Pattern::gpt2, Pattern::cl100k, Pattern::o200k}) {
            const EncoderSettings settings = small_settings(pattern);
            Encoder<std::uint16_t> encoder(settings);
            check_encoder(encoder, settings, text);
        }
    }
}

}  // namespace

std::vector<float> random_floats(std::mt19937_64& random, std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
    return values;
}

bool close(float found, double wanted) { return std::abs(found - wanted) <= 1e-4 * (1 + std::abs(wanted)); }

// Products and attention of decoding against sums in double precision, for every number of rows, sizes that fill no
// vector, and more threads than work.
void test_decoding(std::mt19937_64& random) {
    for (int round = 0; round < 120; ++round) {
        const std::size_t rows = 1 + random() % most_rows, inputs = 1 + random() % 200, outputs = 1 + random() % 400;
        const auto weight = random_floats(random, outputs * inputs), x = random_floats(random, rows * inputs);
        const auto bias = random_floats(random, outputs), residual = random_floats(random, rows * outputs);
        const bool biased = random() % 2, added = random() % 2;
        std::vector<float> out(rows * outputs);
        const Product product{weight.data(), biased ? bias.data() : nullptr, outputs, inputs};
        product(x.data(), added ? residual.data() : nullptr, out.data(), rows, 1 + random() % 4);
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t output = 0; output < outputs; ++output) {
                double sum = (biased ? bias[output] : 0) + (added ? residual[row * outputs + output] : 0);
                for (std::size_t i = 0; i < inputs; ++i) sum += double{weight[output * inputs + i]} * x[row * inputs + i];
                require(close(out[row * outputs + output], sum), "a product equals its sum", "");
            }
        }
    }
    for (int round = 0; round < 60; ++round) {
        const std::size_t rows = 1 + random() % 3, key_heads = 1 + random() % 3, heads = key_heads * (1 + random() % 3);
        const std::size_t size = 1 + random() % 70, capacity = 1 + random() % 90, used = 1 + random() % capacity;
        const std::size_t stride = heads * size + random() % 5;
        const auto queries = random_floats(random, rows * stride);
        const auto keys = random_floats(random, rows * key_heads * capacity * size);
        const auto values = random_floats(random, rows * key_heads * capacity * size);
        std::vector<float> out(rows * heads * size);
        const Attention attend{heads, key_heads, size, capacity, 0.3F};
        attend(queries.data(), stride, keys.data(), values.data(), used, out.data(), rows, 1 + random() % 3);
        for (std::size_t place = 0; place < rows * heads; ++place) {
            const std::size_t row = place / heads, head = place % heads;
            const std::size_t first = (row * key_heads + head / (heads / key_heads)) * capacity * size;
            double total = 0;
            std::vector<double> sums(size);
            for (std::size_t key = 0; key < used; ++key) {
                double score = 0;
                for (std::size_t i = 0; i < size; ++i) {
                    score += double{queries[row * stride + head * size + i]} * keys[first + key * size + i];
                }
                total += std::exp(0.3 * score);
                for (std::size_t i = 0; i < size; ++i) sums[i] += std::exp(0.3 * score) * values[first + key * size + i];
            }
            for (std::size_t i = 0; i < size; ++i) {
                require(close(out[place * size + i], sums[i] / total), "attention equals its softmax", "");
            }
        }
    }
}

// Cross-entropy and its slope against sums in double precision, in both types of number, whatever the threads.
void test_slopes(std::mt19937_64& random) {
    for (int round = 0; round < 60; ++round) {
        const std::size_t rows = 1 + random() % 200, columns = 1 + random() % 1500;
        const Slope slope{columns, random() % 2 ? 0.1F : 0.0F, random() % 2 ? 1e-2F : 0.0F, random() % 4 != 0};
        const auto logits = random_floats(random, rows * columns);
        std::vector<std::int64_t> targets(rows);
        for (auto& target : targets) target = random() % 7 ? static_cast<std::int64_t>(random() % columns) : masked;
        std::vector<std::uint16_t> narrow(logits.size());
        for (std::size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(logits[i]) >> 16U);
        auto wide = logits;
        const double found = slope(wide.data(), targets.data(), rows, 1 + random() % 4);
        slope(narrow.data(), targets.data(), rows, 1 + random() % 4);
        double total = 0;
        for (std::size_t row = 0; row < rows; ++row) {
            const float* at = logits.data() + row * columns;
            double mass = 0, sum = 0;
            for (std::size_t i = 0; i < columns; ++i) mass += std::exp(double{at[i]}), sum += at[i];
            const double norm = std::log(mass), smoothing = slope.smoothing;
            if (targets[row] != masked) {
                total += norm - (1 - smoothing) * at[targets[row]] - smoothing * sum / static_cast<double>(columns) +
                         slope.z_loss * norm * norm;
            }
            for (std::size_t i = 0; i < columns; ++i) {
                double wanted = at[i];
                if (slope.wanted) {
                    wanted = std::exp(at[i] - norm) * (1 + 2 * slope.z_loss * norm) - smoothing / static_cast<double>(columns);
                    if (targets[row] == static_cast<std::int64_t>(i)) wanted -= 1 - smoothing;
                    if (targets[row] == masked) wanted = 0;
                }
                require(close(wide[row * columns + i], wanted), "a slope equals its formula", "");
                const float rounded = std::bit_cast<float>(std::uint32_t{narrow[row * columns + i]} << 16U);
                require(std::abs(rounded - wanted) <= 0.02 * (0.01 + std::abs(wanted)), "a slope in bfloat16 equals its formula", "");
            }
        }
        require(std::abs(found - total) <= 1e-4 * (1 + std::abs(total)), "a loss equals its formula", "");
    }
}

std::string name_of(const std::filesystem::path& path) {
    const std::u8string name = path.u8string();
    return {name.begin(), name.end()};
}

int error_of(const std::string& path) {
    try {
        FileParts(path, 1 << 20, Specials());
    } catch (const FileError& error) {
        return error.code().value();
    }
    return 0;
}

// What the system is asked for: files by any name and at any place, their changes, scratch files, memory.
void test_system(std::mt19937_64& random) {
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       (u8"fledge-\u00E9\u4E2D-" + std::filesystem::path(std::to_string(random())).u8string());
    std::string text;
    while (text.size() < (3u << 20)) text += random_text(random, 10000);
    const auto write = [&](const std::string& what) { std::ofstream(path, std::ios::binary) << what; };
    write(text);
    {
        const Specials none;
        FileParts parts(name_of(path), 1 << 20, none);
        std::vector<Byte> room;
        std::string back;
        std::size_t count = 0;
        for (auto part = parts.next(room); !part.empty(); part = parts.next(room), ++count) back.append(part.begin(), part.end());
        require(back == text && count > 1, "a file in parts is the file", "");
        parts.require_unchanged();
        write(text + "more");
        bool changed = false;
        try {
            parts.require_unchanged();
        } catch (const FileChanged&) {
            changed = true;
        }
        require(changed, "a file that was changed is noticed", "");
    }
    require(error_of(name_of(path)) == 0, "a file is opened and closed", "");
    require(error_of(name_of(path) + ".missing") == ENOENT, "a missing file is said to be missing", "");
    require(error_of(name_of(path.parent_path())) == EISDIR, "a folder is said to be one", "");
    {
        const std::vector<std::uint16_t> ids = {7, 8, 9, 10, 11};
        std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), 10);
        const std::int64_t begins[] = {0}, sources[] = {2}, lengths[] = {3};
        std::int64_t inputs[4], targets[4];
        const int file = open_to_read(name_of(path));
        gather<std::uint16_t>(file, {begins, sources, lengths, {}, {}}, 0, 99, {inputs, targets, {}, {}});
        close_file(file);
        require(inputs[0] == 8 && inputs[2] == 10 && inputs[3] == 99 && targets[0] == 9 && targets[2] == 11 && targets[3] == -100,
                "a batch holds what the file does", "");
    }
    std::filesystem::remove(path);
    ScratchFile scratch;
    const std::uint64_t first = scratch.append(text.data(), text.size()), second = scratch.append("end", 3);
    std::string back(text.size() + 3, ' ');
    scratch.read(first, back.data(), back.size());
    require(back == text + "end" && second == text.size(), "a scratch file keeps what is put there", "");
    Slots<std::uint64_t> slots(100'000);
    for (const std::uint64_t slot : slots) require(slot == 0, "fresh memory is zero", "");
    Buffer<std::uint32_t> buffer;
    for (std::uint32_t i = 0; i < 3'000'000; ++i) buffer.push_back(i);  // past the size from which it moves to large pages
    buffer.shrink();
    for (std::uint32_t i = 0; i < buffer.size(); ++i) require(buffer.data()[i] == i, "memory that grows keeps its values", "");
    require(reverse_bytes(0x0102030405060708) == 0x0807060504030201, "bytes are turned about", "");
    require(fold_product(~0ull, ~0ull) == (1 ^ (~0ull - 1)), "a product is folded", "");
    const auto sum = [&](std::size_t from, std::size_t count, std::uint32_t before) {
        return checksum(bytes_of(text).subspan(from, count), before);
    };
    require(checksum(bytes_of("123456789")) == 0xCBF43926, "the checksum is CRC-32", "");
    require(sum(0, 1000, 0) == ~crc::by_tables(~0u, bytes_of(text).data(), bytes_of(text).data() + 1000) && sum(500, 500, sum(0, 500, 0)) == sum(0, 1000, 0),
            "folding and tables give one checksum", "");
}

int main() {
    std::mt19937_64 random(20260101);
    for (const char* text : {"", " ", "a", "  ", "\n", "'s", "it's", "a  b", "a \n b", "x\n\n  y", "1234567", "\xC2\xA0\xC2\xA0x", "\xE2\x80", "HelloWORLDFoo's"}) {
        check_all(text);
    }
    for (std::size_t length = 1; length < 200; ++length) check_all(std::string(length, ' ') + "x" + std::string(length, '\n'));
    for (int round = 0; round < 1500; ++round) check_all(random_text(random, 1 + random() % 60));
    for (int round = 0; round < 150; ++round) check_all(random_text(random, 1 + random() % 3000));
    test_trainer(random);
    test_large_counts();
    test_long_pretoken();
    test_threads(random);
    test_many_words();
    test_decoding(random);
    test_slopes(random);
    test_system(random);
    require(count_invalid(bytes_of("a\xFF\xE2\x80\x9C\xE2\x80z\xED\xA0\x80")) == 6, "invalid bytes are counted", "");
    std::puts("native tests passed");
}
