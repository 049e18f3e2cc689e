#!/usr/bin/env bash
# Runs a command with what the image tests need: packages of Debian 12, Nix set up to do without a sandbox and
# without nixpkgs, and a Docker daemon of its own, which ends with the command.
set -euo pipefail

if [ "$(id -u)" != 0 ]; then
    exec sudo --preserve-env=HOME,PATH,PIP_CERT,PIP_CONFIG_FILE,PIP_FIND_LINKS,PIP_INDEX_URL "$0" "$@"
fi

declare -A package=(
    [curl]=curl
    [docker]=docker.io
    [docker-registry]=docker-registry
    [dockerd]=docker.io
    [git]=git
    [htpasswd]=apache2-utils
    [jq]=jq
    [nix]=nix-bin
    [patchelf]=patchelf
    [pigz]=pigz
    [shellcheck]=shellcheck
    [skopeo]=skopeo
)
needed=()
for command in "${!package[@]}"; do
    command -v "$command" > /dev/null || needed+=("${package[$command]}")
done
apt-get update -qq # the stand-in for nixpkgs downloads packages, too
if [ ${#needed[@]} != 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${needed[@]}"
fi

work=$(mktemp -d)
log=$work/dockerd.log
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
    --host "unix://$work/docker.sock" > "$log" 2>&1 &
daemon=$!

stop() {
    kill "$daemon" 2> /dev/null || true
    wait "$daemon" || true
    rm -rf "$work"
}
trap stop EXIT

export DOCKER_HOST=unix://$work/docker.sock
for _ in {1..300}; do
    if docker version > /dev/null 2>&1; then
        break
    fi
    if ! kill -0 "$daemon" 2> /dev/null; then
        echo "The Docker daemon ended; its last lines:" >&2
        tail -20 "$log" >&2
        exit 1
    fi
    sleep 0.1
done

export COG_TRITON_TEST_IMAGES=1
export NIX_CONFIG="
experimental-features = nix-command flakes
substituters =
sandbox = false
build-users-group =
max-jobs = 4
"
"$@"
