# Puts the wheel $name at $out: from the first of $urls that has it, else from wherever pip is told to look.
set -euo pipefail

file=$name
case "$file" in
    *.whl) ;;
    *)
        echo "stand-in fetchurl: it can only fetch wheels, not $file" >&2
        exit 1
        ;;
esac
IFS=- read -r name version python abi platforms <<< "${file%.whl}"
tags=()
if [ "$platforms" != any ]; then
    tags+=(--implementation cp --abi "$abi")
    for platform in ${platforms//./ }; do
        tags+=(--platform "$platform")
    done
    case "$python" in
        cp3*) tags+=(--python-version "3.${python#cp3}") ;;
    esac
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

by_pip() {
    # By its hash: of one version there are often several wheels that would do.
    echo "$name==$version --hash=sha256:$sha256" > "$folder/requirements"
    python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary :all: \
        ${TORCH_CPU_INDEX:+--extra-index-url "$TORCH_CPU_INDEX"} \
        --ignore-requires-python "${tags[@]}" --dest "$folder" -r "$folder/requirements" 2>> "$folder/log" \
        && mv "$folder/$file" "$out"
}

by_url() {
    local url
    for url in $urls; do
        if curl --silent --show-error --fail --location --connect-timeout 10 --output "$out" "$url" 2>> "$folder/log"; then
            return
        fi
    done
    return 1
}

by_url || by_pip || {
    cat "$folder/log" >&2
    exit 1
}
