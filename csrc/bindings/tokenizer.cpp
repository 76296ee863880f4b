// What Python sees of the tokenizer: an encoder, and a counter that trains.
#include "common.hpp"

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "count.hpp"
#include "encoder.hpp"
#include "ranks.hpp"
#include "trainer.hpp"
#include "validity.hpp"

namespace fledge::python {

namespace {

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

}  // namespace

void bind_tokenizer(nb::module_& m) {
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

}  // namespace fledge::python
