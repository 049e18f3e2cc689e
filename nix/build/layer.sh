# Writes an image's layer into $out. layer.tar.gz has what $root has, at /, and at their own places those store paths
# of $closure that no list of $below has. layer.json tells $layerName, digests and size. It depends on content alone.

sort -u "$closure" | comm -23 - <(printf '%s\n' "$root" | cat - $below | sort -u) > store-paths

cp --recursive --no-dereference "$root" root
chmod --recursive u=rwX,go=rX root
while read -r path; do
    mkdir -p "root${path%/*}"
done < store-paths
for folder in $writable; do
    # By every user, as an image may run as any.
    chmod 1777 "root/$folder"
done

mkdir "$out"
content=$(
    tar --create --format=gnu --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner --hard-dereference \
        --directory="$PWD/root" --files-from=<(find root -mindepth 1 -maxdepth 1 -printf '%P\n' | sort) \
        --directory=/ --files-from=<(cut -c 2- store-paths) \
        | { tee /dev/fd/3 | pigz --no-name --processes "$NIX_BUILD_CORES" > "$out/layer.tar.gz"; } 3>&1 | sha256sum
)
compressed=$(sha256sum < "$out/layer.tar.gz")
printf '{"name": "%s", "digest": "sha256:%s", "size": %s, "diff_id": "sha256:%s"}\n' \
    "$layerName" "${compressed%% *}" "$(stat --format=%s "$out/layer.tar.gz")" "${content%% *}" > "$out/layer.json"
