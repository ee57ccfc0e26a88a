#!/usr/bin/env bash
# Makes the profile that `make release` builds by, anew: builds instrumented programs, leads them through the traffic of
# scripts/training.sh, and writes profile/HOST.profdata.gz, to be committed. Takes 10 to 20 minutes on two cores.
set -euo pipefail
# shellcheck source=scripts/profile-common.sh
source "$(dirname "$0")/profile-common.sh"

# Code on secrets in constant time: told which way a choice usually goes, the compiler may make a branch of it.
SECRETS='propylon_lanes|6subtle|8base64ct'
# Larger ones do not belong into a repository.
KEPT_BYTES_MAX=4000000

main() {
    local folder="$TARGET/instrumented" profdata
    profdata="$(find_profdata)"
    cargo build --locked --release --package propylon-bench --bin propylon-bench
    CARGO_ENCODED_RUSTFLAGS="$(flags -Cprofile-generate -Cllvm-args=-vp-counters-per-site=8)" \
        "${BUILD[@]}" --target-dir "$folder" --bin propylon --bin propylon-keyserver
    rm -rf "$folder/raw"
    echo "training, for some two minutes"
    # Programs that end add to what those before them have written.
    LLVM_PROFILE_FILE="$folder/raw/%m.profraw" \
        "$ROOT/scripts/training.sh" "$folder/$HOST/release" "$TARGET/release/propylon-bench"
    # One of each program: the engine's sandbox, for example, keeps it from writing.
    [ "$(find "$folder/raw" -name '*.profraw' | wc -l)" -eq 2 ] || fail "a program has written no profile: see $folder/raw"
    # Functions that never ran are left out: what is not known of is compiled as ever, and not as something rare.
    "$profdata" merge --sparse --failure-mode=any --no-function="$SECRETS" -o "$folder/new.profdata" "$folder"/raw/*.profraw
    keep "$folder/new.profdata"
}

# llvm-profdata of rustup, or of a package that is not older than the compiler's LLVM, whose profiles it has to read.
find_profdata() {
    local own major command version
    own="$(rustc --print sysroot)/lib/rustlib/$HOST/bin/llvm-profdata"
    if [ ! -x "$own" ] && command -v rustup >/dev/null; then
        rustup component add llvm-tools >&2 || true
    fi
    if [ -x "$own" ]; then
        echo "$own"
        return
    fi
    major="$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')"
    for command in "llvm-profdata-$major" llvm-profdata; do
        version="$("$command" merge --version 2>/dev/null | sed -n 's/.*LLVM version \([0-9]*\).*/\1/p')" || true
        if [ "${version:-0}" -ge "$major" ]; then
            echo "$command"
            return
        fi
    done
    fail "no llvm-profdata of LLVM $major or later is installed, which reads this compiler's profiles. With rustup: \
rustup component add llvm-tools; on Debian and Ubuntu: apt-get install -y llvm-$major"
}

keep() {
    local profile="$1" bytes
    mkdir -p profile
    gzip -9nc "$profile" > "$TARGET/instrumented/new.gz"
    bytes="$(stat -c %s "$TARGET/instrumented/new.gz")"
    [ "$bytes" -le "$KEPT_BYTES_MAX" ] || fail "the profile has $bytes bytes, more than the $KEPT_BYTES_MAX that are kept"
    mv "$TARGET/instrumented/new.gz" "$KEPT"
    {
        echo "digest: $(sha256sum < "$profile" | cut -c 1-64)"
        echo "compiler: $(compiler)"
        echo "names: $(name_base)"
    } > "$ABOUT"
    echo "kept in $KEPT, $bytes bytes; commit it with $ABOUT"
}

main
