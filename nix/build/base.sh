# Builds the root file system's lowest layer in $out of $programs, $libraries, $loader, $certificates, $python.

mkdir -p "$out"/{bin,etc/ssl/certs,home/cog/.cache,lib64,opt/base/lib,sbin,tmp,usr/bin,usr/lib,var/tmp}

for folder in $programs; do
    for program in "$folder"/*; do
        # The first package that has a program is the one that is meant.
        [ -e "$out/bin/${program##*/}" ] || ln -s "$program" "$out/bin"
    done
done
ln -sf bash "$out/bin/sh"
ln -s ../../bin/env "$out/usr/bin/env"

# What unpatched programs name as their loader.
ln -s "$loader" "$out/lib64/ld-linux-x86-64.so.2"
# On LD_LIBRARY_PATH, so not where some loader looks anyway: it is found or missing for everyone.
for folder in $libraries; do
    for library in "$folder"/*.so*; do
        # Some are scripts, for linkers and debuggers.
        if [ "$(head -c 4 "$library" | tr -d '\0')" = $'\x7fELF' ]; then
            ln -sf "$library" -t "$out/opt/base/lib"
        fi
    done
done
ln -s "$python" "$out/opt/base/python"

# NOTE: Triton (the compiler) asks ldconfig where libcuda is, fails if it is not there, and goes by
# LD_LIBRARY_PATH if it knows nothing. This system has no loader cache, so that is the answer.
printf '#!/bin/sh\nexit 0\n' > "$out/sbin/ldconfig"
chmod +x "$out/sbin/ldconfig"

ln -s "$certificates" "$out/etc/ssl/certs/ca-bundle.crt"
ln -s "$certificates" "$out/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0:root:/root:/bin/sh\ncog:x:1000:1000:cog:/home/cog:/bin/sh\n' > "$out/etc/passwd"
printf 'root:x:0:\ncog:x:1000:\n' > "$out/etc/group"
printf 'hosts: files dns\n' > "$out/etc/nsswitch.conf"
