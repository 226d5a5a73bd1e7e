#!/usr/bin/env bash
# Builds the files of a release: ./hack/release.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$checkout"

usage="usage: hack/release.sh VERSION [--image] [--homepage URL] [--url URL] [--sign KEY]
       hack/release.sh --check VERSION          only compare VERSION with the files that name a version
       hack/release.sh --wheel FOLDER           only build wheel and sdist of this checkout
       hack/release.sh --push REGISTRY VERSION  only push the image and the chart that were built to a registry

Build all files of release VERSION in build/release/VERSION: wheel and sdist, Helm chart, site of the documentation,
plugin of kubectl with its manifest for krew, and SHA256SUMS. The checkout must have no changes, and all files that name
a version must name VERSION. The same commit results in the same files. Needs Go (once, to build Helm) and npm (once,
for the diagrams).

  --image         also build the image for amd64 and arm64 (as root on Debian), and bills of materials
  --homepage URL  address of the project in the chart and the manifest for krew
                  (default: https://podbridge.example.org)
  --url URL       address of the folder from which the files will be downloaded (default: HOMEPAGE/VERSION)
  --sign KEY      sign SHA256SUMS with an SSH key: a private key, or a public key whose private key ssh-agent has"
# not an environment of requirements-dev.lock: tests do not need hatchling, except that of the release
tools=$cache/release-$(sha256sum hack/tools/release.lock | cut -c1-12)

ensure_tools() {
    ensure_venv
    (
        flock 9
        [[ ! -e $tools/.complete ]] || exit 0
        say "making a Python environment for releases in $tools"
        rm -rf "$tools"
        python3.11 -m venv --without-pip "$tools"
        PYTHONPATH='' "$python" -m pip --python "$tools/bin/python" install --quiet --disable-pip-version-check \
            --require-hashes -r hack/tools/release.lock
        touch "$tools/.complete"
    ) 9>"$cache/.release.lock"
}

# Builds wheel and sdist in a folder. SOURCE_DATE_EPOCH is the time of their members.
build_python() {
    PYTHONPATH='' "$tools/bin/python" -m hatchling build -t sdist -t wheel -d "$1" >&2
}

# Pushes an OCI archive of the release to a repository of the registry, unchanged: the digest there is that of its JSON
# file. The login is that of `skopeo login`.
push() {
    skopeo copy --quiet --all --preserve-digests "oci-archive:$target/podbridge-$1-$version.oci.tar" \
        "docker://$registry/$2:$version"
    say "pushed $registry/$2:$version"
}

fail() {
    say "error: $1"
    exit "${2:-1}"
}

version='' image='' homepage=https://podbridge.example.org url='' key='' only=''
while (($#)); do
    case $1 in
    --help | -h) echo "$usage" && exit 0 ;;
    --image) image=yes ;;
    --check) only=check ;;
    --homepage | --url | --sign | --wheel | --push)
        [[ -n ${2:-} ]] || fail "option $1 needs a value" 2
        case $1 in
        --homepage) homepage=${2%/} ;;
        --url) url=$2 ;;
        --sign) key=$2 ;;
        --wheel) only=wheel folder=$2 ;;
        --push) only=push registry=${2%/} ;;
        esac
        shift
        ;;
    -*) fail "no option $1"$'\n'"$usage" 2 ;;
    *)
        [[ -z $version ]] || fail "one VERSION is allowed, not $version and $1" 2
        version=$1
        ;;
    esac
    shift
done
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
if [[ $only == wheel ]]; then
    ensure_tools
    build_python "$folder"
    exit
fi
[[ -n $version ]] || fail "VERSION is missing"$'\n'"$usage" 2
for address in "$homepage" "${url:=$homepage/$version}"; do # they are written into YAML
    [[ $address =~ ^https?://[][A-Za-z0-9.:/_~%@+-]+$ ]] || fail "'$address' is no address; example: https://example.org" 2
done
ensure_venv
"$python" -m release check "$version"
[[ $only != check ]] || exit 0
target=$checkout/build/release/$version
if [[ $only == push ]]; then
    command -v skopeo >/dev/null || fail "--push needs skopeo: apt install skopeo"
    [[ -e $target/podbridge-image-$version.oci.tar ]] || fail "$target has no image: build the release with --image"
    push image podbridge
    push chart charts/podbridge
    exit
fi
[[ -z $key || -r $key ]] || fail "--sign: the file $key cannot be read"
if [[ -n $(git status --porcelain) ]]; then
    git status --short >&2
    fail "the checkout has changes: commit them, or remove the files"
fi

ensure_tools
rm -rf "$target"
mkdir -p "$target"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build_python "$target"
"$python" -m release chart "$target" "$homepage" "$url"
"$python" -m cluster.systems.oci chart "$target/podbridge-$version.tgz" "$target"
./hack/docs.sh "$work/podbridge-docs-$version"
"$python" -m release pack "$work/podbridge-docs-$version" "$target"
"$python" -m krew "$homepage" "$url" "$target" >/dev/null
if [[ -n $image ]]; then
    "$python" -m cluster.systems.oci image "$target"
fi
(cd "$target" && sha256sum -- * >"$work/SHA256SUMS")
install -m 644 "$work/SHA256SUMS" "$target/SHA256SUMS"
if [[ -n $key ]]; then
    ssh-keygen -q -Y sign -f "$key" -n podbridge-release "$target/SHA256SUMS"
fi
say "the release is in $target"
