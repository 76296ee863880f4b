// What Python sees of the native core, a file for each room in bindings/. Text comes in as bytes-like objects without a
// copy, arrays go out without one, and the interpreter's lock is released meanwhile. Every function checks what it is
// given: numbers and sizes that do not fit are refused, whoever calls.
#include <system_error>

#include "bindings/common.hpp"
#include "encoder.hpp"
#include "file_parts.hpp"
#include "too_large.hpp"
#include "unicode.hpp"

namespace nb = nanobind;
using fledge::python::MissingToken;
using fledge::python::path_of;

namespace {

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

NB_MODULE(_core, m) {
    m.doc() = "The native core.";
    m.attr("unicode_version") = fledge::unicode::version;
    fledge::python::bind_tokenizer(m);
    fledge::python::bind_corpus(m);
    fledge::python::bind_tokens(m);
    fledge::python::bind_model(m);

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
}
