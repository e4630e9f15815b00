# Shared functions of the scripts in this directory: stages that print the elapsed time, and
# failures of one sentence. Sourced, never run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What the scripts start is no part of the `make` that started them, and prints nothing about it.
unset MAKEFLAGS MFLAGS MAKELEVEL

STARTED=$SECONDS
STAGES=0
TIMES=()
# Third-party programs are kept here, outside the tree, so that another checkout finds them.
KEPT=${XDG_CACHE_HOME:-$HOME/.cache}/tollgate

# say SENTENCE: prints a line of ours among the tools' output.
say() { printf '[%4ds] %s\n' "$((SECONDS - STARTED))" "$*"; }

# die SENTENCE: the one way to fail on purpose.
die() {
    printf '[%4ds] error: %s\n' "$((SECONDS - STARTED))" "$*" >&2
    exit 1
}

# stage NAME COMMAND...: runs the command; its failure is the script's.
stage() {
    local name=$1 began=$SECONDS used
    shift
    STAGES=$((STAGES + 1))
    say "== $name"
    used=$(processor_seconds)
    "$@" || die "stage \`$name\` failed (command: $*)"
    TIMES+=("$(printf '%6d %6d  %s' $((SECONDS - began)) $(($(processor_seconds) - used)) "$name")")
}

# The processor time, in seconds, of this script's processes that have ended.
processor_seconds() {
    local fields
    read -r -a fields <"/proc/$$/stat"
    echo $(((fields[15] + fields[16]) / $(getconf CLK_TCK)))
}

# Prints the stages, the longest first: seconds that they took, and seconds of processor time.
stage_times() {
    say "seconds, and seconds of processor time, of each stage:"
    printf '%s\n' "${TIMES[@]}" | sort -rn
}

# need COMMAND WHY: requires a command that a fresh machine must already have.
need() { command -v "$1" >/dev/null || die "\`$1\` is missing: $2"; }

# Fetches the lists of Debian's packages, unless that was done here within the last hour.
apt_update() {
    [ -z "$(find "$KEPT/apt.updated" -mmin -60 2>/dev/null)" ] || return 0
    apt-get -qq update >/dev/null 2>&1 || return 0
    mkdir -p "$KEPT"
    touch "$KEPT/apt.updated"
}

# need_package COMMAND WHY [PACKAGE]: like `need`, for a command in a Debian package (by default of
# the same name). If run as root, it installs the package.
need_package() {
    local package=${3:-$1}
    command -v "$1" >/dev/null && return
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        say "installing $package through apt"
        apt_update
        apt-get -qq install --yes --no-install-recommends "$package" >/dev/null 2>&1 ||
            die "apt could not install $package ($2); is the network reachable?"
        return
    fi
    need "$1" "$2; install it as root: apt-get install $package"
}

# The wasm policies, each built to a core module of a few kilobytes.
build_policies() {
    local crates=()
    for crate in policies-wasm/*/Cargo.toml; do
        crates+=(-p "policy-$(basename "$(dirname "$crate")")")
    done
    cargo build --locked --profile policy --target wasm32-unknown-unknown "${crates[@]}"
}

# Builds the policies in other languages than Rust: examples, and the witnesses that check the
# vectors. They go to guests/LANGUAGE below the target directory. Needs clang, lld, Node.js and Go.
# AssemblyScript's compiler comes from npm, in the version that package-lock.json pins.
build_guests() {
    need_package clang "the C policies are compiled with it"
    need_package lld "it links the C policies"
    need_package node "the AssemblyScript policies are compiled with Node.js, 20 or newer" nodejs
    need_package npm "AssemblyScript's compiler is installed with it"
    local out=${CARGO_TARGET_DIR:-target}/guests name
    mkdir -p "$out/c" "$out/assemblyscript" "$out/go"
    # Without symbolic links, like the paths of Node.js.
    out=$(cd "$out" && pwd -P)
    for name in witness examples/room_limit; do
        clang --target=wasm32 -std=c11 -Wall -Wextra -Werror -O2 -mbulk-memory -ffreestanding -nostdlib \
            -Wl,--no-entry,--strip-all -o "$out/c/$(basename "$name").wasm" "guest-sdk/c/$name.c" ||
            die "clang can't compile guest-sdk/c/$name.c for wasm32; it has to be 14 or newer"
    done
    # Built in a copy, because node_modules is no part of the sources.
    local work=$out/assemblyscript.work
    mkdir -p "$work"
    cp -r guest-sdk/assemblyscript/. "$work"
    if ! cmp -s "$work/package-lock.json" "$work/installed.json"; then
        say "installing AssemblyScript through npm"
        (cd "$work" && npm ci --silent --no-audit --no-fund && cp package-lock.json installed.json) ||
            die "npm could not install AssemblyScript; is the network reachable?"
    fi
    for name in witness examples/room_limit; do
        node "$work/build.mjs" "$work/$name.ts" "$out/assemblyscript/$(basename "$name").wasm" ||
            die "guest-sdk/assemblyscript/$name.ts can't be compiled"
    done
    new_go
    for name in witness examples/room_limit; do
        (
            module=$out/go/$(basename "$name").wasm
            export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false
            cd guest-sdk/go
            GOOS=wasip1 GOARCH=wasm go build -trimpath -buildmode=c-shared -ldflags='-s -w' -o "$module" "./$name" &&
                go run ./tollgate/manifest "$name/manifest.json" "$module"
        ) || die "guest-sdk/go/$name can't be compiled"
    done
}

# Installs the toolchain, the guests' target and the linters of rust-toolchain.toml.
setup() {
    need rustup "install it from https://rustup.rs"
    need cc "install a C compiler (Debian: apt-get install gcc libc6-dev)"
    local channel have
    channel=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
    have=$(rustup toolchain list 2>/dev/null || true)
    if ! grep -q "^$channel-" <<<"$have"; then
        say "installing Rust $channel through rustup"
        rustup toolchain install "$channel" --profile minimal --no-self-update ||
            die "rustup could not install Rust $channel; is the network reachable?"
    fi
    if ! rustup +"$channel" target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
        say "installing the target wasm32-unknown-unknown through rustup"
        rustup target add --toolchain "$channel" wasm32-unknown-unknown ||
            die "rustup could not install the target wasm32-unknown-unknown; is the network reachable?"
    fi
    local component
    for component in rustfmt clippy; do
        rustup component list --toolchain "$channel" --installed 2>/dev/null | grep -q "^$component" && continue
        say "installing $component through rustup"
        rustup component add --toolchain "$channel" "$component" ||
            die "rustup could not install $component; is the network reachable?"
    done
}

# Only nightly toolchains have Miri.
setup_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 &&
        rustup component list --toolchain nightly --installed 2>/dev/null | grep -q '^rust-src' && return
    say "installing Miri through rustup"
    # Added to an installed nightly toolchain, if that supports it; otherwise installed with the
    # newest one.
    rustup component add --toolchain nightly miri rust-src 2>/dev/null ||
        rustup toolchain install nightly --profile minimal --component miri,rust-src --no-self-update ||
        die "rustup could not install Miri (a nightly component); install it by hand: rustup toolchain install nightly --component miri,rust-src"
}

# Prints the end of a tool's output, without the addresses that it contacts, and only if it fails.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    [ "$status" = 0 ] || sed -E 's#[a-z]+://[^ "]*#(an address)#g' "$log" | tail -n 20 >&2
    rm -f "$log"
    return "$status"
}

# kept NAME SOURCE...: sets PLACE to the directory of third-party programs for NAME, and makes
# NAME in the target directory a link to it. Its key is the text of the sources (the script that
# builds, and what it builds from) and of the machine's distribution: a program that is there is up
# to date. The lock makes a second checkout wait; it ends with the script. Directories with another
# key are deleted after 30 days without use.
kept() {
    local name=$1 key target
    shift
    key=$(cat -- /etc/os-release "$@" <(uname -m) | sha256sum | cut -c 1-16)
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    PLACE=$KEPT/$name-$key
    mkdir -p "$PLACE" "$target"
    touch "$PLACE"
    exec {KEPT_LOCK}>"$PLACE/.lock"
    flock "$KEPT_LOCK"
    [ -L "$target/$name" ] || rm -rf "${target:?}/$name"
    ln -sfn "$PLACE" "$target/$name"
    find "$KEPT" -mindepth 1 -maxdepth 1 -name "$name-*" ! -name "$name-$key" -mtime +30 -exec rm -rf {} +
}

# python_tool PROGRAM PACKAGE: installs a package (`NAME==VERSION`) through pip into a virtual
# environment of its own, once per version, and prints the program's path.
python_tool() {
    local name=$1 package=$2 venv=$KEPT/$2
    need python3 "install Python 3.9 or newer (Debian: apt-get install python3 python3-venv)"
    # The environment's Python is a link to the machine's.
    if [ ! -e "$venv/installed" ] || ! "$venv/bin/python" -c pass 2>/dev/null; then
        say "installing $package through pip" >&2
        rm -rf "$venv"
        mkdir -p "$venv"
        python3 -m venv "$venv" && quietly "$venv/bin/pip" install --quiet "$package" ||
            die "pip could not install $package; is the network reachable?"
        touch "$venv/installed"
    fi
    echo "$venv/bin/$name"
}

# rust_tool NAME VERSION [OPTION...]: builds a program from crates.io, once per version, and prints
# its path. The options are those of `cargo install`.
rust_tool() {
    local name=$1 version=$2 place
    shift 2
    place=$KEPT/$name-$version
    if [ ! -x "$place/bin/$name" ]; then
        say "building $name $version; a minute or two, once" >&2
        # In separate directories: the workspace's configuration would build it with other settings.
        CARGO_TARGET_DIR=$place/build quietly cargo install --quiet --locked --debug --root "$place" --version "$version" "$@" "$name" >&2 ||
            die "cargo could not build $name $version; is the network reachable?"
        rm -rf "$place/build"
    fi
    echo "$place/bin/$name"
}

# Whether the emulator of the VM with RDMA devices is here, or can be installed.
emulator() {
    command -v qemu-system-x86_64 >/dev/null && return
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null
}

# The toolchain that rust-toolchain.toml names.
rust_channel() { sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml; }

# The target of filters for Envoy.
need_wasi() {
    local channel
    need rustup "install it from https://rustup.rs"
    channel=$(rust_channel)
    if ! rustup +"$channel" target list --installed | grep -qx wasm32-wasip1; then
        say "installing the target wasm32-wasip1 through rustup"
        quietly rustup target add --toolchain "$channel" wasm32-wasip1 ||
            die "rustup could not install the target wasm32-wasip1; is the network reachable?"
    fi
}

# The oldest sufficient minor version of Go, and the version that is fetched if only an older one is
# installed.
GO_MINOR=24
GO=1.24.9

# Makes `go` a new enough one: the machine's Go, or one that is fetched like any other module.
new_go() {
    local have fetched
    need_package go "what is written in Go is built with it (https://go.dev/dl)" golang-go
    have=$(cd / && GOTOOLCHAIN=local go version | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p')
    [ "${have:-0}" -lt "$GO_MINOR" ] || return 0
    fetched=$(go env GOMODCACHE)/golang.org/toolchain@v0.0.1-go$GO.linux-amd64
    if [ ! -x "$fetched/bin/go" ]; then
        say "fetching Go $GO, because this one is 1.${have:-0}"
        (cd / && quietly go mod download "golang.org/toolchain@v0.0.1-go$GO.linux-amd64") ||
            die "go could not fetch Go $GO; install Go 1.$GO_MINOR or newer (https://go.dev/dl), or is the network out of reach?"
        # An old Go doesn't set the executable bit of programs in modules. bin/go comes last,
        # because the next run looks for it.
        find "$fetched/pkg/tool" -type f -exec chmod u+x {} +
        chmod u+x "$fetched/bin/go"
    fi
    export PATH=$fetched/bin:$PATH GOROOT=$fetched
}
