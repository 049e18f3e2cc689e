# An image, in the folder $layout: loads, pushes, saves, shows or streams it. $contents tells what it holds.
set -euo pipefail

usage() {
    cat >&2 << END
usage: $(basename "$0") [COMMAND]

$(reference): a container image.

commands:
  load              into Docker or Podman, whichever is here (CONTAINER_ENGINE names another)
  push REF [...]    to a registry: what it has already is not sent; [...] are options of \`skopeo copy\`
  save FILE         as an archive that \`docker load\`, \`podman load\` and OCI tools read
  inspect           name, digest, sizes, labels and settings, as JSON
  sbom              every package in it with version and hash, as CycloneDX JSON
  (none)            the archive to stdout: result | docker load
END
}

reference() {
    jq -r '.[0].RepoTags[0]' "$layout/manifest.json"
}

blob() {
    cat "$layout/blobs/${1/://}"
}

manifest_digest() {
    jq -r '.manifests[0].digest' "$layout/index.json"
}

# The archive: the layout, links followed, and nothing of this machine in it.
archive() {
    tar --create --directory "$layout" --dereference --format=gnu --sort=name --mtime=@1 \
        --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r,a+X \
        oci-layout index.json manifest.json blobs
}

engine() {
    local candidate
    for candidate in ${CONTAINER_ENGINE:-docker podman}; do
        if command -v "$candidate" > /dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Neither docker nor podman was found; \`save\` writes a file that can be loaded elsewhere." >&2
    return 1
}

load() {
    local engine output
    engine=$(engine)
    output=$(archive | "$engine" load)
    # Each engine has words of its own for it.
    case "$output" in
        *"$(reference)"*) echo "Loaded image: $(reference)" ;;
        *) echo "$output" ;;
    esac
}

inspect() {
    local manifest config
    manifest=$(blob "$(manifest_digest)")
    config=$(blob "$(jq -r .config.digest <<< "$manifest")")
    jq -n --arg reference "$(reference)" --arg digest "$(manifest_digest)" \
        --argjson manifest "$manifest" --argjson config "$config" '{
            reference: $reference,
            digest: $digest,
            id: $manifest.config.digest,
            created: $config.created,
            compressed_bytes: ([$manifest.layers[].size] | add),
            layers: [range($manifest.layers | length) as $i | {
                name: $config.history[$i].created_by,
                digest: $manifest.layers[$i].digest,
                compressed_bytes: $manifest.layers[$i].size
            }],
            config: $config.config
        }'
}

case "${1-}" in
    "")
        if [ -t 1 ]; then
            usage
            exit 2
        fi
        archive
        ;;
    load)
        load
        ;;
    push)
        if [ $# -lt 2 ]; then
            echo "push: where to? such as registry.example.com/$(reference)" >&2
            exit 2
        fi
        digest=$(mktemp)
        trap 'rm -f "$digest"' EXIT
        skopeo --insecure-policy copy --digestfile "$digest" "${@:3}" "oci:$layout" "docker://$2"
        # As the registry has it: with other compression it is not the layout's.
        echo "Pushed: $2@$(cat "$digest")"
        ;;
    save)
        if [ $# != 2 ]; then
            echo "save: to which file?" >&2
            exit 2
        fi
        archive > "$2.partial"
        mv "$2.partial" "$2"
        ;;
    inspect)
        inspect
        ;;
    sbom)
        cat "$contents"
        ;;
    -h | --help)
        usage
        ;;
    *)
        usage
        exit 2
        ;;
esac
