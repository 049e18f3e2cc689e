#!/usr/bin/env bash
# Runs a command with what the image tests need: packages of Debian 12, Nix set up to do without a sandbox and
# without nixpkgs, and a Docker daemon of its own, which ends with the command.
set -euo pipefail

refuse() {
    echo "The image tests can't run here: $1" >&2
    exit 1
}

if [ "$(. /etc/os-release && echo "$ID $VERSION_ID")" != "debian 12" ]; then
    refuse "their stand-in for nixpkgs is made of Debian 12's packages, and this is another system."
fi
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || refuse "they need root, for a Docker daemon, and there is no sudo."
    environment=HOME,PATH,TESTS,PYTEST_ADDOPTS,PIP_CERT,PIP_CONFIG_FILE,PIP_EXTRA_INDEX_URL,PIP_FIND_LINKS,PIP_INDEX_URL
    exec sudo --preserve-env="$environment,TORCH_CPU_INDEX,http_proxy,https_proxy,no_proxy" "$0" "$@"
fi

install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 --no-install-recommends "$@" > /dev/null
}

declare -A package=(
    [curl]=curl
    [docker]=docker.io
    [docker-registry]=docker-registry
    [dockerd]=docker.io
    [git]=git
    [htpasswd]=apache2-utils
    [jq]=jq
    [mmdebstrap]=mmdebstrap
    [nix]=nix-bin
    [patchelf]=patchelf
    [pigz]=pigz
    [podman]=podman
    [readelf]=binutils
    [shellcheck]=shellcheck
    [skopeo]=skopeo
)
needed=()
for command in "${!package[@]}"; do
    command -v "$command" > /dev/null || needed+=("${package[$command]}")
done
python3 -m pip --version > /dev/null 2>&1 || needed+=(python3-pip)
apt-get update -qq -o Acquire::Retries=3 # the stand-in for nixpkgs downloads packages, too
if [ ${#needed[@]} != 0 ]; then
    install "${needed[@]}"
fi

work=$(mktemp -d)
log=$work/dockerd.log
# Without rules for the firewall: a container's ports and this machine's are reached without them.
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
    --host "unix://$work/docker.sock" --iptables=false --ip6tables=false > "$log" 2>&1 &
daemon=$!

stop() {
    kill "$daemon" 2> /dev/null || true
    wait "$daemon" || true
    rm -rf "$work" || true
}
trap stop EXIT

export DOCKER_HOST=unix://$work/docker.sock
until docker version > /dev/null 2>&1; do
    if ! kill -0 "$daemon" 2> /dev/null || [ $SECONDS -gt 300 ]; then
        tail -20 "$log" >&2
        refuse "the Docker daemon does not start on this machine; its last lines are above."
    fi
    sleep 0.1
done

export COG_TRITON_TEST_IMAGES=1
# Nothing of root's is left in someone's checkout, nor is that someone's checkout refused for being so.
export PYTHONDONTWRITEBYTECODE=1 PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} -p no:cacheprovider -o tmp_path_retention_policy=none"
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export NIX_CONFIG="
experimental-features = nix-command flakes
substituters =
sandbox = false
build-users-group =
max-jobs = 4
"
"$@"
