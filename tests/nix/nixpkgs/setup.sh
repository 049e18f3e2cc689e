# Runs $buildCommand with the settings and the PATH that nixpkgs' setup script gives it.
if [ -e "${NIX_ATTRS_SH_FILE:-}" ]; then
    source "$NIX_ATTRS_SH_FILE"
    for output in "${!outputs[@]}"; do
        export "$output=${outputs[$output]}"
    done
fi
set -e -o pipefail
shopt -s nullglob
export PATH=$initialPath
if [ "$NIX_BUILD_CORES" = 0 ]; then
    NIX_BUILD_CORES=$(nproc)
fi
eval "$buildCommand"
