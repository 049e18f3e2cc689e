# Unpacks $packages into $out: programs to bin, libraries to lib, changed to find each other there.

# NOTE: this is where it is no more than a stand-in: the result is what Debian has today.
mkdir packages unpacked
cd packages
apt-get -q=2 -o Acquire::Retries=3 -o APT::Sandbox::User=root download $packages
cd ..
for package in packages/*.deb; do
    dpkg-deb -x "$package" unpacked
done
mkdir -p "$out/bin" "$out/lib"
for folder in unpacked/bin unpacked/usr/bin unpacked/sbin unpacked/usr/sbin; do
    if [ -d "$folder" ]; then
        cp -a "$folder/." "$out/bin"
    fi
done
for folder in unpacked/lib unpacked/usr/lib; do
    if [ -d "$folder/x86_64-linux-gnu" ]; then
        cp -a "$folder/x86_64-linux-gnu/." "$out/lib"
    fi
done
cd unpacked
eval "$install"
find "$out" -xtype l -delete

# Loader and run path, as the linker of nixpkgs sets them.
if [ -n "$loader" ]; then
    path="$out/lib"
    for folder in $libraries "${loader%/*}"; do
        path+=":$folder"
    done
    find "$out" -type f \( -perm -u+x -o -name '*.so*' \) | while read -r file; do
        if [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ]; then
            chmod u+w "$file"
            if patchelf --print-interpreter "$file" > interpreter 2> /dev/null; then
                patchelf --set-interpreter "$loader" "$file"
            fi
            patchelf --set-rpath "$path" "$file" 2> /dev/null || true # a static program has none
        fi
    done
fi
