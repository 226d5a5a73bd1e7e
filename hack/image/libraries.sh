#!/bin/sh
# Installs the packages of a lock file into the root folder of an image, hashes checked: libraries.sh LOCK ROOT
set -eu
lock=$1 root=$2

python3 -m pip install --root-user-action=ignore --break-system-packages --disable-pip-version-check --no-cache-dir \
    --ignore-installed --require-hashes --no-build-isolation --no-compile --root="$root" -r "$lock"
library=$(echo "$root"/usr/local/lib/python3.*/dist-packages)

cd "$library"
# the Kubernetes client: its asynchronous half is not used, and its generated sources are 33 MB. Bytecode without
# docstrings is a third of them.
rm -rf kubernetes/aio kubernetes/e2e_test kubernetes/test
python3 -OO -m compileall -q -b --invalidation-mode unchecked-hash -s "$root" kubernetes
find kubernetes -name '*.py' -delete
find . -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
find . \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.[ch]' \) -delete
# symbols for debuggers, in extension modules only: what a wheel bundles in *.libs was changed after it was linked
find . -name '*.so' ! -path './*.libs/*' -exec strip --strip-unneeded {} +
python3 -m compileall -q --invalidation-mode unchecked-hash -s "$root" -x '/kubernetes/' .
rm -rf "$root"/usr/local/bin
