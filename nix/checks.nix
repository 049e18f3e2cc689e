# What `nix flake check` tries: the evaluation tests, and the shell scripts.
{
  runCommand,
  shellcheck,
  images,
  wheel,
}:

let
  tests = import ../tests/nix/evaluation.nix { inherit images wheel; };
  failed = builtins.filter (name: tests.${name}.expr != tests.${name}.expected) (builtins.attrNames tests);
  tell =
    name:
    let
      show = value: builtins.toJSON value;
    in
    "${name}: ${show tests.${name}.expr} is not ${show tests.${name}.expected}";
in
{
  evaluation =
    if failed == [ ] then
      runCommand "evaluation-tests" { count = builtins.length (builtins.attrNames tests); } ''
        echo "$count tests passed" > $out
      ''
    else
      throw (builtins.concatStringsSep "\n" (map tell failed));

  scripts = runCommand "shell-scripts" { nativeBuildInputs = [ shellcheck ]; } ''
    shellcheck --shell=bash --severity=warning --exclude=SC2154 ${./build}/*.sh
    touch $out
  '';
}
