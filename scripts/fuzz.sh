#!/bin/sh
# Runs the fuzz targets of fuzz/fuzz_targets under libFuzzer, one after the other, and prints a table of what came of it:
#
#     make fuzz                                      # all of them, a minute each
#     SECONDS=600 TARGETS="requests import" make fuzz
#     SANITIZER=none make fuzz                       # twice as fast, without AddressSanitizer
#
# Wants a C++ compiler, and neither cargo-fuzz nor a nightly Rust: the compiler that everything else is built with is told
# to take flags of nightly (RUSTC_BOOTSTRAP), which is for nothing but this. OPT_LEVEL=2 builds for longer and runs faster.
# PROGRAMS=FOLDER takes targets that were built otherwise. Inputs that reach new code stay in fuzz/corpus, where the next run
# begins; fuzz/seeds and the tests' own files are read as well. An input that breaks a promise, takes more than 10 s or 2 GiB
# is in fuzz/artifacts, and the exit code is 1 then; 2 where nothing could be run.
set -eu

# A shell that counts seconds itself under that name starts from the one that it was given.
per_target=${SECONDS:-0}
[ "$per_target" -gt 0 ] || per_target=60
TIMEOUT_SECONDS=10
RSS_MIB_MAX=2048
# Longer inputs reach little that is new, and make each run slower.
INPUT_BYTES_MAX=8192

names() {
    (cd fuzz/fuzz_targets && echo *.rs | sed 's/\.rs//g')
}

cd "$(dirname "$0")/.."
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR
work=$CARGO_TARGET_DIR/fuzz
targets=${TARGETS:-$(names)}

main() {
    mkdir -p "$work"
    for target in $targets; do
        [ -f "fuzz/fuzz_targets/$target.rs" ] || stop "no target $target; there are: $(names)"
    done
    programs=${PROGRAMS:-}
    [ -n "$programs" ] || build
    broken=0
    : > "$work/table"
    for target in $targets; do run "$target"; done
    printf '\n%-18s %12s %7s %7s  %s\n' target executions edges new result
    cat "$work/table"
    exit "$broken"
}

stop() {
    echo "fuzz.sh: $1" >&2
    exit 2
}

# What cargo-fuzz tells the compiler: coverage of edges and comparisons in Rust code of ours and others'.
FLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks"

build() {
    command -v c++ > /dev/null || stop "no C++ compiler, which libFuzzer is built with: apt-get install -y g++"
    host=$(rustc -vV | sed -n 's/^host: //p')
    sanitizer=${SANITIZER:-address}
    [ "$sanitizer" = none ] || FLAGS="$FLAGS -Zsanitizer=$sanitizer"
    echo "building with $(rustc --version), sanitizer: $sanitizer"
    bins=
    for target in $targets; do bins="$bins --bin $target"; done
    # Flags of a target leave build scripts and macros alone, which run here. The words of bins are arguments.
    # shellcheck disable=SC2086
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=$(echo $FLAGS) CARGO_PROFILE_RELEASE_OPT_LEVEL="${OPT_LEVEL:-1}" \
        cargo build --locked --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$work/$sanitizer" \
        $bins > "$work/build.log" 2>&1 ||
        { tail -n 40 "$work/build.log" >&2; stop "targets do not build, see $work/build.log"; }
    programs=$work/$sanitizer/$host/release
}

run() {
    name=$1
    log=$work/$name.log
    mkdir -p "fuzz/corpus/$name" "fuzz/artifacts/$name"
    set -- "fuzz/corpus/$name"
    seeds "$name"
    for folder in "fuzz/seeds/$name" "$work/seeds/$name"; do [ ! -d "$folder" ] || set -- "$@" "$folder"; done
    echo "running $name for $per_target s"
    result=fine
    # Leaks are looked for at the end, by AddressSanitizer, where it is in.
    "$programs/$name" -max_total_time="$per_target" -timeout="$TIMEOUT_SECONDS" -rss_limit_mb="$RSS_MIB_MAX" \
        -max_len="$INPUT_BYTES_MAX" -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$name/" "$@" > "$log" 2>&1 ||
        { result="BROKEN, see $log"; broken=1; }
    [ "$result" = fine ] || grep -E "panicked at|^SUMMARY|Test unit written" -A 1 "$log" >&2 || true
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    new=$(sed -n 's/^stat::new_units_added: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    printf '%-18s %12s %7s %7s  %s\n' "$name" "${executions:--}" "${edges:--}" "${new:--}" "$result" >> "$work/table"
}

# Seeds that are files of the tests, with the byte in front that the target wants.
seeds() {
    folder=$work/seeds/$1
    case $1 in
    import) files="crates/import/tests/cases/*" ;;
    config) files="crates/config/tests/full.* crates/config/tests/design.toml examples/*.toml" ;;
    *) return 0 ;;
    esac
    rm -rf "$folder"
    mkdir -p "$folder"
    for file in $files; do
        case $file in
        *.expected) continue ;;
        *haproxy* | *.toml) first='\000' ;;
        *.caddyfile) first='\002' ;;
        *) first='\001' ;;
        esac
        # The format is one of the four above.
        # shellcheck disable=SC2059
        { printf "$first"; cat "$file"; } > "$folder/$(basename "$file")"
    done
}

main
