# Builds a Python environment in $out: $wheels and the libraries of $archives, less $leaveOut, with $aliases,
# without debug information and slimmed by $slim.

# Patterns are for those who are given them, not for the shell.
set -f

printf '%s\n' $wheels > wheels
arguments=()
for pattern in $leaveOut; do
    arguments+=("--leave-out=$pattern")
done
"$python" "$installWheels" --out "$out" --wheels wheels "${arguments[@]}"

for archive in $archives; do
    # On the store's disk: an archive may have several GB, and the build folder is often small.
    unpacked=$out/unpacked
    mkdir "$unpacked"
    tar --extract --no-same-owner --file "$archive" --directory "$unpacked" --wildcards '*.so' '*.so.*'
    find "$unpacked" -path '*/lib/*' ! -path '*/stubs/*' \( -type f -o -type l \) -exec mv -t "$out/lib" {} +
    rm -r "$unpacked"
done
for pattern in $leaveOut; do
    find "$out" -path "$out/$pattern" -delete
done

site_packages=$("$python" -c 'import sys; print("lib/python%d.%d/site-packages" % sys.version_info[:2])')
for alias in $aliases; do
    ln -s "${alias#*=}" "$out/$site_packages/${alias%%=*}"
done

if [ -n "$slim" ]; then
    $slim --jobs "${NIX_BUILD_CORES:-1}" "$out"
fi
