// What Python sees of the native core: a counter and trainer, an encoder, and what decoding needs. Text comes in as
// bytes-like objects without a copy, arrays go out without one, and the interpreter's lock is released meanwhile. Every
// function checks what it is given: numbers and sizes that do not fit are refused, whoever calls. The addresses of
// tensors that decoding takes are the one thing nobody can check.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <system_error>
#include <unordered_map>

#include "checksum.hpp"
#include "count.hpp"
#include "decode.hpp"
#include "documents.hpp"
#include "encoder.hpp"
#include "file_parts.hpp"
#include "gather.hpp"
#include "near_copies.hpp"
#include "parallel.hpp"
#include "passages.hpp"
#include "ranks.hpp"
#include "slope.hpp"
#include "suffixes.hpp"
#include "too_large.hpp"
#include "trainer.hpp"
#include "validity.hpp"
#ifndef _WIN32
#include "mapped.hpp"  // Windows lets nobody shorten a file that is mapped
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using fledge::Byte;

// The bytes of a `bytes`, `bytearray`, `memoryview` or array, held for as long as this lives.
class View {
public:
    explicit View(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~View() { PyBuffer_Release(&buffer_); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    std::span<const Byte> bytes() const { return {static_cast<const Byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)}; }

private:
    Py_buffer buffer_;
};

using Bounds = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::uint64_t> checked(const Bounds& bounds, std::size_t size) {
    const std::span<const std::uint64_t> span(bounds.data(), bounds.size());
    if (span.empty()) throw nb::value_error("offsets need at least one entry");
    for (std::size_t i = 0; i + 1 < span.size(); ++i) {
        if (span[i] > span[i + 1]) throw nb::value_error("offsets must not fall");
    }
    if (span.back() > size) throw nb::value_error("offsets reach past the buffer");
    return span;
}

constexpr unsigned most_threads = 4096;

void check_threads(unsigned threads) {
    if (threads < 1 || threads > most_threads) throw nb::value_error("threads must be from 1 to 4096");
}

// Only one at a time: another thread, or the progress of a training, finds an object at work.
class Turn {
public:
    explicit Turn(std::atomic<bool>& at_work) : at_work_(at_work) {
        if (at_work_.exchange(true)) throw std::runtime_error("this object is at work already");
    }
    ~Turn() { at_work_ = false; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    std::atomic<bool>& at_work_;
};

fledge::Pattern pattern_of(const std::string& name) {
    if (name == "gpt2") return fledge::Pattern::gpt2;
    if (name == "cl100k") return fledge::Pattern::cl100k;
    if (name == "o200k") return fledge::Pattern::o200k;
    throw nb::value_error("unknown pattern");
}

fledge::SpecialMode mode_of(const std::string& name) {
    if (name == "recognise") return fledge::SpecialMode::recognise;
    if (name == "text") return fledge::SpecialMode::text;
    if (name == "refuse") return fledge::SpecialMode::refuse;
    throw nb::value_error("unknown way to treat special tokens");
}

struct MissingToken : std::runtime_error {
    explicit MissingToken(std::string_view token) : std::runtime_error("a token is missing"), token(token) {}
    std::string token;
};

template <typename Id>
nb::object to_array(fledge::Buffer<Id> ids) {
    const std::size_t size = ids.size();
    Id* data = ids.release();
    nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
    return nb::cast(nb::ndarray<nb::numpy, Id, nb::ndim<1>>(data, {size}, owner));
}

using PythonTokens = std::vector<std::pair<nb::bytes, std::uint32_t>>;

class PythonEncoder {
public:
    PythonEncoder(const PythonTokens& tokens, const nb::list& merges, const PythonTokens& specials,
                  const PythonTokens& always, const std::string& pattern, bool whole_words, bool wide) {
        fledge::EncoderSettings settings;
        settings.whole_words = whole_words;
        settings.pattern = pattern_of(pattern);
        settings.tokens = to_tokens(tokens);
        settings.specials = to_tokens(specials);
        settings.always = to_tokens(always);
        const std::uint32_t most = wide ? ~std::uint32_t{0} : 0xFFFF;
        for (const auto* list : {&settings.tokens, &settings.specials, &settings.always}) {
            for (const auto& [bytes, id] : *list) {
                if (id > most) throw nb::value_error("an id does not fit 16 bits");
                if (bytes.empty() && list != &settings.tokens) throw nb::value_error("a special token has no bytes");
            }
        }
        settings.merges = to_merges(settings.tokens, merges);
        if (wide) {
            wide_ = std::make_unique<fledge::Encoder<std::uint32_t>>(std::move(settings));
        } else {
            narrow_ = std::make_unique<fledge::Encoder<std::uint16_t>>(std::move(settings));
        }
    }

    nb::object encode(nb::handle text, const std::string& mode, unsigned threads) {
        check_threads(threads);
        const View view(text);
        return with_encoder([&](auto& encoder) { return encoder.encode(view.bytes(), mode_of(mode), threads); });
    }

    // For short strings: no copy of the text where Python keeps it as UTF-8 already, no array in between.
    nb::list encode_list(const nb::str& text, const std::string& mode) {
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
        if (!data) throw nb::python_error();
        const std::span<const Byte> bytes(reinterpret_cast<const Byte*>(data), static_cast<std::size_t>(size));
        if (wide_) return to_list(wide_->encode(bytes, mode_of(mode), 1));
        return to_list(narrow_->encode(bytes, mode_of(mode), 1));
    }

    nb::object encode_spans(nb::handle buffer, const Bounds& offsets, const std::string& mode, unsigned threads) {
        check_threads(threads);
        const View view(buffer);
        const auto bounds = checked(offsets, view.bytes().size());
        fledge::Buffer<std::uint64_t> starts;
        starts.reserve(bounds.size());
        starts.set_size(bounds.size());
        nb::object ids = with_encoder([&](auto& encoder) {
            return encoder.encode_spans(view.bytes(), bounds, mode_of(mode), threads, starts.data());
        });
        return nb::make_tuple(ids, to_array(std::move(starts)));
    }

    // How much of a text that goes on can be encoded now without changing the ids of the whole; 0: none of it yet.
    std::size_t last_cut(nb::handle text, const std::string& mode) {
        const View view(text);
        const auto bytes = view.bytes();
        nb::gil_scoped_release release;
        return wide_ ? wide_->last_cut(bytes, mode_of(mode)) : narrow_->last_cut(bytes, mode_of(mode));
    }

    nb::object encode_words(nb::handle buffer, const Bounds& offsets) {
        const View view(buffer);
        const auto bounds = checked(offsets, view.bytes().size());
        return with_encoder([&](auto& encoder) { return encoder.encode_words(view.bytes(), bounds); });
    }

private:
    static std::string_view bytes_of(nb::handle object) {
        const auto bytes = nb::cast<nb::bytes>(object);  // the object keeps the memory alive
        return {bytes.c_str(), bytes.size()};
    }

    static fledge::Tokens to_tokens(const PythonTokens& tokens) {
        fledge::Tokens out;
        out.reserve(tokens.size());
        for (const auto& [bytes, id] : tokens) out.emplace_back(std::string(bytes.c_str(), bytes.size()), id);
        return out;
    }

    // Pairs of byte strings as ids; of tokens with equal bytes the first counts.
    static std::vector<fledge::Merge> to_merges(const fledge::Tokens& tokens, const nb::list& merges) {
        std::unordered_map<std::string_view, std::uint32_t, fledge::Hash> ids;
        ids.reserve(tokens.size());
        for (const auto& [bytes, id] : tokens) ids.emplace(bytes, id);
        const auto id_of = [&](std::string_view bytes) {
            const auto found = ids.find(bytes);
            if (found == ids.end()) throw MissingToken(bytes);
            return found->second;
        };
        std::vector<fledge::Merge> out;
        out.reserve(merges.size());
        std::string whole;
        for (const nb::handle pair : merges) {
            const auto halves = nb::cast<nb::tuple>(pair);
            if (halves.size() != 2) throw nb::value_error("a merge is a pair of byte strings");
            const std::string_view left = bytes_of(halves[0]), right = bytes_of(halves[1]);
            whole.assign(left).append(right);
            out.push_back({id_of(left), id_of(right), id_of(whole)});
        }
        return out;
    }

    template <typename Id>
    static nb::list to_list(const fledge::Buffer<Id>& ids) {
        const auto size = static_cast<Py_ssize_t>(ids.size());
        PyObject* list = PyList_New(size);
        if (!list) throw nb::python_error();
        for (Py_ssize_t i = 0; i < size; ++i) PyList_SetItem(list, i, PyLong_FromUnsignedLong(ids.data()[i]));
        return nb::steal<nb::list>(list);
    }

    template <typename Work>
    nb::object with_encoder(Work&& work) {
        if (wide_) return to_array(unlocked([&] { return work(*wide_); }));
        return to_array(unlocked([&] { return work(*narrow_); }));
    }

    template <typename Work>
    static auto unlocked(Work&& work) {
        nb::gil_scoped_release release;
        return work();
    }

    // One of the two: ids of 16 bits where all of them fit, else of 32.
    std::unique_ptr<fledge::Encoder<std::uint16_t>> narrow_;
    std::unique_ptr<fledge::Encoder<std::uint32_t>> wide_;
};

class PythonCounter {
public:
    PythonCounter(const std::string& pattern, std::vector<nb::bytes> specials, unsigned threads)
        : counter_(pattern_of(pattern), to_strings(specials), (check_threads(threads), threads)) {}

    void add_text(nb::handle text) {
        const View view(text);
        const Turn turn(at_work_);
        nb::gil_scoped_release release;
        counter_.add_text(view.bytes());
    }

    void add_spans(nb::handle buffer, const Bounds& offsets) {
        const View view(buffer);
        const auto bounds = checked(offsets, view.bytes().size());
        const Turn turn(at_work_);
        nb::gil_scoped_release release;
        counter_.add_spans(view.bytes(), bounds);
    }

    // A path is bytes: not every name is text. Ctrl-C ends the counting.
    void add_file(const nb::bytes& path) {
        const std::string name(path.c_str(), path.size());
        if (name.find('\0') != std::string::npos) throw nb::value_error("a path has no zero byte");
        const Turn turn(at_work_);
        nb::gil_scoped_release release;
        counter_.add_file(name, [] {
            nb::gil_scoped_acquire acquire;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        });
    }

    // Pre-tokens that a regular expression of the user's cut from a text of so many bytes.
    void add_words(const std::vector<std::pair<nb::bytes, std::uint64_t>>& words, std::uint64_t source_bytes) {
        const Turn turn(at_work_);
        counter_.add_source_bytes(source_bytes);
        for (const auto& [word, count] : words) {
            if (word.size() > 0) counter_.add_word({reinterpret_cast<const Byte*>(word.c_str()), word.size()}, count);
        }
    }

    std::size_t last_cut(nb::handle text) {
        const View view(text);
        nb::gil_scoped_release release;
        return counter_.last_cut(view.bytes());
    }

    void finish() {
        const Turn turn(at_work_);
        nb::gil_scoped_release release;
        counter_.total();
    }

    // [(left, right, result, count)]. `progress(merges)` may raise, and so may Ctrl-C: then training ends with it.
    nb::list train(std::uint64_t merges, std::uint64_t min_frequency, nb::object progress) {
        const fledge::TrainRequest request{merges, min_frequency};
        fledge::TrainResult result;
        bool failed = false;
        Call call{progress, failed};
        const Turn turn(at_work_);
        {
            nb::gil_scoped_release release;
            result = fledge::train(counter_.total(), request, &Call::run, &call);
        }
        if (failed) throw nb::python_error();
        nb::list list;
        for (const auto& merge : result.merges) {
            list.append(nb::make_tuple(merge.left, merge.right, merge.result, merge.count));
        }
        return list;
    }

    std::size_t distinct() {
        const Turn turn(at_work_);
        return counter_.total().size();
    }
    std::uint64_t source_bytes() const { return counter_.source_bytes(); }

private:
    struct Call {
        nb::object& progress;
        bool& failed;
        static bool run(void* self, std::uint64_t merges) {
            auto& call = *static_cast<Call*>(self);
            nb::gil_scoped_acquire acquire;
            call.failed = PyErr_CheckSignals() != 0;
            if (call.failed || call.progress.is_none()) return !call.failed;
            PyObject* answer = PyObject_CallFunction(call.progress.ptr(), "K", static_cast<unsigned long long>(merges));
            call.failed = !answer;
            Py_XDECREF(answer);
            return !call.failed;
        }
    };

    static std::vector<std::string> to_strings(const std::vector<nb::bytes>& list) {
        std::vector<std::string> out;
        for (const nb::bytes& item : list) {
            if (item.size() == 0) throw nb::value_error("a special token has no bytes");
            out.emplace_back(item.c_str(), item.size());
        }
        return out;
    }

    fledge::PretokenCounter counter_;
    std::atomic<bool> at_work_{false};
};

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Array>
auto span_of(const Array& array) {
    return std::span(array.data(), array.is_valid() ? array.size() : 0);
}

// The CRC-32 of each document of a block of text, into `sums`.
void checksums(nb::handle text, const Numbers& starts, const Numbers& ends, const Places& sums) {
    const View view(text);
    const auto bytes = view.bytes();
    if (starts.size() != ends.size() || starts.size() != sums.size()) throw nb::value_error("as many starts as ends");
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < starts.size(); ++i) {
        const auto start = static_cast<std::size_t>(starts.data()[i]), end = static_cast<std::size_t>(ends.data()[i]);
        if (start > end || end > bytes.size()) throw std::out_of_range("a document lies outside the text");
        sums.data()[i] = fledge::checksum({reinterpret_cast<const unsigned char*>(bytes.data()) + start, end - start});
    }
}

std::uint32_t checksum(nb::handle bytes, std::uint32_t before) {
    const View view(bytes);
    nb::gil_scoped_release release;
    return fledge::checksum(view.bytes(), before);
}

nb::object find_marks(nb::handle text, nb::handle mark) {
    const View view(text), sought(mark);
    fledge::Buffer<std::int64_t> places;
    {
        nb::gil_scoped_release release;
        places = fledge::find_marks(view.bytes(), sought.bytes());
    }
    return to_array(std::move(places));
}

using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void divide(nb::handle documents, const Bounds& bounds, const Flags& held_out, const Bytes& out) {
    const View view(documents);
    const auto places = checked(bounds, view.bytes().size());
    if (places.size() != held_out.size() + 1) throw nb::value_error("a flag for each document");
    nb::gil_scoped_release release;
    // A flag is a byte: what numpy takes for true need not be the 1 that C++ does.
    const std::span flags(reinterpret_cast<const unsigned char*>(held_out.data()), held_out.size());
    fledge::divide(view.bytes(), places, flags, span_of(out));
}

void gather(int file, int width, const Numbers& begins, const Numbers& sources, const Numbers& lengths,
            const Numbers& positions, const Numbers& documents, std::int64_t opening, std::int64_t padding,
            const Places& inputs, const Places& targets, const Places& position_places, const Places& document_places) {
    const fledge::Stretches stretches{span_of(begins), span_of(sources), span_of(lengths), span_of(positions),
                                      span_of(documents)};
    const fledge::Rows rows{span_of(inputs), span_of(targets), span_of(position_places), span_of(document_places)};
    if (width != 2 && width != 4) throw nb::value_error("an id has 2 or 4 bytes");
    const std::size_t count = stretches.begins.size(), size = rows.inputs.size();
    const auto either = [](std::size_t found, std::size_t wanted) { return found == 0 || found == wanted; };
    if (stretches.sources.size() != count || stretches.lengths.size() != count || rows.targets.size() != size ||
        !either(rows.positions.size(), size) || rows.documents.size() != rows.positions.size() ||
        (!rows.positions.empty() && (stretches.positions.size() != count || stretches.documents.size() != count))) {
        throw nb::value_error("arrays of a batch differ in size");
    }
    nb::gil_scoped_release release;
    if (width == 2) {
        fledge::gather<std::uint16_t>(file, stretches, opening, padding, rows);
    } else {
        fledge::gather<std::uint32_t>(file, stretches, opening, padding, rows);
    }
}

void find_places(const Numbers& numbers, const Numbers& rungs, std::size_t step, const Numbers& values,
                 const Places& places) {
    if (values.size() != places.size()) throw nb::value_error("a place for each value");
    if (step < 1) throw nb::value_error("a step is 1 or more");
    if (rungs.size() != numbers.size() / step + (numbers.size() % step != 0)) throw nb::value_error("a rung for each step");
    nb::gil_scoped_release release;
    fledge::find_places(span_of(numbers), span_of(rungs), step, span_of(values), span_of(places));
}

nb::object path_of(const std::string& name) {
    return nb::steal(PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
}

#ifndef _WIN32
// Called by Python in its main thread, soon after the read that met the end of the file.
int refuse_shortened(void* path) {
    try {
        nb::object refusal = nb::module_::import_("fledge.errors").attr("changed")(path_of(static_cast<const char*>(path)),
                                                                                 "became shorter");
        PyErr_SetObject(refusal.type().ptr(), refusal.ptr());
    } catch (nb::python_error& error) {
        error.restore();
    }
    return -1;
}

std::size_t watch_mapping(nb::handle array, const nb::bytes& path) {
    const View memory(array);
    const auto main = nb::cast<std::uintptr_t>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    pthread_t thread{};
    static_assert(sizeof(thread) <= sizeof(main));
    std::memcpy(&thread, &main, sizeof(thread));
    return fledge::MappedFiles::all().watch(memory.bytes().data(), memory.bytes().size(), std::string(path.c_str(), path.size()),
                                            thread, &Py_AddPendingCall, &refuse_shortened);
}

void forget_mapping(std::size_t number) { fledge::MappedFiles::all().forget(number); }
#endif

// A hash as Python keeps it: 16 bytes.
fledge::Hash128 key_of(const nb::bytes& key) {
    if (key.size() != 16) throw nb::value_error("a key has 16 bytes");
    fledge::Hash128 found;
    std::memcpy(&found, key.c_str(), 16);
    return found;
}

class PythonNearCopies {
public:
    PythonNearCopies(double threshold, unsigned words, unsigned threads, const nb::bytes& key)
        : copies_(threshold, words, (check_threads(threads), threads), key_of(key)) {}

    void add(nb::handle text, const Numbers& starts, const Numbers& ends) {
        const Turn turn(at_work_);
        const View view(text);
        nb::gil_scoped_release release;
        copies_.add(view.bytes(), span_of(starts), span_of(ends));
    }
    nb::object exact() { return without_lock([&] { return copies_.exact(); }); }
    nb::object groups() { return without_lock([&] { return copies_.groups(); }); }
    nb::bytes hash(std::size_t document) {
        const Turn turn(at_work_);
        if (document >= copies_.size()) throw nb::index_error("there is no such document");
        return nb::bytes(reinterpret_cast<const char*>(&copies_.hash(document)), 16);
    }
    double similarity(std::size_t left, std::size_t right) {
        const Turn turn(at_work_);
        return copies_.similarity(left, right);
    }
    std::size_t size() {
        const Turn turn(at_work_);
        return copies_.size();
    }

private:
    template <typename Work>
    nb::object without_lock(const Work& work) {
        const Turn turn(at_work_);
        fledge::Buffer<std::uint32_t> out;
        {
            nb::gil_scoped_release release;
            const auto found = work();
            out.append(found.data(), found.size());
        }
        return to_array(std::move(out));
    }

    fledge::NearCopies copies_;
    std::atomic<bool> at_work_{false};
};

// Three numbers for each stretch: where it starts, where it stands too, and its length.
nb::object find_stretches(nb::handle text, const Bounds& bounds, std::size_t minimum, std::uint64_t queries,
                          unsigned threads) {
    const View view(text);
    const auto documents = checked(bounds, view.bytes().size());
    check_threads(threads);
    fledge::Buffer<std::uint64_t> out;
    {
        nb::gil_scoped_release release;
        for (const auto& [start, source, length] : fledge::find_stretches(view.bytes(), documents, minimum, queries, threads)) {
            const std::uint64_t facts[] = {start, source, length};
            out.append(facts, 3);
        }
    }
    return to_array(std::move(out));
}

template <typename Id>
using Tokens = nb::ndarray<const Id, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The order of the suffixes that start at the first tokens, as many as `out` has room for.
template <typename Id>
void sort_suffixes(const Tokens<Id>& tokens, const Order& out, std::size_t limit, unsigned threads) {
    if (out.size() > tokens.size() || tokens.size() >= ~0u) throw nb::value_error("more suffixes than tokens");
    if (limit < 1) throw nb::value_error("suffixes are compared by one token at least");
    check_threads(threads);
    nb::gil_scoped_release release;
    fledge::sort_suffixes<Id>(span_of(tokens), span_of(out), limit, threads);
}

// For each place of what is sought, how long the longest stretch is that starts there and stands in the tokens, and
// where it stands: `offset` more than in these tokens. Only what is longer than is known already is written.
template <typename Id>
void longest_matches(const Tokens<Id>& tokens, const Tokens<std::uint32_t>& suffixes, std::size_t limit,
                     const Tokens<Id>& sought, std::int64_t offset, const Places& lengths, const Places& places,
                     unsigned threads) {
    if (lengths.size() != sought.size() || places.size() != sought.size()) throw nb::value_error("a length and a place for each token");
    if (limit < 1) throw nb::value_error("suffixes are compared by one token at least");
    check_threads(threads);
    nb::gil_scoped_release release;
    constexpr std::size_t step = std::size_t{1} << 14;
    fledge::run_parallel((sought.size() + step - 1) / step, threads, [&] {
        return [&](std::size_t part) {
            fledge::Match found;
            for (std::size_t i = part * step; i < std::min(sought.size(), (part + 1) * step); ++i) {
                if (found.length / 4 > limit) {  // far beyond what the order tells: following each from its start is quadratic
                    found = {found.place + 1, found.length - 1};
                } else {
                    found = fledge::longest_match<Id>(span_of(tokens), span_of(suffixes), limit, span_of(sought).subspan(i));
                }
                if (static_cast<std::int64_t>(found.length) <= lengths.data()[i]) continue;
                lengths.data()[i] = static_cast<std::int64_t>(found.length);
                places.data()[i] = static_cast<std::int64_t>(found.place) + offset;
            }
        };
    });
}

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

float* places(std::uintptr_t address) {
    if (address == 0 || address % sizeof(float) != 0) throw nb::value_error("no tensor of 32-bit numbers is at this address");
    return reinterpret_cast<float*>(address);
}
const float* floats(std::uintptr_t address) { return places(address); }
const float* floats_or_none(std::uintptr_t address) { return address == 0 ? nullptr : places(address); }

// The sizes of a tensor: none of them zero, and together not more than any memory holds.
void check_sizes(std::initializer_list<std::size_t> sizes) {
    std::size_t room = std::size_t{1} << 48;
    for (const std::size_t size : sizes) {
        if (size < 1 || size > room) throw nb::value_error("a size of a tensor is zero, or too large");
        room /= size;
    }
}

// One of the types of number that logits have; every target is looked at, for it becomes a place in memory.
double softmax_slope(std::uintptr_t logits, bool wide, const Numbers& targets, std::size_t columns, float smoothing,
                     float z_loss, bool wanted, unsigned threads) {
    const std::size_t rows = targets.size();
    check_sizes({std::max<std::size_t>(rows, 1), columns});
    check_threads(threads);
    if (logits == 0 || logits % (wide ? sizeof(float) : sizeof(std::uint16_t)) != 0) {
        throw nb::value_error("no tensor of such numbers is at this address");
    }
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int64_t target = targets.data()[row];
        if (target != fledge::masked && (target < 0 || static_cast<std::uint64_t>(target) >= columns)) {
            throw nb::index_error("a target is not an id of the vocabulary");
        }
    }
    const fledge::Slope slope{columns, smoothing, z_loss, wanted};
    nb::gil_scoped_release release;
    if (wide) return slope(reinterpret_cast<float*>(logits), targets.data(), rows, threads);
    return slope(reinterpret_cast<std::uint16_t*>(logits), targets.data(), rows, threads);
}

}  // namespace

NB_MODULE(_core, m) {
    m.doc() = "The native core.";
    m.attr("unicode_version") = fledge::unicode::version;
    m.def("count_invalid", [](nb::handle text) {
        const View view(text);
        nb::gil_scoped_release release;
        return fledge::count_invalid(view.bytes());
    }, "text"_a, "How many bytes of a text are not part of valid UTF-8.");

    m.def("last_merges", [](const std::vector<nb::bytes>& tokens) {
        std::vector<std::string_view> views;
        for (const nb::bytes& token : tokens) views.emplace_back(token.c_str(), token.size());
        return fledge::last_merges(views);
    }, "tokens"_a, "Where the last merge of each token, all in order of rank, joins its halves; 0 where none makes it.");

    m.def("checksums", &checksums, "text"_a, "starts"_a, "ends"_a, "sums"_a,
          "The CRC-32 of every document of a block of text.");
    m.def("checksum", &checksum, "bytes"_a, "before"_a = 0,
          "The CRC-32 of bytes that follow others whose CRC-32 is `before`.");
    m.def("find_marks", &find_marks, "text"_a, "mark"_a, "Where a mark begins, from left to right without overlap.");
    m.def("divide", &divide, "documents"_a, "bounds"_a, "held_out"_a, "out"_a,
          "Documents side by side: first those that are not held out, then those that are.");
    m.def("gather", &gather, "file"_a, "width"_a, "begins"_a, "sources"_a, "lengths"_a, "positions"_a.none(),
          "documents"_a.none(), "opening"_a, "padding"_a, "inputs"_a, "targets"_a, "position_places"_a.none(),
          "document_places"_a.none(), "Fill the rows of a batch with stretches of a token file.");
    m.def("find_places", &find_places, "numbers"_a, "rungs"_a, "step"_a, "values"_a, "places"_a,
          "For each value the last place of ascending numbers whose number is not greater.");

#ifndef _WIN32
    m.def("watch_mapping", &watch_mapping, "array"_a, "path"_a,
          "Name a mapped file where it becomes shorter while it is read; the number to forget it by.");
    m.def("forget_mapping", &forget_mapping, "number"_a, "Its memory is no longer mapped.");
#endif

    nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
        try {
            std::rethrow_exception(failure);
        } catch (const fledge::SpecialRefused& error) {
            nb::object arguments = nb::make_tuple(to_bytes(error.token), error.at, error.span);
            PyErr_SetObject(PyExc_LookupError, arguments.ptr());
        } catch (const MissingToken& error) {
            PyErr_SetObject(PyExc_KeyError, to_bytes(error.token).ptr());
        } catch (const fledge::TooLarge& error) {
            PyErr_SetString(nb::module_::import_("fledge.errors").attr("FledgeError").ptr(), error.what());
        } catch (const fledge::FileChanged& error) {
            nb::object refusal = nb::module_::import_("fledge.errors").attr("changed")(path_of(error.path), error.what());
            PyErr_SetObject(refusal.type().ptr(), refusal.ptr());
        } catch (const fledge::FileError& error) {
            nb::object arguments = nb::make_tuple(error.code().value(), error.code().message(), path_of(error.path));
            PyErr_SetObject(PyExc_OSError, arguments.ptr());
        } catch (const std::system_error& error) {
            nb::object arguments = nb::make_tuple(error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, arguments.ptr());
        }
    });

    m.def("softmax_slope", &softmax_slope, "logits"_a, "wide"_a, "targets"_a, "columns"_a, "smoothing"_a, "z_loss"_a,
          "wanted"_a, "threads"_a, "The sum of the rows' cross-entropies; the slope takes the place of the logits.");
    m.def("keep_freed_memory", &fledge::keep_freed_memory,
          "Memory that is given back stays with the process, for whoever asks for as much next.");

    // Tensors come as addresses: a call for every product of every token has no time for more.
    nb::class_<fledge::Product>(m, "Product")
        .def("__init__", [](fledge::Product* self, std::uintptr_t weight, std::uintptr_t bias, std::size_t outputs,
                            std::size_t inputs) {
            check_sizes({outputs, inputs, fledge::most_rows});
            new (self) fledge::Product{floats(weight), floats_or_none(bias), outputs, inputs};
        }, "weight"_a, "bias"_a, "outputs"_a, "inputs"_a)
        .def("__call__", [](const fledge::Product& self, std::uintptr_t x, std::uintptr_t residual, std::uintptr_t out,
                            std::size_t rows, unsigned threads) {
            if (rows < 1 || rows > fledge::most_rows) throw nb::value_error("a product of decoding takes 1 to 8 rows");
            check_threads(threads);
            const float *from = floats(x), *added = floats_or_none(residual);
            float* to = places(out);
            nb::gil_scoped_release release;
            self(from, added, to, rows, threads);
        }, "x"_a, "residual"_a, "out"_a, "rows"_a, "threads"_a);
    nb::class_<fledge::Attention>(m, "Attention")
        .def("__init__", [](fledge::Attention* self, std::size_t heads, std::size_t key_heads, std::size_t size,
                            std::size_t capacity, float scale) {
            check_sizes({heads, size, capacity});
            check_sizes({key_heads, size, capacity});
            if (heads % key_heads != 0) throw nb::value_error("key_heads does not divide heads");
            new (self) fledge::Attention{heads, key_heads, size, capacity, scale};
        }, "heads"_a, "key_heads"_a, "size"_a, "capacity"_a, "scale"_a)
        .def("__call__", [](const fledge::Attention& self, std::uintptr_t queries, std::size_t query_stride,
                            std::uintptr_t keys, std::uintptr_t values, std::size_t used, std::uintptr_t out,
                            std::size_t rows, unsigned threads) {
            check_sizes({rows, self.heads, self.size, self.capacity});
            check_sizes({rows, query_stride});
            check_threads(threads);
            if (used < 1 || used > self.capacity) throw nb::value_error("used must be from 1 to the capacity");
            const float *asked = floats(queries), *known = floats(keys), *read = floats(values);
            float* to = places(out);
            nb::gil_scoped_release release;
            self(asked, query_stride, known, read, used, to, rows, threads);
        }, "queries"_a, "query_stride"_a, "keys"_a, "values"_a, "used"_a, "out"_a, "rows"_a, "threads"_a);
    nb::class_<fledge::Synapses>(m, "Synapses")
        .def("__init__", [](fledge::Synapses* self, std::size_t heads, std::size_t neurons, std::size_t width) {
            check_sizes({heads, neurons, width});
            new (self) fledge::Synapses{heads, neurons, width};
        }, "heads"_a, "neurons"_a, "width"_a)
        .def("__call__", [](const fledge::Synapses& self, std::uintptr_t keys, std::uintptr_t x, std::uintptr_t synapses,
                            std::uintptr_t read, std::size_t rows, unsigned threads) {
            check_sizes({rows, self.heads, self.neurons, self.width});
            check_threads(threads);
            const float *fired = floats(keys), *from = floats(x);
            float *kept = places(synapses), *to = places(read);
            nb::gil_scoped_release release;
            self(fired, from, kept, to, rows, threads);
        }, "keys"_a, "x"_a, "synapses"_a, "read"_a, "rows"_a, "threads"_a);
    nb::class_<fledge::GatedSum>(m, "GatedSum")
        .def("__init__", [](fledge::GatedSum* self, std::uintptr_t inner, std::uintptr_t outer, std::size_t heads,
                            std::size_t neurons, std::size_t width) {
            check_sizes({heads, neurons, width});
            new (self) fledge::GatedSum{floats(inner), floats(outer), heads, neurons, width};
        }, "inner"_a, "outer"_a, "heads"_a, "neurons"_a, "width"_a)
        .def("__call__", [](const fledge::GatedSum& self, std::uintptr_t gates, std::uintptr_t x, std::uintptr_t out,
                            std::size_t rows, unsigned threads) {
            check_sizes({rows, self.heads, self.neurons, self.width});
            check_threads(threads);
            const float *open = floats(gates), *from = floats(x);
            float* to = places(out);
            nb::gil_scoped_release release;
            self(open, from, to, rows, threads);
        }, "gates"_a, "x"_a, "out"_a, "rows"_a, "threads"_a);

    m.def("document_hash", [](nb::handle text, const nb::bytes& key) {
        const View view(text);
        const auto [low, high] = key_of(key);
        const fledge::Hash128 found = fledge::siphash(view.bytes(), low, high);
        return nb::bytes(reinterpret_cast<const char*>(&found), 16);
    }, "text"_a, "key"_a, "A hash of 128 bits under a key of 16 bytes: SipHash-2-4.");
    m.def("find_stretches", &find_stretches, "text"_a, "bounds"_a, "minimum"_a, "queries"_a, "threads"_a,
          "Stretches of documents that stand elsewhere too: start, source and length of each, one after the other.");
    m.def("sort_suffixes", &sort_suffixes<std::uint16_t>, "tokens"_a, "out"_a, "limit"_a, "threads"_a,
          "The order of the suffixes of some tokens.");
    m.def("sort_suffixes", &sort_suffixes<std::uint32_t>, "tokens"_a, "out"_a, "limit"_a, "threads"_a);
    m.def("longest_matches", &longest_matches<std::uint16_t>, "tokens"_a, "suffixes"_a, "limit"_a, "sought"_a, "offset"_a,
          "lengths"_a, "places"_a, "threads"_a, "The longest stretch that starts at each place and stands in the tokens.");
    m.def("longest_matches", &longest_matches<std::uint32_t>, "tokens"_a, "suffixes"_a, "limit"_a, "sought"_a, "offset"_a,
          "lengths"_a, "places"_a, "threads"_a);
    nb::class_<PythonNearCopies>(m, "NearCopies")
        .def(nb::init<double, unsigned, unsigned, const nb::bytes&>(), "threshold"_a, "words"_a, "threads"_a, "key"_a)
        .def("add", &PythonNearCopies::add, "text"_a, "starts"_a, "ends"_a)
        .def("exact", &PythonNearCopies::exact)
        .def("groups", &PythonNearCopies::groups)
        .def("hash", &PythonNearCopies::hash, "document"_a)
        .def("similarity", &PythonNearCopies::similarity, "left"_a, "right"_a)
        .def("__len__", &PythonNearCopies::size);

    nb::class_<PythonEncoder>(m, "Encoder")
        .def(nb::init<const PythonTokens&, const nb::list&, const PythonTokens&, const PythonTokens&, const std::string&,
                      bool, bool>(),
             "tokens"_a, "merges"_a, "specials"_a, "always"_a, "pattern"_a, "whole_words"_a, "wide"_a)
        .def("encode", &PythonEncoder::encode, "text"_a, "special"_a, "threads"_a)
        .def("encode_list", &PythonEncoder::encode_list, "text"_a, "special"_a)
        .def("encode_spans", &PythonEncoder::encode_spans, "buffer"_a, "offsets"_a, "special"_a, "threads"_a)
        .def("last_cut", &PythonEncoder::last_cut, "text"_a, "special"_a)
        .def("encode_words", &PythonEncoder::encode_words, "buffer"_a, "offsets"_a);

    nb::class_<PythonCounter>(m, "PretokenCounter")
        .def(nb::init<const std::string&, std::vector<nb::bytes>, unsigned>(), "pattern"_a, "specials"_a, "threads"_a)
        .def("add_text", &PythonCounter::add_text, "text"_a)
        .def("add_spans", &PythonCounter::add_spans, "buffer"_a, "offsets"_a)
        .def("add_file", &PythonCounter::add_file, "path"_a)
        .def("add_words", &PythonCounter::add_words, "words"_a, "source_bytes"_a)
        .def("last_cut", &PythonCounter::last_cut, "text"_a)
        .def("finish", &PythonCounter::finish)
        .def("train", &PythonCounter::train, "merges"_a, "min_frequency"_a, "progress"_a.none())
        .def_prop_ro("distinct", &PythonCounter::distinct)
        .def_prop_ro("source_bytes", &PythonCounter::source_bytes);
}
