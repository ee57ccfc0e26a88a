#!/bin/sh
# The compiled program of the second hop, crates/flows/bpf/flows.bpf.o, from its source. With --check nothing is written:
# it says whether the object is what the source gives, by 0 or 1; 3 where the compiler is not the one that made it.
#
#   scripts/flows-object.sh [--check]
set -eu

cd "$(dirname "$0")/../crates/flows/bpf"
major=14
clang=${CLANG:-clang-$major}

if ! "$clang" --version 2>/dev/null | grep -q "clang version $major\."; then
    echo "cannot compare: clang $major is needed (apt-get install clang-$major), or CLANG names it" >&2
    exit 3
fi

build() {
    # No debug information: it has paths in it. Little-endian machines only, which all that we build for are.
    "$clang" -target bpfel -mcpu=v3 -O2 -std=gnu11 -g0 -Wall -Wextra -Werror -Wno-unused-function -Wno-missing-field-initializers \
        -ffreestanding -fno-ident -Xclang -fdebug-compilation-dir -Xclang . -c flows.bpf.c -o "$1"
}

if [ "${1:-}" = --check ]; then
    built=$(mktemp)
    trap 'rm -f "$built"' EXIT
    build "$built"
    cmp "$built" flows.bpf.o || { echo "flows.bpf.o is not what its source gives: run scripts/flows-object.sh" >&2; exit 1; }
    echo "flows.bpf.o is what its source gives"
else
    build flows.bpf.o
fi
