# The packages, with nixpkgs' names and the shape that nixpkgs gives them: programs in bin, libraries in lib.
let
  functions = import ./functions.nix;
  inherit (functions) debian host hostOutputs runCommand;

  glibc = debian {
    name = "glibc";
    packages = "libc6 libc-bin";
    outputs = [
      "out"
      "bin"
    ];
    install = ''
      rm -rf $out/lib/gconv
      mkdir -p $out/lib/locale $bin
      mv $out/bin $bin
      cp -a usr/lib/locale/C.utf8 $out/lib/locale
      # These, which only linkers read, lie beside the libraries.
      echo "GROUP ( $out/lib/libc.so.6 AS_NEEDED ( $out/lib/ld-linux-x86-64.so.2 ) )" > $out/lib/libc.so
      echo "GROUP ( $out/lib/libm.so.6 AS_NEEDED ( $out/lib/libmvec.so.1 ) )" > $out/lib/libm.so
    '';
  };

  program =
    attributes:
    debian (
      {
        loader = glibc;
      }
      // attributes
    );

  gccLibraries = program {
    name = "gcc-lib";
    packages = "libstdc++6 libgcc-s1 libgomp1";
    # NOTE: the loader of nixpkgs finds glibc's libraries beside itself; Debian's does not.
    install = "ln -s ${glibc}/lib/*.so.* $out/lib";
  };

  zlib = program {
    name = "zlib";
    packages = "zlib1g";
  };

  python =
    version:
    program {
      name = "python3-${version}";
      packages = toString [
        "python${version}-minimal"
        "python${version}-venv"
        "python3-pip-whl"
        "python3-setuptools-whl"
        "libpython${version}-minimal"
        "libpython${version}-stdlib"
        "libpython${version}"
        "libpython${version}-dev"
        "libbz2-1.0"
        "libcrypt1"
        "libdb5.3"
        "libexpat1"
        "libffi8"
        "liblzma5"
        "libncursesw6"
        "libnsl2"
        "libreadline8"
        "libsqlite3-0"
        "libssl3"
        "libtinfo6"
        "libtirpc3"
        "libuuid1"
      ];
      libraries = [ zlib ];
      install = ''
        cp -a usr/lib/python${version} $out/lib
        rm -rf $out/lib/python${version}/{__pycache__,config-*,test} $out/lib/*.a
        # NOTE: nothing may change in the store, and Nix without a sandbox does not keep root from it.
        rm $out/lib/python${version}/sitecustomize.py
        echo 'import sys; sys.dont_write_bytecode = True' > $out/lib/python${version}/sitecustomize.py
        mkdir $out/share
        cp -a usr/share/python-wheels $out/share
        sed -i "s|sysconfig.get_config_var('WHEEL_PKG_DIR')|'$out/share/python-wheels'|" \
          $out/lib/python${version}/ensurepip/__init__.py
        mkdir $out/include
        cp -a usr/include/python${version} $out/include
        cp -a usr/include/x86_64-linux-gnu/python${version}/pyconfig.h $out/include/python${version}
        ln -s python${version} $out/bin/python3
      '';
    };

  gcc = program {
    name = "gcc";
    packages = toString [
      "gcc-12"
      "cpp-12"
      "libgcc-12-dev"
      "binutils-x86-64-linux-gnu"
      "libbinutils"
      "libctf0"
      "libctf-nobfd0"
      "libc6"
      "libc6-dev"
      "libgcc-s1"
      "libgmp10"
      "libisl23"
      "libjansson4"
      "libmpc3"
      "libmpfr6"
      "libzstd1"
      "linux-libc-dev"
    ];
    libraries = [ zlib ];
    install = ''
      rm -rf $out/bin/* $out/lib/*
      cp -a usr lib lib64 $out
      cp -a usr/lib/x86_64-linux-gnu/lib*.so* $out/lib
      # Debian's absolute links, of its loader too, would lead out of here.
      find $out -lname '/*' -exec sh -c 'ln -sf "$1$(readlink "$2")" "$2"' - $out {} \;
      # By these names it looks for them.
      mkdir $out/tools
      for tool in as ld; do
          ln -s ../usr/bin/x86_64-linux-gnu-$tool $out/tools/$tool
      done
      printf '#!/bin/sh\nexec %s --sysroot=%s -B %s "$@"\n' \
        $out/usr/bin/x86_64-linux-gnu-gcc-12 $out $out/tools/ > $out/bin/gcc
      chmod +x $out/bin/gcc
    '';
  };

  # What only images need that can't be built here, for want of NVIDIA's files.
  absent = name: runCommand name { } "mkdir -p $out/bin $out/lib";
in
{
  inherit (functions)
    closureInfo
    fetchurl
    lib
    mkShell
    runCommand
    writeShellScriptBin
    writeText
    ;
  inherit gcc glibc zlib;
  stdenv.cc.cc.lib = gccLibraries;

  bash = program {
    name = "bash";
    packages = "bash libtinfo6";
    install = "rm -f $out/bin/*bug; ln -s bash $out/bin/sh";
  };
  coreutils = program {
    name = "coreutils";
    packages = "coreutils libacl1 libattr1 libgmp10 libpcre2-8-0 libselinux1";
  };
  tini = program {
    name = "tini";
    packages = "tini";
  };
  cacert = debian {
    name = "cacert";
    packages = "ca-certificates";
    install = ''
      rm -rf $out/bin $out/lib
      mkdir -p $out/etc/ssl/certs
      cat usr/share/ca-certificates/mozilla/*.crt > $out/etc/ssl/certs/ca-bundle.crt
    '';
  };
  python310 = absent "python310";
  python311 = python "3.11";
  openmpi = absent "openmpi";

  binutils = host "readelf";
  gnumake = host "make";
  gnutar = host "tar";
  jq = hostOutputs "jq" [
    "bin"
    "out"
  ];
  nixfmt-tree = host "treefmt";
  pigz = host "pigz";
  shellcheck = host "shellcheck";
  skopeo = host "skopeo";
}
