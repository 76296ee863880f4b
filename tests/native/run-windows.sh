#!/bin/sh
# Builds the native core and its tests for Windows with mingw-w64, and runs them under Wine. MSVC has no vectors of GCC's
# kind, so the loops that take their place are what is compiled here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
core="$here/../../csrc"
build="${BUILD:-$here/../../build/windows}"
mkdir -p "$build"
compiler="${MINGW:-x86_64-w64-mingw32-g++-posix}"
flags="-std=c++20 -O2 -Wall -Wextra -Wpedantic -Werror -DFLEDGE_PLAIN_LANES"
sources=$(find "$core" -maxdepth 1 -name "*.cpp" ! -name bindings.cpp)
# shellcheck disable=SC2086
"$compiler" $flags -I"$core" "$here/native_test.cpp" $sources -static -o "$build/native_test.exe"
export WINEPREFIX="${WINEPREFIX:-$build/wine}" WINEDEBUG=-all
mkdir -p "$WINEPREFIX"
wine "$build/native_test.exe"
