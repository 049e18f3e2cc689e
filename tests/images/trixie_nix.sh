#!/usr/bin/env bash
# Puts Nix of Debian 13 (trixie) with the libraries it needs into a folder; FOLDER/nix and FOLDER/nix-store run it.
# Nothing is installed on this machine.
#
#     trixie_nix.sh FOLDER
set -euo pipefail

folder=$1
mkdir -p "$folder"/{apt/lists/partial,apt/cache/archives/partial,apt/sources,root}
: > "$folder/apt/status"
# From wherever this machine has Debian from.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sed -n 1p)
cat > "$folder/apt/sources/trixie.sources" << END
Types: deb
URIs: $mirror
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END

apt() {
    apt-get -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o Dir::Etc::sourcelist=/dev/null \
        -o Dir::Etc::sourceparts="$folder/apt/sources" -o Dir::State::status="$folder/apt/status" \
        -o Dir::State::lists="$folder/apt/lists" -o Dir::Cache="$folder/apt/cache" "$@" > /dev/null
}
apt update
apt --yes --no-install-recommends --download-only install nix-bin
for package in "$folder"/apt/cache/archives/{lib,nix-bin,zlib1g}*.deb; do
    dpkg-deb -x "$package" "$folder/root"
done
rm -r "$folder/apt"

libraries=$folder/root/usr/lib/x86_64-linux-gnu
# RPATH, not RUNPATH: it is also for what the libraries need. Nix runs itself, so a script in its place will not do.
patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "$folder/root/usr/bin/nix"
for name in nix nix-store; do
    ln -s root/usr/bin/nix "$folder/$name"
done
