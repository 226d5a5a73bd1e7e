#!/usr/bin/env bash
# Builds the documentation as a site of static files: ./hack/docs.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$checkout"

usage="usage: hack/docs.sh [DIRECTORY]    build the site in DIRECTORY (default: build/site); needs npm, once
       hack/docs.sh --serve [PORT] serve the site on 127.0.0.1:PORT (default: 8000) and build it again on changes
       hack/docs.sh --check        build the site in a temporary directory: each warning is an error"
# not an environment of requirements-dev.lock: tests do not need mkdocs
export NO_MKDOCS_2_WARNING=1
tools=$cache/docs-$(sha256sum hack/tools/docs.lock | cut -c1-12)
mermaid=11.17.2
mermaid_sha256=6ad2f42c3fc26bbf9e45cbb6d11898972573ea52b33a5f4ff51952899f950ffd

ensure_tools() {
    mkdir -p "$cache"
    (
        flock 9
        [[ ! -e $tools/.complete ]] || exit 0
        ensure_venv
        say "making a Python environment for the documentation in $tools"
        rm -rf "$tools"
        python3.11 -m venv "$tools"
        PYTHONPATH='' "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
            -r hack/tools/docs.lock
        touch "$tools/.complete"
    ) 9>"$cache/.docs.lock"
}

# Fetches the program that draws the diagrams, so that a page loads nothing from another host.
ensure_mermaid() {
    [[ ! -e $tools/mermaid.min.js ]] || return 0
    if ! command -v npm >/dev/null; then
        say "error: npm is needed once, to fetch mermaid $mermaid (apt-get install npm)"
        return 1
    fi
    local folder
    folder=$(mktemp -d)
    (cd "$folder" && npm pack --silent "mermaid@$mermaid" >/dev/null && tar xzf "mermaid-$mermaid.tgz")
    echo "$mermaid_sha256  $folder/mermaid-$mermaid.tgz" | sha256sum --check --quiet -
    mv "$folder/package/dist/mermaid.min.js" "$tools/mermaid.min.js"
    rm -rf "$folder"
}

# With --quiet, mkdocs does not see warnings, so --strict does not fail on them.
build() {
    local log=$1.log
    mkdir -p "$(dirname "$1")"
    "$tools/bin/python" -m mkdocs build --strict --clean --site-dir "$1" >"$log" 2>&1 || { cat "$log"; return 1; }
    rm "$log"
}

case ${1:-} in
--help | -h) echo "$usage" ;;
--check)
    ensure_tools
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    build "$folder/site"
    ;;
--serve)
    ensure_tools
    exec "$tools/bin/python" -m mkdocs serve --strict --dev-addr "127.0.0.1:${2:-8000}"
    ;;
-*)
    say "error: no option $1"$'\n'"$usage"
    exit 2
    ;;
*)
    ensure_tools
    ensure_mermaid
    site=$(realpath -m "${1:-build/site}")
    build "$site"
    install -m 644 "$tools/mermaid.min.js" -D "$site/assets/mermaid.min.js"
    say "the site is in $site"
    ;;
esac
