#!/bin/sh
# Installs the packages of a lock file into the root folder of an image, hashes checked: libraries.sh ARCH LOCK ROOT
# ARCH, amd64 or arm64, may differ from that of this machine. No package is compiled: each has a wheel, or only Python.
set -eu
arch=$1 lock=$2 root=$3
case $arch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "no architecture '$arch'; allowed: amd64, arm64" >&2 && exit 2 ;;
esac
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
library=$root/usr/local/lib/python$python/dist-packages

# the wheels that glibc of the image can load, the newest first, as pip chooses them on a machine of the architecture
glibc=$(getconf GNU_LIBC_VERSION | cut -d. -f2)
platforms=$(seq --format="--platform=manylinux_2_%g_$machine" "$glibc" -1 17)
# shellcheck disable=SC2086  # one option for each word
python3 -m pip install --root-user-action=ignore --disable-pip-version-check --no-cache-dir --no-deps \
    --require-hashes --no-build-isolation --no-compile --target="$library" \
    --implementation=cp --python-version="$python" $platforms "--platform=manylinux2014_$machine" -r "$lock"

cd "$library"
# the Kubernetes client: its asynchronous half is not used, and its generated sources are 33 MB. Bytecode without
# docstrings is a third of them.
rm -rf kubernetes/aio kubernetes/e2e_test kubernetes/test
python3 -OO -m compileall -q -b --invalidation-mode unchecked-hash -s "$root" kubernetes
find kubernetes -name '*.py' -delete
find . -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
find . \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.[ch]' \) -delete
# symbols for debuggers, in extension modules only: what a wheel bundles in *.libs was changed after it was linked
find . -name '*.so' ! -path './*.libs/*' -exec "$machine-linux-gnu-strip" --strip-unneeded {} +
python3 -m compileall -q --invalidation-mode unchecked-hash -s "$root" -x '/kubernetes/' .
rm -rf bin
