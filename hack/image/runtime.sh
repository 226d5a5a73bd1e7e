#!/bin/sh
# Unpacks Debian packages into the root folder of an image: runtime.sh PACKAGES ROOT
# The control file of each package is kept in var/lib/dpkg/status.d, where scanners of images look for it.
set -eu
packages=$1 root=$2
mkdir -p "$root/var/lib/dpkg/status.d"

# first the package that has the links /bin, /lib, ...
for package in "$packages"/base-files_*.deb "$packages"/*.deb; do
    dpkg-deb --extract "$package" "$root"
    dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
done

cd "$root"
# what nothing in the image reads; the licences in usr/share/doc/*/copyright stay
find usr/share/doc -type f ! -name copyright -delete
rm -rf usr/share/man usr/share/info usr/share/lintian usr/share/bug usr/share/common-licenses.d usr/lib/*/gconv \
    usr/share/zoneinfo usr/bin/ld.so usr/sbin var/cache
library=usr/lib/python3.13
rm -rf $library/ensurepip $library/idlelib $library/tkinter $library/turtle.py $library/turtledemo $library/pydoc_data \
    $library/lib2to3 $library/test $library/__phello__ $library/config-*
ln -sf python3.13 usr/bin/python3
find usr/share/doc -type d -empty -delete

# the bundle is made by a script of the package ca-certificates, which needs a shell
mkdir -p etc/ssl/certs
cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/

cat >etc/passwd <<END
root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
podbridge:x:65532:65532:podbridge:/tmp:/sbin/nologin
END
cat >etc/group <<END
root:x:0:
nogroup:x:65534:
podbridge:x:65532:
END
mkdir -p tmp
chmod 1777 tmp
python3 -m compileall -q --invalidation-mode unchecked-hash -s "$root" $library
