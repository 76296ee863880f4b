#!/bin/sh
# Builds the native core with AddressSanitizer and UBSan, runs its tests, then fuzzes it, as C++ and through every
# function that Python sees: run-sanitized.sh [SECONDS] [SEED]. PYTHON names a Python with fledge and nanobind.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
core="$here/../../csrc"
build="${BUILD:-$here/../../build/sanitized}"
mkdir -p "$build"
compiler="${CXX:-c++}"
flags="-std=c++20 -O1 -g -Wall -Wextra -Wpedantic -Werror -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
python="${PYTHON:-$here/../../.venv/bin/python}"
sources=$(find "$core" -maxdepth 1 -name "*.cpp" ! -name bindings.cpp)
# shellcheck disable=SC2086
"$compiler" $flags -I"$core" "$here/native_test.cpp" $sources -pthread -o "$build/native_test"
# shellcheck disable=SC2086
"$compiler" $flags -I"$core" "$here/fuzz.cpp" $sources -pthread -o "$build/fuzz"
"$build/native_test"
"$build/fuzz" "${1:-30}" ${2:+"$2"}

# The module as Python loads it, in place of the one that is installed.
binding=$("$python" -c "import nanobind; print(nanobind.include_dir())")
include=$("$python" -c "import sysconfig; print(sysconfig.get_path('include'))")
headers="-isystem $include -isystem $binding -isystem $binding/../ext/robin_map/include"
# shellcheck disable=SC2086
"$compiler" -std=c++20 -O1 -fPIC -fvisibility=hidden -fno-strict-aliasing $headers \
    -c "$binding/../src/nb_combined.cpp" -o "$build/nanobind.o"
# shellcheck disable=SC2086
"$compiler" $flags -fPIC -shared -fvisibility=hidden $headers -I"$core" "$core/bindings.cpp" "$core"/bindings/*.cpp $sources \
    "$build/nanobind.o" -pthread -o "$build/_core.so"
# The sanitizers must be there before Python is. Leaks are Python's own; memory that is refused is an answer.
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so.6)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
    "$python" "$here/fuzz_bindings.py" "$build/_core.so" "${1:-30}" ${2:+"$2"}
