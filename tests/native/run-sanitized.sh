#!/bin/sh
# Builds the native core with AddressSanitizer and UBSan, runs its tests, then fuzzes it: run-sanitized.sh [SECONDS] [SEED].
set -eu
here=$(cd "$(dirname "$0")" && pwd)
core="$here/../../csrc"
build="${BUILD:-$here/../../build/sanitized}"
mkdir -p "$build"
compiler="${CXX:-c++}"
flags="-std=c++20 -O1 -g -Wall -Wextra -Wpedantic -Werror -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
sources="$core/count.cpp $core/encoder.cpp $core/trainer.cpp $core/decode.cpp"
# shellcheck disable=SC2086
"$compiler" $flags -I"$core" "$here/native_test.cpp" $sources -pthread -o "$build/native_test"
# shellcheck disable=SC2086
"$compiler" $flags -I"$core" "$here/fuzz.cpp" $sources -pthread -o "$build/fuzz"
"$build/native_test"
"$build/fuzz" "${1:-30}" ${2:+"$2"}
