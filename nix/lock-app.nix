# The program that renews a lock: nix run .#lock -- tensorrt-llm 0.16.0
{
  writeShellScriptBin,
  python310,
  python311,
}:

writeShellScriptBin "lock" ''
  # It writes, so it works on the checkout it is called in, not on the store's copy.
  if [ ! -f nix/locks/stacks.json ]; then
      echo "lock: call it where flake.nix is, in a checkout of cog-triton" >&2
      exit 2
  fi
  PATH=${python310}/bin:${python311}/bin:$PATH exec python3.11 -m nix.lock "$@"
''
